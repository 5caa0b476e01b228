//! Paths: their originator's side and their receivers', and messages through the kernel.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::aggregate::Aggregate;
use crate::contents::{self, Contents, Received};
use crate::membership::Membership;
use crate::memfd::{self, Chunks};
use crate::nodes;
use crate::raw::{self, error, request};
use crate::region::{Bytes, Domain, PAGE, Provider, lock};
use crate::sent::Sent;
use crate::space::{Fbuf, Mode, Space};

/// The originator's side of a path: it allocates fbufs and sends. Clones are the same path. Once
/// the last is dropped, nothing holds what was sent; the path ends with the last of its fbufs.
#[derive(Clone, Debug)]
pub struct Path {
    space: Space,
    sent: Arc<Mutex<Sent>>,
}

/// Whom a message through the kernel is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// All receivers of the path.
    All,
    /// The one with this [number](Member::number).
    Member(NonZeroU64),
}

impl To {
    /// The receiver with this number, or all for 0.
    pub fn of(number: u64) -> To {
        NonZeroU64::new(number).map_or(To::All, To::Member)
    }

    fn word(self) -> u64 {
        match self {
            To::All => 0,
            To::Member(number) => number.get(),
        }
    }
}

/// Bytes that are taken from a file at once.
const MOST_TAKEN: usize = 1 << 20;

/// Notices that are read at once.
const NOTICES: usize = 64;

/// Ranges of pages that most messages have at most.
const FEW_RANGES: usize = 8;

/// Ranges of pages that [`Message::check`] looks at.
const MOST_RANGES: usize = 1024;

/// Pages of which notices may wait until a send reads them.
const WAITING: u64 = 64;

/// Messages that are held before notices of fewer pages are read, once in so many messages, and
/// bytes of those.
const MANY: usize = 16;
const SOME: usize = 8;
const MUCH: u64 = 2 << 20;

impl Path {
    /// Makes a path whose originator is this process. It may have at most `limit` chunks of 2 MiB;
    /// 0: the default, 32.
    ///
    /// # Errors
    /// Those of the kernel: `EMFILE`, `ENOMEM`, `EINVAL` for a limit above 1024 (by memfds, 32).
    /// `EOPNOTSUPP` for an uncached or secured path by memfds.
    pub fn new(domain: &Domain, mode: Mode, limit: usize) -> io::Result<Path> {
        Path::with(domain, mode.bits(), limit)
    }

    /// Makes a path of the kernel's default mode.
    ///
    /// # Errors
    /// Those of [`new`](Path::new).
    pub fn with_default_mode(domain: &Domain, limit: usize) -> io::Result<Path> {
        Path::with(domain, Mode::DEFAULT, limit)
    }

    fn with(domain: &Domain, bits: u64, limit: usize) -> io::Result<Path> {
        Ok(Path {
            space: Space::new(domain, bits, limit)?,
            sent: Arc::default(),
        })
    }

    /// Returns the path's mode.
    pub fn mode(&self) -> Mode {
        self.space.mode()
    }

    /// Returns an fbuf of at least `len` bytes, rounded up to pages; its contents are zeros or
    /// those of an earlier fbuf of this path. Freed fbufs of the same size come first, with their
    /// mappings.
    ///
    /// # Errors
    /// `ENOSPC` at the path's limit, and for more than 64 MiB; `ENOMEM`.
    pub fn allocate(&self, len: usize) -> io::Result<Fbuf> {
        self.with_notices(|| self.space.allocate(len))
    }

    /// Returns an aggregate without bytes.
    pub fn empty(&self) -> Aggregate {
        Aggregate::empty(&self.space)
    }

    /// Returns an aggregate with a copy of these bytes.
    ///
    /// # Errors
    /// `ENOSPC` at the path's limit, `ENOMEM`.
    pub fn copy(&self, bytes: &[u8]) -> io::Result<Aggregate> {
        self.with_notices(|| Aggregate::copied(&self.space, bytes))
    }

    /// Returns an aggregate with at most so many bytes of a file from an offset on, or of a pipe or
    /// a stream socket, which have none: what one read gives, 1 MiB at most. By the device, whole
    /// pages are not copied.
    ///
    /// # Errors
    /// Those of `read`, `ENOSPC` at the path's limit, `ENOMEM`; `EINVAL` for a file that cannot be
    /// spliced, or without an offset for one that has offsets.
    pub fn take(
        &self,
        file: BorrowedFd<'_>,
        offset: Option<u64>,
        most: usize,
    ) -> io::Result<Aggregate> {
        let most = most.min(MOST_TAKEN);
        // The file's pages are the fbuf's.
        let before = offset.map_or(0, |offset| offset as usize % PAGE);
        let mut fbuf = self.allocate(before + most)?;
        let count = match self.space.is_by_device() {
            true => {
                let at = (fbuf.start() + before) as u64;
                let offset = offset.unwrap_or(u64::MAX);
                let mut words = [file.as_raw_fd() as u64, offset, at, most as u64, 0, 0, 0, 0];
                raw::ask(self.as_fd(), request::TAKE, &mut words)?;
                words[0] as usize
            }
            false => raw::read_at(file, offset, &mut fbuf[before..before + most])?,
        };
        match count {
            0 => Ok(self.empty()),
            _ => Aggregate::new(fbuf, before + count)?.clip_front(before as u64),
        }
    }

    /// Returns a received message as an aggregate, without copying it: it can be sent on, joined
    /// and cut. The next receiver must be able to read the fbufs of the first sender: by a message
    /// through the kernel, or as a member of its path.
    pub fn forward(&self, message: &Received) -> Aggregate {
        Aggregate::received(&self.space, message)
    }

    /// As [`forward`](Path::forward), for a packet of [`Frames`](crate::Frames), which has no nodes
    /// yet.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` without memory for nodes.
    pub fn forward_frame(&self, packet: &Received) -> io::Result<Aggregate> {
        Aggregate::of_pieces(&self.space, packet)
    }

    /// Returns the same bytes as an aggregate of this path: all its nodes lie in fbufs of this
    /// path, whose receivers need no other path to read them. Parts that follow each other in one
    /// fbuf, such as those of a message that was cut, become one again.
    ///
    /// # Errors
    /// `ENOSPC` at the path's limit, `ENOMEM`.
    pub fn adopt(&self, aggregate: &Aggregate) -> io::Result<Aggregate> {
        self.with_notices(|| Aggregate::gathered(&self.space, [aggregate]))
    }

    /// Returns the bytes of some aggregates, one after the other, as [`adopt`](Path::adopt) does
    /// those of one.
    ///
    /// # Errors
    /// Those of [`adopt`](Path::adopt).
    pub fn adopt_all(&self, parts: &[Aggregate]) -> io::Result<Aggregate> {
        self.with_notices(|| Aggregate::gathered(&self.space, parts))
    }

    /// Returns how many messages sent through the kernel are not freed, as far as notices were
    /// read, and their bytes.
    pub fn in_flight(&self) -> (usize, u64) {
        lock(&self.sent).in_flight()
    }

    /// Returns the addresses of the path's fbufs, as [`Member::range`] does.
    pub fn range(&self) -> Option<Range<usize>> {
        self.space.range()
    }

    /// Returns whether all bytes of an aggregate lie in fbufs of this path.
    pub fn has(&self, aggregate: &Aggregate) -> bool {
        aggregate.is_within(&self.space)
    }

    /// Does something that needs memory, again after all notices were read if there is none.
    fn with_notices<T>(&self, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match work() {
            Err(why) if why.raw_os_error() == Some(libc::ENOSPC) && self.space.is_by_device() => {
                match self.collect()? {
                    0 => Err(why),
                    _ => work(),
                }
            }
            result => result,
        }
    }

    /// Returns idle chunks to the kernel at once, and the memory of freed fbufs in the others. Runs
    /// of chunks that stay idle while others are used go back by themselves.
    pub fn trim(&self) {
        self.space.trim();
    }

    /// Sends through the kernel to one member, or to all; returns the message's id. The aggregate
    /// is held until all receivers have freed it, and notices of that were read, which later sends
    /// do. This needs the device.
    ///
    /// # Errors
    /// `EAGAIN` when a receiver's queue is full and the descriptor does not block; `EPIPE` without
    /// that member; `EXDEV` for an aggregate with fbufs of another path of this process;
    /// `EOPNOTSUPP` by memfds; those of the kernel's walk.
    pub fn send(&self, to: To, aggregate: &Aggregate) -> io::Result<u64> {
        self.send_with(to, aggregate, 0)
    }

    /// As [`send`](Path::send), but fails with `EAGAIN` instead of waiting, whatever the
    /// descriptor's flags, which the receivers can change.
    ///
    /// # Errors
    /// Those of [`send`](Path::send).
    pub fn try_send(&self, to: To, aggregate: &Aggregate) -> io::Result<u64> {
        self.send_with(to, aggregate, raw::DONT_WAIT)
    }

    fn send_with(&self, to: To, aggregate: &Aggregate, flags: u64) -> io::Result<u64> {
        if !self.space.is_by_device() {
            return Err(error(libc::EOPNOTSUPP));
        }
        let (aggregate, root) = aggregate.to_send()?;
        self.prepare(&aggregate)?;
        let mut words = [0; 8];
        words[..3].copy_from_slice(&[to.word(), root, flags]);
        let held = {
            // Notices are read under the same lock: they never tell of pages that this sends.
            let mut sent = lock(&self.sent);
            raw::ask(self.as_fd(), request::SEND, &mut words)?;
            sent.hold(&self.space, aggregate)?;
            sent.in_flight()
        };
        // What is free is used again soon, rather than other memory.
        let (messages, bytes) = held;
        let is_much = bytes >= MUCH || (messages >= MANY && messages % SOME == 0);
        if words[1] >= WAITING || (is_much && words[1] > 0) {
            self.collect()?;
        }
        Ok(words[0])
    }

    /// Looks at an aggregate before it is sent, and reads notices that the send would withdraw.
    fn prepare(&self, aggregate: &Aggregate) -> io::Result<()> {
        aggregate.pages(&self.space, |_| {})?;
        let is_chained = lock(&self.sent).is_chained();
        if is_chained {
            self.collect()?;
        }
        Ok(())
    }

    /// Sends through the kernel, and receives the next message of `answers`, a path from the
    /// receiver to here: one system call, and one switch. Other threads wait to send on this path.
    /// `None` when the originator of `answers` is gone.
    ///
    /// # Errors
    /// Those of [`send`](Path::send) and [`Member::receive`].
    pub fn call(
        &self,
        to: To,
        request: &Aggregate,
        answers: &Member,
    ) -> io::Result<Option<Message>> {
        if !self.space.is_by_device() {
            return Err(error(libc::EOPNOTSUPP));
        }
        let (aggregate, root) = request.to_send()?;
        self.prepare(&aggregate)?;
        let answered = {
            let mut sent = lock(&self.sent);
            let mut words = [
                to.word(),
                root,
                answers.as_fd().as_raw_fd() as u64,
                0,
                0,
                0,
                0,
                0,
            ];
            let result = raw::ask_once(self.as_fd(), request::CALL, &mut words);
            match result.map_err(|why| why.raw_os_error().unwrap_or(-1)) {
                Ok(_) => {
                    sent.hold(&self.space, aggregate)?;
                    Some(words)
                }
                // A signal came after the request was sent.
                Err(libc::EINTR) => {
                    sent.hold(&self.space, aggregate)?;
                    None
                }
                Err(number) => return Err(error(number)),
            }
        };
        match answered {
            Some(words) => {
                // Notices of all paths of this process: a hint.
                if words[4] >= WAITING {
                    self.collect()?;
                }
                answers.message(words).map(Some)
            }
            None => answers.receive(),
        }
    }

    /// Reads the notices that are waiting, and drops what they tell of; returns the number of
    /// notices. There is no need to call this: sending and allocating do.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn collect(&self) -> io::Result<usize> {
        if !self.space.is_by_device() {
            return Ok(0);
        }
        let mut total = 0;
        loop {
            let mut ranges = [[0; 2]; NOTICES];
            let mut gone = Vec::new();
            let count = {
                let mut sent = lock(&self.sent);
                let count = raw::notices(self.as_fd(), &mut ranges)?;
                for [start, end] in &ranges[..count] {
                    gone.extend(sent.take_notice(*start as usize..*end as usize));
                }
                count
            };
            drop(gone);
            total += count;
            if count < NOTICES {
                return Ok(total);
            }
        }
    }
}

/// The path's descriptor: a process that has it may [attach](Member::attach). It is sent by a Unix
/// socket ([`send_path`](crate::send_path)), or inherited.
impl AsFd for Path {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.space.as_fd()
    }
}

/// A receiver's side of a path. The process stays a receiver until all members of the path, their
/// clones and what was received by them are dropped.
#[derive(Clone)]
pub struct Member {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    fd: OwnedFd,
    mode: Mode,
    number: u64,
    memory: Memory,
}

/// Whose memory an address is.
pub(crate) struct Whose {
    /// The addresses around it that its path owns.
    pub(crate) addresses: Range<usize>,
    /// The kernel's number of that path.
    pub(crate) path: u64,
    /// Whether this process is its originator.
    pub(crate) is_own: bool,
    /// Whether the sender can read all of it.
    pub(crate) is_senders: bool,
}

/// What makes the path's chunks readable here.
enum Memory {
    Device(Membership),
    Memfd { chunks: Chunks },
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Memory::Device(membership) = &self.memory {
            membership.end(self.fd.as_fd());
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("fd", &self.inner.fd)
            .field("number", &self.inner.number)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Joins the path of a descriptor as a receiver: its fbufs can be read here.
    ///
    /// # Errors
    /// `EINVAL` or `ENOTTY` for a descriptor that is no path's, `EPIPE` when the originator is
    /// gone, `EPERM` for a path of this process, `ENOSPC` for a path with 15 receivers.
    pub fn attach(domain: &Domain, fd: OwnedFd) -> io::Result<Member> {
        let (bits, number, memory) = match domain.provider {
            Provider::Device(_) => {
                let (membership, words) = Membership::new(fd.as_fd())?;
                (words[2], words[3], Memory::Device(membership))
            }
            Provider::Memfd => {
                let (bits, chunks) = memfd::attach(fd.as_fd())?;
                (bits, 1, Memory::Memfd { chunks })
            }
        };
        let inner = Arc::new(Inner {
            fd,
            mode: Mode::of(bits),
            number,
            memory,
        });
        if let Memory::Device(membership) = &inner.memory {
            membership.enter(&inner);
        }
        Ok(Member { inner })
    }

    /// Returns the path's mode.
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Returns the number by which the originator sends to this member alone.
    pub fn number(&self) -> u64 {
        self.inner.number
    }

    /// Returns the addresses of the path's fbufs, where they are known: by memfds, whose messages
    /// the kernel does not check.
    pub fn range(&self) -> Option<Range<usize>> {
        match &self.inner.memory {
            Memory::Device(_) => None,
            Memory::Memfd { chunks } => Some(chunks.range()),
        }
    }

    /// Returns the kernel's number of the path; `None` by memfds.
    pub(crate) fn path(&self) -> Option<u64> {
        match &self.inner.memory {
            Memory::Device(membership) => Some(membership.path()),
            Memory::Memfd { .. } => None,
        }
    }

    /// Returns whether bytes lie in the path's memory.
    pub(crate) fn owns(&self, bytes: Bytes) -> bool {
        let range = match self.path() {
            Some(path) => {
                let found = self.whose(bytes.start()).ok();
                found.filter(|it| it.path == path).map(|it| it.addresses)
            }
            None => self.range(),
        };
        range.is_some_and(|it| bytes.is_within(&it))
    }

    /// Asks the kernel whose an address is that the path's originator names.
    ///
    /// # Errors
    /// `EFAULT` for memory that this process cannot read.
    pub(crate) fn whose(&self, address: usize) -> io::Result<Whose> {
        let mut words = [0; 8];
        words[0] = address as u64;
        raw::ask(self.as_fd(), request::WHOSE, &mut words)?;
        let [start, end, path, bits, ..] = words;
        Ok(Whose {
            addresses: start as usize..end as usize,
            path,
            is_own: bits & 1 != 0,
            is_senders: bits & 2 != 0,
        })
    }

    /// Returns the descriptor to poll for the originator's end; -1, which `poll` ignores, by
    /// memfds.
    pub(crate) fn hangup(&self) -> RawFd {
        match self.inner.memory {
            Memory::Device(_) => self.as_fd().as_raw_fd(),
            Memory::Memfd { .. } => -1,
        }
    }

    /// Sleeps while a word that the originator writes has this value: at most so long by memfds,
    /// and until the originator is gone by the device. Rings a bell before. Wakes spuriously, too.
    /// Returns false if threads cannot sleep there.
    pub(crate) fn wait(
        &self,
        bell: Option<raw::Bell<'_>>,
        word: &AtomicU32,
        value: u32,
        most: Duration,
    ) -> bool {
        match self.inner.memory {
            Memory::Device(_) => raw::path_wait(self.as_fd(), bell, word, value),
            Memory::Memfd { .. } => {
                if let Some(bell) = bell {
                    raw::ring(bell);
                }
                raw::futex_wait(word, value, most)
            }
        }
    }

    /// Receives a message through the kernel; waits for one unless the descriptor does not block.
    /// `None` when the originator is gone and nothing is left.
    ///
    /// # Errors
    /// `EAGAIN` without a message; those of reading a volatile aggregate that its originator has
    /// changed, when the message is freed; `EOPNOTSUPP` by memfds.
    pub fn receive(&self) -> io::Result<Option<Message>> {
        if let Memory::Memfd { .. } = self.inner.memory {
            return Err(error(libc::EOPNOTSUPP));
        }
        let mut words = [0; 8];
        match raw::ask(self.as_fd(), request::RECEIVE, &mut words) {
            Err(why) if why.raw_os_error() == Some(libc::EPIPE) => return Ok(None),
            result => result?,
        };
        self.message(words).map(Some)
    }

    /// Receives a message that waits, and [checks](Message::check) it, mostly by the same system
    /// call. Never waits, whatever the descriptor's flags, which the originator can change.
    ///
    /// # Errors
    /// Those of [`receive`](Member::receive) and [`Message::check`], when the message is freed.
    pub fn try_receive_checked(&self) -> io::Result<Option<Message>> {
        if let Memory::Memfd { .. } = self.inner.memory {
            return Err(error(libc::EOPNOTSUPP));
        }
        let mut ranges = [[0; 2]; FEW_RANGES];
        let received = raw::receive_with_ranges(self.as_fd(), &mut ranges);
        let words = match received {
            Err(why) if why.raw_os_error() == Some(libc::EPIPE) => return Ok(None),
            result => result?,
        };
        let message = self.message(words)?;
        match ranges.get_mut(..words[5] as usize) {
            Some(ranges) => message.check_within(ranges)?,
            None => message.check()?,
        }
        Ok(Some(message))
    }

    /// Returns the message of a receipt's answer.
    fn message(&self, words: raw::Words) -> io::Result<Message> {
        let [root, id, sender, ..] = words;
        let held = contents::Hold::Kernel(Hold {
            member: self.clone(),
            id,
        });
        // The kernel has checked what it names; `Message::check` does once more.
        let pieces = nodes::read(root, |_| true)?;
        Ok(Message {
            received: Received::new(root, pieces, held, Vec::new()),
            member: self.clone(),
            id,
            sender,
        })
    }
}

/// The path's descriptor, which is readable when a message through the kernel waits.
impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

/// A message through the kernel. It is freed when it and all clones of what it holds are dropped.
#[derive(Debug)]
pub struct Message {
    received: Received,
    member: Member,
    id: u64,
    sender: u64,
}

impl Message {
    /// Returns the kernel's number of the sender's domain.
    pub fn sender(&self) -> u64 {
        self.sender
    }

    /// Returns the contents.
    pub fn contents(&self) -> &Received {
        &self.received
    }

    /// Fails unless all bytes lie in pages that the kernel found when the message was sent, which
    /// the sender could read. On a volatile path the sender may have changed the nodes since, to
    /// name memory that only this process can read: check before the bytes are passed on to
    /// others.
    ///
    /// # Errors
    /// `EFAULT`; `E2BIG` for more than 1024 ranges of pages; those of the kernel.
    pub fn check(&self) -> io::Result<()> {
        let mut few = [[0; 2]; FEW_RANGES];
        let id = self.id;
        let count = raw::ranges(self.member.as_fd(), id, &mut few)?;
        if count <= few.len() {
            return self.check_within(&mut few[..count]);
        }
        if count > MOST_RANGES {
            return Err(error(libc::E2BIG));
        }
        let mut many = vec![[0; 2]; count];
        // A received message's ranges stay.
        raw::ranges(self.member.as_fd(), id, &mut many)?;
        self.check_within(&mut many)
    }

    fn check_within(&self, ranges: &mut [[u64; 2]]) -> io::Result<()> {
        ranges.sort_unstable();
        for fragment in self.received.fragments() {
            let mut at = fragment.address() as u64;
            let end = at + fragment.len() as u64;
            while at < end {
                let after = ranges.partition_point(|it| it[0] <= at);
                let here = after.checked_sub(1).map(|before| ranges[before][1]);
                at = here
                    .filter(|end| *end > at)
                    .ok_or_else(|| error(libc::EFAULT))?;
            }
        }
        Ok(())
    }

    /// Takes the originator's right to write until this message is freed, so that the bytes can be
    /// [borrowed](crate::Fragment::bytes). On secured paths it has none already.
    ///
    /// # Errors
    /// Those of the kernel; `EBUSY` when the contents were cloned.
    pub fn secure(&mut self) -> io::Result<()> {
        for fragment in self.received.fragments() {
            let start = fragment.address() & !(PAGE - 1);
            let end = (fragment.address() + fragment.len()).next_multiple_of(PAGE);
            let mut words = [0; 8];
            words[0] = start as u64;
            words[1] = (end - start) as u64;
            raw::ask(self.member.as_fd(), request::SECURE, &mut words)?;
        }
        self.received.set_stable()
    }
}

/// A message's id; its drop frees the message.
pub(crate) struct Hold {
    member: Member,
    id: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut words = [0; 8];
        words[0] = self.id;
        // It fails only if the member is gone, whose messages are freed.
        let _ = raw::ask(self.member.as_fd(), request::FREE, &mut words);
    }
}
