//! Changes of mappings while other CPUs are busy.

use super::{Figure, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "mmap-threads",
    title: "Changing mappings while other CPUs are busy",
    paper: Paper::Ephemeral,
    section: "section 1",
    see: "Other CPUs have to be told only if they can hold the translation: threads of the same process can, other processes cannot, and a page \
          that was never used is in no TLB. The events of each row show whether that held.",
    floors: &[
        ("untouched-1", "system_call"),
        ("unmap-1-", "page_fault"),
        ("protect-1-", "page_fault"),
        ("dontneed-1-", "page_fault"),
    ],
    figures: &[
        Figure::Dots {
            title: "One page unmapped",
            rows: &[
                ("alone", "mmap-threads/unmap-1-alone"),
                ("beside threads", "mmap-threads/unmap-1-beside-threads"),
                ("beside processes", "mmap-threads/unmap-1-beside-processes"),
            ],
        },
        Figure::Dots {
            title: "One page’s protection changed",
            rows: &[
                ("alone", "mmap-threads/protect-1-alone"),
                ("beside threads", "mmap-threads/protect-1-beside-threads"),
                (
                    "beside processes",
                    "mmap-threads/protect-1-beside-processes",
                ),
            ],
        },
        Figure::Dots {
            title: "64 pages unmapped",
            rows: &[
                ("alone", "mmap-threads/unmap-64-alone"),
                ("beside threads", "mmap-threads/unmap-64-beside-threads"),
                ("beside processes", "mmap-threads/unmap-64-beside-processes"),
            ],
        },
    ],
    published: &[Published {
        place: "section 1",
        title: "the invlpg instruction over the years",
        values: Values::List {
            unit: "cycles",
            items: &[
                ("486", 12.0, ""),
                ("Pentium", 25.0, ""),
                ("Pentium III (about)", 100.0, ""),
                ("Pentium 4, at least (about)", 500.0, ""),
                ("Pentium 4, at most (about)", 1000.0, ""),
            ],
        },
        note: "An interrupt to another CPU comes on top. What they cost here \
               stands among the floors: invlpg and ipi.",
    }],
    ..Place::EMPTY
};
