//! The switches of this floor: see [`nucleus::switches`].

use nucleus::switches::{
    Switch,
    Values::{Number, Numbers, OneOf},
};

use crate::{
    amap::{AmapForm, amap_form, set_amap_form},
    fault::{fault_ahead, set_fault_ahead},
    map::{LargePages, large_pages, set_large_pages},
    movement::{Movement, least_pages, movement, set_least_pages, set_movement},
    reclaim::{set_swap_cluster, swap_cluster},
};

/// Switches of amaps, data movement, fault-ahead, large pages and page-out.
pub const SWITCHES: &[Switch] = &[
    Switch {
        name: "amap",
        values: OneOf(&["auto", "array", "hash"]),
        default: "auto",
        is_live: true,
        get: || [amap_form() as u32, 0],
        set: |[n, _]| {
            set_amap_form([AmapForm::Hybrid, AmapForm::Array, AmapForm::Sparse][n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "faultahead",
        // Less than a page table maps.
        values: Numbers(0, 511, "pages"),
        default: "3,4",
        is_live: true,
        get: || <[u16; 2]>::from(fault_ahead()).map(u32::from),
        set: |[behind, ahead]| {
            set_fault_ahead(behind as u16, ahead as u16);
            Ok(())
        },
    },
    Switch {
        name: "large",
        values: OneOf(&["off", "advised", "on"]),
        default: "on",
        is_live: true,
        get: || [large_pages() as u32, 0],
        set: |[n, _]| {
            let modes = [LargePages::Off, LargePages::Advised, LargePages::On];
            set_large_pages(modes[n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "movement",
        values: OneOf(&["copy", "once", "loan", "auto"]),
        default: "auto",
        is_live: true,
        get: || [movement() as u32, 0],
        set: |[n, _]| {
            let ways = [
                Movement::Copy,
                Movement::Once,
                Movement::Loan,
                Movement::Auto,
            ];
            set_movement(ways[n as usize]);
            Ok(())
        },
    },
    Switch {
        name: "movement.least",
        values: Number(1, 1 << 20, "pages"),
        default: "8",
        is_live: true,
        get: || [least_pages(), 0],
        set: |[pages, _]| {
            set_least_pages(pages);
            Ok(())
        },
    },
    Switch {
        name: "swapcluster",
        values: Number(1, 512, "pages"),
        default: "64",
        is_live: true,
        get: || [swap_cluster() as u32, 0],
        set: |[pages, _]| {
            set_swap_cluster(pages as usize);
            Ok(())
        },
    },
];
