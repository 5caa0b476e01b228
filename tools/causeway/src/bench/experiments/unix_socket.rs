//! Local sockets: data between programs without a network.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "unix-socket",
    title: "Local sockets",
    paper: Paper::Fbufs,
    section: "section 5.2",
    see: "The Unix interface to what fbufs do: it has the meaning of a copy, at any address. Where the curve rises past the bare copy, \
          whole pages went across instead.",
    floors: &[
        ("stream-bandwidth", "memcpy_cached"),
        ("datagram-bandwidth", "memcpy_cached"),
        ("seqpacket-bandwidth", "memcpy_cached"),
        ("stream-latency", "system_call"),
        ("datagram-latency", "system_call"),
        ("seqpacket-latency", "system_call"),
        ("pass-descriptor", "system_call"),
        ("pair-close", "system_call"),
    ],
    figures: &[Figure::Curves {
        x_label: "bytes a message",
        across: Across::Bytes,
        panels: &[
            panel("Stream, one CPU", "unix-socket/stream-bandwidth-{}"),
            panel("Stream, two CPUs", "unix-socket/stream-bandwidth-{}-2cpu"),
            panel("Datagrams, one CPU", "unix-socket/datagram-bandwidth-{}"),
            panel(
                "Sequenced packets, one CPU",
                "unix-socket/seqpacket-bandwidth-{}",
            ),
        ],
    }],
    reasons: &[(
        "unix-socket/stream-latency-2cpu",
        "Equal within the spread: two interrupts between CPUs and four switches a round trip on both kernels, which the emulator makes dear.",
    )],
    ..Place::EMPTY
};

const fn panel(title: &'static str, rows: &'static str) -> Panel {
    Panel {
        title,
        rows,
        floor: "memcpy_cached",
    }
}
