//! A queue of messages by priority.
//!
//! A message goes straight to the process that waits for one longest, or into the queue; one that
//! finds no room waits in a line of its own and moves up when a message is taken. So no later
//! sender overtakes it.

use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use core::cmp::Reverse;

use abi::{Errno, Result};
use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};
use vm::account::Charge;

use super::{Notice, limits::Size};
use crate::{
    ipc::sysv::message::Message,
    process::{Credentials, Handoff, Pid, Process, signal},
};

pub struct Queue {
    /// The limits of its messages.
    pub size: Size,
    state: SpinLock<State>,
    /// Woken when there is a message and there was none, and when there is room and there was none:
    /// for `poll`.
    pub changed: WaitQueue,
    /// What it is charged with; nothing where the kernel makes it.
    _charge: Option<Charge>,
}

#[derive(Default)]
struct State {
    /// Highest priority first, then in the order in which they came.
    messages: BTreeMap<(Reverse<u32>, u64), Message>,
    bytes: usize,
    count: u64,
    receivers: VecDeque<Arc<Receiver>>,
    /// Those without room.
    senders: VecDeque<(u32, Message, Arc<Sender>)>,
    notice: Option<Notice>,
}

/// A receiver that waits: a message, and its priority.
type Receiver = Handoff<(u32, Message)>;

/// A sender that waits until its message is in the queue.
type Sender = Handoff<()>;

/// The figures that the queue's file shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStatus {
    pub bytes: usize,
    /// How a process is told of a message, by which signal, and which it is; zeros if none is.
    pub way: u32,
    pub signal: u32,
    pub pid: Pid,
}

impl State {
    fn insert(&mut self, priority: u32, message: Message) {
        self.count += 1;
        self.bytes += message.len();
        self.messages
            .insert((Reverse(priority), self.count), message);
    }
}

/// Takes a waiter out of its line, if it still is there.
fn withdraw<T>(line: &mut VecDeque<T>, is: impl FnMut(&T) -> bool) -> Option<T> {
    let place = line.iter().position(is)?;
    line.remove(place)
}

impl Queue {
    pub fn new(size: Size, charge: Option<Charge>) -> Arc<Queue> {
        Arc::new(Queue {
            size,
            state: SpinLock::new(Rank::Leaf, State::default()),
            changed: WaitQueue::new(),
            _charge: charge,
        })
    }

    pub fn count(&self) -> usize {
        self.state.lock().messages.len()
    }

    /// Returns the figures that its file shows.
    pub fn status(&self) -> QueueStatus {
        let state = self.state.lock();
        let (way, signal) = state.notice.as_ref().map_or((0, 0), Notice::shown);
        QueueStatus {
            bytes: state.bytes,
            way,
            signal,
            pid: state.notice.as_ref().map_or(0, |notice| notice.pid),
        }
    }

    /// Sends a message of `priority` for process `pid`; waits for room as `how` says, or not at all
    /// without it.
    ///
    /// # Errors
    /// `EAGAIN` (no room), `ETIMEDOUT`, `ENOMEM`, a restart number after a signal.
    pub fn send(
        &self,
        priority: u32,
        message: Message,
        how: Option<Sleep>,
        pid: Pid,
        who: &Credentials,
    ) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(receiver) = state.receivers.pop_front() {
            drop(state);
            receiver.give((priority, message));
            return Ok(());
        }
        if state.messages.len() < self.size.messages {
            let was_empty = state.messages.is_empty();
            state.insert(priority, message);
            let notice = if was_empty { state.notice.take() } else { None };
            drop(state);
            if was_empty {
                self.changed.wake_all();
            }
            if let Some(notice) = notice {
                notice.tell(pid, who);
            }
            return Ok(());
        }
        let how = how.ok_or(Errno::EAGAIN)?;
        state.senders.try_reserve(1)?;
        let sender = Arc::new(Sender::default());
        state.senders.push_back((priority, message, sender.clone()));
        drop(state);
        let Err(why) = sender.wait(how) else {
            return Ok(());
        };
        let mut state = self.state.lock();
        let back = withdraw(&mut state.senders, |(_, _, other)| {
            Arc::ptr_eq(other, &sender)
        });
        drop(state);
        match back {
            Some(_) => Err(signal::woken(why)),
            // It got in meanwhile.
            None => Ok(()),
        }
    }

    /// Takes the first message of the highest priority; waits for one as `how` says, or not at all
    /// without it.
    ///
    /// # Errors
    /// `EAGAIN` (no message), `ETIMEDOUT`, `ENOMEM`, a restart number after a signal.
    pub fn receive(&self, how: Option<Sleep>) -> Result<(u32, Message)> {
        let mut state = self.state.lock();
        if let Some(((Reverse(priority), _), message)) = state.messages.pop_first() {
            state.bytes -= message.len();
            let next = state.senders.pop_front().map(|(priority, next, sender)| {
                state.insert(priority, next);
                sender
            });
            let has_room = state.messages.len() + 1 == self.size.messages;
            drop(state);
            match next {
                Some(sender) => sender.give(()),
                None if has_room => self.changed.wake_all(),
                None => {}
            }
            return Ok((priority, message));
        }
        let how = how.ok_or(Errno::EAGAIN)?;
        state.receivers.try_reserve(1)?;
        let receiver = Arc::new(Receiver::default());
        state.receivers.push_back(receiver.clone());
        drop(state);
        let why = match receiver.wait(how) {
            Ok(got) => return Ok(got),
            Err(why) => why,
        };
        let mut state = self.state.lock();
        let back = withdraw(&mut state.receivers, |other| Arc::ptr_eq(other, &receiver));
        drop(state);
        match back {
            Some(_) => Err(signal::woken(why)),
            // A sender has chosen this one and is about to hand its message over.
            None => receiver.wait(Sleep::SOUND).map_err(signal::woken),
        }
    }

    /// From now on a message that comes into the empty queue is told as `notice` says.
    ///
    /// # Errors
    /// `EBUSY` if another process is registered already.
    pub fn ask(&self, notice: Notice) -> Result<()> {
        let mut state = self.state.lock();
        if state.notice.is_some() {
            drop(state);
            return Err(Errno::EBUSY);
        }
        state.notice = Some(notice);
        Ok(())
    }

    /// Takes back what `process` asked for.
    pub fn forget(&self, process: &Process) {
        let mut state = self.state.lock();
        let notice = match &state.notice {
            Some(notice) if notice.is_of(process) => state.notice.take(),
            _ => None,
        };
        drop(state);
        if let Some(notice) = notice {
            notice.withdraw();
        }
    }
}
