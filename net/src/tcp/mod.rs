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
