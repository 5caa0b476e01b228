//! The file system `devpts`: a node for each pseudo terminal, and `ptmx`, which makes one.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::ToString,
    sync::{Arc, Weak},
};
use core::{
    any::Any,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use abi::{Errno, Result, raw::general::HUPCL};
use core::ops::Bound::{Excluded, Included, Unbounded};
use fs::{
    Attributes, Credentials, File, Kind, Location, OpenFlags, Vnode, device,
    vnode::{self, Change, Emit, FileSystem, Place, Space, new_device},
};

use nucleus::{
    PAGE_SIZE, frame,
    sync::{Rank, SpinLock},
    time,
};

use super::{
    MAJOR, PTMX,
    master::Master,
    pair::{Pair, Slave},
};
use crate::{
    process::thread,
    tty::{self, Tty},
};

/// `DEVPTS_SUPER_MAGIC`.
const MAGIC: u64 = 0x1cd1;
/// Inodes: the root, `ptmx`, then the terminals by number.
const ROOT_INODE: u64 = 1;
const PTMX_INODE: u64 = 2;
const FIRST_INODE: u64 = 3;
/// The size of a block, as programs see it.
const BLOCK: u32 = 1024;
/// Major of `ptmx`.
const TTY_AUX: u32 = 5;

/// Mount options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Options {
    /// The owner of new nodes; the opener of the master if `None`.
    uid: Option<u32>,
    gid: Option<u32>,
    /// Of new nodes.
    mode: u32,
    /// Of `ptmx`.
    ptmx_mode: u32,
    /// The most terminals in this file system.
    max: u32,
}

impl Options {
    /// Reads `uid=N`, `gid=N`, `mode=OCTAL`, `ptmxmode=OCTAL`, `max=N`, `newinstance` (each mount
    /// is an instance of its own).
    ///
    /// # Errors
    /// `EINVAL`.
    fn parse(text: &[u8]) -> Result<Options> {
        let mut options = Options {
            uid: None,
            gid: None,
            mode: 0o600,
            ptmx_mode: 0,
            max: u32::MAX,
        };
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = |radix| u32::from_str_radix(value, radix).map_err(|_| Errno::EINVAL);
            match name {
                "uid" => options.uid = Some(number(10)?),
                "gid" => options.gid = Some(number(10)?),
                "mode" => options.mode = number(8)? & 0o777,
                "ptmxmode" => options.ptmx_mode = number(8)? & 0o777,
                "max" => options.max = number(10)?,
                "newinstance" if value.is_empty() => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(options)
    }
}

/// One instance of the file system: its root directory.
pub struct Devpts {
    me: Weak<Devpts>,
    device: u64,
    options: Options,
    made: Duration,
    ptmx: Arc<PtmxNode>,
    nodes: SpinLock<Nodes>,
}

#[derive(Default)]
struct Nodes {
    /// Terminals with a node.
    listed: BTreeMap<u32, Arc<SlaveNode>>,
    /// Numbers that are not free: those, and terminals without a master that are still open.
    taken: BTreeSet<u32>,
}

/// `ptmx`.
struct PtmxNode {
    fs: Weak<Devpts>,
    attributes: Owned,
}

/// The node of a terminal.
pub(super) struct SlaveNode {
    fs: Arc<Devpts>,
    pub number: u32,
    pub tty: Arc<Tty>,
    attributes: Owned,
    removed: AtomicBool,
}

/// Attributes, of which `chmod` and `chown` change some.
struct Owned(SpinLock<Attributes>);

impl Owned {
    fn new(attributes: Attributes) -> Owned {
        let attributes = Attributes {
            block_size: BLOCK,
            ..attributes
        };
        Owned(SpinLock::new(Rank::Leaf, attributes))
    }

    fn get(&self) -> Attributes {
        *self.0.lock()
    }

    fn change(&self, change: Change) {
        let mut attributes = self.0.lock();
        attributes.mode = change.mode.unwrap_or(attributes.mode);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
    }
}

/// The root of a new instance.
///
/// # Errors
/// `EINVAL` for bad options.
pub fn root(options: &[u8]) -> Result<Arc<dyn Vnode>> {
    let options = Options::parse(options)?;
    let (device, made) = (new_device(), time::since_epoch());
    Ok(Arc::new_cyclic(|me: &Weak<Devpts>| Devpts {
        me: me.clone(),
        device,
        options,
        made,
        ptmx: Arc::new(PtmxNode {
            fs: me.clone(),
            attributes: Owned::new(Attributes {
                device,
                inode: PTMX_INODE,
                rdev: device::number(TTY_AUX, PTMX),
                ..Attributes::of(Kind::CharDevice, options.ptmx_mode, made)
            }),
        }),
        nodes: SpinLock::new(Rank::Leaf, Nodes::default()),
    }))
}

/// Returns the instance whose root is at `place`.
///
/// # Errors
/// `ENODEV` where no such file system is mounted.
pub(super) fn of_root(place: &Location) -> Result<Arc<Devpts>> {
    let any: &dyn Any = place.vnode().as_ref();
    any.downcast_ref::<Devpts>()
        .and_then(|fs| fs.me.upgrade())
        .ok_or(Errno::ENODEV)
}

impl Devpts {
    /// Makes a pseudo terminal and opens its master, whose node is at `at`; this file system is
    /// mounted at `pts`.
    ///
    /// # Errors
    /// `ENOSPC` for one too many, `ENOMEM`.
    pub(super) fn open_master(
        &self,
        at: Location,
        pts: Location,
        _: OpenFlags,
    ) -> Result<Arc<dyn File>> {
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        let fs = self.me.upgrade().ok_or(Errno::ENODEV)?;
        let pair = Pair::new()?;
        let number = self.take_number()?;
        let (uid, gid) = thread::current_shared().map_or((0, 0), |shared| {
            (shared.credentials.fs.uid, shared.credentials.fs.gid)
        });
        let device = device::number(MAJOR, number);
        let tty = Tty::new(device, alloc::boxed::Box::new(Slave(pair.clone())))
            .inspect_err(|_| _ = self.nodes.lock().taken.remove(&number))?;
        // There is no modem to hang up.
        tty.adjust_settings(|settings| settings.c_cflag &= !HUPCL);
        let node = Arc::new(SlaveNode {
            fs,
            number,
            tty,
            attributes: Owned::new(Attributes {
                device: self.device,
                inode: FIRST_INODE + u64::from(number),
                rdev: device,
                uid: self.options.uid.unwrap_or(uid),
                gid: self.options.gid.unwrap_or(gid),
                ..Attributes::of(Kind::CharDevice, self.options.mode, time::since_epoch())
            }),
            removed: AtomicBool::new(false),
        });
        self.nodes.lock().listed.insert(number, node.clone());
        Ok(Arc::new(Master::new(at, pts, node, pair)))
    }

    /// The lowest free number.
    fn take_number(&self) -> Result<u32> {
        let mut nodes = self.nodes.lock();
        let free = (0..)
            .zip(nodes.taken.iter())
            .find(|(number, taken)| number != *taken)
            .map_or(nodes.taken.len() as u32, |(number, _)| number);
        if free >= self.options.max {
            return Err(Errno::ENOSPC);
        }
        nodes.taken.insert(free);
        Ok(free)
    }
}

impl SlaveNode {
    /// The master is gone: the node goes.
    pub(super) fn remove(&self) {
        self.removed.store(true, Relaxed);
        let gone = self.fs.nodes.lock().listed.remove(&self.number);
        drop(gone);
    }
}

impl Drop for SlaveNode {
    fn drop(&mut self) {
        self.fs.nodes.lock().taken.remove(&self.number);
    }
}

impl Vnode for Devpts {
    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            device: self.device,
            inode: ROOT_INODE,
            block_size: BLOCK,
            ..Attributes::of(Kind::Directory, 0o755, self.made)
        })
    }

    fn kind(&self) -> Kind {
        Kind::Directory
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&TerminalFs)
    }
}

impl vnode::Directory for Devpts {
    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Vnode>> {
        if name == b"ptmx" {
            return Ok(self.ptmx.clone());
        }
        let text = core::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let number: u32 = text.parse().map_err(|_| Errno::ENOENT)?;
        if number.to_string() != text {
            return Err(Errno::ENOENT);
        }
        let node = self.nodes.lock().listed.get(&number).cloned();
        Ok(node.ok_or(Errno::ENOENT)?)
    }

    /// Cursors: 1 behind `ptmx`, a number and two behind a terminal.
    fn list(&self, cursor: u64, emit: &mut Emit<'_>) -> Result<()> {
        if cursor == 0 && !emit(b"ptmx", PTMX_INODE, Kind::CharDevice, 1) {
            return Ok(());
        }
        let from = u32::try_from(cursor.saturating_sub(1)).unwrap_or(u32::MAX);
        let fill = |after: Option<u32>, take: &mut dyn FnMut(u32, u32) -> bool| {
            let nodes = self.nodes.lock();
            let from = after.map_or(Included(from), Excluded);
            let mut rest = nodes.listed.range((from, Unbounded));
            rest.all(|(number, _)| take(*number, *number));
        };
        nucleus::visit_by_key(fill, |number| {
            let (name, inode) = (number.to_string(), FIRST_INODE + u64::from(number));
            let next = u64::from(number) + 2;
            emit(name.as_bytes(), inode, Kind::CharDevice, next)
        });
        Ok(())
    }
}

impl vnode::FileData for Devpts {}

/// The file system of all these vnodes.
struct TerminalFs;

impl FileSystem for TerminalFs {
    fn space(&self) -> Space {
        Space {
            magic: MAGIC,
            block_size: PAGE_SIZE as u64,
            name_max: fs::namespace::NAME_MAX as u64,
            ..Space::default()
        }
    }
}

impl Vnode for PtmxNode {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.attributes.get())
    }

    fn kind(&self) -> Kind {
        Kind::CharDevice
    }

    fn place(&self) -> Option<Place> {
        Some(Place {
            parent: self.fs.upgrade()?,
            name: b"ptmx"[..].into(),
            removed: false,
        })
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        self.attributes.change(change);
        Ok(())
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let fs = self.fs.upgrade().ok_or(Errno::ENODEV)?;
        let pts = Location::inside(at.mount(), fs.clone());
        fs.open_master(at.clone(), pts, flags).map(Some)
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&TerminalFs)
    }
}

impl vnode::Directory for PtmxNode {}

impl vnode::FileData for PtmxNode {}

impl Vnode for SlaveNode {
    fn attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            links: u32::from(!self.removed.load(Relaxed)),
            ..self.attributes.get()
        })
    }

    fn kind(&self) -> Kind {
        Kind::CharDevice
    }

    fn access(&self, who: &Credentials, want: u32) -> Result<()> {
        match who.may(&self.attributes()?, want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    fn place(&self) -> Option<Place> {
        Some(Place {
            parent: self.fs.clone(),
            name: self.number.to_string().as_bytes().into(),
            removed: self.removed.load(Relaxed),
        })
    }

    fn set_attributes(&self, change: Change) -> Result<()> {
        self.attributes.change(change);
        Ok(())
    }

    fn open(self: Arc<Self>, at: &Location, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let file = tty::open(self.tty.clone(), flags, Some(at.clone()))?;
        Ok(Some(file))
    }

    fn file_system(&self) -> Option<&dyn FileSystem> {
        Some(&TerminalFs)
    }
}

impl vnode::Directory for SlaveNode {}

impl vnode::FileData for SlaveNode {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_checked() {
        let options = Options::parse(b"gid=5,mode=620,ptmxmode=666,newinstance").unwrap();
        assert_eq!((options.gid, options.mode), (Some(5), 0o620));
        assert_eq!((options.uid, options.ptmx_mode), (None, 0o666));
        assert_eq!(Options::parse(b"max=3").unwrap().max, 3);
        for bad in [&b"gid=x"[..], b"mode=8", b"speed=9600", b"newinstance=1"] {
            assert_eq!(Options::parse(bad), Err(Errno::EINVAL));
        }
    }
}
