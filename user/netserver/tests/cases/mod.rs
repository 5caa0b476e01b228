//! Cases that hold by either backend. Each forks its own processes, and runs in one that has not
//! entered the region.

mod broken;
mod packets;
mod serving;

#[path = "../../../libfbuf/tests/cases/processes.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the guest's tests have both libraries' cases"
)]
mod processes;

use libfbuf::Backend;
pub use processes::{Draws, fork, status_of, wait};

/// A case: its name, and what it does.
pub type Case = (&'static str, fn(Backend));

/// All cases.
pub const ALL: &[Case] = &[
    ("netserver: datagrams cut and put together", packets::whole),
    (
        "netserver: fragments lost, repeated, in any order",
        packets::shuffled,
    ),
    (
        "netserver: fragments that contradict each other",
        packets::hostile,
    ),
    ("netserver: random packets", packets::random),
    ("netserver: echo requests", packets::echo),
    ("netserver: two clients", serving::two_clients),
    ("netserver: two clients without rings", serving::by_kernel),
    ("netserver: a body sent back", serving::sent_back),
    (
        "netserver: two clients that are not connected",
        serving::not_connected,
    ),
    ("netserver: many datagrams", serving::many),
    ("netserver: many large datagrams", serving::large),
    ("netserver: both ends in one process", serving::alone),
    ("netserver: ports", serving::ports),
    ("netserver: a client that frees nothing", serving::hoarder),
    ("netserver: a client is killed", broken::client_killed),
    ("netserver: the server is killed", broken::server_killed),
    ("netserver: hostile messages", broken::hostile),
    ("netserver: bytes of another client", broken::thief),
    ("netserver: clients that do not connect", broken::silent),
];
