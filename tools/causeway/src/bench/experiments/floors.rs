//! The bare machine's costs, as rows of their own.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "floors",
    title: "What the bare machine takes",
    paper: Paper::Floors,
    see: "Measured by the kernel with interrupts off, the cheapest way of each.",
    figures: &[
        Figure::Dots {
            title: "Ways in and out, switches, invalidations",
            rows: &[
                ("trap and return", "floors/trap"),
                ("page fault and return", "floors/page_fault"),
                ("system call and return", "floors/system_call"),
                ("int 0x80 and return", "floors/int_80"),
                ("invlpg", "floors/invlpg"),
                ("invlpg, and the entry anew", "floors/invlpg_refill"),
                ("the whole TLB emptied", "floors/tlb_flush"),
                ("switch of the address space", "floors/space_switch"),
                ("interrupt to another CPU, and its answer", "floors/ipi"),
            ],
        },
        Figure::Dots {
            title: "A page, a lock, the clock",
            rows: &[
                ("a page zeroed", "floors/page_zero"),
                ("a page copied", "floors/page_copy"),
                ("a lock taken and given", "floors/lock"),
                ("the clock read", "floors/clock"),
            ],
        },
        Figure::Dots {
            title: "Copying",
            rows: &[
                ("in the cache", "floors/memcpy_cached"),
                ("out of it", "floors/memcpy_uncached"),
            ],
        },
    ],
    ..Place::EMPTY
};
