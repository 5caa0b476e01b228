//! The file system `mqueue`: one directory with all queues, wherever it is mounted.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::general::{CAP_SYS_RESOURCE, O_CREAT, O_EXCL, RLIMIT_MSGQUEUE},
};
use fs::{
    Attributes, Credentials, File, Kind, Location, Mount, OpenFlags, Vnode, Walk,
    namespace::NAME_MAX,
    vnode::{
        self, Change, Directory, Emit, FileSystem, Make, Place, SizeLimit, Space, is_same,
        new_device,
    },
};
use nucleus::{
    PAGE_SIZE, frame,
    sync::{OnceBox, Rank, SpinLock},
    time,
};

use super::{Queue, QueueFile, Size, limits::QUEUES_MAX};
use crate::process::thread;

/// `MQUEUE_MAGIC`.
const MAGIC: u64 = 0x1980_0202;
/// The directory's inode, and the first queue's.
const ROOT_INODE: u64 = 1;
const FIRST_INODE: u64 = 2;
/// Every user may make queues, and remove those of his own.
const ROOT_MODE: u32 = 0o1777;
/// Bytes that a queue's file is said to have (`FILENT_SIZE`).
const FILE_SIZE: u64 = 80;

struct Folder {
    /// Without its time of change.
    attributes: Attributes,
    state: SpinLock<State>,
}

struct State {
    nodes: BTreeMap<Arc<[u8]>, Arc<Node>>,
    /// Queues, those without a name included.
    count: usize,
    next_inode: u64,
    modified: Duration,
}

struct Node {
    inode: u64,
    name: Arc<[u8]>,
    queue: Arc<Queue>,
    attributes: SpinLock<Attributes>,
    removed: AtomicBool,
}

fn folder() -> &'static Arc<Folder> {
    static FOLDER: OnceBox<Arc<Folder>> = OnceBox::new();
    FOLDER.get_or_insert(|| {
        let made = time::since_epoch();
        let state = State {
            nodes: BTreeMap::new(),
            count: 0,
            next_inode: FIRST_INODE,
            modified: made,
        };
        Box::new(Arc::new(Folder {
            attributes: Attributes {
                device: new_device(),
                inode: ROOT_INODE,
                ..Attributes::of(Kind::Directory, ROOT_MODE, made)
            },
            state: SpinLock::new(Rank::Leaf, state),
        }))
    })
}

/// The mount of the kernel's own by which `mq_open` finds queues.
fn mount() -> &'static Arc<Mount> {
    static MOUNT: OnceBox<Arc<Mount>> = OnceBox::new();
    MOUNT.get_or_insert(|| Box::new(Mount::internal(root(), "mqueue")))
}

fn walk<'a>(at: &'a Location, who: &'a Credentials) -> Walk<'a> {
    let (root, start) = (at, at);
    Walk { root, start, who }
}

/// Returns the root to be mounted.
pub fn root() -> Arc<dyn Vnode> {
    folder().clone()
}

/// Checks what `mq_open` and `mq_unlink` take for a name: the C library has removed the slash
/// before it.
fn check(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        _ if name.contains(&b'/') => Err(Errno::EACCES),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

/// `mq_open`: opens the queue `name` as `who`; with `O_CREAT` makes a missing one with `mode` and
/// the size that `size` returns. Flags other than `O_EXCL` and those of the open file are ignored.
///
/// # Errors
/// `ENOENT`, `EEXIST`, `EACCES`, `ENAMETOOLONG`, `EINVAL`, `ENOSPC` (too many queues), `EMFILE`
/// (`RLIMIT_MSGQUEUE`), `ENOMEM`, and those of `size`.
pub fn find_or_make(
    name: &[u8],
    flags: u32,
    kept: OpenFlags,
    mode: u32,
    who: &Credentials,
    size: impl Fn() -> Result<Size>,
) -> Result<Arc<dyn File>> {
    check(name)?;
    let at = Location::inside(mount(), root());
    loop {
        match folder().lookup(name) {
            Ok(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => {
                return Err(Errno::EEXIST);
            }
            Ok(vnode) => {
                if kept.bits() & 3 == 3 {
                    return Err(Errno::EINVAL);
                }
                return walk(&at, who).open_at(&Location::inside(mount(), vnode), kept);
            }
            Err(Errno::ENOENT) if flags & O_CREAT != 0 => {
                match folder().make(name, mode, who, size()?) {
                    Ok(node) => {
                        let place = Location::inside(mount(), node.clone());
                        return Ok(QueueFile::open(node.queue.clone(), place));
                    }
                    // Another thread made it in the meantime.
                    Err(Errno::EEXIST) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// `mq_unlink`.
///
/// # Errors
/// `ENOENT`, `EACCES`, `EPERM` for another's queue, `ENAMETOOLONG`.
pub fn remove(name: &[u8], who: &Credentials) -> Result<()> {
    check(name)?;
    walk(&Location::inside(mount(), root()), who).remove(name, false)
}

impl Folder {
    fn make(&self, name: &[u8], mode: u32, who: &Credentials, size: Size) -> Result<Arc<Node>> {
        frame::check_not_scarce()?;
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let charge = thread::with_current(|thread| {
            let process = thread.process();
            let limit = process.limits().soft(RLIMIT_MSGQUEUE);
            size.charge(&process.user(), limit)
        });
        let charge = charge.transpose()?;
        let now = time::since_epoch();
        let queue = Queue::new(size, charge);
        let name: Arc<[u8]> = name.into();
        let mut state = self.state.lock();
        // A queue that can't stay is dropped after the lock.
        let result = if state.nodes.contains_key(&name) {
            Err(Errno::EEXIST)
        } else if state.count as u64 >= QUEUES_MAX.get() && !who.may_use(CAP_SYS_RESOURCE) {
            Err(Errno::ENOSPC)
        } else {
            let inode = state.next_inode;
            let attributes = Attributes {
                device: self.attributes.device,
                inode,
                uid: who.uid,
                gid: who.gid,
                size: FILE_SIZE,
                ..Attributes::of(Kind::Regular, mode & 0o7777, now)
            };
            let node = Arc::new(Node {
                inode,
                name: name.clone(),
                queue: queue.clone(),
                attributes: SpinLock::new(Rank::Leaf, attributes),
                removed: AtomicBool::new(false),
            });
            state.next_inode += 1;
            state.count += 1;
            state.modified = now;
            state.nodes.insert(name, node.clone());
            Ok(node)
        };
        drop(state);
        result
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        folder().state.lock().count -= 1;
    }
}

/// The file system of all these vnodes.
struct QueueFs;

impl FileSystem for QueueFs {
    fn space(&self) -> Space {
        Space {
            magic: MAGIC,
            block_size: PAGE_SIZE as u64,
            name_max: NAME_MAX as u64,
            ..Space::default()
        }
    }
}

impl Vnode for Folder {
    fn attributes(&self) -> Result<Attributes> {
        let modified = self.state.lock().modified;
        Ok(Attributes {
            modified,
            changed: modified,
            ..self.attributes
        })
    }

    fn kind(&self) -> Kind {
        Kind::Directory
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&QueueFs)
    }
}

impl Directory for Folder {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        let node = self.state.lock().nodes.get(name).cloned();
        Ok(node.ok_or(Errno::ENOENT)?)
    }

    /// A file that is made here is a queue of the usual size.
    fn create(
        &self,
        name: &[u8],
        make: Make,
        mode: u32,
        who: &Credentials,
    ) -> Result<Arc<dyn Vnode>> {
        match make {
            Make::Regular => Ok(self.make(name, mode, who, Size::usual())?),
            _ => Err(Errno::EPERM),
        }
    }

    fn remove(&self, name: &[u8], judged: &dyn Vnode, directory: bool) -> Result<()> {
        if directory {
            return Err(Errno::ENOTDIR);
        }
        let mut state = self.state.lock();
        let node = state.nodes.get(name).ok_or(Errno::ENOENT)?;
        if !is_same(&**node, judged) {
            return Err(Errno::ESTALE);
        }
        let node = state.nodes.remove(name);
        state.modified = time::since_epoch();
        drop(state);
        let node = node.ok_or(Errno::ENOENT)?;
        node.removed.store(true, Relaxed);
        Ok(())
    }

    /// Cursors are the inodes of the queues, which never come again.
    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let count = self.state.lock().nodes.len();
        nodes.try_reserve(count)?;
        {
            let state = self.state.lock();
            let later = state.nodes.values().filter(|node| node.inode > cursor);
            // Those that were made since are missed rather than waited for.
            nodes.extend(later.take(count).cloned());
        }
        nodes.sort_unstable_by_key(|node| node.inode);
        for node in nodes {
            if !emit(&node.name, node.inode, Kind::Regular, node.inode) {
                break;
            }
        }
        Ok(())
    }
}

impl vnode::FileData for Folder {}

impl Vnode for Node {
    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            links: u32::from(!self.removed.load(Relaxed)),
            ..*self.attributes.lock()
        })
    }

    fn kind(&self) -> Kind {
        Kind::Regular
    }

    fn place(&self) -> Option<Place> {
        Some(Place {
            parent: root(),
            name: self.name.clone(),
            removed: self.removed.load(Relaxed),
        })
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        let mut now = self.attributes.lock();
        now.mode = change.mode.unwrap_or(now.mode);
        now.uid = change.uid.unwrap_or(now.uid);
        now.gid = change.gid.unwrap_or(now.gid);
        now.accessed = change.accessed.unwrap_or(now.accessed);
        now.modified = change.modified.unwrap_or(now.modified);
        now.changed = time::since_epoch();
        Ok(())
    }

    fn open(self: Arc<Self>, at: &Location, _: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        Ok(Some(QueueFile::open(self.queue.clone(), at.clone())))
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&QueueFs)
    }
}

impl Directory for Node {}

impl vnode::FileData for Node {
    /// Its size is not that of a content: there is nothing to cut off.
    fn truncate_within(&self, _: &SizeLimit, _: u64) -> Result<()> {
        Ok(())
    }
}
