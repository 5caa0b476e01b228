//! The words that a thread owns when it leaves its address space.
//!
//! A program keeps a list of its locks in its own memory (`set_robust_list`): a cycle of links,
//! the head being one of them, the distance from a link to its word, and a link that is being put
//! in or out.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{Key, pi, table::load, wake};
use crate::process::{Own, Thread};

/// How many entries of a robust list are looked at, as on Linux: the list may be a cycle.
const ROBUST_LIST_MAX: usize = 2048;

/// The thread leaves its address space, by its end (`for_good`) or by `execve`: its locks are
/// marked as those of a dead owner, and waiters for its end are woken.
pub fn leave(thread: &Arc<Thread>, own: &mut Own, for_good: bool) {
    for (head, size) in [(&thread.robust_list, 8), (&thread.robust_list_32, 4)] {
        let head = head.swap(0, Relaxed);
        if head != 0 {
            // A list that can't be read any further says nothing more.
            let _ = List { head, size }.release(thread, own);
        }
    }
    pi::give_up_all(thread, for_good);
    let address = core::mem::take(&mut own.clear_child_tid);
    if address != 0 && Arc::strong_count(&own.space) > 2 {
        let address = VirtAddr(address as usize);
        if user::write(address, &0u32).is_ok()
            && let Ok(key) = Key::new(&own.space, address, false)
        {
            // No thread waits there to own the word.
            let _ = wake(key, 1, u32::MAX);
        }
    }
}

/// Walks a robust list whose words have `size` bytes, 8 or 4.
struct List {
    head: u64,
    size: u64,
}

/// A link: where it leads, and whether the lock there passes priority on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Link {
    to: u64,
    inherits: bool,
}

impl List {
    fn word(&self, address: u64) -> Result<u64> {
        let address = VirtAddr(address as usize);
        let word = if self.size == 8 {
            user::read(address)
        } else {
            user::read::<u32>(address).map(u64::from)
        };
        word.map_err(|_| Errno::EFAULT)
    }

    fn link(&self, address: u64) -> Result<Link> {
        let word = self.word(address)?;
        Ok(Link {
            to: word & !1,
            inherits: word & 1 != 0,
        })
    }

    fn release(&self, thread: &Thread, own: &Own) -> Result<()> {
        let offset = self.word(self.head.wrapping_add(self.size))?;
        // Signed, in a word of the program's size.
        let offset = match self.size {
            4 => offset as u32 as i32 as i64 as u64,
            _ => offset,
        };
        let pending = self.link(self.head.wrapping_add(2 * self.size))?;
        let mut link = self.link(self.head)?;
        let lock = |link: Link| {
            let address = link.to.wrapping_add(offset);
            let mask = if self.size == 4 {
                u64::from(u32::MAX)
            } else {
                u64::MAX
            };
            (VirtAddr((address & mask) as usize), link.inherits)
        };
        let mut seen = 0;
        while link.to != self.head && seen < ROBUST_LIST_MAX {
            // The next link is read first: the owner's death may free the entry.
            let next = self.link(link.to);
            if link.to != pending.to {
                let (address, inherits) = lock(link);
                mark_dead(thread, own, address, inherits, false)?;
            }
            link = next?;
            seen += 1;
        }
        if pending.to != 0 {
            let (address, inherits) = lock(pending);
            mark_dead(thread, own, address, inherits, true)?;
        }
        Ok(())
    }
}

/// Marks one lock, if the thread holds it, and wakes one waiter; waiters for ownership are told
/// afterwards.
fn mark_dead(
    thread: &Thread,
    own: &Own,
    address: VirtAddr,
    inherits: bool,
    pending: bool,
) -> Result<()> {
    let key = Key::new(&own.space, address, false)?;
    loop {
        let value = load(address)?;
        if pending && !inherits && value == 0 {
            // The owner died between releasing the lock and waking: another waiter must be woken
            // for it.
            return wake(key, 1, u32::MAX).map(drop);
        }
        if value & raw::FUTEX_TID_MASK != thread.tid() {
            return Ok(());
        }
        let dead = value & raw::FUTEX_WAITERS | raw::FUTEX_OWNER_DIED;
        let old = user::compare_exchange_u32(address, value, dead)?;
        if old == value {
            if value & raw::FUTEX_WAITERS != 0 && !inherits {
                wake(key, 1, u32::MAX)?;
            }
            return Ok(());
        }
    }
}
