//! Swap: where pages go that have no other home (`uvm.txt` 5.3, 6).
//!
//! - `store`: what the kernel gives: a block device, a file, memory.
//! - `table`: the devices and their slots; `bitmap`: which of them are free; `slot`: names of slots, and who has one.
//! - `cluster`: pages leave, many at a time to neighbouring slots, wherever they stand in memory.
//! - `page_in`: pages come back, with those that stand in neighbouring slots.
//! - `usage`: what others are told.
//!
//! Where a page is says the page itself: see `swap_state`. A slot is referred to by exactly one page, so no slot
//! is counted: it is free when its page gives it up, and *the slots in use are the slots that pages have*.

mod bitmap;
mod cluster;
mod page_in;
mod slot;
mod store;
mod swap_state;
mod table;
mod usage;

pub(crate) use cluster::{Cluster, Taken, drop_clean};
pub(crate) use page_in::{PageInError, bring_in};
pub(crate) use slot::{SlotNumber, SwapSlot};
pub use store::{Done, StoreFailed, SwapStore};
pub(crate) use swap_state::{Home, Paged, SwapState};
pub(crate) use table::{Removal, refuse_removals};
pub use table::{add, devices, usage};
pub use usage::{DeviceId, DeviceUsage, SwapError, SwapUsage};
