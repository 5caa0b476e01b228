//! Unix sockets: latency and bandwidth by type, passing of descriptors.

use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use crate::movement::{self, Line, checked, flow, flow::Shape, flow::Variant, wrong};
use crate::{Bench, Experiment, Failure, Meter};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "unix-socket",
    title: "latency and bandwidth of local sockets, descriptors passed along",
    help: "\
Two programs, on one CPU or (-2cpu) on two, joined by a socketpair of AF_UNIX: of type stream,
datagram or seqpacket.

TYPE-latency         one byte there and one back: ns a round trip
TYPE-bandwidth-SIZE  messages of SIZE bytes, stamped and looked at in every page: MiB/s
                     -unaligned: buffers do not begin at a page's start; -untouched: no stamps;
                     -filled: the sender writes, and the receiver reads, all bytes
pass-descriptor      SCM_RIGHTS: sendmsg with an open file, recvmsg, close: ns
pair-close           socketpair and two closes: ns

--full measures every size in every variant.",
    run,
};

const KINDS: [(&str, libc::c_int, &[usize]); 3] = [
    (
        "unix-socket/stream-",
        libc::SOCK_STREAM,
        &[
            64,
            1 << 10,
            4 << 10,
            16 << 10,
            64 << 10,
            256 << 10,
            1 << 20,
            4 << 20,
        ],
    ),
    // A message of a datagram socket must fit into the sender's buffer, 208 KiB on Linux.
    (
        "unix-socket/datagram-",
        libc::SOCK_DGRAM,
        &[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
    ),
    (
        "unix-socket/seqpacket-",
        libc::SOCK_SEQPACKET,
        &[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
    ),
];

/// Sizes that the short set measures.
const SHORT: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];

/// Returns the variants in which a size is measured.
fn variants(kind: libc::c_int, size: usize, all: bool) -> &'static [Variant] {
    use Variant::{Filled, Plain, Untouched};
    match (kind, size) {
        _ if all => &Variant::ALL,
        (libc::SOCK_STREAM, 0x1_0000 | 0x10_0000) => &[Plain, Untouched, Filled],
        _ => &[Plain],
    }
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, kind, sizes) in KINDS {
        let line = Line::Unix(kind);
        let all = bench.is_full();
        for cpu in [0, 1] {
            flow::latency(bench, name, line, cpu)?;
        }
        for &size in sizes {
            if !all && !SHORT.contains(&size) {
                continue;
            }
            for cpu in [0, 1] {
                for &variant in variants(kind, size, all) {
                    let shape = Shape {
                        cpu,
                        ..Shape::of(size)
                    };
                    flow::bandwidth(bench, name, line, shape.varied(variant))?;
                }
            }
        }
    }
    bench
        .row("unix-socket/pass-descriptor")
        .batch(200)
        .run(pass_descriptor)?;
    bench
        .row("unix-socket/pair-close")
        .batch(200)
        .measure(|count| {
            for _ in 0..count {
                drop(movement::socket_pair(libc::SOCK_STREAM)?);
            }
            Ok(())
        })
}

fn pass_descriptor(meter: &mut Meter) -> Result<(), Failure> {
    let (near, far) = movement::socket_pair(libc::SOCK_STREAM)?;
    let passed = File::open("/proc/self/exe")?;
    let expected = passed.metadata()?.ino();
    send_descriptor(&near, &passed)?;
    let received = File::from(receive_descriptor(&far)?);
    if received.metadata()?.ino() != expected {
        return Err(wrong("another file came out").into());
    }
    drop(received);
    meter.measure(|count| {
        for _ in 0..count {
            send_descriptor(&near, &passed)?;
            drop(receive_descriptor(&far)?);
        }
        Ok(())
    })
}

/// Room for the control message of one descriptor, aligned as one.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Makes a message of one byte with space for one descriptor; `use_it` makes the call.
fn with_message(use_it: impl FnOnce(&mut libc::msghdr) -> io::Result<()>) -> io::Result<()> {
    let mut byte = [0u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    let mut control = Control([0; 24]);
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = control.0.len();
    use_it(&mut message)
}

fn send_descriptor(by: &File, file: &File) -> io::Result<()> {
    with_message(|message| {
        // SAFETY: the control buffer is zeroed, aligned, and large enough for a header and one
        // descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(header)
                .cast::<RawFd>()
                .write_unaligned(file.as_raw_fd());
        }
        // SAFETY: the message's pointers are to live memory of the lengths beside them.
        checked(unsafe { libc::sendmsg(by.as_raw_fd(), message, 0) })?;
        Ok(())
    })
}

fn receive_descriptor(by: &File) -> io::Result<OwnedFd> {
    let mut received = None;
    with_message(|message| {
        // SAFETY: the message's pointers are to live memory of the lengths beside them.
        checked(unsafe { libc::recvmsg(by.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) })?;
        // SAFETY: the kernel has set the control buffer's length; a header of this type has a
        // descriptor behind it, which is new and has no other owner.
        received = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            match !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
                true => Some(OwnedFd::from_raw_fd(
                    libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned(),
                )),
                false => None,
            }
        };
        Ok(())
    })?;
    received.ok_or_else(|| wrong("the message came without its descriptor"))
}
