//! Moving pages between a program and other users.
//!
//! - `policy`: whether bytes are copied, or their pages change hands.
//! - `current`: the program that the current thread runs.
//! - `loan`: pages that a program lends, and pages that become a program's (`uvm.txt` 7).
//! - `hand_over`: pages that a program hands to another one at its request.
//! - `entry_passing`: map entries that are copied, moved or shared (`uvm.txt` 7).
//! - `pin`: pages of a program that a device reads or writes.
//! - `access`: reading and writing an address space that is not the current one.
//! - `moved`: what became of the bytes of large transfers.

mod access;
mod current;
mod entry_passing;
mod hand_over;
mod loan;
mod moved;
mod pin;
mod policy;

pub use current::{is_dying, set_current_map, set_dying, with_current};
pub use entry_passing::Passing;
pub use hand_over::{HandedOver, Handing};
pub use moved::{CopyReason, MOVED_NAMES, Moved, TransferCall, count_moved, moved_bytes};
pub use pin::PinnedPages;
pub use policy::{
    Movement, Overwriting, PASSED_TOGETHER, least_direct, least_large, least_move, least_pages,
    least_stable, lends_pages, may_move, movement, reason_to_copy, set_least_pages, set_movement,
    takes_pages,
};
