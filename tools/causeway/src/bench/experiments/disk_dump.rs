//! A memory disk read from end to end: the paper's Figures 4 to 7.

use super::{Gain, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "disk-dump",
    title: "Reading a memory disk (dd)",
    paper: Paper::Ephemeral,
    section: "section 6.4.1, Figures 4 to 7",
    see: "A disk that fits into the cache of mappings costs no invalidation; of a larger one each page misses, and private mappings keep the \
          other CPUs out of it.",
    is_here: false,
    published: &[Published {
        place: "Figures 4 and 6",
        title: "disk dump bandwidth, the sf_buf kernel in the original one",
        values: Values::Gains {
            what: "Bandwidth",
            items: &[
                Gain {
                    label: "Opteron, two CPUs (about)",
                    least: 1.37,
                    most: 1.37,
                },
                Gain {
                    label: "Xeons (up to)",
                    least: 1.51,
                    most: 1.51,
                },
            ],
            here: &[],
        },
        note: "dd by 64 KB from memory disks of 128 MB and 512 MB, the cache of mappings holding 256 MB. The figures’ bandwidths and counts are \
               not in the text. It says that private mappings change little on the smaller disk, and on the larger one end all \
               remote TLB invalidations.",
    }],
    ..Place::EMPTY
};
