//! A file system that a 9P server keeps (9P2000.L), such as a folder of the host's.
//!
//! - `transport`: what carries messages; the floor above brings it.
//! - `codec`: the bytes of messages. `client`: calls, tags, fids.
//! - `node`: vnodes, names and attributes.
//! - `content`: the bytes of regular files, in the pages of an object; `reading`, `writing`. `cache`: how many pages there are.
//!
//! *Coherence.* Names and attributes are the server's at every call. A file's pages are kept: they are thrown away when the file is
//! opened and the server's copy has changed (close-to-open), and when a read comes to the end and the file has grown. Writes
//! go through to the server before the call returns; what a shared mapping has written goes there with `msync`, `fsync`, `sync` and when the
//! last such mapping goes.
//!
//! *Locks of files* (`flock`, `fcntl`) are those of the kernel's own processes: the server is not asked.
//!
//! Locks: [`Rank::Directory`](nucleus::sync::Rank::Directory) is not used here, as the server orders what changes names;
//! `Rank::Vnode` (who writes or truncates a file) -> the object's own. No call to the server is made with a spin lock held.

mod cache;
mod client;
mod codec;
mod content;
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

pub use cache::{cached_pages, give_back};
pub use transport::{Flight, Transport};

use crate::{Vnode, vnode::new_device};
use client::Client;
use node::Node;

/// How long attributes that a walk has just brought may be shown without asking again: the `stat` that the walk was for.
const FRESH: Duration = Duration::from_millis(5);

/// What the vnodes of one mount share.
struct Ninep {
    device: u64,
    /// The vnodes that there are, by the server's number for the file.
    nodes: SpinLock<BTreeMap<u64, Weak<Node>>>,
}

impl Drop for Ninep {
    fn drop(&mut self) {
        cache::forget(self.device);
    }
}

/// The largest message that is asked for: what a queue of 128 slots can carry in pages, and a bit more.
pub const MAX_MESSAGE: u32 = 512 << 10;

/// The root of what the server at the other end of `transport` exports as `name`.
///
/// # Errors
/// `EPROTONOSUPPORT` if it speaks another protocol only, `EIO` if it answers nonsense, its own.
pub fn root(transport: Arc<dyn Transport>, name: &[u8]) -> Result<Arc<dyn Vnode>> {
    cache::register();
    let client = Client::connect(transport, MAX_MESSAGE)?;
    let (fid, qid) = client.attach(b"root", name)?;
    let fs = Arc::new(Ninep {
        device: new_device(),
        nodes: SpinLock::new(Rank::Leaf, BTreeMap::new()),
    });
    Ok(fs.node(fid, qid, None)?)
}
