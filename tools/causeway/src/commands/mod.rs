//! The commands for guests that run already, and the options by which `causeway run` starts a
//! guest for them.

mod attach;
mod cp;
mod exec;
mod list;
mod name;
mod program;
mod stop;
mod unpack;

pub use attach::Attach;
pub use cp::Cp;
pub use exec::Exec;
pub use list::{Logs, Ps, Rm};
pub use name::Name;
pub use program::ProgramOptions;
pub use stop::{Kill, Stop};
