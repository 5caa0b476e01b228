//! The bytes of messages (9P2000.L): little-endian numbers, strings after a 16-bit length. A
//! server's answer is read with every length checked; the result is a value or "malformed".

use alloc::vec::Vec;
use core::time::Duration;

use abi::{Errno, Result};

use crate::{Kind, vnode::Space};

/// Bytes in front of every message: its size (4), its kind (1), its tag (2).
pub const HEADER: usize = 7;
/// Bytes of a `qid`.
pub const QID: usize = 13;

/// Kinds of messages; the answer to each has the next number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ask {
    Statfs = 8,
    Open = 12,
    Create = 14,
    Symlink = 16,
    Mknod = 18,
    Readlink = 22,
    Getattr = 24,
    Setattr = 26,
    Readdir = 40,
    Fsync = 50,
    Link = 70,
    Mkdir = 72,
    RenameAt = 74,
    UnlinkAt = 76,
    Version = 100,
    Attach = 104,
    Flush = 108,
    Walk = 110,
    Read = 116,
    Write = 118,
    Clunk = 120,
}

/// The answer that says that it failed: an error number of Linux.
pub const ERROR: u8 = 7;

/// Writes a message.
pub struct Writer {
    bytes: Vec<u8>,
    /// There was no memory for all of it.
    failed: bool,
}

impl Writer {
    /// Begins a message.
    pub fn new(kind: Ask, tag: u16) -> Writer {
        let mut writer = Writer {
            bytes: Vec::new(),
            failed: false,
        };
        // The size comes last.
        writer.u32(0).put(&[kind as u8]).u16(tag);
        writer
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        match self.bytes.try_reserve(bytes.len()) {
            Ok(()) => self.bytes.extend_from_slice(bytes),
            Err(_) => self.failed = true,
        }
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.put(&value.to_le_bytes())
    }

    /// Appends a string, cut at 65535 bytes; callers check the length.
    pub fn string(&mut self, text: &[u8]) -> &mut Writer {
        let text = &text[..text.len().min(u16::MAX as usize)];
        self.u16(text.len() as u16).put(text)
    }

    /// Ends the message, which is followed by `data` bytes from elsewhere.
    pub fn finish(mut self, data: usize) -> Result<Vec<u8>> {
        if self.failed {
            return Err(Errno::ENOMEM);
        }
        let size = (self.bytes.len() + data) as u32;
        self.bytes[..4].copy_from_slice(&size.to_le_bytes());
        Ok(self.bytes)
    }
}

/// Reads a message.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

/// The error for a malformed answer.
const MALFORMED: Errno = Errno::EIO;

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// `EIO` if there are fewer, as for all of these.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(n).ok_or(MALFORMED)?;
        self.bytes = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| MALFORMED)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn string(&mut self) -> Result<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }

    pub fn qid(&mut self) -> Result<Qid> {
        Ok(Qid {
            kind: self.u8()?,
            version: self.u32()?,
            path: self.u64()?,
        })
    }

    /// Seconds and nanoseconds since the epoch; earlier times count as the epoch.
    fn time(&mut self) -> Result<Duration> {
        let (seconds, nanos) = (self.u64()?, self.u64()?);
        let nanos = u32::try_from(nanos).ok().filter(|&n| n < 1_000_000_000);
        Ok(match i64::try_from(seconds) {
            Ok(seconds) => Duration::new(seconds as u64, nanos.unwrap_or(0)),
            Err(_) => Duration::ZERO,
        })
    }

    /// The body of an answer to [`Ask::Getattr`].
    pub fn attributes(&mut self) -> Result<Attr> {
        let _valid = self.u64()?;
        let qid = self.qid()?;
        let mode = self.u32()?;
        let (uid, gid) = (self.u32()?, self.u32()?);
        let (links, rdev, size) = (self.u64()?, self.u64()?, self.u64()?);
        let (block_size, blocks) = (self.u64()?, self.u64()?);
        let attributes = Attr {
            qid,
            kind: Kind::of_mode(mode).ok_or(MALFORMED)?,
            mode: mode & 0o7777,
            uid,
            gid,
            links: u32::try_from(links).unwrap_or(u32::MAX),
            rdev,
            size: size.min(i64::MAX as u64),
            block_size: u32::try_from(block_size).unwrap_or(u32::MAX),
            blocks,
            accessed: self.time()?,
            modified: self.time()?,
            changed: self.time()?,
        };
        // The time of making and the versions, which are not used.
        self.take(4 * 8)?;
        Ok(attributes)
    }

    /// The body of an answer to [`Ask::Statfs`].
    pub fn space(&mut self) -> Result<Space> {
        let (magic, block_size) = (self.u32()?, self.u32()?);
        let (blocks, free) = (self.u64()?, self.u64()?);
        let available = self.u64()?;
        let (files, free_files) = (self.u64()?, self.u64()?);
        let _id = self.u64()?;
        Ok(Space {
            magic: magic.into(),
            block_size: block_size.into(),
            blocks,
            free,
            available,
            files,
            free_files,
            name_max: self.u32()?.into(),
        })
    }

    /// The next entry in the body of an answer to [`Ask::Readdir`].
    pub fn entry(&mut self) -> Result<Entry<'a>> {
        Ok(Entry {
            qid: self.qid()?,
            cursor: self.u64()?,
            kind: self.u8()?,
            name: self.string()?,
        })
    }
}

/// A server's identifier of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Qid {
    pub kind: u8,
    pub version: u32,
    pub path: u64,
}

/// A file's attributes, as the server reports them.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub qid: Qid,
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub rdev: u64,
    pub size: u64,
    pub block_size: u32,
    pub blocks: u64,
    pub accessed: Duration,
    pub modified: Duration,
    pub changed: Duration,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub qid: Qid,
    /// Where the next one is.
    pub cursor: u64,
    /// As in `d_type`.
    pub kind: u8,
    pub name: &'a [u8],
}

/// An error number as a server sent it.
pub fn errno(number: u32) -> Errno {
    // Numbers that the kernel reserves must not come from outside.
    match u16::try_from(number) {
        Ok(number @ (1..512 | 521..4096)) => Errno::internal(number),
        _ => Errno::EIO,
    }
}
