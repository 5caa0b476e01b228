//! The ring of one direction: words in an fbuf of the process that writes them. The other process
//! reads them, each once, and checks them; it writes its own words in its own ring.
//!
//! ```text
//! byte 0    bell        raised before waiters are woken: their futex
//!      4    waiting     what this process waits for: bits of `waits`, and a count of turns
//!      8    closed      1: this process sends no more
//!     64    sent        messages that were sent
//!     68    freed       messages of the other ring that were freed
//!    128    messages    slots × (root's address, cookie)
//!           notices     slots × cookie, of freed messages
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::region::Bytes;

/// Most slots of a ring.
pub(crate) const MOST_SLOTS: u32 = 4096;

/// What a process waits for.
pub(crate) mod waits {
    /// Messages, or the other's end.
    pub(crate) const MESSAGES: u32 = 1;
    /// Notices of freed messages.
    pub(crate) const NOTICES: u32 = 2;
    /// Either, at its socket.
    pub(crate) const SOCKET: u32 = 4;
    /// What is added each time that a process begins to wait: one wake-up is enough for each.
    pub(crate) const TURN: u32 = 8;
}

const BELL: usize = 0;
const WAITING: usize = 4;
const CLOSED: usize = 8;
const SENT: usize = 64;
const FREED: usize = 68;
const MESSAGES: usize = 128;

/// Returns the bytes of a ring with so many slots.
pub(crate) const fn size_of(slots: u32) -> usize {
    MESSAGES + slots as usize * (16 + 8)
}

/// A ring that this process reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    bytes: Bytes,
    slots: u32,
}

impl Ring {
    /// Returns the ring at an address that a peer told; `None` if it does not lie in the region, or
    /// not at a boundary of 64 bytes, or has not a power of two of slots.
    pub(crate) fn new(address: u64, slots: u64) -> Option<Ring> {
        let slots = u32::try_from(slots).ok()?;
        let is_good = slots.is_power_of_two() && slots <= MOST_SLOTS && address % 64 == 0;
        let bytes = Bytes::new(address, size_of(slots) as u64).filter(|_| is_good)?;
        Some(Ring { bytes, slots })
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: in the region, which may be read anywhere, and aligned; its owner
        // writes it by atomics of any kind, and others only load it.
        unsafe { AtomicU32::from_ptr(self.bytes.address().add(offset).cast_mut().cast()) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.bytes.address().add(offset).cast_mut().cast()) }
    }

    fn message(&self, number: u32) -> [&AtomicU64; 2] {
        let at = MESSAGES + 16 * (number & (self.slots - 1)) as usize;
        [self.long(at), self.long(at + 8)]
    }

    fn notice(&self, number: u32) -> &AtomicU64 {
        let at = MESSAGES + 16 * self.slots as usize;
        self.long(at + 8 * (number & (self.slots - 1)) as usize)
    }

    /// Returns the word that waiters sleep on.
    pub(crate) fn bell(&self) -> &AtomicU32 {
        self.word(BELL)
    }

    /// Returns what its writer waits for, with the count of its turns.
    pub(crate) fn waiting(&self) -> u32 {
        self.word(WAITING).load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// Returns how many messages were sent that are not among the `taken` first.
    pub(crate) fn messages_after(&self, taken: u32) -> u32 {
        self.word(SENT).load(Ordering::Acquire).wrapping_sub(taken)
    }

    /// Returns how many notices there are that are not among the `taken` first.
    pub(crate) fn notices_after(&self, taken: u32) -> u32 {
        self.word(FREED).load(Ordering::Acquire).wrapping_sub(taken)
    }

    /// Reads a message: the root's address and the cookie.
    pub(crate) fn read_message(&self, number: u32) -> (u64, u64) {
        let [root, cookie] = self.message(number).map(|it| it.load(Ordering::Relaxed));
        (root, cookie)
    }

    /// Reads a notice: the cookie.
    pub(crate) fn read_notice(&self, number: u32) -> u64 {
        self.notice(number).load(Ordering::Relaxed)
    }
}

/// A ring that this process writes.
#[derive(Debug)]
pub(crate) struct OwnRing(Ring);

impl OwnRing {
    /// Takes over a ring.
    ///
    /// # Safety
    /// Its memory is this process's, may be written, and is zeroed; nothing else writes it.
    pub(crate) unsafe fn new(ring: Ring) -> OwnRing {
        OwnRing(ring)
    }

    /// Writes a message, which is number `number`.
    pub(crate) fn send(&self, number: u32, root: u64, cookie: u64) {
        let [to_root, to_cookie] = self.0.message(number);
        to_root.store(root, Ordering::Relaxed);
        to_cookie.store(cookie, Ordering::Relaxed);
        let next = number.wrapping_add(1);
        self.0.word(SENT).store(next, Ordering::Release);
    }

    /// Writes a notice, which is number `number`.
    pub(crate) fn notify(&self, number: u32, cookie: u64) {
        self.0.notice(number).store(cookie, Ordering::Relaxed);
        let next = number.wrapping_add(1);
        self.0.word(FREED).store(next, Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.0.word(CLOSED).store(1, Ordering::Release);
    }

    /// Says that this process is about to sleep. What the other writes afterwards wakes it; what it
    /// wrote before is visible.
    pub(crate) fn start_waiting(&self, what: u32) {
        self.0
            .word(WAITING)
            .fetch_add(waits::TURN, Ordering::Relaxed);
        self.0.word(WAITING).fetch_or(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn stop_waiting(&self, what: u32) {
        self.0.word(WAITING).fetch_and(!what, Ordering::Relaxed);
    }

    /// Returns the word that waiters sleep on.
    pub(crate) fn bell(&self) -> &AtomicU32 {
        self.0.bell()
    }

    /// Changes the word that waiters sleep on.
    pub(crate) fn raise_bell(&self) {
        self.0.bell().fetch_add(1, Ordering::Release);
    }
}
