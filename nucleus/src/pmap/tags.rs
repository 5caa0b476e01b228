//! Which spaces' translations a CPU keeps beside those of the space that it has loaded.
//!
//! A CPU with address-space tags (PCID) loads each space by a tag, and keeps what it holds by the
//! others. A space that it loads again finds its translations, unless they may be older than a
//! change: then the tag is *stale*, and the load drops what it had.
//!
//! # Spaces that are not loaded
//!
//! A CPU that only keeps a space is not interrupted. Beside the mask `active` of the CPUs that have
//! it loaded (see `shootdown`), a space has the mask `kept`: a CPU sets its bit after it has loaded
//! the space, and a CPU that changes a mapping clears the bits of those that do not have it loaded
//! ([`Holders::told`](super::space::Holders::told)). A load whose bit is clear drops everything.
//!
//! The bit of `active` is set before that of `kept` is looked at. So either the change comes first
//! in the one order of all locked instructions, then the load finds the bit clear; or the bit of
//! `active` comes first, and the CPU is told. A CPU may change from one to the other while both
//! masks are read: therefore `told` reads until each CPU of `kept` was seen in `active`.
//!
//! A family's mask says the same of all its members. A CPU that finds its bit clear there takes all
//! its tags of the family for stale.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::shootdown::Page;
use super::space::{Hardware, number_of};
use crate::counters::Counter;
use crate::hw::Tag;
use crate::hw::machine::{self, MAX_CPUS, MOST_TAGS};
use crate::mem::mistake::Mistake;

/// A tag of one CPU.
struct Slot {
    /// The number of the space, which no other has had or will have; 0: none.
    id: AtomicU64,
    /// The numbers of the space and its family, if it has one, in shootdowns.
    numbers: [AtomicU32; 2],
    is_stale: AtomicBool,
}

/// The number of no family and no space: a group of small spaces shares no tables with others.
const NO_FAMILY: u32 = u32::MAX;

impl Slot {
    /// Whether a change in what has this number concerns it.
    fn is_of(&self, number: u32) -> bool {
        self.numbers
            .iter()
            .any(|own| own.load(Ordering::Relaxed) == number)
    }
}

/// A CPU's tags, which only the CPU itself changes: with interrupts off, but for `is_stale`, which
/// it may set whenever it is pinned.
#[repr(align(64))]
struct Tags {
    slots: [Slot; MOST_TAGS],
    /// The one that is given to another space next.
    next: AtomicU32,
    /// The one that is loaded, or was last.
    loaded: AtomicU32,
}

static TAGS: [Tags; MAX_CPUS] = [const {
    Tags {
        slots: [const {
            Slot {
                id: AtomicU64::new(0),
                numbers: [const { AtomicU32::new(0) }; 2],
                is_stale: AtomicBool::new(true),
            }
        }; MOST_TAGS],
        next: AtomicU32::new(0),
        loaded: AtomicU32::new(u32::MAX),
    }
}; MAX_CPUS];

/// The tag by which this CPU loads a space, whose bit and whose family's it has set in `active`.
/// Interrupts are off; [`keep`] follows after the load.
#[inline]
pub(super) fn choose(cpu: usize, space: &Hardware<'_>) -> Tag {
    match machine::tags() {
        0 => Tag::NONE,
        count => choose_of(cpu, &TAGS[cpu].slots[..count], space),
    }
}

fn choose_of(cpu: usize, slots: &[Slot], space: &Hardware<'_>) -> Tag {
    let own = &TAGS[cpu];
    let is_kept = |mask: &AtomicU64| mask.load(Ordering::SeqCst) & 1 << cpu != 0;
    if let Some(family) = space.family
        && !is_kept(&family.cpus.kept)
    {
        for slot in slots {
            if slot.is_of(family.number) && !Mistake::FamilyTagsKept.is_made() {
                slot.is_stale.store(true, Ordering::Relaxed);
            }
        }
    }
    let has_id = |slot: &Slot| slot.id.load(Ordering::Relaxed) == space.id;
    let found = slots.iter().position(has_id);
    let place = found.unwrap_or_else(|| {
        let place = own.next.load(Ordering::Relaxed) as usize % slots.len();
        own.next.store(place as u32 + 1, Ordering::Relaxed);
        let slot = &slots[place];
        slot.id.store(space.id, Ordering::Relaxed);
        let family = space.family.map_or(NO_FAMILY, |family| family.number);
        let numbers = [number_of(space.tops.root), family];
        for (own, number) in slot.numbers.iter().zip(numbers) {
            own.store(number, Ordering::Relaxed);
        }
        place
    });
    let was_stale = slots[place].is_stale.swap(false, Ordering::Relaxed);
    let is_current = is_kept(&space.cpus.kept) && !was_stale || Mistake::TagKeptStale.is_made();
    let keeps = found.is_some() && is_current;
    if keeps {
        Counter::space_switches_kept.add(1);
    }
    own.loaded.store(place as u32, Ordering::Relaxed);
    Tag {
        number: place + 1,
        keeps,
    }
}

/// The space is loaded by its tag: from now on this CPU keeps what it holds of it.
#[inline]
pub(super) fn keep(cpu: usize, tag: Tag, space: &Hardware<'_>) {
    if tag.number == 0 {
        return;
    }
    let family = space.family.map(|family| &family.cpus.kept);
    for mask in family.into_iter().chain([&space.cpus.kept]) {
        if mask.load(Ordering::Relaxed) & 1 << cpu == 0 {
            mask.fetch_or(1 << cpu, Ordering::SeqCst);
        }
    }
}

/// Forgets what this CPU holds of pages in spaces that it has not loaded. `loaded`: it has one
/// loaded, and has seen to that. The caller is pinned.
pub(super) fn forget_pages(cpu: usize, pages: &[Page], loaded: bool) {
    for (place, slot) in others(cpu, loaded) {
        for page in pages.iter().filter(|page| slot.is_of(page.space())) {
            if !machine::invalidate_tagged(place + 1, page.va()) {
                slot.is_stale.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
}

/// Forgets what this CPU holds of all spaces that it has not loaded. As [`forget_pages`].
pub(super) fn forget_all(cpu: usize, loaded: bool) {
    for (_, slot) in others(cpu, loaded) {
        slot.is_stale.store(true, Ordering::Relaxed);
    }
}

/// The tags of a CPU that keep something, but the one that is loaded, if one is.
fn others(cpu: usize, loaded: bool) -> impl Iterator<Item = (usize, &'static Slot)> {
    let own = &TAGS[cpu];
    let except = match loaded {
        true => own.loaded.load(Ordering::Relaxed),
        false => u32::MAX,
    };
    let slots = own.slots[..machine::tags()].iter().enumerate();
    slots.filter(move |(place, slot)| {
        *place as u32 != except && !slot.is_stale.load(Ordering::Relaxed)
    })
}

/// Tells the oracle that these CPUs will not use what they hold of a page, or of all pages, of what
/// has this number without loading it anew.
#[cfg(not(target_os = "none"))]
pub(super) fn condemn(cpus: u64, number: u32, page: Option<crate::VirtAddr>) {
    for cpu in (0..machine::cpu_count()).filter(|cpu| cpus >> cpu & 1 != 0) {
        for (place, _) in others(cpu, false).filter(|(_, slot)| slot.is_of(number)) {
            machine::condemn(cpu, place + 1, page);
        }
    }
}

/// There is no oracle.
#[cfg(target_os = "none")]
pub(super) fn condemn(_cpus: u64, _number: u32, _page: Option<crate::VirtAddr>) {}

/// Forgets what an earlier machine kept. The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) fn start() {
    for own in &TAGS {
        for slot in &own.slots {
            slot.id.store(0, Ordering::Relaxed);
            slot.is_stale.store(true, Ordering::Relaxed);
        }
        own.next.store(0, Ordering::Relaxed);
        own.loaded.store(u32::MAX, Ordering::Relaxed);
    }
}
