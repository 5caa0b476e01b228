//! The in-memory file system.
//!
//! `node`: vnodes and their attributes; `names`: the names that they know; `directory`: entries;
//! `rename`; `extended`: extended attributes; `regular`: the data of files, in a page cache whose
//! store is swap: read, write and mappings use the same frames.
//!
//! Locks: [`RENAME`](crate::rank::RENAME) (moves between directories) -> `Directory` (entries) ->
//! `Vnode` (writers and truncation of a file) -> the object's own. Attributes are atomics. The
//! fault path takes the object's lock only.

mod directory;
mod extended;
mod names;
mod node;
mod options;
mod regular;
mod rename;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use core::{
    any::Any,
    sync::atomic::{AtomicU64, Ordering},
};

use abi::{Errno, Result};
use nucleus::{PAGE_SIZE, frame, heap, random, sync::Mutex};
use vm::account::{self, Account};

use crate::{
    Credentials, Vnode,
    namespace::NAME_MAX,
    vnode::{self, FileSystem, Space, new_device},
};

pub use options::Options;

/// `TMPFS_MAGIC`.
const MAGIC: u64 = 0x0102_1994;

/// The state that the vnodes of one file system share.
struct Ramfs {
    device: u64,
    /// The seed of the hash of names. It is secret, so programs can't make names collide.
    seed: u64,
    next_inode: AtomicU64,
    pages: AtomicU64,
    max_pages: AtomicU64,
    nodes: AtomicU64,
    max_nodes: AtomicU64,
    /// Held while a directory moves to another parent, so that ancestors stay ancestors.
    rename: Mutex<()>,
}

/// Creates an empty file system; returns its root.
pub fn root(options: Options) -> Arc<dyn Vnode> {
    let half = (frame::usage().total / 2) as u64;
    let fs = Arc::new(Ramfs {
        device: new_device(),
        seed: random::u64(),
        next_inode: AtomicU64::new(1),
        pages: AtomicU64::new(0),
        max_pages: AtomicU64::new(options.pages.unwrap_or(half)),
        nodes: AtomicU64::new(0),
        max_nodes: AtomicU64::new(options.nodes.unwrap_or(half).max(1)),
        rename: Mutex::new(crate::rank::RENAME, ()),
    });
    // A limit of no nodes still leaves the root.
    fs.nodes.fetch_add(1, Ordering::Relaxed);
    node::Node::new(
        fs,
        node::Body::directory(),
        options.mode,
        options.owner,
        None,
        (None, account::Kind::Files),
    )
}

/// Creates a regular file without a name in the file system of `root`, with these seals
/// (`memfd_create`).
///
/// # Errors
/// `EXDEV` for a root of another kind of file system, `ENOSPC`, `ENOMEM`.
pub fn create_sealed(
    root: &Arc<dyn Vnode>,
    mode: u32,
    who: &Credentials,
    seals: u32,
) -> Result<Arc<dyn Vnode>> {
    let any: &dyn Any = root.as_ref();
    let root = any.downcast_ref::<node::Node>().ok_or(Errno::EXDEV)?;
    let body = node::Body::Regular(regular::Regular::with_seals(&root.fs, seals));
    let kind = account::Kind::SharedMemory;
    let payer = account::current_for(kind);
    let node = root.make_node(body, mode, who, None, (&payer, kind))?;
    Ok(node)
}

/// The account that what a call makes is charged to: looked up once a call.
type Payer = Option<Arc<Account>>;

/// Returns the payer of files with a place.
#[inline]
fn payer() -> Payer {
    account::current_for(account::Kind::Files)
}

/// Charges one file, name or attribute of so many bytes to the payer, if its user may keep it. What
/// it is for keeps the payer, and gives the charge back in its drop: it knows its size, so it has
/// no [`Charge`](account::Charge), which is four times as large.
///
/// # Errors
/// `ENOSPC`.
#[inline]
fn pay(payer: &Payer, kind: account::Kind, bytes: usize) -> Result<()> {
    pay_if(payer, kind, bytes, |user| user.may_keep(kind, 0, 1))
}

#[inline]
fn pay_if(
    payer: &Payer,
    kind: account::Kind,
    bytes: usize,
    may: impl FnOnce(&Arc<Account>) -> bool,
) -> Result<()> {
    let granted = payer
        .as_ref()
        .is_none_or(|payer| payer.add_if(kind, 1, bytes, may));
    Errno::ENOSPC.unless(granted)
}

/// Ends [`pay`].
#[inline]
fn pay_back(payer: &Payer, kind: account::Kind, bytes: usize) {
    if let Some(payer) = payer {
        payer.take_back(kind, 1, bytes);
    }
}

/// Returns the bytes of the heap that shared bytes of this length take, reference counts included.
fn shared_bytes(len: usize) -> usize {
    heap::size_of_block(2 * size_of::<usize>() + len)
}

impl Ramfs {
    fn take(count: &AtomicU64, max: &AtomicU64, n: u64) -> Result<()> {
        let before = count.fetch_add(n, Ordering::Relaxed);
        if before.saturating_add(n) > max.load(Ordering::Relaxed) {
            count.fetch_sub(n, Ordering::Relaxed);
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Charges a page.
    fn take_page(&self) -> Result<()> {
        self.take_pages(1)
    }

    /// As [`take_page`](Ramfs::take_page), for all or none of `n` pages.
    fn take_pages(&self, n: u64) -> Result<()> {
        Self::take(&self.pages, &self.max_pages, n)
    }

    /// Releases `n` pages that were charged.
    fn give_pages(&self, n: usize) {
        self.pages.fetch_sub(n as u64, Ordering::Relaxed);
    }

    /// Charges a vnode, whose drop releases it, or a name of it beyond the first one.
    fn take_node(&self) -> Result<()> {
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        Self::take(&self.nodes, &self.max_nodes, 1)
    }

    fn give_node(&self) {
        self.nodes.fetch_sub(1, Ordering::Relaxed);
    }

    fn free_pages(&self) -> u64 {
        self.max_pages
            .load(Ordering::Relaxed)
            .saturating_sub(self.pages.load(Ordering::Relaxed))
    }
}

impl FileSystem for Ramfs {
    fn space(&self) -> Space {
        Space {
            magic: MAGIC,
            block_size: PAGE_SIZE as u64,
            blocks: self.max_pages.load(Ordering::Relaxed),
            free: self.free_pages(),
            available: self.free_pages(),
            files: self.max_nodes.load(Ordering::Relaxed),
            free_files: self
                .max_nodes
                .load(Ordering::Relaxed)
                .saturating_sub(self.nodes.load(Ordering::Relaxed)),
            name_max: NAME_MAX as u64,
        }
    }

    fn pages_in_memory(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Sets new limits, which must not be below what is in use.
    fn reconfigure(&self, options: &[u8], _: bool) -> Result<()> {
        let options = Options::parse(options)?;
        let fits = |limit: Option<u64>, used: &AtomicU64| {
            limit.is_none_or(|limit| limit >= used.load(Ordering::Relaxed))
        };
        if !fits(options.pages, &self.pages) || !fits(options.nodes, &self.nodes) {
            return Err(Errno::EINVAL);
        }
        if let Some(pages) = options.pages {
            self.max_pages.store(pages, Ordering::Relaxed);
        }
        if let Some(nodes) = options.nodes {
            self.max_nodes.store(nodes.max(1), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Nanoseconds since the epoch.
fn now() -> u64 {
    vnode::now().as_nanos() as u64
}

/// 512-byte units in a page.
const BLOCKS_PER_PAGE: u64 = (PAGE_SIZE / 512) as u64;

/// The bytes of an entry in a directory's size, as on Linux.
const ENTRY_SIZE: u64 = 20;

/// The longest text of a symbolic link.
const LINK_MAX: usize = 4095;
/// The longest text of a symbolic link that takes no page of the file system's, as on Linux.
const SHORT_LINK_MAX: usize = 127;
