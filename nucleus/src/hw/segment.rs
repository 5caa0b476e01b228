//! Segments of programs in small spaces (`small-spaces.txt` 2): the program's own, moved to its
//! region and limited to it.
//!
//! # Offsets of both signs
//!
//! A thread's own data is addressed by offsets of both signs: a C library reaches its thread's
//! descriptor at small offsets of a segment, and variables of threads below its base, at offsets
//! near 4 GiB that wrap. A segment of all addresses serves both. One that is limited can't: its
//! offsets are those up to a limit, or, if it *expands down*, those above one. So such a segment
//! serves one sign, and is *turned round* when the program faults with the other one. An
//! instruction uses one of them, so it can go on.

use super::Window;

/// It may be loaded.
pub(crate) const PRESENT: u64 = 1 << 47;
pub(crate) const IS_CODE: u64 = 1 << 43;
/// Of data; of code it means that it is conforming.
pub(super) const EXPANDS_DOWN: u64 = 1 << 42;
/// Of data; of code it means that it may be read.
pub(crate) const WRITABLE: u64 = 1 << 41;
pub(super) const IN_PAGES: u64 = 1 << 55;
/// Base and limit in a descriptor, and the unit of the limit.
const PLACE: u64 = 0xff0f_0000_00ff_ffff | 0xffff << 24 | IN_PAGES;
/// 32-bit code, and writable data, accessed, of programs' privilege.
const CODE: u64 = 0x0040_fb00_0000_0000;
const DATA: u64 = 0x0040_f300_0000_0000;
/// Offsets of all addresses.
const ALL: u64 = 1 << 32;
const PAGE: u64 = 4096;
/// More bytes than one instruction reads or writes.
const AROUND: u64 = 4 * PAGE;

/// Turns of a thread's segments before its space is better large. A turn is a trap and a return,
/// with registers saved and segments loaded: more than the load of a root that it may save, and its
/// refills. A program that turns now and then, as for an error number, gets so far in seconds.
pub(crate) const MOST_TURNS: u32 = 256;

/// The bits of a base and a limit, which has 20 bits in bytes or, with [`IN_PAGES`], in pages.
pub(super) fn place(base: u64, limit: u64) -> u64 {
    limit & 0xffff
        | (base & 0xff_ffff) << 16
        | (limit >> 16 & 0xf) << 48
        | (base >> 24 & 0xff) << 56
}

/// The descriptors of a region: of code, data, and none of 64-bit code.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn of_region(window: Window) -> [u64; 3] {
    let place = place(window.base as u64, window.end as u64 / PAGE - 1) | IN_PAGES;
    [CODE | place, DATA | place, 0]
}

/// The base in a descriptor.
pub(crate) fn base(descriptor: u64) -> u64 {
    descriptor >> 16 & 0xff_ffff | descriptor >> 56 << 24
}

/// Whether a segment's offsets are those above its limit.
fn expands_down(descriptor: u64) -> bool {
    descriptor & (EXPANDS_DOWN | IS_CODE) == EXPANDS_DOWN
}

/// The limit in a descriptor, in bytes or pages.
pub(super) fn limit_in_units(descriptor: u64) -> u64 {
    descriptor & 0xffff | descriptor >> 32 & 0xf_0000
}

/// The last offset below the limit, in bytes.
pub(crate) fn limit(descriptor: u64) -> u64 {
    let limit = limit_in_units(descriptor);
    match descriptor & IN_PAGES != 0 {
        true => limit << 12 | 0xfff,
        false => limit,
    }
}

/// Whether a segment serves offsets of both signs: the program's, before it is moved.
pub(crate) fn has_both_signs(descriptor: u64) -> bool {
    descriptor & IS_CODE == 0 && !expands_down(descriptor) && limit(descriptor) == ALL - 1
}

/// A segment of a thread or a program, moved into the region and limited to it; 0 where the region
/// has none of it. `turned`: of one for offsets of both signs, those below its base are wanted.
pub(crate) fn in_region(descriptor: u64, window: Window, turned: bool) -> u64 {
    if descriptor & PRESENT == 0 || !window.is_small() {
        return descriptor;
    }
    let (base, end) = (base(descriptor), window.end as u64);
    if base >= end {
        return 0;
    }
    let expands_down = expands_down(descriptor);
    let rest = descriptor & !PLACE;
    let moved = base + window.base as u64;
    if !(expands_down || turned && has_both_signs(descriptor)) {
        let last = limit(descriptor).min(end - base - 1);
        return match last >= 1 << 20 {
            false => rest | place(moved, last),
            // What is left of the last page is out of reach.
            true => rest | place(moved, (last + 1) / PAGE - 1) | IN_PAGES,
        };
    }
    // An access around the last offset need not fault: the largest, a state of XSAVE, stays inside.
    if base + AROUND > end {
        return 0;
    }
    // The first offset that wraps to the region's start, or the segment's own first one.
    let lowest = match expands_down {
        true => (limit(descriptor) + 1).max(ALL - base),
        false => ALL - base,
    };
    let pages = lowest.div_ceil(PAGE) - 1;
    rest | EXPANDS_DOWN | place(moved, pages) | IN_PAGES
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        base: 0xd000_0000,
        end: 0x400_0000,
    };

    /// Whether the processor lets one byte at the offset through.
    fn allows(descriptor: u64, offset: u64) -> bool {
        let beyond = offset > limit(descriptor);
        descriptor & PRESENT != 0 && beyond == (descriptor & EXPANDS_DOWN != 0)
    }

    fn linear(descriptor: u64, offset: u64) -> u64 {
        (base(descriptor) + offset) & (ALL - 1)
    }

    fn is_inside(at: u64) -> bool {
        (WINDOW.base as u64..(WINDOW.base + WINDOW.end) as u64).contains(&at)
    }

    /// A segment of a program.
    fn segment(base: u64, limit: u64, in_pages: bool, down: bool) -> u64 {
        DATA | place(base, limit)
            | if in_pages { IN_PAGES } else { 0 }
            | if down { EXPANDS_DOWN } else { 0 }
    }

    #[test]
    fn a_region_is_code_and_data_and_nothing_else() {
        let [code, data, long] = of_region(WINDOW);
        assert_eq!(long, 0);
        for descriptor in [code, data] {
            assert_eq!(base(descriptor), WINDOW.base as u64);
            assert_eq!(limit(descriptor), WINDOW.end as u64 - 1);
        }
        assert_eq!([code >> 40 & 0xff, data >> 40 & 0xff], [0xfb, 0xf3]);
    }

    #[test]
    fn no_segment_leads_out_of_the_region() {
        let end = WINDOW.end as u64;
        let bases = [
            0,
            1,
            0xfff,
            0x1000,
            0x12_3456,
            end - 4096,
            end - 1,
            end,
            end + 1,
            ALL - 1,
        ];
        let limits = [
            (0, false),
            (0xf_ffff, false),
            (0xf_ffff, true),
            (0, true),
            (0x3fff, true),
        ];
        for base in bases {
            for (bound, in_pages) in limits {
                for down in [false, true] {
                    let own = segment(base, bound, in_pages, down);
                    for turned in [false, true] {
                        let moved = in_region(own, WINDOW, turned);
                        let edges = [0, limit(moved), limit(moved) + 1, ALL - 1, end, ALL - end];
                        for offset in edges
                            .into_iter()
                            .flat_map(|it| [it.saturating_sub(1), it, it + 1])
                        {
                            if offset < ALL && allows(moved, offset) {
                                let at = linear(moved, offset);
                                assert!(is_inside(at), "{own:#x} {moved:#x} {offset:#x} {at:#x}");
                                assert!(allows(own, offset), "{own:#x} {moved:#x} {offset:#x}");
                                assert_eq!(at - WINDOW.base as u64, linear(own, offset));
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_thread_reaches_its_data_on_both_sides_by_turns() {
        let own = segment(0x12_3450, 0xf_ffff, true, false);
        assert!(has_both_signs(own));
        let [up, down] = [false, true].map(|turned| in_region(own, WINDOW, turned));
        for offset in [0, 4, 0x14, 0x1000] {
            assert!(allows(up, offset) && !allows(down, offset));
        }
        for offset in [1, 4, 0x1000, 0x12_3450 - 4096].map(|it| ALL - it) {
            assert!(allows(down, offset) && !allows(up, offset));
        }
        assert!(!has_both_signs(segment(0, 0xf_fffe, true, false)));
    }
}
