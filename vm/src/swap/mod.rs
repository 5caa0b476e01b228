//! The swap space: backing store of pages that have no other (`uvm.txt` 5.3, 6).
//!
//! - `store`: the interface of a device's backing: a block device, a file, memory.
//! - `table`: devices and their slots; `bitmap`: which slots are free; `slot`: slot numbers and
//!   ownership.
//! - `swap_state`: where a page is: in memory, in a slot, or both.
//! - `cluster`: page-out, many pages at a time to neighbouring slots.
//! - `page_in`: page-in, together with the pages in neighbouring slots.
//! - `usage`: sizes, errors and identifiers for callers.
//!
//! Each slot is owned by exactly one page and needs no reference count: it is free when its page
//! gives it up, and *the slots in use are the slots that pages own*.

mod bitmap;
mod cluster;
mod page_in;
mod slot;
mod store;
mod swap_state;
mod table;
mod usage;

pub(crate) use cluster::{Cluster, Taken, drop_clean};
pub(crate) use page_in::{PageInError, page_in};
pub(crate) use slot::{SlotNumber, SwapSlot};
pub use store::{Done, StoreFailed, SwapStore};
pub(crate) use swap_state::{Home, Paged, SwapState, may_go};
pub(crate) use table::{Removal, refuse_removals};
pub use table::{add, devices, usage};
pub use usage::{DeviceId, DeviceUsage, SwapError, SwapUsage};
