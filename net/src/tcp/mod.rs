//! TCP: sockets and the connections between them.
//!
//! - [`Socket`] (`socket`): what a program's descriptor leads to, and its state; `calls`: binding,
//!   listening, connecting, accepting, ending; `transfer`: sending, receiving, readiness;
//! - [`ConnectionTable`] (`table`): all ends of connections, listeners and ports, and the delivery
//!   of segments; `events`: the effects of an end's change of state; `waiting`: TIME-WAIT;
//! - `wire`: segments between ends on this machine;
//! - [`block`]: one end, the state machine; [`segment`]: what it exchanges; `secret`: numbers that
//!   nobody can guess.

pub mod block;
mod calls;
mod events;
mod pair;
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
pub use socket::{Options, Phase, Socket, Summary};
pub(crate) use table::Tcp;
pub use table::{Connection, ConnectionTable};
