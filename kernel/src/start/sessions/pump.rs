//! Bytes between a port and a pipe or a terminal. Whole frames change hands.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, raw::general::O_NONBLOCK};
use fbuf::{Aggregate, AggregateSink, AggregateSource};
use fs::{File, OpenFlags, Ready};
use nucleus::{
    PAGE_SIZE,
    task::{Sleep, WaitSet, Watch},
};
use session::{Stream, ToHost};

use super::{control::Line, state::Session};
use crate::{
    device::ports::{Receiver, Sender, patience},
    ipc::pipe,
    process::Process,
    tty::pty::Master,
};

/// The kernel's end of a program's stream.
#[derive(Clone)]
pub(super) enum End {
    Pipe(Arc<pipe::End>),
    Terminal(Arc<Master>),
}

impl End {
    fn file(&self) -> &dyn File {
        match self {
            End::Pipe(end) => &**end,
            End::Terminal(master) => &**master,
        }
    }

    /// Returns how many bytes of output wait.
    fn unread(&self) -> usize {
        match self {
            End::Pipe(end) => end.pipe().status().bytes,
            End::Terminal(master) => master.unread(),
        }
    }
}

fn no_wait() -> OpenFlags {
    OpenFlags::from_bits_retain(O_NONBLOCK)
}

/// Slices that are taken from a port before they are given on.
const SLICES: usize = 16;

/// Makes room for slices, as soon as there is memory; returns false if the session ends before.
fn make_room(session: &Session, slices: &mut Aggregate, count: usize) -> bool {
    while slices.reserve(count).is_err() {
        if session.is_ending() {
            return false;
        }
        // A deadline is only a reason to look again.
        let rest = Sleep::within(Duration::from_millis(10));
        let _ = session
            .changed
            .wait(rest, || session.is_ending().then_some(()));
    }
    true
}

/// Brings a session's input to `to` until all of it has come; input without a reader is dropped.
pub(super) fn input(session: &Session, line: &Line, from: &mut Receiver, to: End) {
    let mut held = Aggregate::new();
    let mut total = 0;
    bring(session, line, from, &to, &mut held, &mut total);
    // The reader of a pipe sees its end now; a terminal hangs up when its output is over, too.
    drop(to);
    held.clear();
    let queue = from.queue().clone();
    let mut set = WaitSet::new();
    set.add(queue.progress());
    set.add(&session.changed);
    let is_watched = set.check().is_ok();
    while session.input_end().is_none_or(|end| total < end) && !from.is_broken() {
        let has_all = from.refill();
        match from.take() {
            Some(slice) => total += slice.len as u64,
            // The set has noted bytes that came since. A deadline is only a reason to look again.
            None => _ = set.wait(patience(&queue, has_all && is_watched)),
        }
    }
}

/// Brings input until its end, or until it has no reader.
fn bring(
    session: &Session,
    line: &Line,
    from: &mut Receiver,
    to: &End,
    held: &mut Aggregate,
    total: &mut u64,
) {
    let queue = from.queue().clone();
    let file = to.file();
    let mut set = WaitSet::new();
    set.add(queue.progress());
    set.add(&session.changed);
    file.poll(Some(&mut set));
    let is_watched = set.check().is_ok();
    if !make_room(session, held, SLICES) {
        return;
    }
    let is_pipe = matches!(to, End::Pipe(_));
    while !session.takes_no_input() && !from.is_broken() {
        let mut has_memory = from.refill() && is_watched;
        let mut moves = false;
        while held.slice_count() < SLICES
            && let Some(slice) = from.take()
        {
            *total += slice.len as u64;
            moves = true;
            if held.append(slice).is_err() {
                return;
            }
        }
        if !held.is_empty() {
            let len = held.len();
            match file.write(None, no_wait(), &mut AggregateSource::new(held, len)) {
                Ok(written) => moves |= written > 0,
                Err(Errno::EAGAIN) => {}
                Err(Errno::ENOMEM) => has_memory = false,
                Err(_) => break,
            }
        } else if session.input_end().is_some_and(|end| *total >= end) {
            // A terminal stays until its session ends: no key is no end of file.
            if is_pipe {
                return;
            }
        }
        if is_pipe && file.poll(None).contains(Ready::ERR) {
            break;
        }
        if !moves {
            // A deadline is only a reason to look again.
            let _ = set.wait(patience(&queue, has_memory));
        }
    }
    if !session.takes_no_input() && session.wait_until_begun() {
        line.say(&ToHost::InputClosed {
            session: session.number,
        });
    }
}

/// Brings a stream of a session to the host until its end; returns how many bytes it had. With
/// `process`, that one's end is noted in the session meanwhile.
pub(super) fn output(
    session: &Session,
    stream: Stream,
    to: &mut Sender,
    from: End,
    process: Option<&Process>,
) -> u64 {
    let mut sent = 0;
    send(session, stream, to, &from, process, &mut sent);
    // Writers get EPIPE from now on.
    drop(from);
    to.wait(true);
    sent
}

fn send(
    session: &Session,
    stream: Stream,
    to: &mut Sender,
    from: &End,
    process: Option<&Process>,
    sent: &mut u64,
) {
    let queue = to.queue().clone();
    let file = from.file();
    let mut batch = Aggregate::new();
    let mut set = WaitSet::new();
    set.add(queue.progress());
    set.add(&session.changed);
    if let Some(process) = process {
        set.add(&process.end_events);
    }
    file.poll(Some(&mut set));
    let is_watched = set.check().is_ok();
    if !make_room(session, &mut batch, to.max_slices()) {
        return;
    }
    // What may still be read, once the program has ended: what it left.
    let mut left = None;
    let mut is_over = false;
    while !session.is_closed(stream) {
        if let Some(status) = process.and_then(Process::end_status) {
            session.end(status);
        }
        if left.is_none() && session.is_ending() {
            left = Some(from.unread());
        }
        is_over |= left == Some(0);
        let (mut moves, mut has_memory) = (false, is_watched);
        if batch.is_empty() && !is_over {
            let most = (to.max_slices() * PAGE_SIZE).min(left.unwrap_or(usize::MAX));
            let mut sink = AggregateSink::with_slices(&mut batch, most, to.max_slices());
            match file.read(None, no_wait(), &mut sink) {
                Ok(0) => is_over = true,
                Ok(read) => {
                    moves = true;
                    left = left.map(|left| left.saturating_sub(read));
                }
                // Of a terminal that no program has open now.
                Err(Errno::EIO | Errno::EAGAIN) => is_over |= left.is_some(),
                Err(Errno::ENOMEM) => has_memory = false,
                Err(_) => is_over = true,
            }
        }
        if !batch.is_empty() && to.has_room() {
            let before = batch.len();
            has_memory &= to.send(&mut batch).is_ok();
            let gone = before - batch.len();
            *sent += gone as u64;
            moves |= gone > 0;
        }
        if batch.is_empty() && is_over {
            return;
        }
        if !moves {
            // A deadline is only a reason to look again.
            let _ = set.wait(patience(&queue, has_memory));
        }
    }
}
