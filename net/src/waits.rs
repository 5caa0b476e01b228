//! The readiness of one socket, and its wait queues.

use nucleus::{OutOfMemory, sync::OnceBox, task::WaitQueue};

/// What can be done with a socket without waiting.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// A read returns bytes, a datagram, the end or an error; a listener has a connection.
    pub readable: bool,
    /// A write takes bytes or returns an error; datagrams always can be sent.
    pub writable: bool,
    /// An urgent byte waits.
    pub urgent: bool,
    /// An error is pending.
    pub error: bool,
    /// There is news for writers that leave their bytes alone meanwhile (`MSG_ZEROCOPY`).
    pub has_completion: bool,
    /// The peer has ended its stream, or reading was shut.
    pub read_hung_up: bool,
    /// Both directions have ended, or there is no connection.
    pub hung_up: bool,
}

/// The wait queues of a socket. They belong to the socket from its creation to its end, whatever it
/// is connected to, so that a waiter that registers once hears of every change.
#[derive(Default)]
pub struct Waits {
    /// Wakes for bytes, datagrams, connections to accept, the peer's end and errors.
    pub readable: WaitQueue,
    /// Wakes for a connection to accept, which only one waiter can get. Made for the first of
    /// them.
    acceptable: OnceBox<WaitQueue>,
    /// Wakes for room, an established connection and errors.
    pub writable: WaitQueue,
}

impl Waits {
    /// Returns the queue that wakes for a connection to accept.
    ///
    /// # Errors
    /// No memory.
    pub fn acceptable(&self) -> Result<&WaitQueue, OutOfMemory> {
        self.acceptable.get_or_try_insert(WaitQueue::new)
    }

    /// Wakes all waiters of all queues.
    pub fn wake_all(&self) {
        self.readable.wake_all();
        if let Some(acceptable) = self.acceptable.get() {
            acceptable.wake_all();
        }
        self.writable.wake_all();
    }

    /// Announces a connection: wakes one accepting thread and all that poll.
    pub fn wake_for_connection(&self) {
        let acceptable = self.acceptable.get();
        let taken = acceptable.is_some_and(WaitQueue::wake_one);
        self.readable.wake_shared(taken);
    }
}
