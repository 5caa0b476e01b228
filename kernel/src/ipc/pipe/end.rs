//! The open file of a pipe or FIFO.

use alloc::{format, sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::{
        general::{O_DIRECT, O_NONBLOCK},
        ioctl::FIONREAD,
    },
};
use fbuf::{Sink, Source};
use fs::{Asynchronous, Attributes, File, Kind, Location, Mount, OpenFlags, Ready, Vnode, vnode};
use nucleus::{VirtAddr, task::Watch, time, user};

use super::{
    fifo::open_pipe,
    queue::{Ends, Pipe},
};

/// The device number of the file system in which nameless pipes seem to be.
const PIPE_DEVICE: u64 = 0xb;

/// One or both ends of a pipe.
pub struct End {
    pipe: Arc<Pipe>,
    ends: Ends,
    /// What can be ready at these ends.
    mask: Ready,
    /// How many writers there had ever been when this was opened: without a later one a FIFO
    /// has not hung up but only not begun.
    writers_seen: AtomicU64,
    /// The name of a FIFO.
    location: Option<Location>,
    /// Since the epoch, when it was made.
    created: Duration,
}

/// A new pipe: its reading and its writing end.
///
/// # Errors
/// `ENOMEM`.
pub fn pair() -> Result<(Arc<End>, Arc<End>)> {
    let pipe = Pipe::new()?;
    let read = End::new(&pipe, true, false, None);
    let write = End::new(&pipe, false, true, None);
    Ok((read, write))
}

impl End {
    /// Opens ends of a pipe. The counts of the pipe rise now and fall when the end is dropped.
    pub(super) fn new(
        pipe: &Arc<Pipe>,
        reads: bool,
        writes: bool,
        location: Option<Location>,
    ) -> Arc<End> {
        let ends = Ends { reads, writes };
        let status = pipe.status();
        let writers_seen = if reads && status.writers == 0 {
            status.writers_seen
        } else {
            0
        };
        pipe.open(ends);
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
            created: time::since_epoch(),
        })
    }

    /// The pipe.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }

    /// Which ends this is.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Adds what tells of changes. Its look is under the lock: a writer that takes the lock later sees the
    /// registration.
    #[cold]
    fn register<'a>(&'a self, watch: &mut dyn Watch<'a>) -> Ready {
        if self.ends.reads {
            watch.add(self.pipe.readers());
        }
        if self.ends.writes {
            watch.add(self.pipe.writers());
        }
        self.pipe.lock().ready()
    }

    /// What is ready at a reading end that seems to have no writer: `HUP` only if one was there since it was opened.
    #[cold]
    fn without_writers(&self, ready: Ready) -> Ready {
        let status = self.pipe.status();
        // What the reader sees is of one look: bytes that a writer left before it went are not missed.
        let mut now = ready - (Ready::IN | Ready::RDNORM | Ready::HUP);
        if status.bytes > 0 {
            now |= Ready::IN | Ready::RDNORM;
        }
        if status.writers == 0 && status.writers_seen != self.writers_seen.load(Relaxed) {
            now |= Ready::HUP;
        }
        now
    }

    /// A reader and a writer have met here: from now on no writer means that they are gone.
    pub(super) fn has_met(&self) {
        self.writers_seen.store(0, Relaxed);
    }

    /// The pipe end that an open file is.
    pub fn of(file: &dyn File) -> Option<&End> {
        (file as &dyn core::any::Any).downcast_ref()
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
        let wait = !flags.has(O_NONBLOCK);
        match flags.has(O_DIRECT) {
            true => self.pipe.write_packets(wait, from),
            false => self.pipe.write(wait, from),
        }
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

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Named
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            FIONREAD => {
                let bytes = self.pipe.status().bytes as i32;
                user::write(argument, &bytes).map_err(|_| Errno::EFAULT)?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn location(&self) -> Option<&Location> {
        self.location.as_ref()
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes(&self.pipe, self.created))
    }

    fn reopen(&self) -> Option<Location> {
        let nameless = Nameless {
            pipe: self.pipe.clone(),
            created: self.created,
        };
        Some(Mount::nameless(Arc::new(nameless), "pipefs"))
    }

    fn describe(&self) -> Vec<u8> {
        format!("pipe:[{}]", self.pipe.inode()).into_bytes()
    }
}

/// The vnode of a pipe without a name, made when somebody goes through `/proc/PID/fd`.
struct Nameless {
    pipe: Arc<Pipe>,
    created: Duration,
}

impl Vnode for Nameless {
    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes(&self.pipe, self.created))
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

fn attributes(pipe: &Pipe, created: Duration) -> Attributes {
    Attributes {
        device: PIPE_DEVICE,
        inode: pipe.inode(),
        kind: Kind::Fifo,
        mode: 0o600,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        accessed: created,
        modified: created,
        changed: created,
        created,
    }
}
