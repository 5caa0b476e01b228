//! Page tables in the BSD sense: the machine-dependent layer of `uvm.txt` 2.
//!
//! From the bottom up:
//!
//! | file | contents |
//! |---|---|
//! | `format`, `entries` | the x86-64 page-table format, used by both machines; entries of tables |
//! | `space`, `loaded` | [`Pmap`] and its family; which CPU has which pmap loaded |
//! | `group`, `small` | small spaces: several pmaps in one hardware address space |
//! | `shootdown`, `tags` | TLB shootdowns; translations of spaces that are not loaded |
//! | `leaf`, `owner` | tables of level 1: pinned, and their owners |
//! | `reverse`, `mapping` | reverse mappings of a frame; one mapping entered and removed |
//! | [`Pending`] | frames and tables that some TLB may still reach |
//! | `table`, `large` | the tree of tables, and its locking; pages of 2 MiB |
//! | `share` | page tables that the pmaps of a fork share |
//! | `page` | operations on all mappings of a frame |
//! | [`audit`] | a walk of all tables that names what is wrong |
//! | `device` | mappings of pages that have no frame |
//! | `enter`, `remove`, `extract`, `transfer`, `tear_down` | what a map asks for |

pub mod audit;
mod device;
mod enter;
mod entries;
mod extract;
pub(crate) mod format;
mod group;
mod large;
mod leaf;
mod loaded;
mod mapping;
mod owner;
mod page;
mod pending;
mod remove;
mod reverse;
mod share;
mod shootdown;
mod small;
mod space;
mod table;
mod tags;
mod tear_down;
#[cfg(all(test, not(target_os = "none")))]
mod tests;
mod transfer;

pub use crate::addr::{Access, Prot};
pub use extract::Resident;
pub use group::{
    AREA, GroupState, REGIONS, SmallSpaces, group_from, region, set_region, set_small_spaces,
    small_spaces,
};
pub use large::{LargeKind, large_pages, large_shared_pages, large_splits};
pub(crate) use loaded::{activate, leave};
pub use page::{
    Use, clear_modified, is_modified, is_wired, mappings_of_spaces, page_protect, set_modified,
    set_referenced, take_referenced, take_use, watch_references,
};
pub use pending::Pending;
pub use share::{Fork, Writes, fork_mode, set_fork};
pub use shootdown::{Coherence, coherence, interrupt_all, set_coherence};
pub(crate) use shootdown::{all_cpus, forget_window, on_shootdown};
pub use small::Promotion;
#[cfg(target_os = "none")]
pub(crate) use space::take_root;
pub use space::{Pmap, PmapRef, PmapWeak};

/// Forgets an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn init() {
    shootdown::start();
    loaded::start();
    tags::start();
    group::start();
}
