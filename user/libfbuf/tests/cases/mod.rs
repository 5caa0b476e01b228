//! Cases that hold by either backend. Each forks its own processes, and runs in one that has not
//! entered the region.

mod aggregates;
mod channels;
mod crashes;
mod deputy;
mod hostile;
mod kernel;
mod processes;

use std::os::unix::net::UnixStream;

use libfbuf::{Backend, Channel, Domain, Mode, Path};
pub use processes::{Draws, fork, status_of, wait};

/// A case: its name, and what it does.
pub type Case = (&'static str, fn(Backend));

/// By either backend.
pub const ALL: &[Case] = &[
    (
        "libfbuf: random operations on aggregates",
        aggregates::model,
    ),
    ("libfbuf: a chain of parts", aggregates::chain),
    ("libfbuf: limits of a path", aggregates::limits),
    (
        "libfbuf: random aggregates there and back",
        channels::random,
    ),
    ("libfbuf: messages freed in any order", channels::order),
    ("libfbuf: calls and answers", channels::calls),
    ("libfbuf: waiting by poll", channels::poll),
    ("libfbuf: the peer closes", channels::closed),
    ("libfbuf: the peer is killed", channels::killed),
    (
        "libfbuf: the peer is killed while a send waits",
        channels::killed_full,
    ),
    (
        "libfbuf: the peer is killed after each store",
        crashes::each_store,
    ),
    (
        "libfbuf: two channels of the same paths",
        channels::two_channels,
    ),
    ("libfbuf: children have nothing", channels::children),
    (
        "libfbuf: a child of a process that has entered",
        channels::child_of_domain,
    ),
    ("libfbuf: a receiver cannot write", channels::read_only),
    ("libfbuf: hostile graphs", hostile::graphs),
    ("libfbuf: hostile random graphs", hostile::random_graphs),
    ("libfbuf: hostile random rings", hostile::rings),
    ("libfbuf: hostile offers", hostile::offers),
    ("libfbuf: a ring where there is no chunk", hostile::no_ring),
    ("libfbuf: hostile names of others' memory", deputy::names),
    (
        "libfbuf: hostile memory that is given back",
        deputy::gives_back,
    ),
    ("libfbuf: hostile ring of another", deputy::ring_of_another),
];

/// Messages through the kernel, by the device only.
pub const KERNEL: &[Case] = &[
    ("libfbuf: messages in each mode", kernel::each_mode),
    ("libfbuf: a secured message", kernel::secured),
    ("libfbuf: a receiver secures", kernel::secures),
    ("libfbuf: a message sent on", kernel::sent_on),
    ("libfbuf: a message sent twice", kernel::sent_twice),
    ("libfbuf: pages sent again", kernel::sent_again),
    ("libfbuf: a receiver is killed", kernel::receiver_killed),
    ("libfbuf: memory of free fbufs", kernel::trimmed),
    ("libfbuf: calls through the kernel", kernel::called),
    ("libfbuf: the originator ends", kernel::originator_ends),
    ("libfbuf: channels of other modes", kernel::other_modes),
    (
        "libfbuf: a child drops what its parent made",
        kernel::dropped_in_child,
    ),
];

/// Forks a child that does `body` with one end of a pair of sockets; returns the other.
pub fn fork_with_socket(body: impl FnOnce(UnixStream)) -> (UnixStream, libc::pid_t) {
    let (here, there) = UnixStream::pair().expect("sockets");
    let mut ends = Some((here, there));
    let child = fork(|| {
        let (here, there) = ends.take().expect("two ends");
        drop(here);
        body(there);
    });
    let (here, there) = ends.take().expect("two ends");
    drop(there);
    (here, child)
}

/// A domain of this process and a path that it originates.
pub fn start(backend: Backend) -> (Domain, Path) {
    let domain = Domain::enter(backend).expect("the region");
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0).expect("a path");
    (domain, path)
}

/// A child with a path and a channel of its own, and the other end of the channel.
pub fn with_peer(
    backend: Backend,
    peer: impl FnOnce(Domain, Path, Channel),
) -> (Domain, Path, Channel, libc::pid_t) {
    let (here, child) = fork_with_socket(|there| {
        let (domain, path) = start(backend);
        let channel = Channel::connect(&domain, &path, there.into()).expect("a channel");
        peer(domain, path, channel);
    });
    let (domain, path) = start(backend);
    let channel = Channel::connect(&domain, &path, here.into()).expect("a channel");
    (domain, path, channel, child)
}

/// The number of the error of a result that must be one.
pub fn error_of<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().unwrap_or(-1)
}
