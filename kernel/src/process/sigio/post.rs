//! The descriptions whose queues were woken, and the task that sends their signals.

use alloc::{boxed::Box, collections::LinkedList, sync::Arc};
use core::mem;

use abi::Result;
use nucleus::{
    OutOfMemory, frame,
    sync::{Mutex, Rank, SpinLock},
    task::{self, Priority, Spawn, WaitQueue},
};

use super::Sigio;
use crate::process::{Thread, thread, turn::Turn};

/// Those that were woken and not looked at, each once, in the nodes of their rooms: a wake-up
/// allocates nothing.
static WOKEN: SpinLock<LinkedList<Option<Arc<Sigio>>>> =
    SpinLock::new(crate::rank::READY, LinkedList::new());
/// Owners that a thread tells on its way to its program. What is left after as many, others have
/// woken at the same time, and the task tells.
const MOST: usize = 64;
/// Held while an owner is told.
static TURN: Mutex<()> = Mutex::new(crate::rank::SIGIO, ());
/// Where the task waits for work.
static WORK: WaitQueue = WaitQueue::new();

/// A place in the list of those that were woken.
pub(super) struct Room {
    /// One node without a value, while the description is not in the list.
    node: SpinLock<LinkedList<Option<Arc<Sigio>>>>,
}

impl Room {
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve() -> Result<Room> {
        frame::check_not_scarce()?;
        Ok(Room {
            node: SpinLock::new(Rank::Leaf, LinkedList::from([None])),
        })
    }

    /// Puts the description that has this room into the list, unless it stands there.
    fn enter(&self, sigio: &Arc<Sigio>) {
        let mut node = mem::take(&mut *self.node.lock_irq());
        if let Some(value) = node.front_mut() {
            *value = Some(sigio.clone());
            WOKEN.lock_irq().append(&mut node);
        }
    }
}

/// Takes the first description out of the list.
fn leave() -> Option<Arc<Sigio>> {
    let mut node = {
        let mut woken = WOKEN.lock_irq();
        if woken.is_empty() {
            return None;
        }
        let rest = woken.split_off(1);
        mem::replace(&mut *woken, rest)
    };
    let sigio = node.front_mut()?.take()?;
    *sigio.room().node.lock_irq() = node;
    Some(sigio)
}

/// A queue of this description was woken. Any context.
pub(super) fn note(sigio: Arc<Sigio>) {
    sigio.room().enter(&sigio);
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
    let Some(sigio) = leave() else {
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
