//! Telling other CPUs to forget translations.
//!
//! Each CPU has one request slot. A sender, pinned to its CPU, fills the slot, sets its bit in the
//! inbox of each target, and sends an IPI to those whose inbox was empty: a CPU that has been
//! interrupted already, and has not looked yet, will find both requests. The sender waits until all
//! targets have answered, with interrupts on, and answers the requests of others meanwhile; so two
//! CPUs that send to each other never deadlock.
//!
//! The mask of missing answers has a cache line of its own, and the request is not on the sender's
//! stack: a stack line that another CPU has touched would miss for the frames that use it next.
//!
//! # CPUs that may hold a translation
//!
//! A pmap's `active` mask has a bit for each CPU that has it loaded. A CPU sets the bit *before* it
//! loads the root and clears it *after* it has loaded another one. What it holds of a pmap that it
//! has not loaded it drops at the next load, unless it is known to be current (see `tags`). A CPU
//! changes an entry by a locked instruction, and reads the mask
//! after that. Setting the bit is a locked instruction too. So either the change comes first in the
//! one order of all locked instructions, and the CPU finds the new entry whenever it looks; or the
//! bit comes first, and the mask has it. A CPU that left in between needs no telling, and telling
//! it does no harm.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::format::Pte;
use super::loaded;
use super::space::Pmap;
use super::tags;
use crate::VirtAddr;
use crate::counters::Counter;
use crate::cpu::percpu::Pinned;
#[cfg(not(target_os = "none"))]
use crate::frame::record::{address, managed};
use crate::hw::machine::{self, MAX_CPUS};

/// Pages invalidated one by one; for more, all that the CPU has cached for programs goes. An
/// `invlpg` takes about as long as a refill of one entry from the caches, and programs rarely have
/// more than a thousand entries they would miss; Linux on real machines settled at 33. By
/// instructions alone (`mmap-threads/protect-64-alone`) 16 costs 0.7% less and 64 costs 6.7% more.
pub(super) const MAX_PAGES: usize = 32;

/// A page of one pmap or of a family: the number of the [`Holders`](super::space::Holders) above,
/// the page's number below.
#[derive(Clone, Copy)]
pub(super) struct Page(u64);

const PAGE_BITS: u32 = 36;

impl Page {
    pub(super) fn new(space: u32, va: VirtAddr) -> Page {
        let page = (va.0 >> crate::PAGE_SHIFT) as u64 & ((1 << PAGE_BITS) - 1);
        Page((space as u64) << PAGE_BITS | page)
    }

    pub(super) fn space(self) -> u32 {
        (self.0 >> PAGE_BITS) as u32
    }

    /// Tells the oracle that no CPU holds any more what it held of the page at `since`.
    #[cfg(not(target_os = "none"))]
    fn promise(self, since: u64) {
        let own = managed().start + self.space();
        match managed().contains(&own) {
            true => machine::promise_page(address(own), self.va(), since),
            false => loaded::roots(self.space())
                .for_each(|root| machine::promise_page(root, self.va(), since)),
        }
    }

    /// There is no oracle.
    #[cfg(target_os = "none")]
    fn promise(self, _since: u64) {}

    pub(super) fn va(self) -> VirtAddr {
        VirtAddr(((self.0 & ((1 << PAGE_BITS) - 1)) as usize) << crate::PAGE_SHIFT)
    }
}

/// What is to be forgotten.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    /// These pages, in whichever of the pmaps a CPU has loaded.
    Pages(&'a [Page]),
    /// Everything cached for programs.
    All,
    /// These addresses of the kernel's window for short-lived mappings, by number.
    Window(&'a [u32]),
    /// The root of the group that the loaded pmap may have left: see `group`.
    Root,
}

/// The request slot of a CPU.
struct Request {
    waiting: Unanswered,
    asked: UnsafeCell<Asked>,
}

/// A bit for each CPU that has not answered.
#[repr(align(64))]
struct Unanswered(AtomicU64);

/// A [`What`] that others can read.
struct Asked {
    kind: Kind,
    count: usize,
    pages: [Page; MAX_PAGES],
    slots: [u32; MAX_PAGES],
}

#[derive(Clone, Copy)]
enum Kind {
    Pages,
    All,
    Window,
    Root,
}

// SAFETY: a CPU has one request at a time: it is made by a task that is pinned until all have
// answered, with interrupts on, and interrupt handlers make none. The CPU writes it before others
// know of it; they read it after they have found the CPU's bit in their inbox, and before they
// clear their own in `waiting`, for which the CPU waits.
unsafe impl Sync for Request {}

static REQUESTS: [Request; MAX_CPUS] = [const {
    Request {
        waiting: Unanswered(AtomicU64::new(0)),
        asked: UnsafeCell::new(Asked {
            kind: Kind::All,
            count: 0,
            pages: [Page(0); MAX_PAGES],
            slots: [0; MAX_PAGES],
        }),
    }
}; MAX_CPUS];

impl Asked {
    /// Copies what is to be forgotten; at most [`MAX_PAGES`] pages or slots.
    fn set(&mut self, what: What<'_>) {
        (self.kind, self.count) = match what {
            What::Pages(pages) => {
                self.pages[..pages.len()].copy_from_slice(pages);
                (Kind::Pages, pages.len())
            }
            What::All => (Kind::All, 0),
            What::Window(slots) => {
                self.slots[..slots.len()].copy_from_slice(slots);
                (Kind::Window, slots.len())
            }
            What::Root => (Kind::Root, 0),
        };
    }

    fn get(&self) -> What<'_> {
        match self.kind {
            Kind::Pages => What::Pages(&self.pages[..self.count]),
            Kind::All => What::All,
            Kind::Window => What::Window(&self.slots[..self.count]),
            Kind::Root => What::Root,
        }
    }
}

/// A bit for each CPU that asks something of this one.
#[repr(align(64))]
struct Inbox(AtomicU64);

static INBOXES: [Inbox; MAX_CPUS] = [const { Inbox(AtomicU64::new(0)) }; MAX_CPUS];

/// Whether every CPU is told of every change, whatever it has loaded, and whether or not the
/// accessed bit shows that no TLB can hold the entry: what kernels did before they kept books. For
/// comparison.
static BROADCAST: AtomicBool = AtomicBool::new(false);

/// See [`Coherence::Broadcast`].
#[inline]
pub(super) fn is_broadcast() -> bool {
    BROADCAST.load(Ordering::Relaxed)
}

/// Makes the CPUs of a mask forget addresses of the kernel's window for short-lived mappings, at
/// most [`MAX_PAGES`] a round, and waits until they have. Interrupts are on, and the caller holds
/// no spin lock.
pub(crate) fn forget_window(slots: &[u32], cpus: u64) {
    let since = machine::coherence_stamp();
    for some in slots.chunks(MAX_PAGES) {
        run(What::Window(some), cpus, since);
    }
}

/// Which CPUs are told that a mapping has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coherence {
    /// Those that may hold it.
    #[default]
    Precise,
    /// All, always.
    Broadcast,
}

/// Sets which CPUs are told of changes of mappings from now on.
pub fn set_coherence(coherence: Coherence) {
    BROADCAST.store(coherence == Coherence::Broadcast, Ordering::Relaxed);
}

/// Returns which CPUs hear of changes of mappings.
pub fn coherence() -> Coherence {
    match is_broadcast() {
        true => Coherence::Broadcast,
        false => Coherence::Precise,
    }
}

/// Whether some CPU is to be told that this entry is gone or changed.
#[inline]
pub(super) fn must_be_told(old: Pte) -> bool {
    old.may_be_cached() || is_broadcast()
}

/// Makes every other CPU take an interrupt, and waits until all have: each has passed a full
/// barrier between the call and its return. Interrupts are on.
pub fn interrupt_all() {
    let since = machine::coherence_stamp();
    run(What::Pages(&[]), all_cpus(), since);
}

impl Pmap {
    /// Whether another CPU has this pmap loaded: a hint.
    pub fn is_used_elsewhere(&self) -> bool {
        self.cpus.active.load(Ordering::Relaxed) & !(1 << machine::cpu()) != 0
    }

    /// As [`interrupt_all`], for the CPUs that have this pmap loaded. One that loads it later has
    /// passed a barrier by that.
    pub fn interrupt(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
        let cpus = self.cpus.active.load(Ordering::SeqCst);
        run(What::Pages(&[]), cpus, machine::coherence_stamp());
    }
}

/// A bit for each CPU.
pub(crate) fn all_cpus() -> u64 {
    u64::MAX >> (64 - machine::cpu_count())
}

/// Makes the CPUs of the mask forget, this one too if it is among them, and waits until they have.
/// Interrupts are on, unless the mask has no other CPU. The oracle is told that no CPU holds any
/// more what it held at `since`, before the mask was read.
pub(super) fn run(what: What<'_>, cpus: u64, since: u64) {
    tell(what, cpus);
    match what {
        What::All => machine::promise_all(cpus, since),
        What::Pages(pages) => pages.iter().for_each(|page| page.promise(since)),
        // What becomes of these is seen when they are used again.
        What::Window(_) | What::Root => {}
    }
}

fn tell(what: What<'_>, cpus: u64) {
    let pinned = Pinned::new();
    let me = 1u64 << pinned.cpu();
    if cpus & !me == 0 {
        if cpus != 0 {
            forget(pinned.cpu(), what, By::This);
        }
        return;
    }
    debug_assert!(
        machine::irqs_enabled(),
        "a shootdown with interrupts off may wait forever"
    );
    let Request { waiting, asked } = &REQUESTS[pinned.cpu()];
    // SAFETY: all have answered the CPU's last request, and it makes no other one meanwhile: see
    // `Request`.
    unsafe { (*asked.get()).set(what) };
    waiting.0.store(cpus & !me, Ordering::Relaxed);
    let mut interrupts = 0u64;
    for target in bits(cpus & !me) {
        machine::point();
        // Release: a CPU that sees the bit sees the request and the changed entries.
        if INBOXES[target].0.fetch_or(me, Ordering::AcqRel) == 0 {
            interrupts |= 1 << target;
        }
    }
    Counter::tlb_remote.add((cpus & !me).count_ones() as u64);
    if interrupts != 0 {
        Counter::ipi_shootdown.add(u64::from(interrupts.count_ones()));
        machine::send_shootdown(interrupts);
    }
    // This CPU's own part, while the others are on their way.
    if cpus & me != 0 {
        forget(pinned.cpu(), what, By::This);
    }
    // Acquire: what the others did with the old translation comes before what follows.
    while waiting.0.load(Ordering::Acquire) != 0 {
        machine::spin_hint();
    }
}

/// Answers the shootdowns that other CPUs ask of this one: the handler of their interrupt, with
/// interrupts off.
pub(crate) fn on_shootdown() {
    let me = machine::cpu();
    loop {
        machine::point();
        let senders = INBOXES[me].0.swap(0, Ordering::AcqRel);
        if senders == 0 {
            return;
        }
        for sender in bits(senders) {
            let Request { waiting, asked } = &REQUESTS[sender];
            // SAFETY: the sender wrote it before it set the bit that was just taken, and leaves it
            // until this CPU has cleared its own bit in `waiting`, after the last use of it here.
            forget(me, unsafe { (*asked.get()).get() }, By::Another);
            waiting.0.fetch_and(!(1 << me), Ordering::Release);
        }
    }
}

/// Which CPU has made a change. What others do about it is counted there, as `tlb_remote`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    This,
    Another,
}

/// Forgets on this CPU.
fn forget(cpu: usize, what: What<'_>, by: By) {
    let count = |counter: Counter, more: usize| {
        if by == By::This {
            counter.add(more as u64);
        }
    };
    if let What::Window(slots) = what {
        count(Counter::tlb_local_page, slots.len());
        for &slot in slots {
            machine::window_invalidate(slot as usize);
        }
        return;
    }
    if machine::tags() != 0 {
        forget_kept(cpu, what);
    }
    if loaded::leave_borrowed(cpu) {
        // A CPU that no program runs on gives the space up altogether: no more interrupts for it.
        return;
    }
    match what {
        What::All => {
            count(Counter::tlb_local_full, 1);
            machine::invalidate_all();
        }
        What::Pages(pages) => {
            let Some(loaded) = loaded::loaded(cpu) else {
                return;
            };
            let mut forgotten = 0;
            for page in pages.iter().filter(|page| loaded.contains(&page.space())) {
                forgotten += 1;
                machine::invalidate_page(page.va());
            }
            count(Counter::tlb_local_page, forgotten);
        }
        What::Root => loaded::reload(cpu),
        What::Window(_) => {}
    }
}

/// Forgets on this CPU what it keeps of spaces that it has not loaded, or only borrows.
#[cold]
fn forget_kept(cpu: usize, what: What<'_>) {
    let runs = loaded::runs(cpu);
    match what {
        What::All => tags::forget_all(cpu, runs),
        What::Pages(pages) => tags::forget_pages(cpu, pages, runs),
        What::Window(_) | What::Root => {}
    }
}

/// The numbers of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

/// Forgets what was asked of an earlier machine.
///
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) fn start() {
    BROADCAST.store(false, Ordering::Relaxed);
    for inbox in &INBOXES {
        inbox.0.store(0, Ordering::Relaxed);
    }
    for request in &REQUESTS {
        request.waiting.0.store(0, Ordering::Relaxed);
    }
}
