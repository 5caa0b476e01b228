//! The open file over a socket.

use alloc::{format, sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{O_NONBLOCK, O_RDWR},
};
use fbuf::{Sink, Source};
use fs::{
    Asynchronous, Attributes, File, Kind, Linger, Location, Mount, OpenFlags, Ready, Vnode, vnode,
};
use nucleus::{VirtAddr, task::Watch};
use vm::Pager;

use super::{Common, Incoming, Outgoing, Socket, Timeout};
use crate::process::files::OpenFile;

/// The device number of the file system in which sockets seem to be.
pub(super) const SOCKET_DEVICE: u64 = 0x8;

/// An open socket. Its drop, with the last descriptor and the last call in progress, releases the
/// socket.
pub struct SocketFile {
    socket: Arc<dyn Socket>,
}

impl SocketFile {
    /// An open file description of a socket that has none yet.
    pub fn open(socket: Arc<dyn Socket>, nonblocking: bool) -> Arc<OpenFile> {
        let kept = if nonblocking { O_NONBLOCK } else { 0 };
        let flags = OpenFlags::from_bits_retain(O_RDWR | kept);
        OpenFile::new(Arc::new(SocketFile { socket }), flags)
    }

    /// The socket that an open file is.
    ///
    /// # Errors
    /// `ENOTSOCK`.
    #[inline]
    pub fn of(open: &OpenFile) -> Result<&Arc<dyn Socket>> {
        let file = open.downcast::<SocketFile>().ok_or(Errno::ENOTSOCK)?;
        Ok(&file.socket)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.socket.release();
    }
}

impl File for SocketFile {
    fn lingers(&self) -> Option<Arc<dyn Linger>> {
        let time = self.socket.common().linger()?;
        match time.is_zero() {
            true => None,
            false => self.socket.lingers(time),
        }
    }

    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        let timeout = self.socket.common().receive_timeout();
        let timeout = Timeout::new(!flags.has(O_NONBLOCK), timeout);
        // Nothing to read is nothing to wait for.
        if to.room() == 0 {
            return Ok(0);
        }
        self.socket.receive(&mut Incoming::plain(to, 0, timeout))
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if at.is_some() {
            return Err(Errno::ESPIPE);
        }
        let timeout = self.socket.common().send_timeout();
        let timeout = Timeout::new(!flags.has(O_NONBLOCK), timeout);
        super::send(&*self.socket, Outgoing::plain(from, 0, timeout))
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        self.socket.poll(watch)
    }

    #[inline]
    fn ready_now(&self) -> Option<Ready> {
        self.socket.ready_now()
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Named
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        self.socket.ioctl(command, argument)
    }

    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes(self.socket.common()))
    }

    fn pager(&self) -> Result<Arc<dyn Pager>> {
        self.socket.mapping()
    }

    fn reopen(&self) -> Option<Location> {
        let nameless = Nameless {
            attributes: attributes(self.socket.common()),
        };
        Some(Mount::nameless(Arc::new(nameless), "sockfs"))
    }

    fn describe(&self) -> Vec<u8> {
        format!("socket:[{}]", self.socket.common().inode).into_bytes()
    }
}

/// The target of `/proc/PID/fd/N` for a socket: it has attributes and cannot be opened.
struct Nameless {
    attributes: Attributes,
}

impl Vnode for Nameless {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.attributes)
    }

    fn kind(&self) -> Kind {
        Kind::Socket
    }

    fn open(self: Arc<Self>, _: &Location, _: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        Err(Errno::ENXIO)
    }
}

impl vnode::Directory for Nameless {}

impl vnode::FileData for Nameless {}

fn attributes(common: &Common) -> Attributes {
    let (uid, gid) = common.owner;
    Attributes {
        device: SOCKET_DEVICE,
        inode: common.inode,
        uid,
        gid,
        ..Attributes::of(Kind::Socket, 0o777, common.created)
    }
}
