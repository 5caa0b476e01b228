//! The flusher: a task that writes dirty pages back when they are old, or when there are many.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{sync::atomic::Ordering, time::Duration};

use nucleus::{
    OutOfMemory,
    sync::{Rank, SpinLock},
    task::Sleep,
    time,
};

use super::{cached::Cached, daemons, dirty};

/// Files with dirty pages, or with an inode that is to be settled.
static FILES: SpinLock<BTreeMap<u64, Weak<dyn Cached>>> =
    SpinLock::new(Rank::Leaf, BTreeMap::new());
/// How long the flusher sleeps where its interval is 0.
const IDLE: Duration = Duration::from_secs(5);
/// Pages of a file that are begun before the next one has its turn.
const TURN: usize = 1024;

/// Time as dirty pages remember it.
pub(super) fn centiseconds(time: Duration) -> u64 {
    time.as_millis() as u64 / 10
}

/// The file has dirty pages.
pub(super) fn enlist(id: u64, file: Arc<dyn Cached>) {
    let weak = Arc::downgrade(&file);
    let before = FILES.lock().insert(id, weak);
    // The last holder's work is done with no lock held.
    drop((before, file));
}

/// It is gone.
pub(super) fn delist(id: u64) {
    delist_if(id, || true);
}

/// Removes the file from the list if `is_clean` still holds: a file is marked dirty before it is
/// listed.
pub(super) fn delist_if(id: u64, is_clean: impl FnOnce() -> bool) {
    let mut files = FILES.lock();
    let gone = match is_clean() {
        true => files.remove(&id),
        false => None,
    };
    drop(files);
    drop(gone);
}

/// Starts the flusher.
///
/// # Errors
/// No memory for it.
pub(super) fn start() -> Result<(), OutOfMemory> {
    daemons::start("flusher", run)
}

fn run() {
    while !daemons::are_to_end() {
        let interval = match dirty::INTERVAL.get() {
            0 => IDLE,
            centiseconds => Duration::from_millis(centiseconds * 10),
        };
        let how = Sleep::within(interval);
        let called = dirty::CALLS.wait(how, || {
            let called = dirty::CALLED.swap(false, Ordering::AcqRel) || daemons::are_to_end();
            called.then_some(())
        });
        if called.is_ok() || dirty::INTERVAL.get() > 0 {
            pass();
        }
    }
}

/// Files that are dirty now.
fn files() -> Vec<Weak<dyn Cached>> {
    let mut files = Vec::new();
    let count = FILES.lock().len();
    if files.try_reserve_exact(count).is_err() {
        return files;
    }
    let all = FILES.lock();
    files.extend(all.values().take(count).cloned());
    files
}

/// Writes old dirty pages, and as many more as bring their number below the background share.
fn pass() {
    let now = centiseconds(time::since_boot());
    let is_old = |since: u64| since != 0 && since + dirty::EXPIRE.get() <= now;
    for file in files() {
        let Some(file) = file.upgrade() else { continue };
        if is_old(file.dirty_since()) {
            // The next pass starts the writes that are refused memory now.
            let _ = file.flush(usize::MAX);
        }
    }
    while dirty::is_in_background() || dirty::wanted() > 0 {
        let mut begun = 0;
        for file in files() {
            let Some(file) = file.upgrade() else { continue };
            begun += file.flush(TURN).unwrap_or(0);
            if !dirty::is_in_background() && begun >= dirty::wanted() {
                break;
            }
        }
        let still = dirty::wanted().saturating_sub(begun);
        dirty::WANTED.store(if begun == 0 { 0 } else { still }, Ordering::Release);
        if begun == 0 {
            break;
        }
    }
}

/// Begins to write all dirty pages of all files (`sync`, and before caches are dropped).
pub fn write_all() {
    for file in files() {
        let Some(file) = file.upgrade() else { continue };
        // Callers that need to know of errors ask the file.
        let _ = file.flush(usize::MAX);
    }
}

/// Wakes the flusher for its end.
#[cfg(not(target_os = "none"))]
pub(super) fn end() {
    dirty::CALLS.wake_all();
}

/// For a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    drop(core::mem::take(&mut *FILES.lock()));
}
