//! Channels: messages between two processes by rings in their fbufs, without the kernel unless one
//! of them sleeps. Everything that the peer wrote is checked, and costs bounded work.

use std::fmt;
use std::hint;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::aggregate::Aggregate;
use crate::contents::{self, Contents, Received};
use crate::nodes;
use crate::path::{Member, Path};
use crate::raw::{self, error};
use crate::region::{Bytes, Domain, lock};
use crate::ring::{self, OwnRing, Ring, waits};
use crate::sources::{Lend, Sources};
use crate::space::{Fbuf, Mode};

/// Messages that may be sent and not yet freed, in each direction.
const SLOTS: u32 = 256;

/// By memfds nothing wakes a thread that waits for a peer that is gone: after so long, it checks.
const LOOK: Duration = Duration::from_millis(50);

/// The first word of an offer.
const MAGIC: u64 = u64::from_le_bytes(*b"fbufring");

/// What one side tells the other about its path and ring.
#[derive(Debug)]
struct Offer {
    path: OwnedFd,
    ring: u64,
    slots: u64,
}

impl Offer {
    /// Receives what the peer's [`Channel::connect`] sends.
    ///
    /// # Errors
    /// `EPIPE` when the other end is closed, `EPROTO` for other words.
    fn receive(socket: BorrowedFd<'_>) -> io::Result<Offer> {
        let mut words = [[0; 8]; 3];
        let path = raw::receive_descriptor(socket, words.as_flattened_mut())?;
        let [magic, ring, slots] = words.map(u64::from_le_bytes);
        match magic {
            MAGIC => Ok(Offer { path, ring, slots }),
            _ => Err(error(libc::EPROTO)),
        }
    }

    fn send(socket: BorrowedFd<'_>, path: &Path, ring: u64, slots: u64) -> io::Result<()> {
        let words = [MAGIC, ring, slots].map(u64::to_le_bytes);
        raw::send_descriptor(socket, words.as_flattened(), path.as_fd())
    }
}

/// One end of a channel: a path from here to the peer, and one from the peer to here.
///
/// What is sent is held until the peer has freed it. Dropping the channel ends it: the peer
/// receives what is left, and then the end. What it has not freed by then may be written anew,
/// which [`finish`](Channel::finish) waits for.
pub struct Channel {
    shared: Arc<Shared>,
    /// What the peer may name in messages.
    sources: Sources,
    /// What was sent and not yet freed; the cookie is the place, and how often it was used.
    in_flight: Vec<(u32, Option<Aggregate>)>,
    free: Vec<u32>,
    /// The bytes of what was sent and not yet freed.
    bytes: u64,
    sent: u32,
    received: u32,
    noticed: u32,
    spins: u32,
    is_armed: bool,
    /// The error of a peer that is gone or breaks the rules.
    broken: Option<i32>,
}

/// What received messages need to tell that they are free.
struct Shared {
    own: OwnRing,
    peer: Ring,
    /// Notices that were written.
    freed: Mutex<u32>,
    /// What the peer waited for, and in which turn, when it was last woken.
    woken: AtomicU32,
    socket: OwnedFd,
    /// Keeps the peer's fbufs readable.
    member: Member,
    /// The memory of `own`, which keeps the path.
    ring: Fbuf,
}

impl Shared {
    /// Wakes the peer if it waits for one of these.
    fn wake(&self, what: u32) {
        if self.raise_bell(what) {
            raw::ring(self.bell());
        }
    }

    fn bell(&self) -> raw::Bell<'_> {
        let space = self.ring.space();
        let path = space.is_by_device().then(|| space.as_fd());
        (path, self.own.bell())
    }

    /// Raises the bell if the peer waits for one of these; returns whether the caller is to ring.
    fn raise_bell(&self, what: u32) -> bool {
        // What was written before is visible to a peer that is about to sleep.
        fence(Ordering::SeqCst);
        let waiting = self.peer.waiting();
        if waiting & what == 0 || self.woken.swap(waiting, Ordering::Relaxed) == waiting {
            return false;
        }
        self.own.raise_bell();
        if waiting & waits::SOCKET != 0 {
            raw::ring_doorbell(self.socket.as_fd());
        }
        true
    }

    /// Returns what to poll for the peer's messages, if they are to wake by the socket, and its
    /// end.
    fn polled(&self) -> [libc::pollfd; 2] {
        let socket = libc::POLLIN | libc::POLLRDHUP;
        [
            raw::waited(self.socket.as_raw_fd(), socket),
            raw::waited(self.member.hangup(), 0),
        ]
    }

    fn is_peer_gone(&self) -> bool {
        let mut entries = self.polled();
        let gone = libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP;
        raw::poll(&mut entries, 0).is_err() || entries.iter().any(|it| it.revents & gone != 0)
    }
}

/// A received message's cookie; its drop tells the sender.
pub(crate) struct Hold {
    shared: Arc<Shared>,
    cookie: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut freed = lock(&self.shared.freed);
        self.shared.own.notify(*freed, self.cookie);
        *freed = freed.wrapping_add(1);
        drop(freed);
        self.shared.wake(waits::NOTICES);
    }
}

impl Channel {
    /// Makes a channel with the process at the other end of a Unix socket, which calls this, too.
    /// The socket belongs to the channel: it tells when the peer is gone. Close other copies of the
    /// peer's end, in this process and in children.
    ///
    /// # Errors
    /// `EINVAL` for a path that is not cached and volatile: a ring neither maps nor protects pages.
    /// `EPROTO` for a peer that does not speak this protocol, or whose path is of another mode.
    /// Those of the socket, of allocating the ring, and of attaching to the peer's path.
    pub fn connect(domain: &Domain, path: &Path, socket: OwnedFd) -> io::Result<Channel> {
        if path.mode() != Mode::CACHED_VOLATILE {
            return Err(error(libc::EINVAL));
        }
        let (ring, own) = Channel::make_ring(path)?;
        Offer::send(socket.as_fd(), path, ring.start() as u64, SLOTS.into())?;
        let offer = Offer::receive(socket.as_fd())?;
        Channel::join(domain, ring, own, offer, socket)
    }

    fn make_ring(path: &Path) -> io::Result<(Fbuf, OwnRing)> {
        let mut fbuf = path.allocate(ring::size_of(SLOTS))?;
        fbuf.fill(0);
        let bytes = Ring::new(fbuf.start() as u64, SLOTS.into());
        let bytes = bytes.ok_or_else(|| error(libc::EFAULT))?;
        // SAFETY: the fbuf was zeroed, and is kept beside the ring for nothing else.
        let own = unsafe { OwnRing::new(bytes) };
        Ok((fbuf, own))
    }

    fn join(
        domain: &Domain,
        ring: Fbuf,
        own: OwnRing,
        offer: Offer,
        socket: OwnedFd,
    ) -> io::Result<Channel> {
        let peer = Ring::new(offer.ring, offer.slots).ok_or_else(|| error(libc::EPROTO))?;
        let member = Member::attach(domain, offer.path)?;
        if peer.slots() != SLOTS || member.mode() != Mode::CACHED_VOLATILE {
            return Err(error(libc::EPROTO));
        }
        // Another peer's ring, or one of this process, is not the peer's.
        if !member.owns(peer.bytes()) {
            return Err(error(libc::EPROTO));
        }
        let sources = Sources::new(&member, ring.space());
        Ok(Channel {
            sources,
            shared: Arc::new(Shared {
                own,
                peer,
                freed: Mutex::new(0),
                woken: AtomicU32::new(0),
                member,
                socket,
                ring,
            }),
            in_flight: (0..SLOTS).map(|_| (0, None)).collect(),
            free: (0..SLOTS).rev().collect(),
            bytes: 0,
            sent: 0,
            received: 0,
            noticed: 0,
            spins: 0,
            is_armed: false,
            broken: None,
        })
    }

    /// Returns the membership in the peer's path.
    pub fn member(&self) -> &Member {
        &self.shared.member
    }

    /// Sets how often a blocking call looks for its event before it sleeps. 0, the default, suits
    /// one CPU.
    pub fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// Sends an aggregate. Waits while 256 messages are not yet freed by the peer.
    ///
    /// # Errors
    /// `EPIPE` when the peer has closed the channel. `ECONNRESET` when it is gone, `EPROTO` when it
    /// broke the rules: everything that was sent is then released. `ENOSPC` or `ENOMEM` without
    /// memory for the node of an empty aggregate.
    pub fn send(&mut self, aggregate: &Aggregate) -> io::Result<()> {
        self.put_waiting(aggregate)?;
        self.shared.wake(waits::MESSAGES);
        Ok(())
    }

    fn put_waiting(&mut self, aggregate: &Aggregate) -> io::Result<()> {
        loop {
            match self.put(aggregate) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(waits::NOTICES, false)?;
                }
                result => return result,
            }
        }
    }

    /// Sends an aggregate, or fails with `EAGAIN` instead of waiting.
    ///
    /// # Errors
    /// Those of [`send`](Channel::send), and `EAGAIN`.
    pub fn try_send(&mut self, aggregate: &Aggregate) -> io::Result<()> {
        self.put(aggregate)?;
        self.shared.wake(waits::MESSAGES);
        Ok(())
    }

    /// Writes a message, whose receiver is to be woken then.
    fn put(&mut self, aggregate: &Aggregate) -> io::Result<()> {
        self.collect()?;
        if self.shared.peer.is_closed() {
            return Err(error(libc::EPIPE));
        }
        let (aggregate, root) = aggregate.to_send()?;
        let place = self.free.pop().ok_or_else(|| error(libc::EAGAIN))?;
        let slot = &mut self.in_flight[place as usize];
        self.bytes += aggregate.len();
        slot.1 = Some(aggregate);
        let cookie = u64::from(slot.0) << 32 | u64::from(place);
        self.shared.own.send(self.sent, root, cookie);
        self.sent = self.sent.wrapping_add(1);
        Ok(())
    }

    /// Receives a message; waits for one. `None` once the peer has closed the channel and nothing
    /// is left.
    ///
    /// A message may name what its sender can read: its path, the path from here to the sender, and
    /// other paths that both belong to. Those the kernel knows; by memfds it needs
    /// [`receive_lent`](Channel::receive_lent).
    ///
    /// # Errors
    /// `ECONNRESET` when the peer is gone and all that it sent was received, `EPROTO` when it broke
    /// the rules. `EFAULT` for a message that names other memory, `EFAULT`, `ELOOP`, `E2BIG` or
    /// `EINVAL` for one that is no aggregate: it is freed, and the channel goes on.
    pub fn receive(&mut self) -> io::Result<Option<Received>> {
        self.receive_lent(|_| None)
    }

    /// Receives as [`receive`](Channel::receive). By memfds, where no kernel knows a path's
    /// receivers, `lend` gives for an address of another path the membership in it, if the sender
    /// can read that path, too.
    ///
    /// # Errors
    /// Those of [`receive`](Channel::receive).
    pub fn receive_lent(
        &mut self,
        mut lend: impl FnMut(usize) -> Option<Member>,
    ) -> io::Result<Option<Received>> {
        self.take_waiting(&mut lend, false)
    }

    /// Receives a message; waits for one. With `wakes`, the peer is woken before.
    fn take_waiting(
        &mut self,
        lend: &mut Lend<'_>,
        mut wakes: bool,
    ) -> io::Result<Option<Received>> {
        self.disarm();
        if wakes && self.is_ready(waits::MESSAGES) {
            raw::ring(self.shared.bell());
            wakes = false;
        }
        loop {
            // The same without an error, first: both sides mostly wait.
            if self.broken.is_none() && !self.is_ready(waits::MESSAGES) {
                self.wait(waits::MESSAGES, mem::take(&mut wakes))?;
            }
            match self.take(lend) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Receives a message, or fails with `EAGAIN` instead of waiting. Does not look whether the
    /// peer is gone: after its socket said so, [`receive`](Channel::receive) does.
    ///
    /// # Errors
    /// Those of [`receive`](Channel::receive), and `EAGAIN`.
    pub fn try_receive(&mut self) -> io::Result<Option<Received>> {
        self.take(&mut |_| None)
    }

    /// As [`try_receive`](Channel::try_receive), with what
    /// [`receive_lent`](Channel::receive_lent) takes.
    ///
    /// # Errors
    /// Those of [`try_receive`](Channel::try_receive).
    pub fn try_receive_lent(
        &mut self,
        mut lend: impl FnMut(usize) -> Option<Member>,
    ) -> io::Result<Option<Received>> {
        self.take(&mut lend)
    }

    /// Returns whether the peer may read all bytes of an aggregate, so that it can receive them
    /// from here. The kernel knows that, by memfds `lend`, as for
    /// [`receive_lent`](Channel::receive_lent).
    pub fn may_peer_read(
        &mut self,
        aggregate: &Aggregate,
        mut lend: impl FnMut(usize) -> Option<Member>,
    ) -> bool {
        let (from, own) = (&self.shared.member, self.shared.ring.space());
        let (sources, mut lenders) = (&mut self.sources, Vec::new());
        aggregate.fragments().all(|it| {
            let bytes = Bytes::new(it.address() as u64, it.len() as u64);
            bytes.is_some_and(|it| sources.may_name(from, own, it, &mut lenders, &mut lend))
        })
    }

    /// Ends what [`arm`](Channel::arm) has begun.
    fn disarm(&mut self) {
        if mem::take(&mut self.is_armed) {
            let what = waits::MESSAGES | waits::NOTICES | waits::SOCKET;
            self.shared.own.stop_waiting(what);
        }
    }

    fn take(&mut self, lend: &mut Lend<'_>) -> io::Result<Option<Received>> {
        if self.broken == Some(libc::EPROTO) {
            return Err(error(libc::EPROTO));
        }
        self.disarm();
        // Read first: what was sent before the close is received before the end.
        let is_closed = self.shared.peer.is_closed();
        match self.shared.peer.messages_after(self.received) {
            0 if is_closed => return Ok(None),
            // A peer that is gone sends no more, but what it sent is there.
            0 => return Err(error(self.broken.unwrap_or(libc::EAGAIN))),
            count if count > SLOTS => return Err(self.break_off(libc::EPROTO)),
            _ => {}
        }
        let (root, cookie) = self.shared.peer.read_message(self.received);
        self.received = self.received.wrapping_add(1);
        let shared = self.shared.clone();
        let hold = contents::Hold::Ring(Hold { shared, cookie });
        let (from, own) = (&self.shared.member, self.shared.ring.space());
        let (sources, mut lenders) = (&mut self.sources, Vec::new());
        let pieces = nodes::read(root, |bytes| {
            sources.may_name(from, own, bytes, &mut lenders, lend)
        })?;
        Ok(Some(Received::new(root, pieces, hold, lenders)))
    }

    /// Sends a request, and receives the answer. If both sides sleep meanwhile, each makes one
    /// system call.
    ///
    /// # Errors
    /// Those of [`send`](Channel::send) and [`receive`](Channel::receive); `EPIPE` without an
    /// answer.
    pub fn call(&mut self, request: &Aggregate) -> io::Result<Received> {
        self.answer(request)?.ok_or_else(|| error(libc::EPIPE))
    }

    /// Sends an answer, and receives the next request: the other side of [`call`](Channel::call).
    /// `None` once the peer has closed the channel.
    ///
    /// # Errors
    /// Those of [`send`](Channel::send) and [`receive`](Channel::receive).
    pub fn answer(&mut self, answer: &Aggregate) -> io::Result<Option<Received>> {
        self.put_waiting(answer)?;
        let wakes = self.shared.raise_bell(waits::MESSAGES);
        self.take_waiting(&mut |_| None, wakes)
    }

    /// Ends the sending, so that the peer receives the end, and waits until the peer has freed all
    /// that was sent, or is gone.
    ///
    /// # Errors
    /// `ECONNRESET` when it is gone and had not closed the channel, `EPROTO` when it broke the
    /// rules.
    pub fn finish(mut self) -> io::Result<()> {
        self.shared.own.close();
        self.shared.wake(waits::MESSAGES | waits::NOTICES);
        loop {
            self.collect()?;
            if self.free.len() == SLOTS as usize {
                return Ok(());
            }
            let noticed = self.noticed;
            if self.sleep(waits::NOTICES, false, |peer| {
                peer.notices_after(noticed) != 0
            }) {
                // What it wrote before it ended counts.
                self.collect()?;
                return match self.free.len() == SLOTS as usize || self.shared.peer.is_closed() {
                    true => Ok(()),
                    false => Err(error(libc::ECONNRESET)),
                };
            }
        }
    }

    /// Waits until one of these channels may have something: a message, notices, or its end, which
    /// the next call of the channel tells. A process that sends on what it has received waits for
    /// the channels of both sides: what it holds for one side is freed by notices of the other.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn wait_any(channels: &mut [&mut Channel]) -> io::Result<()> {
        let mut is_ready = false;
        for channel in &mut *channels {
            is_ready |= channel.arm();
        }
        if !is_ready {
            let polled = channels.iter().flat_map(|it| it.shared.polled());
            raw::poll(&mut polled.collect::<Vec<_>>(), -1)?;
        }
        for channel in channels {
            // An error comes again.
            let _ = channel.check();
        }
        Ok(())
    }

    /// Prepares for waiting by `poll` or `epoll` at this channel's [descriptor](Channel::as_fd).
    /// Returns true if a message, room to send or the end are there already.
    pub fn arm(&mut self) -> bool {
        if self.collect().is_err() {
            return true;
        }
        raw::clear_doorbell(self.shared.socket.as_fd());
        let what = waits::MESSAGES | waits::NOTICES;
        self.shared.own.start_waiting(what | waits::SOCKET);
        self.is_armed = true;
        self.is_ready(what)
    }

    /// Reads notices, and looks whether the peer is still there. Calls that wait do this by
    /// themselves.
    ///
    /// # Errors
    /// `ECONNRESET` when it is gone and all that it sent was received: everything that was sent to
    /// it is then released. `EPROTO` when it broke the rules.
    pub fn check(&mut self) -> io::Result<()> {
        self.collect()?;
        let what = waits::MESSAGES;
        if !self.shared.peer.is_closed() && self.shared.is_peer_gone() && !self.is_ready(what) {
            return Err(self.break_off(libc::ECONNRESET));
        }
        Ok(())
    }

    /// Returns the number of messages that the peer has not yet freed, as far as notices were read.
    pub fn in_flight(&self) -> usize {
        match self.broken {
            Some(_) => 0,
            None => SLOTS as usize - self.free.len(),
        }
    }

    /// Returns the bytes of those messages.
    pub fn bytes_in_flight(&self) -> u64 {
        self.bytes
    }

    /// Releases what the peer has freed. Sending does it, too.
    ///
    /// # Errors
    /// `EPROTO` when the peer broke the rules, and the error that ended the channel.
    pub fn collect(&mut self) -> io::Result<()> {
        if let Some(number) = self.broken {
            return Err(error(number));
        }
        let count = self.shared.peer.notices_after(self.noticed);
        if count > SLOTS {
            return Err(self.break_off(libc::EPROTO));
        }
        for _ in 0..count {
            let cookie = self.shared.peer.read_notice(self.noticed);
            self.noticed = self.noticed.wrapping_add(1);
            let (place, use_of) = (cookie as u32, (cookie >> 32) as u32);
            let slot = self.in_flight.get_mut(place as usize);
            let slot = slot.filter(|slot| slot.0 == use_of && slot.1.is_some());
            let Some(slot) = slot else {
                return Err(self.break_off(libc::EPROTO));
            };
            slot.0 = slot.0.wrapping_add(1);
            self.bytes -= slot.1.take().map_or(0, |it| it.len());
            self.free.push(place);
        }
        Ok(())
    }

    /// Notes an error that ends the channel, releases all that was sent, and returns the error.
    fn break_off(&mut self, number: i32) -> io::Error {
        self.broken = Some(number);
        self.bytes = 0;
        for slot in &mut self.in_flight {
            slot.1 = None;
        }
        error(number)
    }

    fn is_ready(&self, what: u32) -> bool {
        let peer = &self.shared.peer;
        peer.is_closed()
            || (what & waits::MESSAGES != 0 && peer.messages_after(self.received) != 0)
            || (what & waits::NOTICES != 0 && peer.notices_after(self.noticed) != 0)
    }

    /// Sleeps until one of these may be there; `ECONNRESET` if the peer is gone. With `wakes`, the
    /// peer is woken before.
    fn wait(&mut self, what: u32, mut wakes: bool) -> io::Result<()> {
        if self.spins > 0 && mem::take(&mut wakes) {
            raw::ring(self.shared.bell());
        }
        for _ in 0..self.spins {
            if self.is_ready(what) {
                return Ok(());
            }
            hint::spin_loop();
        }
        let is_gone = self.sleep(what, wakes, |_| self.is_ready(what));
        match is_gone && !self.is_ready(what) {
            true => Err(self.break_off(libc::ECONNRESET)),
            false => Ok(()),
        }
    }

    /// Sleeps unless it is ready; returns true if the peer is gone. With `wakes`, the peer is woken
    /// before, by the same system call.
    fn sleep(&self, what: u32, wakes: bool, is_ready: impl Fn(&Ring) -> bool) -> bool {
        let (peer, own) = (&self.shared.peer, &self.shared.own);
        let bell = peer.bell();
        let seen = bell.load(Ordering::Acquire);
        own.start_waiting(what);
        let mut is_awake = is_ready(peer);
        if is_awake {
            if wakes {
                raw::ring(self.shared.bell());
            }
        } else {
            let rung = wakes.then(|| self.shared.bell());
            if !self.shared.member.wait(rung, bell, seen, LOOK) {
                // An error of `poll` comes again when the peer is looked for.
                let _ = raw::poll(&mut self.shared.polled(), LOOK.as_millis() as i32);
            }
            is_awake = bell.load(Ordering::Acquire) != seen || is_ready(peer);
        }
        own.stop_waiting(what);
        !is_awake && self.shared.is_peer_gone()
    }
}

/// The descriptor to wait at after [`arm`](Channel::arm): readable when there is something to
/// receive or to send, or the peer is gone.
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.shared.own.close();
        self.shared.wake(waits::MESSAGES | waits::NOTICES);
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("member", &self.shared.member)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
