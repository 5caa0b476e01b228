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
        pub const RANKS: &[$crate::sync::Rank] = &[$($name,)*];
    };
}

/// The nucleus's own ranks.
#[allow(non_upper_case_globals, reason = "they read as the variants of `Rank`")]
impl Rank {
    /// Whose turn it is to measure what the machine takes.
    pub const HwCost: Rank = Rank::new(&(65, "HwCost"));
    /// Small leaf data of the floors above that is never held while another lock is taken.
    pub const Leaf: Rank = Rank::new(&(120, "Leaf"));
    /// A pmap's page-table pages.
    pub const Pmap: Rank = Rank::new(&(140, "Pmap"));
    /// A device's queue: its requests are done, and who waits for them is woken, with it held.
    pub const Device: Rank = Rank::new(&(145, "Device"));
    /// A wait queue.
    pub const WaitQueue: Rank = Rank::new(&(150, "WaitQueue"));
    /// The observers of a wait queue; given back before one is told.
    pub const Observers: Rank = Rank::new(&(151, "Observers"));
    /// A task's state.
    pub const Task: Rank = Rank::new(&(155, "Task"));
    /// A run queue.
    pub const RunQueue: Rank = Rank::new(&(160, "RunQueue"));
    /// A CPU's timers.
    pub const Timers: Rank = Rank::new(&(165, "Timers"));
    /// The kernel heap.
    pub const Heap: Rank = Rank::new(&(170, "Heap"));
    /// The kernel's own page tables and the cache of kernel stacks.
    pub const KernelSpace: Rank = Rank::new(&(175, "KernelSpace"));
    /// The buddy allocator.
    pub const Buddy: Rank = Rank::new(&(180, "Buddy"));
    /// The console ring.
    pub const Console: Rank = Rank::new(&(190, "Console"));
}

/// The ranks of this floor.
pub const RANKS: &[Rank] = &[
    Rank::HwCost,
    Rank::Leaf,
    Rank::Pmap,
    Rank::Device,
    Rank::WaitQueue,
    Rank::Observers,
    Rank::Task,
    Rank::RunQueue,
    Rank::Timers,
    Rank::Heap,
    Rank::KernelSpace,
    Rank::Buddy,
    Rank::Console,
];
