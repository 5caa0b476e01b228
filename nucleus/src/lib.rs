//! The trusted base: the only floor that may use `unsafe`.
//!
//! In the order in which a page of data meets it:
//!
//! - [`frame`]: physical memory. A [`Frame`] is a counted handle; dropping the last one frees it.
//! - [`pmap`]: page tables, reverse mappings, TLB coherence and [`pmap::Pending`] sets.
//! - [`ephemeral`]: the only way for the floors above to touch the bytes of a frame.
//! - [`speculation`]: indices that programs choose, kept in range while a CPU guesses.
//! - [`user`]: the only way to touch the bytes of the current program's address space.
//! - [`dma`], [`virtio`]: devices, and the frames that they read and write; [`rtc`]: the date.
//! - [`units`]: what remapping units and domains do.
//! - [`pci`]: devices whose memory programs map ([`DeviceMemory`]).
//! - [`trap`]: running a program until it traps.
//! - [`task`], [`sync`], [`time`]: kernel threads, sleeping, locks and their order, clocks.
//! - [`vdso`]: what programs call for the time without a system call.
//! - [`random`]: random bytes, seeded by all that the machine offers.
//! - [`counters`]: what all of it cost, by cause; [`hw_cost`]: what the bare machine takes for it.
//! - [`Mistake`]: rules that tests remove.
//! - [`switches`]: settings of mechanisms, each declared once by the floor that has it.
//! - `hw`: the two machines, x86-64 and the simulated one, behind one interface.
#![cfg_attr(target_os = "none", no_std)]

extern crate alloc;

pub mod addr;
pub mod boot;
mod cpu;
mod dev;
pub mod ephemeral;
mod error;
mod hw;
mod lock;
mod mem;
mod pieces;
pub mod pmap;
pub mod random;
mod selftest;
mod slots;
pub mod speculation;
pub mod switches;
pub mod sync;
pub mod task;
pub mod time;
pub mod user;

pub use addr::{Access, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Prot, VirtAddr, VirtRange};
pub use dev::{console, dma, functions as pci, rtc, units, virtio};
pub use error::{OutOfMemory, Unchanged, try_box, try_copy, try_filled, try_vec};
pub use hw::{counters, date::Date, log, power, processor};
pub use mem::device::{Caching, DeviceMemory, DevicePage};
pub use mem::frame::Frame;
#[cfg_attr(not(any(target_os = "none", test)), allow(unused_imports))]
pub use mem::heap;
pub use mem::mistake::Mistake;
pub use mem::persistent;
pub use pieces::{Pieces, visit_by_key};
pub use pmap::Pmap;
pub use selftest::hw_cost;
pub use slots::{Slots, Spare, SpareSize};
pub use time::vdso;

/// Running a program until it traps.
pub mod trap {
    pub use crate::hw::local_segments::*;
    pub use crate::hw::registers::*;
    pub use crate::hw::user_context::*;
}

/// Physical memory in frames.
pub mod frame {
    pub use crate::mem::frame::*;
    pub(crate) use crate::mem::frame::{
        give_run, hold, large_fails, record, release_held, take_neighbours, take_own, watch_reach,
    };
    pub use crate::task::shortage::{await_shortage, report_shortage};
}

/// The simulated machine, for the tests of the floors above.
#[cfg(not(target_os = "none"))]
pub mod sim {
    pub use crate::boot::fixture::*;
    pub use crate::boot::simulated::*;
    pub use crate::dev::bus_master::{BusMaster, Transfer};
    pub use crate::hw::sim::*;
}
