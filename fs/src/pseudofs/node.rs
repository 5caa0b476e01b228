//! The vnodes of generated file systems.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{any::Any, time::Duration};

use abi::{Errno, Result};
use nucleus::{PAGE_SIZE, time};

use super::{Directory, Entry, entry::Body, text::TextFile};
use crate::{
    Attributes, Credentials, File, Kind, Location, OpenFlags, Vnode,
    credentials::WRITE,
    vnode::{self, Emit, FileSystem, Place, SizeLimit, Space, new_device},
};

/// A name that was looked up.
struct Node {
    me: Weak<Node>,
    /// The directory and the name there; `None` for the root.
    place: Option<Place<Node>>,
    device: u64,
    inode: u64,
    magic: u64,
    made: Duration,
    entry: Entry,
}

/// The inode of a file system's root.
const ROOT_INODE: u64 = 1;
/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// Creates a generated file system and returns its root; `fstype` selects the number that `statfs`
/// shows.
pub fn root(fstype: &str, directory: impl Directory) -> Arc<dyn Vnode> {
    Arc::new_cyclic(|me| Node {
        me: me.clone(),
        place: None,
        device: new_device(),
        inode: ROOT_INODE,
        magic: match fstype {
            "sysfs" => SYSFS_MAGIC,
            _ => PROC_MAGIC,
        },
        made: time::since_epoch(),
        entry: Entry::directory(directory),
    })
}

/// Returns the [`Directory`] of a vnode; `None` for vnodes of other file systems.
pub fn directory(vnode: &dyn Vnode) -> Option<&dyn Any> {
    let node: &Node = (vnode as &dyn Any).downcast_ref()?;
    node.directory().ok().map(|made_by| &**made_by as &dyn Any)
}

impl Node {
    fn directory(&self) -> Result<&Arc<dyn Directory>> {
        match &self.entry.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Returns the inode of a name in this directory: the same at each look-up, and unique with
    /// high probability.
    fn inode_of(&self, name: &[u8]) -> u64 {
        let mut hash = self.inode ^ 0x9e37_79b9_7f4a_7c15;
        for &byte in name {
            hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        }
        // Programs without large-file support read 32 bits.
        (hash ^ hash >> 32) & 0xffff_ffff | 2
    }
}

impl Vnode for Node {
    fn attributes(&self) -> Result<Attributes> {
        let kind = self.kind();
        Ok(Attributes {
            device: self.device,
            inode: self.inode,
            uid: self.entry.uid,
            gid: self.entry.gid,
            // Files of settings show the size of a page.
            size: match (self.magic, kind) {
                (SYSFS_MAGIC, Kind::Regular) => PAGE_SIZE as u64,
                _ => 0,
            },
            ..Attributes::of(kind, self.entry.mode, self.made)
        })
    }

    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        let allowed = match &self.entry.body {
            Body::Directory(directory) if want & WRITE == 0 => directory.is_open_to_caller(),
            _ => false,
        };
        Errno::EACCES.unless(allowed || who.may(&self.attributes()?, want))
    }

    fn kind(&self) -> Kind {
        self.entry.kind()
    }

    fn place(&self) -> Option<Place> {
        self.place.as_ref().map(Place::erased)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.entry.body {
            Body::Link { text, .. } => text(),
            _ => Err(Errno::EINVAL),
        }
    }

    fn follow(&self) -> Option<Result<Location>> {
        match &self.entry.body {
            Body::Link {
                follow: Some(follow),
                ..
            } => Some(follow()),
            _ => None,
        }
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        match &self.entry.body {
            Body::Text { store: None, .. } | Body::Bound(_) if flags.writes() => Err(Errno::EACCES),
            Body::Bound(bind) => {
                let file = TextFile::new(at.clone(), bind()?, None);
                Ok(Some(Arc::new(file)))
            }
            Body::Text { show, store } => {
                let file = TextFile::new(at.clone(), show.clone(), store.clone());
                Ok(Some(Arc::new(file)))
            }
            Body::File(open) => open(at, flags).map(Some),
            _ => Ok(None),
        }
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(self)
    }
}

impl vnode::Directory for Node {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let entry = self.directory()?.lookup(name)?;
        let parent = self.me.upgrade().ok_or(Errno::ENOENT)?;
        Ok(Arc::new_cyclic(|me| Node {
            me: me.clone(),
            place: Some(Place::new(parent, name)),
            device: self.device,
            inode: self.inode_of(name),
            magic: self.magic,
            made: time::since_epoch(),
            entry,
        }))
    }

    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        self.directory()?.list(cursor, &mut |name, kind, next| {
            emit(name, self.inode_of(name), kind, next)
        })
    }
}

impl vnode::FileData for Node {
    fn truncate_within(&self, _: &SizeLimit, _: u64) -> Result<()> {
        // `> /proc/sys/...`: the write replaces the value anyway.
        match &self.entry.body {
            Body::Text { store: Some(_), .. } | Body::File(_) => Ok(()),
            _ => Err(Errno::EACCES),
        }
    }
}

impl FileSystem for Node {
    fn space(&self) -> Space {
        Space {
            magic: self.magic,
            block_size: PAGE_SIZE as u64,
            name_max: crate::namespace::NAME_MAX as u64,
            ..Space::default()
        }
    }
}
