//! The calls that the hardware makes to the floors above it.
//!
//! Each is a function that the linker resolves: `boot/handlers.rs` defines all of them, in this
//! order. A call costs what a direct one costs and may be inlined at link time.

#[cfg(target_os = "none")]
use crate::addr::PhysAddr;
use crate::addr::{Access, VirtAddr};
use crate::hw::counters::Counter;
use core::ops::Range;

unsafe extern "Rust" {
    /// Makes the scheduler choose a task, unless preemption is disabled. Restores the interrupt
    /// flag. Called by [`preempt`](super::machine::preempt) when a reschedule is wanted;
    /// `in_program`: the current task runs its program, or is about to, and holds no lock.
    #[link_name = "nucleus_reschedule"]
    pub(crate) safe fn reschedule(in_program: bool);

    /// Handles this CPU's timer, with interrupts off; `in_program`: it interrupted a program.
    #[link_name = "nucleus_on_timer"]
    pub(crate) safe fn on_timer(in_program: bool);

    /// Handles a TLB shootdown that another CPU asked for, with interrupts off.
    #[link_name = "nucleus_on_shootdown"]
    pub(crate) safe fn on_shootdown();

    /// Handles bytes that arrived at the console, with interrupts off.
    #[link_name = "nucleus_on_console"]
    pub(crate) safe fn on_console();

    /// Resolves a fault of a kernel copy routine on a program's address, with interrupts on.
    /// Returns whether the access may be tried again.
    #[link_name = "nucleus_resolve_fault"]
    pub(crate) safe fn resolve_fault(at: VirtAddr, access: Access) -> bool;

    /// Wakes the pagedaemon: few frames are left.
    #[link_name = "nucleus_on_shortage"]
    pub(crate) safe fn on_shortage();

    /// Wakes the pagedaemon: it may be that page tables are kept that nothing needs.
    #[link_name = "nucleus_on_kept_tables"]
    pub(crate) safe fn on_kept_tables();

    /// Takes frames that their owner has alone out of the tree of those that devices reach.
    #[link_name = "nucleus_frames_leave"]
    pub(crate) safe fn frames_leave(frames: &[Range<u32>], cause: Counter);

    /// Brings such frames back.
    #[link_name = "nucleus_frames_enter"]
    pub(crate) safe fn frames_enter(frames: &[Range<u32>]);

    /// Ends the ephemeral mappings without a user of frames that their owner has alone and that
    /// become page tables.
    #[link_name = "nucleus_end_mappings"]
    pub(crate) safe fn end_mappings(frames: Range<u32>);

    /// Frees what waits for an invalidation of devices' translations; returns whether that was
    /// anything. The caller holds no spin lock.
    #[link_name = "nucleus_free_stale"]
    pub(crate) safe fn free_stale() -> bool;
}

#[cfg(debug_assertions)]
unsafe extern "Rust" {
    /// Returns the current task's list of held locks, null before the first task. The list belongs
    /// to [`lockdep`](crate::lock::lockdep), which uses it with interrupts off.
    #[link_name = "nucleus_held_locks"]
    pub(crate) safe fn held_locks() -> *mut ();
}

#[cfg(target_os = "none")]
unsafe extern "Rust" {
    /// Handles message `number` of a device, with interrupts off.
    #[link_name = "nucleus_on_device"]
    pub(crate) safe fn on_device(number: usize);

    /// Handles what remapping units refused, with interrupts off.
    #[link_name = "nucleus_on_iommu_fault"]
    pub(crate) safe fn on_iommu_fault();

    /// Takes a frame for a remapping unit's tables. Its bytes are stale.
    #[link_name = "nucleus_take_kernel_frame"]
    pub(crate) safe fn take_kernel_frame() -> Option<PhysAddr>;

    /// Takes a frame for a page table of the kernel. Its bytes are stale.
    #[link_name = "nucleus_take_kernel_table"]
    pub(crate) safe fn take_kernel_table() -> Option<PhysAddr>;

    /// Gives a frame of [`take_kernel_table`] back that was never used.
    #[link_name = "nucleus_give_kernel_table"]
    pub(crate) safe fn give_kernel_table(at: PhysAddr);

    /// Takes frames for a stack of the kernel, all or none. Their bytes are stale.
    #[link_name = "nucleus_take_stack"]
    pub(crate) safe fn take_stack(to: &mut [u32]) -> bool;

    /// Frees frames of [`take_stack`], which no TLB and no table leads to any more.
    #[link_name = "nucleus_give_stack"]
    pub(crate) safe fn give_stack(frames: &[u32]);
}

#[cfg(not(target_os = "none"))]
unsafe extern "Rust" {
    /// Lists the living tasks, one line each, for the report of a failed run.
    #[link_name = "nucleus_report_tasks"]
    pub(super) safe fn report_tasks() -> Vec<String>;

    /// Joins the scheduler on a CPU other than the first, with interrupts off.
    #[link_name = "nucleus_join_scheduler"]
    pub(crate) safe fn join_scheduler() -> !;
}
