//! Bytes moved between two address spaces by one call.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "process-vm",
    title: "Data between two address spaces",
    paper: Paper::Uvm,
    section: "section 7",
    see: "One copy by the kernel. The floor of one page is its bare copy in the cache.",
    floors: &[("read-4KiB", "page_copy"), ("write-4KiB", "page_copy")],
    figures: &[Figure::Curves {
        x_label: "bytes a call",
        across: Across::Bytes,
        panels: &[
            Panel {
                title: "process_vm_readv",
                rows: "process-vm/read-{}",
                floor: "",
            },
            Panel {
                title: "process_vm_writev",
                rows: "process-vm/write-{}",
                floor: "",
            },
        ],
    }],
    ..Place::EMPTY
};
