//! Calls to a server: tags, fids, and one function a call.
//!
//! A [`Fid`] is a handle of the client to a file of the server; dropping it sends `Tclunk`, without
//! waiting for the answer.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result};
use fbuf::View;
use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
    time,
};

use super::{
    codec::{self, Ask, Attr, HEADER, QID, Qid, Reader, Writer},
    transport::{Flight, Transport},
};
use crate::vnode::Space;

/// The protocol's name.
const VERSION: &[u8] = b"9P2000.L";
/// Calls at a time; the tags are the bits of one word.
const TAGS: u32 = 64;
/// Requests without a waiter, at most.
const MAX_POSTED: usize = 32;
/// No tag: for the first message.
const NO_TAG: u16 = 0xffff;
/// No fid: there is no authentication.
const NO_FID: u32 = u32::MAX;
/// Bytes in front of the data of a read's answer, and of a write's message.
pub const READ_HEADER: usize = HEADER + 4;
pub const WRITE_HEADER: usize = HEADER + 16;
/// Bytes of an answer that says that a call failed.
const ERROR_LEN: usize = HEADER + 4;
/// How often an interrupted waiter checks whether it is being killed.
const LOOK: core::time::Duration = core::time::Duration::from_millis(50);
/// How long a killed waiter still waits: writes of a process that ends must not be lost to a server
/// that is merely slow.
const PATIENCE: core::time::Duration = core::time::Duration::from_secs(2);

/// A connection to a server.
pub struct Client {
    transport: Arc<dyn Transport>,
    /// The most bytes of a message, once agreed.
    max_message: AtomicU32,
    tags: SpinLock<Tags>,
    /// Waiters for a tag.
    tag_free: WaitQueue,
}

struct Tags {
    /// A bit for each tag in use.
    used: u64,
    /// Given up fids, to be used again.
    fids: Vec<u32>,
    next_fid: u32,
    /// A request without a waiter: its tag, and the fid that is free when it completes.
    posted: VecDeque<Posted>,
}

struct Posted {
    tag: u16,
    fid: u32,
    flight: Box<dyn Flight>,
}

/// A tag in use.
struct Tag<'a> {
    client: &'a Client,
    number: u16,
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        self.client.free_tag(self.number);
    }
}

/// A handle to a file of the server's.
pub struct Fid {
    pub client: Arc<Client>,
    number: u32,
}

impl Drop for Fid {
    fn drop(&mut self) {
        if self.number != NO_FID {
            self.client.post_clunk(self.number);
        }
    }
}

/// The answer to a call, without its data.
struct Reply {
    bytes: Vec<u8>,
    /// Bytes of data that followed.
    data: usize,
}

impl Reply {
    fn body(&self) -> Reader<'_> {
        Reader::new(&self.bytes[HEADER..])
    }
}

/// The data that a call sends and expects besides its message.
#[derive(Default)]
struct Cargo<'a> {
    data: &'a [View],
    /// Bytes of `data`.
    len: usize,
    receive: &'a [View],
}

/// The attributes that [`Client::set_attributes`] changes.
#[derive(Clone, Copy, Default, Debug)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<core::time::Duration>,
    pub modified: Option<core::time::Duration>,
}

impl Client {
    /// Agrees with the server on the protocol and on messages of up to `max_message` bytes.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the server knows another protocol only, those of the transport.
    pub fn connect(transport: Arc<dyn Transport>, max_message: u32) -> Result<Arc<Client>> {
        let client = Arc::new(Client {
            transport,
            max_message: AtomicU32::new(max_message),
            tags: SpinLock::new(
                Rank::Leaf,
                Tags {
                    used: 0,
                    fids: Vec::new(),
                    next_fid: 0,
                    posted: VecDeque::new(),
                },
            ),
            tag_free: WaitQueue::new(),
        });
        let mut message = Writer::new(Ask::Version, NO_TAG);
        message.u32(max_message).string(VERSION);
        let reply = client.exchange(Ask::Version, NO_TAG, message, 64, Cargo::default())?;
        let mut body = reply.body();
        let agreed = body.u32()?;
        if body.string()? != VERSION {
            return Err(Errno::EPROTONOSUPPORT);
        }
        // A page of data must fit at least, or nothing works.
        if agreed > max_message || (agreed as usize) < WRITE_HEADER + nucleus::PAGE_SIZE {
            return Err(Errno::EPROTO);
        }
        client.max_message.store(agreed, Ordering::Relaxed);
        // So many slices must go with one message, too.
        match client.max_data() >= nucleus::PAGE_SIZE {
            true => Ok(client),
            false => Err(Errno::EPROTO),
        }
    }

    /// The most bytes of data that one read or write moves: whole pages.
    pub fn max_data(&self) -> usize {
        let by_size = self.max_message.load(Ordering::Relaxed) as usize - WRITE_HEADER;
        // One slice for the message and one for the answer, two more where a message crosses a
        // page.
        let by_slices = self.transport.max_slices().saturating_sub(4) * nucleus::PAGE_SIZE;
        (by_size & !(nucleus::PAGE_SIZE - 1)).min(by_slices)
    }

    fn take_tag(&self) -> Result<Tag<'_>> {
        let number = self.tag_free.wait_soundly(|| {
            self.collect(MAX_POSTED);
            let mut tags = self.tags.lock();
            let number = (!tags.used).trailing_zeros();
            (number < TAGS).then(|| {
                tags.used |= 1 << number;
                number as u16
            })
        });
        Ok(Tag {
            client: self,
            number,
        })
    }

    fn free_tag(&self, number: u16) {
        self.tags.lock().used &= !(1 << number);
        self.tag_free.wake_one();
    }

    /// Collects completed requests without a waiter; if more than `most` are under way, waits for
    /// the oldest.
    fn collect(&self, most: usize) {
        loop {
            let mut landed = None;
            let mut wait = false;
            {
                let mut tags = self.tags.lock();
                if let Some(at) = tags.posted.iter().position(|it| it.flight.has_landed()) {
                    landed = tags.posted.remove(at);
                } else if tags.posted.len() > most {
                    landed = tags.posted.pop_front();
                    wait = true;
                }
            }
            let Some(posted) = landed else { return };
            if wait {
                // Only its landing ends it.
                let _ = posted.flight.wait(Sleep::SOUND);
            }
            let Posted { tag, fid, flight } = posted;
            drop(flight);
            self.free_fid(fid);
            self.free_tag(tag);
        }
    }

    fn new_fid(self: &Arc<Client>) -> Result<Fid> {
        let mut tags = self.tags.lock();
        let number = match tags.fids.pop() {
            Some(number) => number,
            None if tags.next_fid == NO_FID => return Err(Errno::ENFILE),
            None => {
                tags.next_fid += 1;
                tags.next_fid - 1
            }
        };
        drop(tags);
        Ok(Fid {
            client: self.clone(),
            number,
        })
    }

    fn free_fid(&self, number: u32) {
        if number != NO_FID {
            let mut tags = self.tags.lock();
            // A number that can't be noted is not used again.
            if tags.fids.try_reserve(1).is_ok() {
                tags.fids.push(number);
            }
        }
    }

    /// Gives a fid up; the answer is taken when it has come.
    fn post_clunk(&self, fid: u32) {
        let post = || {
            let tag = self.take_tag()?;
            let mut message = Writer::new(Ask::Clunk, tag.number);
            message.u32(fid);
            let flight = self
                .transport
                .send(&message.finish(0)?, &[], ERROR_LEN, &[])?;
            let mut tags = self.tags.lock();
            tags.posted.try_reserve(1)?;
            tags.posted.push_back(Posted {
                tag: tag.number,
                fid,
                flight,
            });
            core::mem::forget(tag);
            Ok::<(), Errno>(())
        };
        // If the server is gone, so is its file.
        let _ = post();
        self.collect(MAX_POSTED);
    }

    /// Makes a call: sends the message that `build` writes, and waits for an answer of up to
    /// `reply` bytes besides its data.
    fn call(
        &self,
        kind: Ask,
        reply: usize,
        cargo: Cargo<'_>,
        build: impl FnOnce(&mut Writer),
    ) -> Result<Reply> {
        let tag = self.take_tag()?;
        let mut message = Writer::new(kind, tag.number);
        build(&mut message);
        self.exchange(kind, tag.number, message, reply, cargo)
    }

    /// A call without data.
    fn ask(&self, kind: Ask, reply: usize, build: impl FnOnce(&mut Writer)) -> Result<Reply> {
        self.call(kind, HEADER + reply, Cargo::default(), build)
    }

    fn exchange(
        &self,
        kind: Ask,
        tag: u16,
        message: Writer,
        reply: usize,
        cargo: Cargo<'_>,
    ) -> Result<Reply> {
        let reply = reply.max(ERROR_LEN);
        let message = message.finish(cargo.len)?;
        // Before the server does anything: what it has done is not an `ENOMEM`.
        let mut bytes = nucleus::try_filled(reply, 0)?;
        let mut flight = self
            .transport
            .send(&message, cargo.data, reply, cargo.receive)?;
        let flushed = self.wait(&*flight, tag);
        let total = flight.take(&mut bytes)?;
        if total == 0 && flushed {
            return Err(Errno::EINTR);
        }
        let data_room: usize = cargo.receive.iter().map(|slice| slice.len).sum();
        if total > reply + data_room {
            return Err(Errno::EIO);
        }
        bytes.truncate(total);
        let mut header = Reader::new(&bytes);
        let (size, answer, answered) = (header.u32()?, header.u8()?, header.u16()?);
        if size as usize != total || answered != tag {
            return Err(Errno::EIO);
        }
        if answer == codec::ERROR {
            return Err(codec::errno(header.u32()?));
        }
        if answer != kind as u8 + 1 {
            return Err(Errno::EIO);
        }
        Ok(Reply {
            data: total - bytes.len(),
            bytes,
        })
    }

    /// Waits for an answer. Only a signal that kills ends the wait, as for files: then the call is
    /// cancelled (`Tflush`), and either its answer or none comes. Returns whether it was cancelled.
    fn wait(&self, flight: &dyn Flight, tag: u16) -> bool {
        let mut how = Sleep::INTERRUPTIBLE;
        let mut until = None;
        loop {
            match flight.wait(how) {
                Ok(()) => return false,
                Err(Woken::Interrupted | Woken::TimedOut) => {}
            }
            let now = time::since_boot();
            if self.transport.gives_up()
                && tag != NO_TAG
                && now >= *until.get_or_insert(now + PATIENCE)
            {
                break;
            }
            how = Sleep {
                interruptible: false,
                deadline: Some(now + LOOK),
            };
        }
        // With a reserved tag, so that it never waits for a call that waits for it.
        let flush = || {
            let mut message = Writer::new(Ask::Flush, TAGS as u16 + tag);
            message.u16(tag);
            let sent = self
                .transport
                .send(&message.finish(0)?, &[], ERROR_LEN, &[])?;
            let _ = sent.wait(Sleep::SOUND);
            Ok::<(), Errno>(())
        };
        // If it can't be sent, the answer comes nevertheless, or the server is gone, which ends the
        // call too.
        let _ = flush();
        let _ = flight.wait(Sleep::SOUND);
        true
    }

    /// The root of the tree that the server exports as `name`.
    pub fn attach(self: &Arc<Client>, user: &[u8], name: &[u8]) -> Result<(Fid, Qid)> {
        let fid = self.new_fid()?;
        let reply = self.ask(Ask::Attach, QID, |message| {
            message.u32(fid.number).u32(NO_FID);
            message.string(user).string(name).u32(NO_FID);
        })?;
        Ok((fid, reply.body().qid()?))
    }
}

impl Fid {
    /// Walks along `names`; returns a handle to what is there, and the answer.
    fn walk_along(&self, names: &[&[u8]]) -> Result<(Fid, Reply)> {
        let to = self.client.new_fid()?;
        let reply = self.ask(Ask::Walk, 2 + names.len() * QID, |message| {
            message.u32(to.number).u16(names.len() as u16);
            for name in names {
                message.string(name);
            }
        });
        let walked =
            reply.and_then(
                |reply| match usize::from(reply.body().u16()?) == names.len() {
                    true => Ok(reply),
                    false => Err(Errno::ENOENT),
                },
            );
        match walked {
            Ok(reply) => Ok((to, reply)),
            Err(error) => {
                // It stands for nothing.
                to.forget();
                Err(error)
            }
        }
    }

    /// Returns a handle to the entry `name` of this directory, and its qid.
    pub fn walk(&self, name: &[u8]) -> Result<(Fid, Qid)> {
        let (to, reply) = self.walk_along(&[name])?;
        let mut body = reply.body();
        let _count = body.u16()?;
        Ok((to, body.qid()?))
    }

    /// A second handle to the same file.
    pub fn duplicate(&self) -> Result<Fid> {
        self.walk_along(&[]).map(|(to, _)| to)
    }

    /// It stands for nothing: the number is free without a message.
    fn forget(mut self) {
        let number = core::mem::replace(&mut self.number, NO_FID);
        self.client.free_fid(number);
    }

    /// A call about this file without data; `build` adds to the fid.
    fn ask(&self, kind: Ask, reply: usize, build: impl FnOnce(&mut Writer)) -> Result<Reply> {
        self.client.ask(kind, reply, |message| {
            build(message.u32(self.number));
        })
    }

    /// As [`ask`](Fid::ask), where the answer says nothing more.
    fn tell(&self, kind: Ask, reply: usize, build: impl FnOnce(&mut Writer)) -> Result<()> {
        self.ask(kind, reply, build).map(drop)
    }

    /// Opens the file: from now on it can be read or written, and not walked from.
    pub fn open(&self, flags: u32) -> Result<()> {
        self.tell(Ask::Open, QID + 4, |message| {
            message.u32(flags);
        })
    }

    /// Makes a regular file in this directory and opens it; the handle stands for the file from
    /// then on.
    pub fn create(&self, name: &[u8], flags: u32, mode: u32, gid: u32) -> Result<Qid> {
        let reply = self.ask(Ask::Create, QID + 4, |message| {
            message.string(name).u32(flags).u32(mode).u32(gid);
        })?;
        reply.body().qid()
    }

    /// Makes a symbolic link in this directory.
    pub fn symlink(&self, name: &[u8], text: &[u8], gid: u32) -> Result<()> {
        self.tell(Ask::Symlink, QID, |message| {
            message.string(name).string(text).u32(gid);
        })
    }

    /// Makes a FIFO, socket or device in this directory; `mode` says which.
    pub fn mknod(&self, name: &[u8], mode: u32, device: (u32, u32), gid: u32) -> Result<()> {
        self.tell(Ask::Mknod, QID, |message| {
            message.string(name).u32(mode);
            message.u32(device.0).u32(device.1).u32(gid);
        })
    }

    /// Makes a directory in this one.
    pub fn mkdir(&self, name: &[u8], mode: u32, gid: u32) -> Result<()> {
        self.tell(Ask::Mkdir, QID, |message| {
            message.string(name).u32(mode).u32(gid);
        })
    }

    /// Makes a second name in this directory for a file.
    pub fn link(&self, name: &[u8], file: &Fid) -> Result<()> {
        self.tell(Ask::Link, 0, |message| {
            message.u32(file.number).string(name);
        })
    }

    /// Removes an entry of this directory; `flags` as `unlinkat`.
    pub fn unlink(&self, name: &[u8], flags: u32) -> Result<()> {
        self.tell(Ask::UnlinkAt, 0, |message| {
            message.string(name).u32(flags);
        })
    }

    /// Renames an entry of this directory.
    pub fn rename(&self, name: &[u8], to: &Fid, to_name: &[u8]) -> Result<()> {
        self.tell(Ask::RenameAt, 0, |message| {
            message.string(name);
            message.u32(to.number).string(to_name);
        })
    }

    /// Returns the file's attributes, from the server.
    pub fn attributes(&self) -> Result<Attr> {
        /// Everything that `stat` shows.
        const BASIC: u64 = 0x7ff;
        let reply = self.ask(Ask::Getattr, 160, |message| {
            message.u64(BASIC);
        })?;
        reply.body().attributes()
    }

    pub fn set_attributes(&self, change: &SetAttr) -> Result<()> {
        let mut valid = 0;
        let mut bit = |is_set: bool, bits: u32| valid |= if is_set { bits } else { 0 };
        bit(change.mode.is_some(), 1);
        bit(change.uid.is_some(), 1 << 1);
        bit(change.gid.is_some(), 1 << 2);
        bit(change.size.is_some(), 1 << 3);
        bit(change.accessed.is_some(), 1 << 4 | 1 << 7);
        bit(change.modified.is_some(), 1 << 5 | 1 << 8);
        self.tell(Ask::Setattr, 0, |message| {
            message.u32(valid);
            message.u32(change.mode.unwrap_or(0));
            message.u32(change.uid.unwrap_or(0));
            message.u32(change.gid.unwrap_or(0));
            message.u64(change.size.unwrap_or(0));
            for time in [change.accessed, change.modified] {
                let time = time.unwrap_or_default();
                message.u64(time.as_secs()).u64(time.subsec_nanos().into());
            }
        })
    }

    /// The text of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        const LONGEST: usize = 4096;
        let reply = self.ask(Ask::Readlink, 2 + LONGEST, |_| {})?;
        Ok(reply.body().string()?.to_vec())
    }

    /// Room in the file system.
    pub fn space(&self) -> Result<Space> {
        self.ask(Ask::Statfs, 60, |_| {})?.body().space()
    }

    /// Asks the server to bring the file to its disk.
    pub fn sync(&self) -> Result<()> {
        self.tell(Ask::Fsync, 0, |message| {
            message.u32(0);
        })
    }

    /// Reads entries of this open directory from `cursor` on, as many as fit `most` bytes: see
    /// [`Reader::entry`].
    pub fn read_directory(&self, cursor: u64, most: usize) -> Result<Vec<u8>> {
        let reply = self.ask(Ask::Readdir, 4 + most, |message| {
            message.u64(cursor).u32(most as u32);
        })?;
        let mut body = reply.body();
        let len = body.u32()? as usize;
        let entries = body.take(len)?;
        let mut copy = vec![];
        copy.try_reserve_exact(len)?;
        copy.extend_from_slice(entries);
        Ok(copy)
    }

    /// Reads from byte `offset` on straight into slices, whose bytes are together at most
    /// [`max_data`](Client::max_data). Returns how many bytes came: fewer only at the end.
    pub fn read(&self, offset: u64, to: &[View]) -> Result<usize> {
        let room: usize = to.iter().map(|slice| slice.len).sum();
        let cargo = Cargo {
            receive: to,
            ..Cargo::default()
        };
        let reply = self.client.call(Ask::Read, READ_HEADER, cargo, |message| {
            message.u32(self.number).u64(offset).u32(room as u32);
        })?;
        let count = reply.body().u32()? as usize;
        // The number of bytes in the answer must match the bytes that arrived.
        match count == reply.data {
            true => Ok(count),
            false => Err(Errno::EIO),
        }
    }

    /// Writes slices from byte `offset` on, together at most [`max_data`](Client::max_data) bytes.
    /// Returns how many were written.
    pub fn write(&self, offset: u64, from: &[View]) -> Result<usize> {
        let len: usize = from.iter().map(|slice| slice.len).sum();
        let cargo = Cargo {
            data: from,
            len,
            ..Cargo::default()
        };
        let reply = self
            .client
            .call(Ask::Write, READ_HEADER, cargo, |message| {
                message.u32(self.number).u64(offset).u32(len as u32);
            })?;
        let count = reply.body().u32()? as usize;
        match count <= len {
            true => Ok(count),
            false => Err(Errno::EIO),
        }
    }
}
