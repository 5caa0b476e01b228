//! The wait queues of one socket.

use nucleus::task::WaitQueue;

/// The wait queues of a socket. They belong to the socket from its creation to its end, whatever it
/// is connected to, so that a waiter that registers once hears of every change.
#[derive(Default)]
pub struct Waits {
    /// Wakes for bytes, datagrams, connections to accept, the peer's end and errors.
    pub readable: WaitQueue,
    /// Wakes for a connection to accept, which only one waiter can get.
    pub acceptable: WaitQueue,
    /// Wakes for room, an established connection and errors.
    pub writable: WaitQueue,
}

impl Waits {
    /// Wakes all waiters of all queues.
    pub fn wake_all(&self) {
        self.readable.wake_all();
        self.acceptable.wake_all();
        self.writable.wake_all();
    }

    /// Announces a connection: wakes one accepting thread and all that poll.
    pub fn wake_for_connection(&self) {
        let taken = self.acceptable.wake_one();
        self.readable.wake_shared(taken);
    }
}
