//! Moving pages between a program and other users.
//!
//! - `loan`: pages that a program lends, and pages that become a program's (`uvm.txt` 7).
//! - `entry_passing`: map entries that are copied, moved or shared (`uvm.txt` 7).
//! - `hand_over`: pages that a program hands to another one at its request.
//! - `pin`: pages of a program that a device reads or writes.
//! - `moved`: what became of the bytes of large transfers.
//! - `access`: reading and writing an address space that is not the current one.

mod access;
mod entry_passing;
mod hand_over;
mod loan;
mod moved;
mod pin;
mod policy;

pub use entry_passing::Passing;
pub use hand_over::{HandedOver, Handing};
pub use moved::{CopyReason, MOVED_NAMES, Moved, TransferCall, count_moved, moved_bytes};
pub use pin::PinnedPages;
pub use policy::{
    Movement, Overwriting, PASSED_TOGETHER, is_dying, least_direct, least_large, least_move,
    least_pages, lends_pages, may_move, movement, reason_to_copy, set_current_map, set_dying,
    set_least_pages, set_movement, takes_pages, with_current,
};
