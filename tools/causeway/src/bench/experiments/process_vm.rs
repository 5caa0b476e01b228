//! Bytes moved between two address spaces by one call.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "process-vm",
    title: "Data between two address spaces",
    paper: Paper::Uvm,
    section: "section 7",
    see: "One copy by the kernel. The floor is the bare copy of as many bytes in the cache.",
    floors: &[("", "memcpy_cached")],
    figures: &[Figure::Curves {
        x_label: "bytes a call",
        across: Across::Bytes,
        panels: &[
            Panel {
                title: "process_vm_readv",
                rows: "process-vm/read-{}",
                floor: "memcpy_cached",
            },
            Panel {
                title: "process_vm_writev",
                rows: "process-vm/write-{}",
                floor: "memcpy_cached",
            },
        ],
    }],
    ..Place::EMPTY
};
