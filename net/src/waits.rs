//! Who waits for a socket.

use nucleus::task::WaitQueue;

/// The tasks that wait for one socket. They are the socket's own from its making to its end, whatever it gets
/// connected to meanwhile, so that who has registered once is told of everything.
#[derive(Default)]
pub struct Waits {
    /// For bytes, datagrams or connections to accept, the other side's end, an error.
    pub readable: WaitQueue,
    /// For a connection, of which each can be had by one only.
    pub acceptable: WaitQueue,
    /// For room, an established connection, an error.
    pub writable: WaitQueue,
}

impl Waits {
    /// Tells everybody.
    pub fn wake_all(&self) {
        self.readable.wake_all();
        self.acceptable.wake_all();
        self.writable.wake_all();
    }

    /// A connection can be accepted: tells one of those that wait for nothing else, and all who only look.
    pub fn wake_for_connection(&self) {
        let taken = self.acceptable.wake_one();
        self.readable.wake_shared(taken);
    }
}
