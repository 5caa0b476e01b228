//! A file system that a 9P server keeps (9P2000.L), such as a folder of the host's.
//!
//! - `transport`: carries messages; the floor above implements it.
//! - `codec`: the bytes of messages. `client`: calls, tags, fids.
//! - `node`: vnodes, names and attributes.
//! - `content`: the bytes of regular files, a backing store of the page cache that is written
//!   through; `reading`, `writing`. `kept`: pages of files without a vnode.
//!
//! *Coherence.* Names and attributes are read from the server at every call. A file's pages are
//! cached: they are discarded when the file is opened and the server's copy has changed
//! (close-to-open), and when a read comes to the end and the file has grown. Writes go through to
//! the server before the call returns; stores of shared mappings are written with `msync`, `fsync`,
//! `sync` and when the last such mapping ends.
//!
//! *File locks* (`flock`, `fcntl`) are local: the server is not asked.
//!
//! Locks: [`DIRECTORY`](crate::rank::DIRECTORY) is not used here, as the server
//! orders changes of names; `rank::VNODE` (writers of a file) -> the object's own. No call to the
//! server is made with a spin lock held.

mod client;
mod codec;
mod content;
mod kept;
mod node;
mod reading;
mod transport;
mod writing;

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::time::Duration;

use abi::Result;
use nucleus::sync::{Rank, SpinLock};

pub use transport::{Flight, Transport};

use crate::{Vnode, vnode::new_device};
use client::Client;
use node::Node;

/// How long attributes that a walk has just brought are used without asking again: for the `stat`
/// that follows it.
const FRESH: Duration = Duration::from_millis(5);

/// The state that the vnodes of one mount share.
struct Ninep {
    device: u64,
    /// The vnodes that there are, by the server's number for the file.
    nodes: SpinLock<BTreeMap<u64, Weak<Node>>>,
}

impl Drop for Ninep {
    fn drop(&mut self) {
        kept::forget(self.device);
    }
}

/// The largest message: a queue of 128 slots carries it in pages.
pub const MAX_MESSAGE: u32 = 512 << 10;

/// Returns the root of the tree that the server at the other end of `transport` exports as `name`.
///
/// # Errors
/// `EPROTONOSUPPORT` if it speaks another protocol only, `EIO` if it answers nonsense, its own.
pub fn root(transport: Arc<dyn Transport>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
    let client = Client::connect(transport, MAX_MESSAGE)?;
    let (fid, qid) = client.attach(b"root", name)?;
    let fs = Arc::new(Ninep {
        device: new_device(),
        nodes: SpinLock::new(Rank::Leaf, BTreeMap::new()),
    });
    Ok(fs.node(fid, qid, None)?)
}
