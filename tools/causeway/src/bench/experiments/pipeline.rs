//! A Unix pipeline over a big file.

use super::{Figure, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "pipeline",
    title: "A pipeline over a big file: cat | wc",
    paper: Paper::SmallSpaces,
    section: "section 4: cat | wc",
    see: "Programs that hand each other data switch back and forth: each switch costs the TLB where address spaces are not tagged or shared.",
    floors: &[("", "memcpy_cached")],
    figures: &[Figure::Dots {
        title: "Bytes of the file a second",
        rows: &[
            ("cat | wc", "pipeline/cat-wc"),
            ("cat | wc, two CPUs", "pipeline/cat-wc-2cpu"),
            ("cat | cat | wc", "pipeline/cat-cat-wc"),
            ("sendfile | wc", "pipeline/sendfile-wc"),
            ("busybox cat | busybox wc", "pipeline/busybox-cat-wc"),
        ],
    }],
    published: &[Published {
        place: "cat | wc",
        title: "a big file piped into wc, large and small spaces",
        values: Values::Words,
        note: "The paper’s text as it is kept with this project has no numbers at all. It says that with small spaces the pipeline took less time, with \
               fewer misses of the TLBs for data and for instructions.",
    }],
    ..Place::EMPTY
};
