//! Descriptor tables.

use abi::{Errno, Result};
use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nucleus::{
    frame, speculation,
    sync::{OnceBox, Rank, SpinGuard, SpinLock},
    task::WaitQueue,
};

use vm::account::{self, Account, Kind};

use super::{
    OpenFile, locks,
    open::FILE_BYTES,
    slots::{FIRST_SIZE, Marks, Slots, charge},
};
use crate::process::sharers::Sharers;

/// More than most programs use.
const STEP: usize = 16;
/// Descriptors and words of bits that are looked at or copied at most before the lock of a table is
/// released for a moment: some microseconds.
const PIECE: usize = 512;
/// No limit lets a table grow beyond this (`NR_OPEN` of Linux).
const LARGEST: usize = 1 << 20;

/// Finds open files that only each other lead to. The sockets that can carry files register it.
#[derive(Clone, Copy)]
pub struct Collector {
    /// Whether the close of a file may leave others unreachable.
    pub may_leave_garbage: fn(&Arc<OpenFile>) -> bool,
    /// Has garbage looked for soon.
    pub collect: fn(),
}

/// Empty until the first socket that can carry files is made.
static COLLECTOR: OnceBox<Collector> = OnceBox::new();

/// Registers the collector; later ones are ignored.
pub fn set_collector(collector: Collector) {
    if COLLECTOR.get().is_none() {
        COLLECTOR.get_or_insert(|| Box::new(collector));
    }
}

/// The descriptor table of a process (or of several, `CLONE_FILES`).
pub struct FileTable {
    /// Held for a few instructions, or while a [`PIECE`] is copied; never while an open file is
    /// closed or memory is allocated.
    slots: SpinLock<Slots>,
    /// Open files of descriptors below are charged to the table.
    covered: AtomicUsize,
    /// Changes of a table that is [`Frozen`] wait here.
    thawed: WaitQueue,
    /// Whose record locks on a file end with each close of it.
    ownership: locks::Ownership,
    sharers: Sharers,
}

/// A descriptor that is taken and refers to nothing yet. Dropping it gives it back.
pub struct Reservation<'a> {
    table: &'a FileTable,
    pub fd: usize,
}

impl Reservation<'_> {
    /// Makes the descriptor refer to `open`.
    pub fn install(self, open: Arc<OpenFile>, close_on_exec: bool) -> usize {
        self.table.charge_file(self.fd, &open);
        let mut slots = self.table.change();
        slots.files[self.fd] = Some(open);
        slots.set_close_on_exec(self.fd, close_on_exec);
        drop(slots);
        let fd = self.fd;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.table.change().release(self.fd);
    }
}

impl FileTable {
    pub fn new() -> Arc<FileTable> {
        Arc::new(FileTable::with(Slots::default()))
    }

    fn with(slots: Slots) -> FileTable {
        FileTable {
            slots: SpinLock::new(Rank::Leaf, slots),
            covered: AtomicUsize::new(0),
            thawed: WaitQueue::new(),
            ownership: locks::Ownership::new(),
            sharers: Sharers::default(),
        }
    }

    /// The threads that have it.
    pub fn sharers(&self) -> &Sharers {
        &self.sharers
    }

    /// A thread has it no longer. The last one closes all: what a close does for a process must not
    /// be done for one that happens to look at the table then.
    pub(in crate::process) fn leave(&self) {
        if self.sharers.leave() {
            self.close_all();
        }
    }

    /// Locks the slots for a change, after a copy that may be in progress. May sleep.
    #[inline]
    fn change(&self) -> SpinGuard<'_, Slots> {
        let slots = self.slots.lock();
        if slots.frozen == 0 {
            return slots;
        }
        drop(slots);
        self.change_later()
    }

    #[cold]
    fn change_later(&self) -> SpinGuard<'_, Slots> {
        loop {
            let is_thawed = || (self.slots.lock().frozen == 0).then_some(());
            self.thawed.wait_soundly(is_thawed);
            let slots = self.slots.lock();
            if slots.frozen == 0 {
                return slots;
            }
        }
    }

    /// Copies open files to the same descriptors of `to`, which has room for them, from the word
    /// `first` of the bits on. Returns the word where the next piece begins.
    fn copy_piece(slots: &Slots, to: &mut Slots, first: usize) -> usize {
        let mut work = 0;
        // Few of a table are in use, mostly: one look for each 64.
        let words = slots.marks.len().min(to.marks.len());
        for word in first..words {
            if work >= PIECE {
                return word;
            }
            let marks = slots.marks[word];
            work += 1 + marks.used.count_ones() as usize;
            let mut left = marks.used;
            let mut used = to.marks[word].used;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let fd = word * 64 + bit as usize;
                to.files[fd].clone_from(&slots.files[fd]);
                // Reserved descriptors are free in the copy.
                used |= u64::from(to.files[fd].is_some()) << bit;
            }
            let close_on_exec = marks.close_on_exec & used;
            to.marks[word] = Marks {
                used,
                close_on_exec,
            };
        }
        words
    }

    /// A copy with the same open files (`fork`, `execve` and `unshare` of a shared table). May
    /// sleep.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self) -> Result<Arc<FileTable>> {
        loop {
            let size = self.slots.lock().files.len();
            let mut copy = Slots::with_size(size)?;
            let slots = self.slots.lock();
            if slots.files.len() != size {
                continue;
            }
            match FileTable::copy_piece(&slots, &mut copy, 0) {
                all if all == slots.marks.len() => drop(slots),
                some => drop(self.copy_rest(slots, &mut copy, some)),
            }
            return Ok(Arc::new(FileTable::with(copy)));
        }
    }

    /// Copies open files to `to`, which has room for them, from the word `next` of the bits on.
    /// Lets nothing change until the result is dropped; another copy may be in progress.
    fn copy_rest(
        &self,
        mut slots: SpinGuard<'_, Slots>,
        to: &mut Slots,
        mut next: usize,
    ) -> Frozen<'_> {
        let words = slots.marks.len();
        slots.frozen += 1;
        drop(slots);
        let frozen = Frozen(self);
        while next < words {
            next = FileTable::copy_piece(&self.slots.lock(), to, next);
        }
        frozen
    }

    /// Has `open`, which descriptor `fd` is about to refer to, charged to the current process.
    #[inline]
    fn charge_file(&self, fd: usize, open: &OpenFile) {
        if fd >= FIRST_SIZE {
            open.charge();
        } else if fd >= self.covered.load(Relaxed)
            && let Some(account) = account::current()
        {
            self.cover(&account, fd + 1);
        }
    }

    /// Charges the open files of the descriptors below `end`, which is one of the first.
    #[cold]
    fn cover(&self, account: &Arc<Account>, end: usize) {
        let count = end.next_multiple_of(STEP);
        let new = account.charge(Kind::OpenFiles, count, count * FILE_BYTES);
        let mut slots = self.slots.lock();
        // Another thread may have charged more meanwhile.
        let old = match &slots.first_files {
            Some(known) if known.things() >= count => Some(new),
            _ => {
                self.covered.store(count, Relaxed);
                slots.first_files.replace(new)
            }
        };
        drop(slots);
        drop(old);
    }

    /// Charges the table, which is new, and its first open files to `account`: that of the process
    /// for which its maker made it.
    pub fn charge_to(&self, account: &Arc<Account>) {
        let first = { self.slots.lock().marks.first().copied() };
        let end = FIRST_SIZE - first.map_or(FIRST_SIZE, |it| it.used.leading_zeros() as usize);
        if end > 0 {
            self.cover(account, end);
        }
        let size = self.size();
        if size > FIRST_SIZE {
            let new = charge(account, size);
            let old = self.slots.lock().charge.replace(new);
            drop(old);
        }
    }

    /// Returns the open file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<Arc<OpenFile>> {
        // A negative descriptor becomes an index beyond every table.
        speculation::get(&self.slots.lock().files, fd as u32 as usize)
            .and_then(Clone::clone)
            .ok_or(Errno::EBADF)
    }

    /// Looks the open files of several descriptors up at one time: `each` gets the value that came
    /// with the descriptor and the file, none if it is not open. The table's lock is held: it
    /// allocates nothing, drops no file, and takes no lock; the descriptors are not many.
    #[inline]
    pub fn look_up<T>(
        &self,
        descriptors: impl Iterator<Item = (i32, T)>,
        mut each: impl FnMut(T, Option<&Arc<OpenFile>>),
    ) {
        let slots = self.slots.lock();
        let files = &slots.files[..];
        for (fd, with) in descriptors {
            each(with, files.get(fd as u32 as usize).and_then(Option::as_ref));
        }
    }

    /// Takes the lowest free descriptor from `min` on, below `limit` (`RLIMIT_NOFILE`).
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn reserve(&self, min: usize, limit: u64) -> Result<Reservation<'_>> {
        let limit = usize::try_from(limit).unwrap_or(LARGEST).min(LARGEST);
        loop {
            let mut slots = self.change();
            let fd = slots.free(min);
            if fd >= limit {
                return Err(Errno::EMFILE);
            }
            if fd < slots.files.len() {
                slots.take(fd);
                return Ok(Reservation { table: self, fd });
            }
            drop(slots);
            self.grow(fd + 1)?;
        }
    }

    /// Takes the lowest free descriptor and makes it refer to `open`.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`.
    pub fn install(&self, open: Arc<OpenFile>, close_on_exec: bool, limit: u64) -> Result<usize> {
        Ok(self.reserve(0, limit)?.install(open, close_on_exec))
    }

    /// Makes the lowest free descriptor below `limit` refer to the open file of `fd` (`dup`). Where
    /// the table has room and the descriptor is covered, its lock is taken once.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`, `ENOMEM`.
    pub fn dup(&self, fd: i32, limit: u64) -> Result<usize> {
        let open = {
            let mut slots = self.change();
            let slots = &mut *slots;
            let from = slots.check(fd)?;
            let open = slots.files[from].clone();
            let to = slots.free(0);
            let end = slots.files.len().min(self.covered.load(Relaxed));
            if to < end && (to as u64) < limit {
                slots.take(to);
                slots.files[to] = open;
                return Ok(to);
            }
            open
        };
        self.install(open.ok_or(Errno::EBADF)?, false, limit)
    }

    /// Makes `fd` refer to `open`, and closes its former file (`dup2`).
    ///
    /// # Errors
    /// `EBADF` at or above `limit`, `EBUSY` for a descriptor that an open in progress has taken,
    /// `ENOMEM`.
    pub fn replace(
        &self,
        fd: i32,
        open: Arc<OpenFile>,
        close_on_exec: bool,
        limit: u64,
    ) -> Result<()> {
        let mut fd = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        if fd as u64 >= limit || fd >= LARGEST {
            return Err(Errno::EBADF);
        }
        self.charge_file(fd, &open);
        let old = loop {
            let mut slots = self.change();
            if fd < slots.files.len() {
                fd = speculation::mask_index(fd, slots.files.len());
                if slots.is_used(fd) && slots.files[fd].is_none() {
                    return Err(Errno::EBUSY);
                }
                Marks::set(&mut slots.marks[fd / 64].used, fd, true);
                slots.set_close_on_exec(fd, close_on_exec);
                break slots.files[fd].replace(open);
            }
            drop(slots);
            self.grow(fd + 1)?;
        };
        if let Some(old) = old {
            self.closed(old);
        }
        Ok(())
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, fd: i32) -> Result<()> {
        let mut slots = self.change();
        let fd = slots.check(fd)?;
        let open = slots.release(fd);
        drop(slots);
        if let Some(open) = open {
            self.closed(open);
        }
        Ok(())
    }

    /// Closes all descriptors from `first` to `last`, or only marks them close-on-exec.
    pub fn close_range(&self, first: u32, last: u32, only_mark: bool) {
        let mut fd = first as usize;
        loop {
            let mut slots = self.change();
            let Some(found) = slots.next(fd).filter(|&found| found <= last as usize) else {
                return;
            };
            fd = found;
            if only_mark {
                slots.set_close_on_exec(fd, true);
            } else if let Some(open) = slots.release(fd) {
                drop(slots);
                self.closed(open);
            }
            fd += 1;
        }
    }

    /// Closes the descriptors marked close-on-exec.
    pub fn close_on_exec(&self) {
        let mut word = 0;
        loop {
            let mut slots = self.change();
            // Each word is left once it has none: no other thread uses the table.
            let marked = loop {
                let Some(marks) = slots.marks.get(word) else {
                    return;
                };
                match marks.close_on_exec & marks.used {
                    0 => word += 1,
                    marked => break word * 64 + marked.trailing_zeros() as usize,
                }
            };
            let open = slots.release(marked);
            drop(slots);
            if let Some(open) = open {
                self.closed(open);
            }
        }
    }

    /// Whether a descriptor is marked close-on-exec.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn is_close_on_exec(&self, fd: i32) -> Result<bool> {
        let slots = self.slots.lock();
        let fd = slots.check(fd)?;
        Ok(Marks::has(slots.marks[fd / 64].close_on_exec, fd))
    }

    /// Marks a descriptor close-on-exec, or not.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_close_on_exec(&self, fd: i32, on: bool) -> Result<()> {
        let mut slots = self.change();
        let fd = slots.check(fd)?;
        slots.set_close_on_exec(fd, on);
        Ok(())
    }

    /// The first open descriptor from `from` on, for listings.
    pub fn next(&self, from: usize) -> Option<usize> {
        self.slots.lock().next(from)
    }

    /// Descriptors that there is room for now (`FDSize` of `/proc/PID/status`).
    pub fn size(&self) -> usize {
        self.slots.lock().files.len()
    }

    /// Returns this table as an owner of record locks.
    pub(super) fn ownership(&self) -> &locks::Ownership {
        &self.ownership
    }

    /// Whether descriptor `fd` leads to `open`.
    pub fn leads_to(&self, fd: i32, open: &OpenFile) -> bool {
        self.get(fd).is_ok_and(|it| core::ptr::eq(&*it, open))
    }

    /// Ends all record locks that this table has on the file that `open` is of.
    pub fn release_locks(&self, open: &OpenFile) {
        locks::release_all(&self.ownership, || open.identity());
    }

    /// A descriptor of this table no longer refers to `open`. Waits for what goes on behind the end
    /// of a file.
    fn closed(&self, open: Arc<OpenFile>) {
        let lingers = open.file().lingers();
        self.dropped(open);
        if let Some(lingers) = lingers {
            lingers.wait();
        }
    }

    /// As [`closed`](FileTable::closed), without waiting.
    fn dropped(&self, open: Arc<OpenFile>) {
        // Any close of a file ends all record locks that the process has on it, as POSIX wants.
        self.release_locks(&open);
        open.file().closed();
        let collector = COLLECTOR.get().filter(|it| (it.may_leave_garbage)(&open));
        drop(open);
        if let Some(collector) = collector {
            (collector.collect)();
        }
    }

    fn grow(&self, wanted: usize) -> Result<()> {
        frame::check_not_scarce()?;
        let size = wanted.next_power_of_two().clamp(FIRST_SIZE, LARGEST);
        let mut bigger = Slots::with_size(size)?;
        let mut slots = self.change();
        let mut frozen = None;
        let old = slots.files.len();
        if old >= size {
            return Ok(());
        }
        if old <= PIECE {
            bigger.files[..old].swap_with_slice(&mut slots.files);
        } else {
            frozen = Some(self.copy_rest(slots, &mut bigger, 0));
            slots = self.slots.lock();
            if slots.files.len() != old {
                // Another thread made it larger meanwhile.
                drop(slots);
                drop(bigger);
                return Ok(());
            }
        }
        // Those that are reserved, too.
        bigger.marks[..old / 64].copy_from_slice(&slots.marks);
        bigger.lowest = slots.lowest;
        bigger.frozen = slots.frozen;
        bigger.first_files = slots.first_files.take();
        let empty = core::mem::replace(&mut *slots, bigger);
        drop(slots);
        drop(empty);
        drop(frozen);
        Ok(())
    }

    /// Closes all descriptors: the end of a process waits for no file.
    fn close_all(&self) {
        let slots = core::mem::take(&mut *self.change());
        for open in slots.files.into_iter().flatten() {
            self.dropped(open);
        }
    }
}

/// Nothing changes in the table.
struct Frozen<'a>(&'a FileTable);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut slots = self.0.slots.lock();
        slots.frozen -= 1;
        let is_thawed = slots.frozen == 0;
        drop(slots);
        if is_thawed {
            self.0.thawed.wake_all();
        }
    }
}

impl Slots {
    /// The index of a descriptor that refers to an open file, also while the CPU only guesses that
    /// there is one.
    #[inline]
    fn check(&self, fd: i32) -> Result<usize> {
        let fd = fd as u32 as usize;
        if fd >= self.files.len() {
            return Err(Errno::EBADF);
        }
        let fd = speculation::mask_index(fd, self.files.len());
        self.files[fd].as_ref().map(|_| fd).ok_or(Errno::EBADF)
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        // One that no thread ever had.
        self.close_all();
    }
}
