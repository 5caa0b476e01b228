//! Address-space tags (PCID): a CPU keeps what it has translated for several spaces side by side.
//!
//! The tag of the kernel's own root is 0. The kernel's half is global and belongs to all tags, the
//! window for short-lived mappings too, which is not global where there are no tags. Where
//! programs have roots of their own (Meltdown), nothing is global, and an invalidation would have
//! to be made for each tag: tags are off there. So they are
//! on CPUs whose `invlpg` may leave a global translation while tags are on.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::cpu::{Features, features};
use crate::VirtAddr;
use crate::hw::options;

/// Most tags that a CPU has for programs. Few are enough: what a CPU holds of a space that has not
/// run for long, others have displaced.
pub(crate) const MOST_TAGS: usize = 7;
/// In a root that is loaded: what the CPU holds by its tag stays.
pub(super) const KEEPS: u64 = 1 << 63;

static TAGS: AtomicUsize = AtomicUsize::new(0);

/// Tags that CPUs have for programs, numbered from 1; 0 without any.
#[inline]
pub(crate) fn tags() -> usize {
    TAGS.load(Ordering::Relaxed)
}

/// Decides by the command line (`tags=on`, the default, or `off`) and the features, if they can be
/// used at all. Before the first [`set_controls`](super::cpu::set_controls).
pub fn choose(command_line: &str, are_safe: bool) {
    let wants = options::last_value(command_line, "tags", |value| match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    });
    if are_safe && features().contains(Features::TAGS) && wants.unwrap_or(true) {
        TAGS.store(MOST_TAGS, Ordering::Relaxed);
    }
}

/// Drops what this CPU holds for one page by a tag. Returns whether it can (INVPCID).
#[inline]
pub(crate) fn invalidate_tagged(tag: usize, at: VirtAddr) -> bool {
    const ONE_ADDRESS: u64 = 0;
    if !features().contains(Features::INVPCID) {
        return false;
    }
    let descriptor = [tag as u64, at.0 as u64];
    // SAFETY: forgetting a translation is always right; the CPU has the instruction, and reads the
    // descriptor.
    unsafe {
        asm!("invpcid {}, [{}]", in(reg) ONE_ADDRESS, in(reg) &descriptor,
            options(nostack, preserves_flags, readonly));
    }
    true
}
