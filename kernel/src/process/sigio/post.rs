//! The descriptions whose queues were woken, and the task that sends their signals.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc};
use core::{
    mem,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use abi::Result;
use nucleus::{
    OutOfMemory,
    sync::{Mutex, SpinLock},
    task::{self, Priority, Spawn, WaitQueue},
};

use super::Sigio;
use crate::process::{Thread, thread, turn::Turn};

/// Those that were woken and not looked at, each once. There is room for all that exist: a wake-up
/// allocates nothing.
static WOKEN: SpinLock<VecDeque<Arc<Sigio>>> = SpinLock::new(crate::rank::READY, VecDeque::new());
/// How many [`Room`]s there are.
static ROOMS: AtomicUsize = AtomicUsize::new(0);
/// Owners that a thread tells on its way to its program. What is left after as many, others have
/// woken at the same time, and the task tells.
const MOST: usize = 64;
/// Held while an owner is told.
static TURN: Mutex<()> = Mutex::new(crate::rank::SIGIO, ());
/// Where the task waits for work.
static WORK: WaitQueue = WaitQueue::new();

/// A place in the list of those that were woken.
pub(super) struct Room;

impl Room {
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve() -> Result<Room> {
        let wanted = ROOMS.fetch_add(1, SeqCst) + 1;
        let room = Room;
        let mut bigger = VecDeque::new();
        loop {
            {
                let mut woken = WOKEN.lock_irq();
                if woken.capacity() < wanted && bigger.capacity() >= wanted {
                    // Nothing is allocated or freed under the lock.
                    bigger.append(&mut woken);
                    mem::swap(&mut bigger, &mut woken);
                }
                if woken.capacity() >= wanted {
                    return Ok(room);
                }
            }
            bigger = VecDeque::new();
            bigger.try_reserve_exact(wanted * 2)?;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        ROOMS.fetch_sub(1, SeqCst);
    }
}

/// A queue of this description was woken. Any context.
pub(super) fn note(sigio: Arc<Sigio>) {
    WOKEN.lock_irq().push_back(sigio);
    WORK.wake_one();
    thread::with_current(|thread| thread.signals.note_woken_file());
}

/// Tells the owners of what `thread`, the current one, has woken: when it returns, they have been
/// told, by this thread or another. Called on its way to its program, with no locks held.
#[inline]
pub fn catch_up(thread: &Thread) {
    if thread.signals.take_woken_file() {
        (0..MOST).all(|_| tell_next());
    }
}

/// Tells the owner of the one that was woken first. Returns whether there was one; if not, all have
/// been told.
fn tell_next() -> bool {
    let _turn = TURN.lock();
    let Some(sigio) = WOKEN.lock_irq().pop_front() else {
        return false;
    };
    sigio.look();
    true
}

/// Starts the task that tells owners when no thread that caused it does.
///
/// # Errors
/// No memory.
pub fn start() -> core::result::Result<(), OutOfMemory> {
    let spawn = Spawn {
        priority: Priority::KERNEL,
        ..Spawn::kernel("sigio")
    };
    let serve = || loop {
        WORK.wait_soundly(|| (!WOKEN.lock_irq().is_empty()).then_some(()));
        let mut turn = Turn::new();
        while tell_next() {
            turn.next();
        }
    };
    task::spawn(spawn, Box::new(serve)).map(drop)
}
