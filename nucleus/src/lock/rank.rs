//! Ranks: the places of locks in the order in which they are taken.
//!
//! Each floor declares the ranks of its locks by [`lock_ranks!`](crate::lock_ranks), and the kernel
//! joins them: `kernel/src/rank.rs` draws the order of all, and its test checks it. Two locks of
//! the same rank are taken only through the lock's own function for pairs, by address, or for
//! things nested in each other, from the outside in. An interrupt handler starts anew at the locks
//! that are taken with interrupts off: `Device` and below.

use core::fmt;

/// A lock's place in the order. A lower one is taken first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(&'static (u8, &'static str));

impl Rank {
    /// A rank with a place of its own and a name; for [`lock_ranks!`](crate::lock_ranks).
    pub const fn new(it: &'static (u8, &'static str)) -> Rank {
        Rank(it)
    }

    /// The place in the order.
    pub const fn place(self) -> u8 {
        self.0.0
    }

    /// The name in the messages of the order checker.
    pub const fn name(self) -> &'static str {
        self.0.1
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Declares the ranks of a floor: constants, and a list of all in `RANKS`.
#[macro_export]
macro_rules! lock_ranks {
    ($($(#[$doc:meta])* $name:ident = $place:literal,)*) => {
        $($(#[$doc])*
        pub const $name: $crate::sync::Rank =
            $crate::sync::Rank::new(&($place, stringify!($name)));)*

        /// The ranks of this floor.
        pub const RANKS: &[$crate::sync::Rank] =
            &[$($crate::sync::Rank::new(&($place, stringify!($name))),)*];
    };
}

#[allow(non_upper_case_globals, reason = "they read as the variants of `Rank`")]
impl Rank {
    lock_ranks! {
        /// Whose turn it is to measure what the machine takes.
        HwCost = 65,
        /// Who changes the caches of ephemeral mappings as a whole.
        EphemeralCaches = 66,
        /// Small data of the floors above. The few locks that are taken with it held come later.
        Leaf = 120,
        /// A pmap's page-table pages.
        Pmap = 140,
        /// A domain's addresses, and the list of domains.
        Domain = 144,
        /// A device's queue: its requests complete, and their waiters are woken, with it held.
        Device = 145,
        /// A device that broke its promises is detached.
        Revoke = 147,
        /// A wait queue.
        WaitQueue = 150,
        /// The observers of a wait queue; given back before one is told.
        Observers = 151,
        /// A task's state.
        Task = 155,
        /// A run queue.
        RunQueue = 160,
        /// A CPU's timers.
        Timers = 165,
        /// The kernel heap.
        Heap = 170,
        /// The kernel's own page tables and the cache of kernel stacks.
        KernelSpace = 175,
        /// A cache of ephemeral mappings.
        EphemeralMappings = 177,
        /// The buddy allocator.
        Buddy = 180,
        /// The tables of the direct map.
        DirectMap = 182,
        /// The tree of the frames that devices reach.
        OpenFrames = 183,
        /// The pool of random input.
        Random = 185,
        /// The console ring.
        Console = 190,
    }
}
