//! The switches of this floor: see [`nucleus::switches`].

use nucleus::switches::{
    Switch,
    Values::{Number, Numbers, OneOf},
};

use crate::{
    fault::{fault_ahead, set_fault_ahead},
    map::{LargePages, large_pages, set_large_pages},
    reclaim::{set_swap_cluster, swap_cluster},
};

/// Switches of fault-ahead, large pages and page-out.
pub const SWITCHES: &[Switch] = &[
    Switch::new(
        "faultahead",
        // Less than a page table maps.
        Numbers(0, 511, "pages"),
        "3,4",
        "0,0",
        || {
            let (behind, ahead) = fault_ahead();
            [behind.into(), ahead.into()]
        },
        |[behind, ahead]| {
            set_fault_ahead(behind as u16, ahead as u16);
            true
        },
    )
    .live(),
    Switch::new(
        "large",
        OneOf(&["off", "advised", "on"]),
        "on",
        "off",
        || [large_pages() as u32, 0],
        |[n, _]| {
            set_large_pages(match n {
                0 => LargePages::Off,
                1 => LargePages::Advised,
                _ => LargePages::On,
            });
            true
        },
    )
    .live(),
    Switch::new(
        "swapcluster",
        Number(1, 512, "pages"),
        "64",
        "1",
        || [swap_cluster() as u32, 0],
        |[pages, _]| {
            set_swap_cluster(pages as usize);
            true
        },
    )
    .live(),
];
