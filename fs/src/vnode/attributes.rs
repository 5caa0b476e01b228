//! Attributes of vnodes, and device numbers.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::boxed::Box;
use core::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use nucleus::{PAGE_SIZE, sync::OnceBox, time};

/// The kind of a vnode; the values are those of `S_IFMT` shifted right by 12, as in `d_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An open file without a place in a file system (an eventfd, an epoll).
    Anonymous = 0,
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Link = 10,
    Socket = 12,
}

impl Kind {
    /// Returns the kind of a file with this `d_type`.
    pub fn of_type(kind: u8) -> Option<Kind> {
        Some(match kind {
            1 => Kind::Fifo,
            2 => Kind::CharDevice,
            4 => Kind::Directory,
            6 => Kind::BlockDevice,
            8 => Kind::Regular,
            10 => Kind::Link,
            12 => Kind::Socket,
            _ => return None,
        })
    }

    /// Returns the kind of a file with this `st_mode`.
    pub fn of_mode(mode: u32) -> Option<Kind> {
        u8::try_from(mode >> 12).ok().and_then(Kind::of_type)
    }
}

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    pub device: u64,
    pub inode: u64,
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit: 0o7777 at most.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// For device nodes, in Linux's encoding of `dev_t`.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte units.
    pub blocks: u64,
    pub block_size: u32,
    /// Since the epoch.
    pub accessed: Duration,
    pub modified: Duration,
    pub changed: Duration,
    pub created: Duration,
}

impl Attributes {
    /// Returns those of an empty vnode of root's whose times are all `made`: with one link, or two
    /// if it is a directory.
    pub fn of(kind: Kind, mode: u32, made: Duration) -> Attributes {
        Attributes {
            device: 0,
            inode: 0,
            kind,
            mode,
            links: if kind == Kind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: PAGE_SIZE as u32,
            accessed: made,
            modified: made,
            changed: made,
            created: made,
        }
    }

    /// Returns those of open files without a place in a file system: eventfds, epolls and similar
    /// files. As on Linux they all share one inode, which belongs to no file system that a program
    /// can reach.
    pub fn anonymous() -> Attributes {
        static SHARED: OnceBox<Attributes> = OnceBox::new();
        *SHARED.get_or_insert(|| {
            let boot = time::since_epoch().saturating_sub(time::since_boot());
            Box::new(Attributes {
                device: new_device(),
                inode: 1,
                ..Attributes::of(Kind::Anonymous, 0o600, boot)
            })
        })
    }
}

/// A change of attributes for [`Vnode::set_attributes`](super::Vnode::set_attributes); `None` stays
/// as it is. The caller has checked the permission.
#[derive(Clone, Copy, Default, Debug)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<Duration>,
    pub modified: Option<Duration>,
    /// The change is an effect of use: a touch, or a write that clears set-id bits. A file that
    /// [only grows](super::FileData::only_grows) allows it.
    pub by_use: bool,
}

/// Returns a device number as programs see it, `dev_t`.
pub const fn number(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xfff) << 8 | major >> 12 << 44 | minor & 0xff | minor >> 8 << 20
}

/// Returns the major number in a `dev_t`, which selects the driver.
pub const fn major(number: u64) -> u32 {
    (number >> 8 & 0xfff | number >> 44 << 12) as u32
}

/// Returns the minor number in a `dev_t`, which selects one of the driver's devices.
pub const fn minor(number: u64) -> u32 {
    (number & 0xff | (number >> 20 & 0xff_ffff) << 8) as u32
}

/// Returns a device number for a file system without a device: major 0, as on Linux.
pub fn new_device() -> u64 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    number(0, NEXT.fetch_add(1, Ordering::Relaxed))
}
