//! Fbufs (`fbufs.txt`): buffers at one address in every process, which their originator writes and
//! others read without a copy.
//!
//! - [`Domain`]: a process that has entered the region, by the kernel's `/dev/fbuf` or, on any
//!   Linux, by memfds.
//! - [`Path`] and [`Member`]: the sides of a path, along which data goes from its originator to
//!   its receivers. Its descriptor is the right to join it.
//! - [`Fbuf`]: pages to write, allocated from a path.
//! - [`Aggregate`]: immutable bytes of many fbufs, joined and cut without a copy.
//! - [`Channel`]: a ring of messages between two processes, without a system call unless one of
//!   them sleeps; [`Received`] is what comes. [`Path::send`] and [`Member::receive`] go through the
//!   kernel, for uncached and secured paths.
//! - [`lines`] and [`records`]: data units, copied only where they cross fragments.
//!
//! The document is `docs/fbuf.md`, the interface for C `fbuf.h`.

mod aggregate;
mod allocator;
mod c;
mod channel;
mod contents;
mod frames;
mod membership;
mod memfd;
mod nodes;
mod path;
mod raw;
mod region;
mod ring;
mod sent;
mod sockets;
mod sources;
mod space;
mod units;

pub use aggregate::Aggregate;
pub use channel::Channel;
pub use contents::{Contents, Fragment, Received};
pub use frames::Frames;
pub use nodes::MOST_NODES;
pub use path::{Member, Message, Path, To};
pub use raw::{receive_descriptor, send_descriptor};
pub use region::{Backend, CHUNK, Domain, PAGE, REGION_SIZE, REGION_START};
pub use sockets::{receive_path, send_path};
pub use space::{Fbuf, Mode};
pub use units::{Unit, Units, lines, records};

/// The document, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fbuf.md")]
pub struct Document;

#[cfg(test)]
mod tests {
    #[test]
    fn the_documents_examples_are_those_that_are_tested() {
        let document = include_str!("../../../docs/fbuf.md");
        assert!(document.contains(include_str!("../examples/fan_out.rs")));
        assert!(document.contains(include_str!("../examples/echo.c")));
    }
}
