//! Directories and files made up on demand, the base of `/proc`.
//!
//! A [`Directory`] answers look-ups with an [`Entry`]: a text generated when it is read, a link, a
//! link that leads to a place, an open file of another kind, or a further directory. A [`Table`] is
//! a directory with fixed names, and perhaps another directory behind them.
//!
//! ```ignore
//! let proc = pseudofs::root(
//!     "proc",
//!     Table::new()
//!         .with("uptime", Entry::text(|out| {
//!             writeln!(out, "{}", seconds());
//!             Ok(())
//!         }))
//!         .with("self", Entry::link(|| Ok(current_pid().to_string().into_bytes())))
//!         .with("panic", Entry::text(show).writable(|bytes| set(bytes)))
//!         .otherwise(Processes),
//! );
//! namespace.mount(&at, proc, &MountRequest::plain("proc"))?;
//! ```
//!
//! Nodes are made anew at each look-up and keep nothing but their parent, so a directory may
//! change its mind at any time. No lock is held while a closure or a [`Directory`] is asked.

mod entry;
mod node;
mod table;
mod text;

pub use entry::Entry;
pub use node::{directory, root};
pub use table::Table;
pub use text::Text;

use core::any::Any;

use abi::Result;

use crate::Kind;

/// One name on its way out of [`Directory::list`]: name, kind, and the cursor after it. Returns false when there is no more room.
pub type EmitName<'a> = dyn FnMut(&[u8], Kind, u64) -> bool + 'a;

/// A directory made up on demand.
pub trait Directory: Any + Send + Sync {
    /// What `name` is.
    ///
    /// # Errors
    /// `ENOENT`.
    fn lookup(&self, name: &[u8]) -> Result<Entry>;

    /// Emits names in the order of their cursors, from those behind `cursor` on: 0 at first, later a cursor that came
    /// with a name. A cursor must stay right while other names come and go (a process number, a descriptor), below 2^61.
    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()>;
}
