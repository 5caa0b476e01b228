//! Fbufs by plain requests: what programs see of paths, messages, and the region.

mod raw;

use raw::{Path, *};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: a message and its notice, each mode", each_mode),
    ("fbufs: cached and volatile costs nothing", costs_nothing),
];

/// A line between two processes, each message one byte.
struct Line {
    from: c_int,
    to: c_int,
}

impl Line {
    fn pair() -> Result<(Line, Line)> {
        let (from_child, to_parent) = pipe(0)?;
        let (from_parent, to_child) = pipe(0)?;
        let line = |from, to| Line { from, to };
        Ok((line(from_child, to_child), line(from_parent, to_parent)))
    }

    fn tell(&self) -> Outcome {
        equal!(call!(write(self.to, [1u8].as_ptr().cast(), 1)), 1);
        Ok(())
    }

    fn hear(&self) -> Outcome {
        let mut byte = 0u8;
        let count = call!(read(self.from, (&raw mut byte).cast(), 1));
        ensure!(count == 1, "the other side has failed");
        Ok(())
    }
}

/// A receiver in a process of its own.
struct Receiver {
    child: pid_t,
    line: Line,
}

impl Receiver {
    /// Starts a child that attaches to the path, and then runs `body` with its end of a line.
    fn start(path: &Path, body: impl FnOnce(&Path, &Line) -> Outcome) -> Result<Self> {
        let (ours, theirs) = Line::pair()?;
        let child = spawn(|| {
            call!(close(ours.from));
            call!(close(ours.to));
            path.join()?;
            theirs.tell()?;
            body(path, &theirs)
        })?;
        call!(close(theirs.from));
        call!(close(theirs.to));
        let receiver = Self { child, line: ours };
        receiver.line.hear()?;
        Ok(receiver)
    }

    fn end(self) -> Outcome {
        wait_ok(self.child)?;
        call!(close(self.line.from));
        call!(close(self.line.to));
        Ok(())
    }

    fn kill(self) -> Outcome {
        equal!(kill_child(self.child)?, End::Signal(SIGKILL));
        call!(close(self.line.from));
        call!(close(self.line.to));
        Ok(())
    }
}

const LEN: usize = 3 * PAGE;

/// A leaf at the start of the chunk, with data from its second page on.
fn prepare(chunk: *mut u8, value: u8) {
    let data = chunk.wrapping_add(PAGE);
    fill(data, LEN, value);
    set_leaf(chunk, data, LEN);
}

/// The pages of such a leaf and its data.
fn pages_of(chunk: *mut u8) -> [usize; 2] {
    [chunk as usize, chunk as usize + PAGE + LEN]
}

fn each_mode() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for round in 1..20u8 {
                let message = path.receive()?;
                equal!((message.bytes, message.notices), (LEN as u64, 0));
                check_leaf(message.root, LEN, round)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        for round in 1..20u8 {
            prepare(chunk, round);
            let (_, notices) = path.send(chunk)?;
            equal!(notices, 0, mode);
            receiver.line.hear()?;
            equal!(path.notices()?, [pages_of(chunk)], mode, round);
        }
        equal!(path.notices()?.len(), 0);
        receiver.end()?;
        path.shrink(chunk)?;
    }
    Ok(())
}

const COSTS: [&str; 6] = [
    "fault_object",
    "fault_anon",
    "fault_pager",
    "fbuf_grants",
    "fbuf_revocations",
    "fbuf_secured",
];

fn costs() -> Result<Vec<u64>> {
    COSTS.into_iter().map(counter).collect()
}

/// After the first round a transfer changes no page table.
fn costs_nothing() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    let receiver = Receiver::start(&path, |path, line| {
        for round in 1..=2u8 {
            for _ in 0..50 {
                let message = path.receive()?;
                check_leaf(message.root, LEN, round)?;
                path.free(message.id)?;
                line.tell()?;
            }
        }
        Ok(())
    })?;
    let rounds = |value: u8| -> Outcome {
        for _ in 0..50 {
            prepare(chunk, value);
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        Ok(())
    };
    rounds(1)?;
    let _ = costs()?;
    let before = costs()?;
    rounds(2)?;
    let after = costs()?;
    receiver.end()?;
    equal!(after, before, COSTS);
    Ok(())
}
