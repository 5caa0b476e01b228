//! TCP: sockets and the connections between them.
//!
//! - [`Socket`] (`socket`): what a program's descriptor leads to, and its state; `calls`: binding,
//!   listening, connecting, accepting, ending; `transfer`: sending, receiving, readiness;
//! - [`ConnectionTable`] (`table`): all ends of connections, listeners and ports; `arrivals`: the
//!   segments that make new ones; `events`: the effects of an end's change of state; `waiting`:
//!   TIME-WAIT; `cookies`: handshakes of which nothing is kept;
//! - `pair_table`: the hash tables of connections by their two ends;
//! - `wire`: segments between two ends on this machine, which travel as they are;
//! - `connection`: an end whose segments are packets; `lookup`: how packets and timers find it;
//!   `format`: its headers;
//! - [`block`]: one end, the state machine; [`segment`]: what it exchanges; `secret`: numbers that
//!   another machine cannot guess.

mod arrivals;
pub mod block;
mod calls;
mod connection;
mod cookies;
mod events;
mod format;
mod lookup;
mod pair;
mod pair_table;
mod secret;
pub mod segment;
mod socket;
mod table;
mod transfer;
mod waiting;
mod wire;

pub use block::State;
pub use calls::Progress;
pub use pair::Pair;
pub use socket::{
    IpFields, MOST_RECEIVE_BUFFER, MOST_SEND_BUFFER, Options, Phase, SEND_BUFFER, Socket, Summary,
};
pub(crate) use table::Tcp;
pub use table::{Connection, ConnectionTable};

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::{block::Block, connection::Connection, socket::Socket, table::End};
    use crate::{Waits, stream::Stream};

    /// Bytes in front of a shared value.
    const COUNTS: usize = 16;

    /// What an idle connection consists of fits the blocks of the heap that it was fitted to: what
    /// only traffic needs belongs into parts that are freed when there is none.
    #[test]
    fn idle_connections_are_small() {
        // Locks are larger with the order checker.
        let ranks = |bytes| if cfg!(debug_assertions) { bytes } else { 0 };
        let parts = [
            ("a stream", size_of::<Stream>() + COUNTS, 256 + ranks(32)),
            ("a block", size_of::<Block>(), 448),
            (
                "a connection",
                size_of::<Connection>() + COUNTS,
                224 + ranks(16),
            ),
            ("a socket", size_of::<Socket>() + COUNTS, 256),
            ("wait queues", size_of::<Waits>() + COUNTS, 128 + ranks(8)),
            ("an entry of the table", size_of::<(u64, End)>(), 56),
        ];
        for (what, size, most) in parts {
            assert!(size <= most, "{what}: {size} bytes");
        }
    }
}
