//! Fbufs by plain requests: what programs see of paths, messages, and the region.

pub mod deaths;
pub mod hostile;
pub mod memory;
pub mod messages;
mod raw;
pub mod refused;
pub mod shown_pages;
pub mod taken;

use raw::{Path, *};
use support::prelude::*;

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

/// A path's descriptor in a message of a socket.
fn send_path(to: &OwnedFd, path: &Path) -> Outcome {
    crate::unix_sockets::rights::send_files(to.as_raw_fd(), b"x", &[path.as_raw_fd()])?;
    Ok(())
}

fn take_path(from: &OwnedFd) -> Result<Path> {
    let files = crate::unix_sockets::rights::take_files(from.as_raw_fd())?;
    let path = files.into_iter().next().ok_or("no descriptor")?;
    Ok(Path(path))
}
