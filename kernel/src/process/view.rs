//! What one process may see of another.
//!
//! A program may execute a set-id program, or give up its rights, at any time, and its threads
//! replace their resources one by one. A check therefore judges the resources that are used:
//! [`View::of`] takes the resources of one moment (credentials, address space and its dumpability,
//! files, places), judges these, and returns them. There is no other way from outside this module's
//! parent to the memory or files of a thread that is not the current one; [`Facts`] are the numbers
//! that everybody may know.
//!
//! - An address space belongs to one program: `execve` makes a new one. A view's space therefore
//!   stays what was judged, whatever its process executes meanwhile.
//! - A table of files, the places, and the words of a thread live on through `execve`. They are
//!   asked for by [`View::while_same`], which looks again afterwards: the same space, and still
//!   permitted, or the question is put anew.
//! - What a process could do to a target just before its `execve` with the same effect (signals,
//!   limits, scheduling: they outlive it) needs no view; the credentials of any moment will do.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::Location;
use nucleus::{VirtAddr, VirtRange};
use vm::Map;

use super::{
    Credentials, FsContext, Ids, Process, Shared, Space, Thread,
    files::{FileTable, OpenFile},
    thread,
};

/// The resources of a thread at the moment at which the caller was permitted to see them.
pub struct View {
    thread: Arc<Thread>,
    judge: Judge,
    shared: Shared,
}

/// The caller, as it was when it asked first.
struct Judge {
    ids: Ids,
    /// `None`: the kernel itself.
    caller: Option<(Arc<Process>, Arc<Credentials>)>,
}

impl Judge {
    /// # Errors
    /// `EPERM` for a thread that has given its credentials up: it ends.
    fn current(ids: Ids) -> Result<Judge> {
        let caller = thread::with_current(|me| {
            let credentials = me.credentials().ok_or(Errno::EPERM)?;
            Ok::<_, Errno>((me.process().clone(), credentials))
        });
        Ok(Judge {
            ids,
            caller: caller.transpose()?,
        })
    }

    /// Returns the resources that `thread` has now.
    ///
    /// # Errors
    /// `EPERM`; `ESRCH` for a thread without any: it has ended, or is the kernel's.
    fn look(&self, thread: &Thread) -> Result<Shared> {
        self.look_at(thread, Shared::clone)
    }

    /// As [`look`](Judge::look) for what `part` takes of them.
    fn look_at<T>(&self, thread: &Thread, part: impl FnOnce(&Shared) -> T) -> Result<T> {
        let judged = thread.with_shared(|shared| {
            let may = self.caller.as_ref().is_none_or(|(process, own)| {
                Arc::ptr_eq(process, thread.process())
                    || own.may_inspect(self.ids, &shared.credentials, shared.space.is_dumpable())
            });
            may.then(|| part(shared)).ok_or(Errno::EPERM)
        });
        judged.ok_or(Errno::ESRCH)?
    }
}

/// A resource that threads may share (`kcmp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Memory,
    Files,
    FsContext,
    SignalActions,
}

impl View {
    /// Judges whether the current thread may look into `thread`, and returns what it had at that
    /// moment. A task of the kernel may.
    ///
    /// # Errors
    /// `EPERM`; `ESRCH` for a thread without resources: it has ended, or is the kernel's.
    pub fn of(thread: &Arc<Thread>, ids: Ids) -> Result<View> {
        let judge = Judge::current(ids)?;
        let shared = judge.look(thread)?;
        Ok(View {
            thread: thread.clone(),
            judge,
            shared,
        })
    }

    /// Returns only the address space of [`View::of`]: less to hold, where nothing else is asked.
    ///
    /// # Errors
    /// Those of [`View::of`].
    pub fn space_of(thread: &Thread, ids: Ids) -> Result<Arc<Space>> {
        Judge::current(ids)?.look_at(thread, |shared| shared.space.clone())
    }

    /// The address space, which is that of the program that was judged.
    pub fn space(&self) -> &Arc<Space> {
        &self.shared.space
    }

    /// Returns what `ask` finds out while the thread runs in one address space and may be looked
    /// into. A question that an `execve` has overtaken is put anew: each one costs the target more
    /// than another turn here.
    ///
    /// # Errors
    /// Those of [`View::of`], if the thread may not be looked into any more.
    pub fn while_same<T>(&self, mut ask: impl FnMut(&Thread) -> T) -> Result<T> {
        self.settled(|_| ask(&self.thread))
    }

    fn settled<T>(&self, mut ask: impl FnMut(&Shared) -> T) -> Result<T> {
        let mut before = self.judge.look(&self.thread)?;
        loop {
            let answer = ask(&before);
            let after = self.judge.look(&self.thread)?;
            if Arc::ptr_eq(&before.space, &after.space) {
                return Ok(answer);
            }
            before = after;
        }
    }

    /// Returns the open file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`, and those of [`View::while_same`].
    pub fn file(&self, fd: i32) -> Result<Arc<OpenFile>> {
        self.settled(|shared| shared.files.get(fd))?
    }

    /// Returns the first descriptor in use from `from` on.
    ///
    /// # Errors
    /// Those of [`View::while_same`].
    pub fn next_descriptor(&self, from: usize) -> Result<Option<usize>> {
        self.settled(|shared| shared.files.next(from))
    }

    /// Returns the working directory.
    ///
    /// # Errors
    /// Those of [`View::while_same`].
    pub fn cwd(&self) -> Result<Location> {
        self.settled(|shared| shared.fs.cwd())
    }

    /// Returns the root directory.
    ///
    /// # Errors
    /// Those of [`View::while_same`].
    pub fn root(&self) -> Result<Location> {
        self.settled(|shared| shared.fs.root())
    }

    /// Where a part lies: the same for threads that share it, as long as both views are there.
    pub fn place_of(&self, part: Part) -> usize {
        fn place<T>(part: &Arc<T>) -> usize {
            Arc::as_ptr(part).addr()
        }
        match part {
            Part::Memory => place(self.shared.space.map()),
            Part::Files => place::<FileTable>(&self.shared.files),
            Part::FsContext => place(&self.shared.fs),
            Part::SignalActions => place(&self.thread.process().signals.actions()),
        }
    }
}

/// Facts about a thread that has not ended, which every process may know.
pub struct Facts(Shared);

impl Facts {
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.0.credentials
    }

    /// The user and group that own the files about it: root's, where its user may not look into it.
    pub fn owner(&self) -> (u32, u32) {
        match self.0.space.is_dumpable() {
            true => self.user(),
            false => (0, 0),
        }
    }

    /// The user and group that it acts as.
    pub fn user(&self) -> (u32, u32) {
        let who = &self.0.credentials;
        (who.effective_uid, who.effective_gid)
    }

    /// The directory below which it sees mounts.
    pub fn reaches(&self) -> Location {
        self.0.fs.root()
    }

    pub fn umask(&self) -> u32 {
        self.0.fs.umask()
    }

    /// How many descriptors its table has room for.
    pub fn descriptors(&self) -> usize {
        self.0.files.size()
    }

    /// The sizes of its memory.
    pub fn sizes(&self) -> vm::Sizes {
        self.map().sizes()
    }

    /// Its pages in swap space.
    pub fn swapped(&self) -> usize {
        self.map().swapped()
    }

    /// The bytes of its program's code.
    pub fn code_len(&self) -> usize {
        self.0.space.layout.code.len()
    }

    fn map(&self) -> &Map {
        self.0.space.map()
    }

    /// Passes its title to `take`, a piece at a time: the argument strings, or the text that the
    /// program has written over them.
    pub fn title(&self, mut take: impl FnMut(&[u8])) {
        let range = self.title_range();
        read_strings(self.map(), range, &mut take);
    }

    /// Returns where the title stands. If the last byte of the argument strings is no longer the
    /// NUL that ends them, it is the string that begins there, which may go on where the
    /// environment was (`setproctitle`).
    fn title_range(&self) -> VirtRange {
        /// Longer ones are cut off there.
        const LONGEST: usize = nucleus::PAGE_SIZE;
        let (map, layout) = (self.map(), &self.0.space.layout);
        let (arguments, environment) = (layout.arguments, layout.environment);
        let mut last = [0];
        if arguments.is_empty() || map.read(arguments.end - 1, &mut last) == 0 || last == [0] {
            return arguments;
        }
        let room = if environment.start == arguments.end {
            environment.end - arguments.start
        } else {
            arguments.end - arguments.start
        };
        let mut text = [0; 256];
        let mut length = 0;
        while length < room.min(LONGEST) {
            let piece = text.len().min(room - length);
            let n = map.read(arguments.start + length, &mut text[..piece]);
            if let Some(nul) = text[..n].iter().position(|&byte| byte == 0) {
                length += nul + 1;
                break;
            }
            length += n;
            if n < piece {
                break;
            }
        }
        VirtRange::new(arguments.start, arguments.start + length)
    }
}

/// Passes the bytes of a range to `take`, up to the first page that is not there.
pub fn read_strings(map: &Map, range: VirtRange, take: &mut dyn FnMut(&[u8])) {
    let mut piece = [0; 512];
    let mut at: VirtAddr = range.start;
    while at < range.end {
        let want = piece.len().min(range.end - at);
        let n = map.read(at, &mut piece[..want]);
        take(&piece[..n]);
        if n < want {
            break;
        }
        at = at + n;
    }
}

impl Thread {
    /// Returns what everybody may know about it; `None` when it has ended.
    pub fn facts(&self) -> Option<Facts> {
        self.shared().map(Facts)
    }
}

impl Process {
    /// Whether threads of other processes have the places of one of this process's. While threads
    /// of the process come and go the answer may be wrong.
    pub fn shares_fs_context(&self, places: &Arc<FsContext>) -> bool {
        let has_them = |thread: &Arc<Thread>| {
            let shared = thread.shared();
            shared.is_some_and(|shared| Arc::ptr_eq(&shared.fs, places))
        };
        let own = self.threads().filter(has_them).count();
        places.sharers().count() > own
    }
}

/// The root directory has moved from `old` to `new`: processes with the old one as their root or
/// working directory move along (`pivot_root`).
pub fn follow_root(old: &Location, new: &Location) {
    for process in Process::by_id() {
        for thread in process.threads() {
            let Some(shared) = thread.shared() else {
                continue;
            };
            if shared.fs.root().same(old) {
                shared.fs.set_root(new.clone());
            }
            if shared.fs.cwd().same(old) {
                shared.fs.set_cwd(new.clone());
            }
        }
    }
}
