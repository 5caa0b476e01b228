//! TCP: sockets and the connections between them.
//!
//! - [`Socket`] (`socket`): what a program's descriptor leads to, and its state; `calls`: binding,
//!   listening, connecting, accepting, ending; `transfer`: sending, receiving, readiness;
//! - [`ConnectionTable`] (`table`): all ends of connections, listeners and ports, and the delivery
//!   of segments; `events`: the effects of an end's change of state; `waiting`: TIME-WAIT;
//! - `wire`: the segments themselves.

mod calls;
mod events;
mod socket;
mod table;
mod transfer;
mod waiting;
mod wire;

pub use calls::Progress;
pub use socket::{Options, Phase, Socket, Summary};
pub(crate) use table::Tcp;
pub use table::{Connection, ConnectionTable};
pub use wire::State;
