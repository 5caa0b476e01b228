//! Bytes that the kernel moves alone.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "splice",
    title: "Bytes that no program touches: splice, vmsplice, sendfile",
    paper: Paper::Fbufs,
    section: "section 5.2",
    see: "Pages go from one queue to the next by reference. Whatever lies below the bare copy was copied, or cost more calls than it saved.",
    floors: &[("", "memcpy_cached")],
    figures: &[Figure::Curves {
        x_label: "bytes a call",
        across: Across::Bytes,
        panels: &[
            panel("vmsplice to another program", "splice/vmsplice-{}"),
            panel("vmsplice of gifts", "splice/vmsplice-gift-{}"),
            panel("sendfile to a pipe", "splice/sendfile-pipe-{}"),
            panel("sendfile to a local socket", "splice/sendfile-unix-{}"),
            panel("sendfile to TCP", "splice/sendfile-tcp-{}"),
            panel("copy_file_range", "splice/copy-file-range-{}"),
        ],
    }],
    ..Place::EMPTY
};

const fn panel(title: &'static str, rows: &'static str) -> Panel {
    Panel {
        title,
        rows,
        floor: "memcpy_cached",
    }
}
