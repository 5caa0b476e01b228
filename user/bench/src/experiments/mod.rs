//! The experiments, a file each. A new one is a line here, a line in [`ALL`], and its place in the
//! host's report.

use crate::Experiment;

mod calls;
mod direct_io;
mod disk_dump;
mod exec;
mod fault_ahead;
mod fault_bandwidth;
mod fbuf;
mod fbuf_network;
mod file;
mod floors;
mod fork;
mod futex;
mod hostile;
mod loan;
mod map_entries;
mod map_fault_unmap;
mod memory_calls;
mod memory_pressure;
mod mmap_threads;
mod network;
mod object_cache;
mod passing;
mod pipe;
mod pipeline;
mod polling;
mod postmark;
mod process_vm;
mod sharing;
mod signals;
mod splice;
mod switches;
mod tcp_loopback;
mod threads;
mod udp_loopback;
mod unix_socket;
mod web_server;

pub use exec::again;

/// In the order in which they are listed and done.
pub const ALL: &[&Experiment] = &[
    &floors::EXPERIMENT,
    &calls::EXPERIMENT,
    &polling::EXPERIMENT,
    &hostile::EXPERIMENT,
    &signals::EXPERIMENT,
    &switches::EXPERIMENT,
    &futex::EXPERIMENT,
    &threads::EXPERIMENT,
    &exec::EXPERIMENT,
    &fork::EXPERIMENT,
    &map_fault_unmap::EXPERIMENT,
    &fault_bandwidth::EXPERIMENT,
    &fault_ahead::EXPERIMENT,
    &mmap_threads::EXPERIMENT,
    &sharing::EXPERIMENT,
    &memory_calls::EXPERIMENT,
    &process_vm::EXPERIMENT,
    &passing::EXPERIMENT,
    &loan::EXPERIMENT,
    &map_entries::EXPERIMENT,
    &memory_pressure::EXPERIMENT,
    &object_cache::EXPERIMENT,
    &direct_io::EXPERIMENT,
    &pipe::EXPERIMENT,
    &unix_socket::EXPERIMENT,
    &tcp_loopback::EXPERIMENT,
    &udp_loopback::EXPERIMENT,
    &network::EXPERIMENT,
    &splice::EXPERIMENT,
    &file::EXPERIMENT,
    &postmark::EXPERIMENT,
    &pipeline::EXPERIMENT,
    &fbuf::EXPERIMENT,
    &fbuf_network::EXPERIMENT,
    &disk_dump::EXPERIMENT,
    &web_server::EXPERIMENT,
];
