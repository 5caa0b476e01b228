//! Those that see all packets of all interfaces (`AF_PACKET`).

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use abi::{Errno, Result};
use nucleus::sync::{Rank, SpinLock, lock_with_room};

use super::Mac;
use crate::packet::Packet;

/// The most taps of a machine.
const MOST: usize = 256;

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It has arrived.
    In,
    /// It is about to be sent.
    Out,
}

/// Sees packets.
pub trait Tap: Send + Sync {
    /// Looks at a packet of an interface. It has the header of the link if there is a `mac`. No
    /// lock is held.
    fn see(&self, interface: u32, mac: Option<Mac>, direction: Direction, packet: &Packet);
}

/// All taps.
pub struct Taps {
    list: SpinLock<Vec<Arc<dyn Tap>>>,
    count: AtomicUsize,
}

impl Default for Taps {
    fn default() -> Taps {
        Taps {
            list: SpinLock::new(Rank::Leaf, Vec::new()),
            count: AtomicUsize::new(0),
        }
    }
}

impl Taps {
    /// Adds a tap.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add(&self, tap: Arc<dyn Tap>) -> Result<()> {
        let mut list = lock_with_room(&self.list)?;
        if list.len() >= MOST {
            return Err(Errno::ENOBUFS);
        }
        list.push(tap);
        self.count.store(list.len(), SeqCst);
        Ok(())
    }

    /// Removes a tap; false if it is not there.
    pub fn remove(&self, tap: &Arc<dyn Tap>) -> bool {
        let gone = {
            let mut list = self.list.lock();
            let is_it =
                |other: &Arc<dyn Tap>| core::ptr::addr_eq(&raw const **other, &raw const **tap);
            let at = list.iter().position(is_it);
            let gone = at.map(|at| list.remove(at));
            self.count.store(list.len(), SeqCst);
            gone
        };
        gone.is_some()
    }

    /// Tells whether there are any.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Shows a packet to all.
    #[inline(never)]
    pub fn show(&self, interface: u32, mac: Option<Mac>, direction: Direction, packet: &Packet) {
        for at in 0..MOST {
            let tap = self.list.lock().get(at).cloned();
            let Some(tap) = tap else { return };
            tap.see(interface, mac, direction, packet);
        }
    }
}
