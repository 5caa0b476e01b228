//! Files in memory.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "file",
    title: "Files in memory",
    paper: Paper::Ephemeral,
    section: "section 3",
    see: "Reading is one copy, which is the floor; mapping saves it and pays with faults. Names are looked up, made and removed \
          without touching data.",
    floors: &[
        ("write-", "memcpy_cached"),
        ("read-", "memcpy_cached"),
        ("open-close", "system_call"),
        ("stat", "system_call"),
        ("create-unlink", "system_call"),
        ("rename", "system_call"),
    ],
    figures: &[Figure::Curves {
        x_label: "bytes at once",
        across: Across::Bytes,
        panels: &[
            panel("read", "file/read-{}"),
            panel("write, over what is there", "file/write-over-{}"),
            panel("write, new pages", "file/write-new-{}"),
            panel("map and read a word of each page", "file/mmap-read-{}"),
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
