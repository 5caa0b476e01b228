//! Cases that hold by either backend. Each forks its own processes, and runs in one that has not
//! entered the region.

mod serving;

#[path = "../../../libfbuf/tests/cases/processes.rs"]
mod processes;

use libfbuf::Backend;
#[allow(unused_imports, reason = "the guest's tests need fewer")]
pub use processes::{Draws, fork, status_of, wait};

/// A case: its name, and what it does.
pub type Case = (&'static str, fn(Backend));

/// All cases.
pub const ALL: &[Case] = &[("netserver: two clients", serving::two_clients)];
