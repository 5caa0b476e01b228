//! The experiments, a file each. A new one is a line here, a line in [`ALL`], and its place in the host's report.

use crate::Experiment;

mod calls;
mod fault_ahead;
mod fault_bandwidth;
mod fork;
mod map_entries;
mod map_fault_unmap;
mod memory_calls;
mod memory_pressure;
mod mmap_threads;
mod process_vm;

/// In the order in which they are listed and done.
pub const ALL: &[&Experiment] = &[
    &calls::EXPERIMENT,
    &fork::EXPERIMENT,
    &map_fault_unmap::EXPERIMENT,
    &fault_bandwidth::EXPERIMENT,
    &fault_ahead::EXPERIMENT,
    &mmap_threads::EXPERIMENT,
    &memory_calls::EXPERIMENT,
    &process_vm::EXPERIMENT,
    &map_entries::EXPERIMENT,
    &memory_pressure::EXPERIMENT,
];
