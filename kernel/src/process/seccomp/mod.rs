//! seccomp: the calls that a thread has left itself, all but four or by filters.
//!
//! A thread's filters are a list that only grows, and that it shares with the threads it makes: a
//! new filter stands before those there were. Every filter sees each call, and the strictest answer
//! counts. A thread's own list is changed by itself, and by others of its process that make theirs
//! its ([`add`]). One sleeping lock a process ([`Restricting`]) serializes these changes and the
//! making of threads: no thread is made with a list that is out of date. There may be tens of
//! thousands of threads, so no spin lock is held while they are visited.

use alloc::{string::String, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::ptrace::{
        AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, SECCOMP_MODE_DISABLED, SECCOMP_MODE_FILTER,
        SECCOMP_MODE_STRICT, SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA,
    },
};
use nucleus::sync::{Mutex, MutexGuard, Rank, SpinLock};
use vm::account::{Charge, Kind};

#[cfg(test)]
use super::signal::looks;
use super::{LogLimit, Pid, Thread};

pub use crate::bpf::{DATA_WORDS, Program};

/// Instructions of all filters of a thread together; each filter counts [`OVERHEAD`] more.
const MOST_INSTRUCTIONS: usize = 32 << 10;
/// What a filter counts besides its instructions.
const OVERHEAD: usize = 4;
/// What a filter is charged with besides its program, in bytes.
const FILTER_BYTES: usize = 128;

/// Filters are numbered as they are made: in a list, the numbers fall.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A filter and those before it.
pub struct Filter {
    id: u64,
    program: Program,
    /// `SECCOMP_FILTER_FLAG_LOG`: answers but "allow" go to the log.
    logs: bool,
    older: Option<Arc<Filter>>,
    /// How many there are, this one included.
    count: usize,
    /// Their instructions together, and the overhead of each.
    size: usize,
    /// On the process that added it: the others share it.
    _charge: Charge,
}

impl Filter {
    /// The list that begins with this filter.
    fn list(&self) -> impl Iterator<Item = &Filter> {
        core::iter::successors(Some(self), |filter| filter.older.as_deref())
    }

    /// The strictest answer to a call, and whether it is to be logged. The newest filter counts
    /// among those that agree.
    pub fn answer(&self, data: &[u32; DATA_WORDS]) -> (u32, bool) {
        let mut found = (SECCOMP_RET_ALLOW, false);
        for filter in self.list() {
            let answer = filter.program.run(data);
            if action(answer) < action(found.0) {
                found = (answer, filter.logs);
            }
        }
        found
    }
}

/// What an answer asks for: the lower, the stricter.
fn action(answer: u32) -> i32 {
    (answer & SECCOMP_RET_ACTION_FULL) as i32
}

/// The number that comes with an answer.
pub fn data(answer: u32) -> u16 {
    (answer & SECCOMP_RET_DATA) as u16
}

impl Drop for Filter {
    /// A list of thousands is freed in a loop: the kernel's stack would not hold the recursion.
    fn drop(&mut self) {
        let mut older = self.older.take();
        while let Some(mut filter) = older.and_then(Arc::into_inner) {
            older = filter.older.take();
        }
    }
}

/// The words of `struct seccomp_data` for a call: by `int 0x80` if `compatible`.
pub fn data_of(number: u32, compatible: bool, rip: u64, args: &[u64; 6]) -> [u32; DATA_WORDS] {
    let mut data = [0; DATA_WORDS];
    data[0] = number;
    data[1] = architecture(compatible);
    let words = data[2..].chunks_exact_mut(2);
    for (pair, value) in words.zip(core::iter::once(rip).chain(*args)) {
        pair.copy_from_slice(&[value as u32, (value >> 32) as u32]);
    }
    data
}

/// How a filter sees the entry that a call came by.
pub fn architecture(compatible: bool) -> u32 {
    match compatible {
        true => AUDIT_ARCH_I386,
        false => AUDIT_ARCH_X86_64,
    }
}

/// Serializes changes of what the threads of a process may call, and the making of threads, which
/// take that over.
pub struct Restricting(Mutex<()>);

impl Default for Restricting {
    fn default() -> Restricting {
        Restricting(Mutex::new(crate::rank::SECCOMP, ()))
    }
}

impl Restricting {
    /// Locks it. While the guard lives, no thread is added, and no thread's restrictions change.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}

/// What a thread may call.
pub struct Seccomp {
    /// `SECCOMP_MODE_*`; written with its process's [`Restricting`] locked.
    mode: AtomicU8,
    /// There in the filter mode only.
    filter: SpinLock<Option<Arc<Filter>>>,
}

impl Default for Seccomp {
    fn default() -> Seccomp {
        Seccomp {
            mode: AtomicU8::new(SECCOMP_MODE_DISABLED as u8),
            filter: SpinLock::new(Rank::Leaf, None),
        }
    }
}

impl Seccomp {
    /// Whether any call is forbidden or looked at.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode() != SECCOMP_MODE_DISABLED
    }

    /// `SECCOMP_MODE_*`.
    #[inline]
    pub fn mode(&self) -> u32 {
        u32::from(self.mode.load(Relaxed))
    }

    /// The newest filter.
    pub fn filter(&self) -> Option<Arc<Filter>> {
        self.filter.lock().clone()
    }

    /// How many filters there are.
    pub fn filter_count(&self) -> usize {
        self.filter.lock().as_ref().map_or(0, |filter| filter.count)
    }

    /// Takes over what `other` may call: for a new thread, with the [`Restricting`] of the process
    /// of `other` locked.
    pub(super) fn inherit(&self, other: &Seccomp) {
        if other.is_on() {
            self.set(other.mode(), other.filter());
        }
    }

    fn set(&self, mode: u32, filter: Option<Arc<Filter>>) {
        #[cfg(test)]
        looks::count();
        let old = core::mem::replace(&mut *self.filter.lock(), filter);
        self.mode.store(mode as u8, Relaxed);
        // Part of the new list, or none: nothing is freed here.
        drop(old);
    }
}

/// Leaves the thread, which is the current one, four calls.
///
/// # Errors
/// `EINVAL` if it has filters.
pub fn restrict(thread: &Thread) -> Result<()> {
    let _restricting = thread.process().restricting.lock();
    if thread.seccomp.mode() == SECCOMP_MODE_FILTER {
        return Err(Errno::EINVAL);
    }
    thread.seccomp.set(SECCOMP_MODE_STRICT, None);
    Ok(())
}

/// Puts a filter before those of the thread, which is the current one; with `synchronize`, every
/// thread of its process gets its filters. Returns the id of a thread whose own filters are not
/// among the caller's, if there is one: nothing has changed then.
///
/// # Errors
/// `ENOMEM`, also if its filters become too long.
pub fn add(
    thread: &Thread,
    program: Program,
    logs: bool,
    synchronize: bool,
) -> Result<Option<Pid>> {
    let process = thread.process();
    let _restricting = process.restricting.lock();
    let older = thread.seccomp.filter();
    let (count, size) = older
        .as_ref()
        .map_or((0, 0), |older| (older.count, older.size));
    let size = size + program.len() + OVERHEAD;
    if size > MOST_INSTRUCTIONS {
        return Err(Errno::ENOMEM);
    }
    // Collected first: a thread costs a short search.
    let mut own = Vec::new();
    own.try_reserve_exact(count)?;
    own.extend(
        older
            .iter()
            .flat_map(|older| older.list())
            .map(|filter| filter.id),
    );
    let others = || {
        let is_other = |it: &Arc<Thread>| synchronize && it.tid() != thread.tid();
        process.threads().filter(is_other)
    };
    let is_own = |other: &Seccomp| match &*other.filter.lock() {
        Some(filter) => own.binary_search_by(|id| filter.id.cmp(id)).is_ok(),
        None => other.mode() == SECCOMP_MODE_DISABLED,
    };
    if let Some(other) = others().find(|other| !is_own(&other.seccomp)) {
        return Ok(Some(other.tid()));
    }
    let charged = program.bytes() + FILTER_BYTES;
    let filter = Arc::new(Filter {
        id: NEXT_ID.fetch_add(1, Relaxed),
        logs,
        older,
        count: count + 1,
        size,
        _charge: process
            .account()
            .charge(Kind::Filters, program.len(), charged),
        program,
    });
    for other in others() {
        let filter = filter.clone();
        other.seccomp.set(SECCOMP_MODE_FILTER, Some(filter));
    }
    thread.seccomp.set(SECCOMP_MODE_FILTER, Some(filter));
    Ok(None)
}

/// A line in the log about a call that a filter of the thread caught.
pub fn log(thread: &Thread, number: u32, action: u32) {
    static LIMIT: LogLimit = LogLimit::new();
    if LIMIT.allows_line() {
        let name = thread.name();
        nucleus::log!(
            "{}[{}]: seccomp: call {number}, action {action:#x}",
            String::from_utf8_lossy(&name),
            thread.tid(),
        );
    }
}
