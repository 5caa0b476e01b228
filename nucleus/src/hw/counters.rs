//! What it cost, by cause: per-CPU, always on, one add without a lock prefix.
//!
//! Each floor declares its counters by [`counters!`](crate::counters!), behind those of the floor
//! below; the kernel joins them for `/proc/causeway/counters`.

use super::machine;

/// The most counters of all floors.
pub const MAX_COUNTERS: usize = machine::MAX_COUNTERS;

/// Declares the counters of a floor, from a place on in each CPU's: `Counter`, `totals`, `END`.
#[macro_export]
macro_rules! counters {
    (from $start:expr; $($(#[$doc:meta])* $name:ident,)*) => {
        /// One counted cause.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(non_camel_case_types, reason = "names in `/proc/causeway/counters`")]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name = $start + Place::$name as usize,)* }

        #[allow(non_camel_case_types, reason = "as above")]
        enum Place { $($name,)* }

        /// The first place after these counters.
        pub const END: usize = $start + [$(Place::$name as usize,)*].len();
        const _: () = assert!(END <= $crate::counters::MAX_COUNTERS);

        impl Counter {
            /// Adds `n` on this CPU.
            #[inline]
            pub fn add(self, n: u64) {
                $crate::counters::add(self as usize, n);
            }

            /// Returns what the CPU with this number has counted.
            pub fn of(self, cpu: usize) -> u64 {
                $crate::counters::of(self as usize, cpu)
            }

            /// Returns the sum over all CPUs.
            pub fn total(self) -> u64 {
                $crate::counters::total(self as usize)
            }
        }

        /// Returns the names and sums of these counters.
        pub fn totals() -> impl Iterator<Item = (&'static str, u64)> {
            [$((stringify!($name), Counter::$name),)*]
                .into_iter()
                .map(|(name, counter)| (name, counter.total()))
        }
    };
}

/// Adds `n` to a counter of this CPU.
#[doc(hidden)]
#[inline]
pub fn add(place: usize, n: u64) {
    machine::counter_add(place, n);
}

/// Returns a counter of a CPU, below [`task::MAX_CPUS`](crate::task::MAX_CPUS).
#[doc(hidden)]
pub fn of(place: usize, cpu: usize) -> u64 {
    machine::counter_read(cpu, place)
}

/// Returns the sum of a counter over all CPUs.
#[doc(hidden)]
pub fn total(place: usize) -> u64 {
    (0..machine::cpu_count())
        .map(|cpu| of(place, cpu))
        .fold(0, u64::wrapping_add)
}

crate::counters! {
    from 0;
    /// `invlpg` on the CPU that changed the mapping, one a page.
    tlb_local_page,
    /// Whole-TLB flushes on the CPU that changed the mapping.
    tlb_local_full,
    /// Other CPUs that had to forget something, each counted for each change of one page or
    /// several.
    tlb_remote,
    /// Flushes left out because the accessed bit showed that no TLB could hold the entry.
    tlb_skipped_unaccessed,
    /// Flushes left out because the address space was dead.
    tlb_skipped_dead,
    /// Interrupts sent to other CPUs for a shootdown.
    ipi_shootdown,
    /// Interrupts sent to other CPUs to make them reschedule.
    ipi_reschedule,
    /// Tasks that a CPU without work found in its queue by itself: no interrupt was sent.
    wakes_seen,
    /// Tasks that a CPU took from another one's queue.
    tasks_stolen,
    /// Tasks that were put into another CPU's queue than their last one's when they were woken,
    /// new, or not allowed there any more.
    tasks_moved,
    /// Address-space switches (CR3 loads).
    space_switches,
    /// Those after which the CPU still has what it held of the space (PCID).
    space_switches_kept,
    /// Switches between small spaces of one group: no root was loaded, and nothing was flushed.
    small_switches,
    /// Spaces that took a region of a group.
    small_joins,
    /// Small spaces that became large: a mapping had no room.
    promotions_mapping,
    /// A mapping was to be at a fixed address beyond the region.
    promotions_fixed,
    /// The program ran into a general protection fault, as by an access beyond the region.
    promotions_access,
    /// A segment of its own was turned round too often.
    promotions_segments,
    /// The process became another user's.
    promotions_user,
    /// Segments of programs in small spaces that were turned round, to serve offsets of the other
    /// sign.
    segments_turned,
    /// Branch predictions dropped between programs that do not trust each other (IBPB).
    prediction_barriers,
    /// Task switches.
    task_switches,
    /// Heap blocks of several frames that were not neighbours.
    heap_blocks_mapped,
    /// Pages zeroed, new page tables among them.
    pages_zeroed,
    /// Bytes copied from programs to the kernel.
    bytes_copied_in,
    /// Bytes copied from the kernel to programs.
    bytes_copied_out,
    /// Bytes copied from frame to frame, those of `pages_copied` among them, and between frames and
    /// the kernel's own memory.
    bytes_copied_within,
    /// Context entries of devices that remapping units were told to forget; each unit counts.
    iommu_context_invalidations,
    /// IOTLB invalidations of everything.
    iommu_global_invalidations,
    /// IOTLB invalidations of a domain.
    iommu_domain_invalidations,
    /// IOTLB invalidations of pages in a row.
    iommu_page_invalidations,
    /// Entries of the table of interrupts that units were told to forget.
    iommu_interrupt_invalidations,
    /// Invalidation queues that were started anew after an error.
    iommu_queue_errors,
    /// Accesses of devices that units refused.
    iommu_faults,
    /// Page-table frames taken.
    page_tables_allocated,
    /// Page-table frames given back.
    page_tables_freed,
    /// Page tables of the parent that a forked space came to share.
    page_tables_shared,
    /// Shared page tables that a space copied to change its mappings.
    page_tables_copied,
    /// Shared page tables that a space had for itself again, since all others had left them.
    page_tables_reclaimed,
    /// Page tables looked at to count mapped pages.
    page_tables_counted,
    /// Large pages entered: 2 MiB by one entry.
    large_entered,
    /// Those of memory that processes share among them.
    large_shared_entered,
    /// Of these, those that were removed or split.
    large_shared_gone,
    /// Those that were removed as a whole.
    large_removed,
    /// Those that were split because a part was to be removed.
    large_split_remove,
    /// Because a part, or all, was to lose rights.
    large_split_protect,
    /// Because of a fork.
    large_split_fork,
    /// Because something was to be known or done about one page in all spaces: pageout, as a rule.
    large_split_page,
    /// Because of anything else.
    large_split_other,
    /// Pages that were mapped for a device.
    iommu_pages_mapped,
    /// Mappings of pages for a device that ended.
    iommu_pages_unmapped,
    /// Invalidations of IOTLBs for requests that were done.
    iotlb_batch,
    /// Because a slot of a queue had used all its addresses.
    iotlb_ring_full,
    /// Because units may hold that there was no mapping ("caching mode").
    iotlb_absent,
    /// Because frames became page tables.
    iotlb_page_table,
    /// Because frames became parts of the kernel's heap.
    iotlb_heap,
    /// Because frames became kernel stacks.
    iotlb_stack,
    /// Because of anything else.
    iotlb_other,
    /// Frames that left the devices' reach to be page tables or set aside for them, or came back.
    type_changes_page_tables,
    /// The same for the kernel's heap.
    type_changes_heap,
    /// The same for the kernel's stacks.
    type_changes_stacks,
    /// The same for what the machine came with.
    type_changes_other,
    /// Batches of such frames, an IOTLB invalidation each: page tables.
    device_batches_page_tables,
    /// The same for the kernel's heap.
    device_batches_heap,
    /// The same for the kernel's stacks.
    device_batches_stacks,
    /// The same for what the machine came with.
    device_batches_other,
    /// Frames that were moved out of the direct map.
    direct_map_hidden,
    /// Frames that were moved into it.
    direct_map_shown,
    /// Flushes of all CPUs after frames had left the direct map.
    direct_map_flushes,
    /// Ephemeral mappings that were found made.
    ephemeral_hits,
    /// Ephemeral mappings that changed a page table.
    ephemeral_misses,
    /// Sleeps for one, as all were in use.
    ephemeral_sleeps,
    /// Flushes of a CPU that had used all addresses of its ring.
    ephemeral_flush_ring,
    /// Flushes of all CPUs since the window's caches were made anew.
    ephemeral_flush_resize,
    /// Invalidations of one address by the CPU that uses it: for a private mapping, the address was
    /// another frame's before.
    ephemeral_local_reuse,
    /// For a private mapping that another CPU had made.
    ephemeral_local_moved,
    /// For a shared mapping, when the CPU used it (`ephemeral.late=on`).
    ephemeral_local_late,
    /// For a shared mapping, when this CPU made it.
    ephemeral_local_shared,
    /// For a mapping without the window, at its end (`ephemeral=uncached`).
    ephemeral_local_uncached,
    /// Invalidations of one address that other CPUs were asked for, once for each CPU: for a shared
    /// mapping.
    ephemeral_remote_shared,
    /// For a mapping without the window, at its end.
    ephemeral_remote_uncached,
    /// Mappings that ended without an invalidation: by the accessed bit, no TLB held them.
    ephemeral_saved_accessed,
    /// Invalidations saved by the CPU mask, of mappings for all CPUs.
    ephemeral_saved_mask,
    /// Invalidations on other CPUs saved since the mapping is private.
    ephemeral_saved_private,
    /// Invalidations saved since the CPU had dropped all its translations meanwhile.
    ephemeral_saved_flushed,
    /// Interrupts of a CPU's own timer.
    interrupts_timer,
    /// Interrupts of the first serial port.
    interrupts_console,
    /// Messages of devices.
    interrupts_device,
    /// Interrupts by which another CPU asked for a look at the run queue.
    interrupts_reschedule,
    /// Interrupts by which another CPU told of changed mappings.
    interrupts_shootdown,
    /// Interrupts that meant nothing.
    interrupts_spurious,
}
