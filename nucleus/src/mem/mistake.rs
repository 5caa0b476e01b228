//! Mistakes that a test makes on purpose, to see that the simulated machine, or an attack on the
//! real one, finds them. Each removes one rule.
//!
//! Only tests and kernels with assertions carry them; in others [`Mistake::is_made`] is false at
//! compile time. A kernel is told by `fault_injection=FAULT:MISTAKE`.

#[cfg(any(test, debug_assertions))]
use core::sync::atomic::{AtomicU8, Ordering};

/// Declares the mistakes, with the names by which the command line calls them.
macro_rules! mistakes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that this code, or a floor above, must not break.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Mistake {
            /// None is made.
            None,
            $($(#[$doc])* $name,)*
        }

        #[cfg(target_os = "none")]
        impl Mistake {
            /// Returns the mistake of this name.
            pub(crate) fn named(name: &str) -> Option<Mistake> {
                match name {
                    $(stringify!($name) => Some(Mistake::$name),)*
                    _ => None,
                }
            }
        }
    };
}

mistakes! {
    /// A mapping that ends is held by no TLB, whatever the accessed bit says.
    AccessedBitIgnored,
    /// A clear accessed bit says that no TLB holds an older translation either, as in the paper.
    AccessedBitOfAll,
    /// A CPU that the mask does not name uses the mapping.
    MaskForgotten,
    /// A CPU takes itself to have flushed since a change that came after its flush.
    ChangeSkipped,
    /// An address of a CPU's ring is used again without a flush.
    RingNotFlushed,
    /// Other CPUs are not told of the end of a mapping without the window.
    OthersNotTold,
    /// The window's addresses count as forgotten when another root is loaded, also where they are
    /// global.
    GlobalKept,

    /// A space is loaded by a tag whose translations may be older than a change.
    TagKeptStale,
    /// An entry is empty before its links are out of the list of its frame.
    UnlinkedLate,
    /// CPUs are not told of changes that a full set is told of.
    FullSetNotTold,
    /// A change does not look for CPUs that keep a space without having it loaded.
    KeptForgotten,
    /// After a change in a family's table, its other members' tags stay.
    FamilyTagsKept,
    /// A change in a small space tells the CPUs that run this space, not those that run others of
    /// its group.
    GroupMaskForgotten,
    /// A region is free before what CPUs hold of it is flushed.
    RegionFreedEarly,
    /// Segments of a program in a region reach a page beyond the first of the region behind, which
    /// is never mapped.
    LimitTooWide,

    /// `open`: a frame becomes a page table without leaving the domains.
    TableNotWithdrawn,
    /// `open`: a table that is kept ready returns to the domains.
    PooledReturns,
    /// `open`: a frame leaves the domains without an invalidation.
    LeavesWithoutInvalidation,
    /// `open`: a large page stays when one of its frames leaves.
    LargePageStays,
    /// `strict`: frames of requests are released without an invalidation.
    BatchNotInvalidated,
    /// `strict`: a block is free with its last handle, whatever entries lead to it.
    HeldBlockFreed,
    /// `strict`: the frames of a request are released when it is done.
    PendingReleased,
    /// `strict`: a frame does not record that a device may read it.
    ReadersForgotten,
    /// `strict`: an address is used again before its invalidation.
    AddressReusedEarly,
    /// `strict`: an entry stays present when its request is done.
    EntryStays,
    /// `strict`: a page that the device reads is mapped for writes, too.
    ReadOnlyIgnored,
    /// `strict`: a part of a pool is taken for mapped in another domain.
    GenerationIgnored,
    /// `strict`: an allocation that fails does not look at the frames that wait for a batch.
    ShortageIgnoresPending,
    /// Entries are written where units that are not coherent do not see them.
    EntryNotSynced,
    /// In caching mode, an entry that becomes present is not invalidated.
    AbsentKept,
    /// Memory that the firmware reserves for a device is not mapped.
    ReservedNotMapped,
    /// A device is said to be given up before it is detached.
    RevokedEarly,
    /// A list of all domains closes the gap that one leaves which has ended.
    DomainsMove,
    /// A page beyond a tree is one of those within.
    PagesWrap,
    /// A device that makes too many faults goes on.
    FaultsUnlimited,
    /// A device that makes too many faults stays a bus master.
    BusMasterKept,
    /// A device that makes too many faults keeps its domain.
    DomainKept,
    /// The drivers of a device that is given up are not notified.
    DriversNotNotified,

    /// The writer of a biased lock does not wait for read sections.
    SectionsNotAwaited,
    /// A writer of parts of a lock does not look whether others write them.
    SamePartsTaken,
    /// `MADV_DONTNEED` removes mappings before it locks their chunk.
    DiscardedUnlocked,
    /// What `munmap` and `mprotect` flush with their map unlocked counts as flushed before.
    UnflushedReused,
    /// An unmount leaves out the references to the mount that CPUs count.
    CountsNotGathered,
}

/// The one that is made.
#[cfg(any(test, debug_assertions))]
static MADE: AtomicU8 = AtomicU8::new(Mistake::None as u8);

/// Makes none from now on.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    #[cfg(any(test, debug_assertions))]
    Mistake::None.make();
}

impl Mistake {
    /// Makes it from now on, on this machine.
    #[cfg(any(test, debug_assertions))]
    pub fn make(self) {
        MADE.store(self as u8, Ordering::Relaxed);
    }

    /// Whether it is to be made.
    #[cfg(any(test, debug_assertions))]
    #[inline]
    pub fn is_made(self) -> bool {
        MADE.load(Ordering::Relaxed) == self as u8
    }

    /// Kernels that users get make none.
    #[cfg(not(any(test, debug_assertions)))]
    #[inline(always)]
    pub fn is_made(self) -> bool {
        false
    }

    /// Kernels that users get make none.
    ///
    /// # Panics
    /// Always.
    #[cfg(not(any(test, debug_assertions)))]
    pub fn make(self) {
        panic!("{self:?}: this kernel makes no mistakes");
    }
}
