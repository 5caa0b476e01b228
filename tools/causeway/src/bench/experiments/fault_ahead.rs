//! Faults that are saved by mapping neighbours: the paper's Table 2.

use super::{Compared, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "fault-ahead",
    title: "Faults saved by mapping resident neighbours",
    paper: Paper::Uvm,
    section: "section 5.4, Table 2",
    see: "A fault that also maps the resident pages around it saves the faults that would follow. The rows in faults count all \
          that a command takes from fork to end.",
    floors: &[("file-", "page_fault"), ("child-", "page_fault")],
    published: &[Published {
        place: "Table 2",
        title: "page faults of commands",
        values: Values::Compared {
            unit: "faults",
            old: "BSD VM",
            new: "UVM",
            items: &[
                count("ls /", 59.0, 33.0, "fault-ahead/faults-ls"),
                count("finger chuck", 128.0, 74.0, ""),
                count("cc", 1086.0, 590.0, ""),
                count("man csh", 114.0, 64.0, ""),
                count("newaliases", 229.0, 127.0, ""),
            ],
        },
        note: "The paper: an i386, counted by csh’s time; cc compiled a “hello world” program. Here ls is busybox’s, linked statically.",
    }],
    reasons: &[(
        "fault-ahead/faults-*",
        "Faults, not time: Linux maps up to 16 resident pages around a fault in a file, the window here is the paper's, 3 behind and 4 ahead. A wider one would cost more in pages mapped and never used than the faults it saves: to start these programs takes less time here (exec).",
    )],
    ..Place::EMPTY
};

const fn count(label: &'static str, old: f64, new: f64, row: &'static str) -> Compared {
    Compared {
        label,
        old,
        new,
        row,
    }
}
