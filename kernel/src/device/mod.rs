//! Devices: the files that the nodes in `/dev` open.
//!
//! `memory`: null, zero, full. `random`: random, urandom. `causeway`: what Linux has no call for.
//! `kmsg`: the kernel's log. `terminal`: tty, console, ttyS0. [`rtc`]: rtc0. [`disk`]: block
//! devices. `tun`: interfaces whose other end is a program. [`share`]: folders of the host's.
//! [`entropy`]: its random numbers. [`mod@net`]: its network cards. [`root`] is the file system
//! with the nodes.

mod causeway;
pub mod disk;
pub mod entropy;
pub mod kmsg;
mod memory;
pub mod net;
pub mod ports;
mod random;
pub mod rtc;
pub mod share;
mod terminal;
mod tun;

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::{
    Credentials, Vnode, block,
    device::{number, register_char_device, register_fifo},
    ramfs,
    vnode::{Change, Make},
};
use nucleus::{sync::Mutex, virtio};

use crate::{
    ipc::{fbuf::device as fbuf, pipe},
    tty::pty,
};

/// Majors, as on Linux.
const MEMORY: u32 = 1;
const SERIAL: u32 = 4;
const TERMINAL: u32 = 5;

/// The nodes: name, device number, mode.
const NODES: &[(&[u8], u64, u32)] = &[
    (b"null", number(MEMORY, memory::NULL), 0o666),
    (b"zero", number(MEMORY, memory::ZERO), 0o666),
    (b"full", number(MEMORY, memory::FULL), 0o666),
    (b"random", number(MEMORY, random::RANDOM), 0o666),
    (b"urandom", number(MEMORY, random::URANDOM), 0o666),
    (b"kmsg", number(MEMORY, kmsg::KMSG), 0o644),
    (b"causeway", number(causeway::MAJOR, causeway::MINOR), 0o666),
    (b"ttyS0", number(SERIAL, terminal::SERIAL_0), 0o660),
    (b"fbuf", number(fbuf::MAJOR, fbuf::MINOR), 0o666),
    (b"tty", number(TERMINAL, terminal::CONTROLLING), 0o666),
    (b"ptmx", number(TERMINAL, pty::PTMX), 0o666),
    (b"console", number(TERMINAL, terminal::CONSOLE), 0o600),
    (b"rtc0", number(rtc::MAJOR, rtc::MINOR), 0o600),
];

/// Debian's group `disk`, whose members may use disks past their file systems.
const DISK_GROUP: u32 = 6;

/// Symbolic links: to the open files of a process, and to the first clock.
const LINKS: &[(&[u8], &[u8])] = &[
    (b"fd", b"/proc/self/fd"),
    (b"stdin", b"/proc/self/fd/0"),
    (b"stdout", b"/proc/self/fd/1"),
    (b"stderr", b"/proc/self/fd/2"),
    (b"rtc", b"rtc0"),
];

/// Registers the functions that open device nodes and FIFOs with the file systems.
///
/// # Errors
/// `EBUSY` if the numbers are taken.
pub fn register() -> Result<()> {
    register_char_device(MEMORY, memory::NULL..=kmsg::KMSG, |at, device, flags| {
        match fs::device::minor(device) {
            kmsg::KMSG => kmsg::open(at, flags),
            minor @ (random::RANDOM | random::URANDOM) => Ok(random::open(at, minor)),
            minor => memory::open(at, minor),
        }
    })?;
    let serial = terminal::SERIAL_0..=terminal::SERIAL_0;
    register_char_device(SERIAL, serial, terminal::open)?;
    let terminals = terminal::CONTROLLING..=terminal::CONSOLE;
    register_char_device(TERMINAL, terminals, terminal::open)?;
    register_char_device(TERMINAL, pty::PTMX..=pty::PTMX, pty::open_master)?;
    let causeway = causeway::MINOR..=causeway::MINOR;
    register_char_device(causeway::MAJOR, causeway, causeway::open)?;
    register_char_device(pty::MAJOR, 0..=u32::MAX, pty::open_stray)?;
    fbuf::register()?;
    rtc::register()?;
    tun::register()?;
    register_fifo(pipe::open_fifo);
    Ok(())
}

/// The file system of `/dev`: there is one, however often it is mounted.
///
/// # Errors
/// Those of making files.
pub fn root() -> Result<Arc<dyn Vnode>> {
    static ROOT: Mutex<Option<Arc<dyn Vnode>>> = Mutex::new(fs::rank::FILES, None);
    let mut root = ROOT.lock();
    if let Some(root) = &*root {
        return Ok(root.clone());
    }
    let made = populate()?;
    *root = Some(made.clone());
    Ok(made)
}

fn populate() -> Result<Arc<dyn Vnode>> {
    let who = Credentials::default();
    let root = ramfs::root(ramfs::Options::default());
    for &(name, device, mode) in NODES {
        root.create(name, Make::CharDevice(device), mode, &who)?;
    }
    for &(name, text) in LINKS {
        root.create(name, Make::Link(text.to_vec()), 0o777, &who)?;
    }
    for device in block::all() {
        let make = Make::BlockDevice(device.number());
        let node = root.create(device.name().as_bytes(), make, 0o660, &who)?;
        node.set_attributes(Change {
            gid: Some(DISK_GROUP),
            ..Change::default()
        })?;
    }
    root.create(b"shm", Make::Directory, 0o1777, &who)?;
    root.create(b"pts", Make::Directory, 0o755, &who)?;
    let net = root.create(b"net", Make::Directory, 0o755, &who)?;
    let tun = Make::CharDevice(number(tun::MAJOR, tun::MINOR));
    net.create(b"tun", tun, 0o666, &who)?;
    Ok(root)
}

fn errno(error: virtio::Error) -> Errno {
    match error {
        virtio::Error::OutOfMemory => Errno::ENOMEM,
        _ => Errno::EIO,
    }
}
