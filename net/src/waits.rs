//! Who waits for a socket.

use nucleus::task::WaitQueue;

/// The tasks that wait for one socket. They are the socket's own from its making to its end, whatever it gets
/// connected to meanwhile, so that who has registered once is told of everything.
#[derive(Default)]
pub struct Waits {
    /// For bytes, datagrams or connections to accept, the other side's end, an error.
    pub readable: WaitQueue,
    /// For room, an established connection, an error.
    pub writable: WaitQueue,
}

impl Waits {
    /// Tells everybody.
    pub fn wake_all(&self) {
        self.readable.wake_all();
        self.writable.wake_all();
    }
}
