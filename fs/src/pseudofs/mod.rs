//! Directories and files that are generated on demand, the base of `/proc`.
//!
//! A [`Directory`] answers look-ups with an [`Entry`]: a text generated when it is read, a link, a
//! link that leads to a location, an open file of another type, or a further directory. A [`Table`]
//! is a directory with fixed names, and perhaps another directory after them.
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
//! Nodes are created at each look-up and refer only to their parent, so a directory may change at
//! any time. No lock is held while a closure or a [`Directory`] is called.

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

/// Receives one name of [`Directory::list`]: name, kind, and the cursor after it. Returns false
/// when there is no more room.
pub type EmitName<'a> = dyn FnMut(&[u8], Kind, u64) -> bool + 'a;

/// A directory that is generated on demand.
pub trait Directory: Any + Send + Sync {
    /// Looks a name up.
    ///
    /// # Errors
    /// `ENOENT`.
    fn lookup(&self, name: &[u8]) -> Result<Entry>;

    /// Emits names in the order of their cursors, from `cursor` on: 0 at first, later a cursor that
    /// came with a name. A cursor must stay valid while other names come and go (a process number,
    /// a descriptor), below 2^61.
    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()>;

    /// Whether the calling program may read and search it whatever the permission bits say.
    fn is_open_to_caller(&self) -> bool {
        false
    }
}
