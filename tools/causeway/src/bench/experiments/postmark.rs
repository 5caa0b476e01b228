//! PostMark: the paper's Figures 8 to 10.

use super::{Figure, Gain, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "postmark",
    title: "PostMark: a mail server’s many small files",
    paper: Paper::Ephemeral,
    section: "section 6.4.2, Figures 8 to 10",
    see: "Files of half a kilobyte to ten, made, deleted, read and appended to 512 bytes at a time: names and small copies, hardly any pages.",
    figures: &[Figure::Dots {
        title: "Transactions a second",
        rows: &[
            ("1,000 files, 50,000 transactions", "postmark/small"),
            ("20,000 files, 50,000 transactions", "postmark/medium"),
            ("20,000 files, 100,000 transactions", "postmark/large"),
        ],
    }],
    published: &[Published {
        place: "Figures 8 and 9",
        title: "PostMark on a memory disk, the sf_buf kernel in the original one",
        values: Values::Gains {
            what: "Rate",
            items: &[
                span("Opteron: transactions", 1.11, 1.27),
                span("Opteron: bytes read and written", 1.11, 1.17),
                span("Xeons: transactions", 1.04, 1.13),
                span("Xeons: bytes read and written", 1.04, 1.15),
            ],
            here: &[
                ("transactions", "postmark/large", "ephemeral=uncached"),
                ("bytes read", "postmark/large-read", "ephemeral=uncached"),
                (
                    "bytes written",
                    "postmark/large-write",
                    "ephemeral=uncached",
                ),
            ],
        },
        note: "On a memory disk of 512 MB; here the files are in the file system in memory. The text gives the gains as spans; the figures’ rates \
               are not in it. The short set does a fiftieth of the transactions.",
    }],
    ..Place::EMPTY
};

const fn span(label: &'static str, least: f64, most: f64) -> Gain {
    Gain { label, least, most }
}
