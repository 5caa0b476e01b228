//! The open file of a pipe or FIFO.

use alloc::{format, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::{
        general::{O_DIRECT, O_NONBLOCK},
        ioctl::FIONREAD,
    },
};
use fbuf::{Sink, Source};
use fs::{Asynchronous, Attributes, File, Kind, Location, Mount, OpenFlags, Ready, Vnode, vnode};
use nucleus::{VirtAddr, task::Watch, user};

use super::{fifo::open_pipe, queue::Pipe, state::Ends};

/// The device number that pipes without a name show.
const PIPE_DEVICE: u64 = 0xb;

/// One or both ends of a pipe.
pub struct End {
    pipe: Arc<Pipe>,
    ends: Ends,
    /// What can be ready at these ends.
    mask: Ready,
    /// The writers ever opened, as of the opening of this end: without a later one a FIFO has
    /// not hung up but only not begun.
    writers_seen: AtomicU64,
    /// The name of a FIFO.
    location: Option<Location>,
}

/// Makes a pipe that belongs to this user and group; returns its reading and its writing end.
///
/// # Errors
/// `ENFILE` beyond the hard limit of the process's user, `ENOMEM`.
pub fn pair(owner: (u32, u32)) -> Result<(Arc<End>, Arc<End>)> {
    let pipe = Pipe::owned_by(owner)?;
    let read = End::new(&pipe, true, false, None);
    let write = End::new(&pipe, false, true, None);
    Ok((read, write))
}

impl End {
    /// Opens ends of a pipe, which counts them until they are dropped.
    pub(super) fn new(
        pipe: &Arc<Pipe>,
        reads: bool,
        writes: bool,
        location: Option<Location>,
    ) -> Arc<End> {
        let ends = Ends { reads, writes };
        let before = pipe.open(ends);
        let writers_seen = if reads && before.writers == 0 {
            before.writers_seen
        } else {
            0
        };
        let mut mask = Ready::empty();
        if reads {
            mask |= Ready::IN | Ready::RDNORM | Ready::HUP;
        }
        if writes {
            mask |= Ready::OUT | Ready::WRNORM | Ready::ERR;
        }
        Arc::new(End {
            pipe: pipe.clone(),
            ends,
            mask,
            writers_seen: AtomicU64::new(writers_seen),
            location,
        })
    }

    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }

    /// Registers an observer, then looks under the lock: a writer that takes the lock later sees
    /// the registration.
    #[cold]
    fn register<'a>(&'a self, watch: &mut dyn Watch<'a>) -> Ready {
        if self.ends.reads {
            watch.add(&self.pipe.readers);
        }
        if self.ends.writes {
            watch.add(&self.pipe.writers);
        }
        self.pipe.ready_locked()
    }

    /// Returns what is ready at a reading end without a writer: `HUP` only if there was one since
    /// this end was opened.
    #[cold]
    fn without_writers(&self, ready: Ready) -> Ready {
        let status = self.pipe.status();
        // One look gives both: bytes that the last writer left are not missed.
        let mut now = ready - (Ready::IN | Ready::RDNORM | Ready::HUP);
        if status.bytes > 0 {
            now |= Ready::IN | Ready::RDNORM;
        }
        if status.writers == 0 && status.writers_seen != self.writers_seen.load(Relaxed) {
            now |= Ready::HUP;
        }
        now
    }

    /// Notes that a reader and a writer have met: from now on no writer means that it is gone.
    pub(super) fn has_met(&self) {
        self.writers_seen.store(0, Relaxed);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.pipe.close(self.ends);
    }
}

impl File for End {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        self.pipe.read(!flags.has(O_NONBLOCK), to)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        self.pipe
            .write(!flags.has(O_NONBLOCK), flags.has(O_DIRECT), from)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        let ready = match watch {
            None => self.pipe.ready(),
            Some(watch) => self.register(watch),
        } & self.mask;
        match ready.contains(Ready::HUP) {
            true => self.without_writers(ready),
            false => ready,
        }
    }

    #[inline]
    fn ready_now(&self) -> Option<Ready> {
        let ready = self.pipe.ready() & self.mask;
        (!ready.contains(Ready::HUP)).then_some(ready)
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Named
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            FIONREAD => {
                let bytes = self.pipe.status().bytes as i32;
                user::write(argument, &bytes)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes(&self.pipe))
    }

    fn reopen(&self) -> Option<Location> {
        let nameless = Nameless {
            pipe: self.pipe.clone(),
        };
        Some(Mount::nameless(Arc::new(nameless), "pipefs"))
    }

    fn describe(&self) -> Vec<u8> {
        format!("pipe:[{}]", self.pipe.inode).into_bytes()
    }
}

/// The vnode of a pipe without a name, made for a path through `/proc/PID/fd`.
struct Nameless {
    pipe: Arc<Pipe>,
}

impl Vnode for Nameless {
    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes(&self.pipe))
    }

    fn kind(&self) -> Kind {
        Kind::Fifo
    }

    fn open(self: Arc<Self>, _: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        open_pipe(&self.pipe, None, flags).map(Some)
    }
}

impl vnode::Directory for Nameless {}

impl vnode::FileData for Nameless {}

fn attributes(pipe: &Pipe) -> Attributes {
    let (uid, gid) = pipe.owner;
    Attributes {
        uid,
        gid,
        device: PIPE_DEVICE,
        inode: pipe.inode,
        ..Attributes::of(Kind::Fifo, 0o600, pipe.created)
    }
}
