//! Memory beyond memory: the paper's Figure 5.

use super::{Figure, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "memory-pressure",
    title: "Allocating more and more memory",
    paper: Paper::Uvm,
    section: "section 6, Figure 5",
    see: "Up to the machine's memory the time grows with what is written; beyond it a kernel pages out, and large clusters make \
          the difference.",
    disks: true,
    modules: &["virtio_pci", "virtio_blk"],
    figures: &[Figure::Curves {
        x_label: "percent of the memory available",
        across: Across::Count,
        panels: &[
            Panel {
                title: "Mapped, written, given back",
                rows: "memory-pressure/allocate-{}-percent",
                floor: "",
            },
            Panel {
                title: "A mebibyte more, while so much is held",
                rows: "memory-pressure/full-{}-percent",
                floor: "",
            },
        ],
    }],
    published: &[Published {
        place: "Figure 5",
        title: "anonymous memory allocation time under BSD VM and UVM",
        values: Values::Words,
        note: "A 333 MHz Pentium II with 32 MB of memory. The figure’s data is not in the paper’s text. It says that UVM pages out \
               much faster once the allocation is larger than memory, as its pagedaemon gathers dirty pages into one \
               contiguous write.",
    }],
    reasons: &[(
        "memory-pressure/allocate-*-percent",
        "Both kernels give so large a mapping pages of 2 MiB, one fault for each, and what is left is mostly clearing them. With pages of 4 KiB Linux takes three times as long as Causeway (full-10-percent).",
    )],
    ..Place::EMPTY
};
