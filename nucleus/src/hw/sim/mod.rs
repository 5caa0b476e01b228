//! A machine inside an ordinary process, for tests.
//!
//! Physical memory is an array. Each CPU has a TLB (`tlb.rs`) that keeps an entry until it is
//! invalidated and may fill one at any time; interrupts are messages that arrive some time later
//! (`machine.rs`); the clock goes forward as the machine is used, and jumps when all CPUs sleep.
//! Page tables are the real ones.
//!
//! Everything runs on one thread of the host, each task and each idle CPU on a stack of its own
//! (`fiber.rs`). At every [`point`] a generator decides, from the run's seed, whether another CPU
//! goes on, so a seed repeats a run to the digit. An oracle (`oracle.rs`) ends the run with a
//! [`Failure`] when a stale translation could be used after coherence was promised, or when a frame
//! is freed while a TLB still reaches it. Devices reach memory through remapping units (`iommu.rs`)
//! that are as unkind.
//!
//! ```no_run
//! use nucleus::{sim, task, time};
//!
//! sim::check("sleepers", 0..100, sim::Config::default(), || {
//!     task::sleep(task::Sleep::until(time::since_boot() * 2));
//! });
//! ```
//!
//! Outside a run the functions of this machine do nothing, on a single CPU, so that locks and
//! counters work in plain tests.

mod access;
mod counted_heap;
mod fiber;
mod interface;
mod iommu;
pub(crate) mod machine;
mod oracle;
pub(crate) mod program;
pub(super) mod random;
#[cfg(test)]
mod tests;
mod tlb;
mod window;

pub(crate) use access::{
    copy_from_user, copy_mapped_from_user, copy_mapped_to_user, copy_to_user, user_cmpxchg_u32,
    user_load_u32,
};
pub use counted_heap::CountedHeap;
pub(crate) use fiber::Stack;
pub(crate) use interface::*;
pub use interface::{
    bugs, caches, choice_of, console_input, console_output, point, processor, random_u64,
    set_in_program, vulnerabilities,
};
#[cfg(test)]
pub(crate) use iommu::iommu_take_fault;
pub(crate) use iommu::{
    CHECKS_REACH, frame_closed, frame_opened, iommu_attach, iommu_detach, iommu_features,
    iommu_invalidate, iommu_reserved, iommu_sync,
};
pub use iommu::{device_read, device_write, fail_unit, invalidations};
pub(crate) use machine::preempt;
pub(crate) use oracle::{coherence_stamp, condemn, frame_freed, promise_all, promise_page};
pub use program::set_program;
pub(crate) use program::{UserState, run as run_program};
pub(crate) use tlb::{
    MOST_TAGS, forget_predictions, invalidate_all, invalidate_page, invalidate_tagged, linear_end,
    load_program_space, load_space, set_window, stay_in_space, tags, window,
};
pub(crate) use window::{
    WINDOW_ORDERED, WINDOW_PAGES, WINDOW_RING, WINDOW_RUN, WINDOW_SINGLE, each_kernel_page,
    flushes, guard, is_constant, is_guarded, is_unsealed, lets_write, reach_tables, table_ptr,
    window_address, window_flush, window_invalidate, window_map, window_slot, window_start,
    window_take, window_unmap, window_used,
};

/// Most CPUs that are used.
pub(crate) const MAX_CPUS: usize = 16;
/// Counters that each CPU has room for.
pub(crate) const MAX_COUNTERS: usize = 224;
