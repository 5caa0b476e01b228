//! Memory that devices reach.
//!
//! A driver names memory by [`Part`]s of frames; only the nucleus turns them into addresses that a
//! device understands, through the device's [`Domain`]. A part holds its frame (the existence
//! count, `iosup.txt` 2.2) for as long as the device may touch it, so a frame is never free, and
//! never becomes a page table, under a device's hands. Where the domain has addresses of its own, a
//! request's parts are mapped when a queue gives it to the device ([`Addresses`]), and no longer
//! when it is done; a task invalidates their translations, if no later request does.
//!
//! [`Pool`] keeps frames for the small messages of a driver: they stay mapped while the device
//! lives, so that a message costs no mapping.

use alloc::{boxed::Box, collections::VecDeque, sync::Arc};
use core::{
    num::NonZeroU64,
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use crate::{
    Frame, OutOfMemory, PAGE_SHIFT, PAGE_SIZE,
    counters::Counter,
    cpu::percpu::Restart,
    ephemeral::{self, LONGEST_RUN},
    frame::Contents,
    hw::{iommu::Device, places::Places},
    lock::{Rank, SpinLock},
    mem::{domain, mistake::Mistake},
    pmap::audit::{Report, Seen, Violation},
    task::{self, Sleep, Spawn, WaitQueue},
};

pub(crate) use crate::hw::iommu::AttachError;
pub use crate::hw::iommu::Policy;
pub(crate) use crate::mem::domain::{BATCH, Domain, Driver, WINDOW_PAGES, Window};

/// A device's domain, for its queues and pools.
pub(crate) struct Attachment(Option<Arc<Domain>>);

impl Deref for Attachment {
    type Target = Domain;

    #[inline]
    fn deref(&self) -> &Domain {
        self.0.as_deref().expect("there until it is dropped")
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        drop(self.0.take());
        // It may have been the last one.
        CLEANER.wake_all();
    }
}

/// Bytes `offset..offset + len` of one frame, for a device; `offset + len` is at most the frame's
/// [size](Frame::size), `len` is not 0.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Part {
    pub frame: Frame,
    pub offset: usize,
    pub len: usize,
    lasting: Option<Lasting>,
}

/// Where a frame is mapped for as long as its domain lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lasting {
    /// The domain's [generation](domain::Strict::generation): a part may outlive its domain.
    domain: NonZeroU64,
    page: u32,
}

impl Part {
    /// Returns these bytes of a frame.
    #[inline]
    pub fn new(frame: Frame, offset: usize, len: usize) -> Part {
        Part {
            frame,
            offset,
            len,
            lasting: None,
        }
    }

    /// A whole frame.
    #[inline]
    pub fn whole(frame: Frame) -> Part {
        Part::new(frame, 0, PAGE_SIZE)
    }

    /// All of a frame, or of a block.
    #[inline]
    pub fn all(frame: Frame) -> Part {
        let size = frame.size();
        Part::new(frame, 0, size)
    }

    /// The frame, if the part is all of it, or of its block, and mapped for a request alone.
    #[inline]
    fn plain(&self) -> Option<&Frame> {
        (self.len == self.frame.size() && self.lasting.is_none()).then_some(&self.frame)
    }

    /// The pages with bytes of it: the number of the first in the block, and how many.
    #[inline]
    fn pages(&self) -> (usize, usize) {
        let end = (self.offset + self.len).div_ceil(PAGE_SIZE);
        (self.offset / PAGE_SIZE, end - self.offset / PAGE_SIZE)
    }

    /// Whether the bytes are inside of the frame or its block, and any.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.len > 0 && (self.is_in_page() || self.is_in_block())
    }

    /// Whether the bytes are inside of the frame's page, as most are.
    #[inline]
    fn is_in_page(&self) -> bool {
        self.offset <= PAGE_SIZE && self.len <= PAGE_SIZE - self.offset
    }

    #[cold]
    fn is_in_block(&self) -> bool {
        let size = self.frame.size();
        self.offset <= size && self.len <= size - self.offset
    }
}

/// Bytes that a device finds in a row: those of `parts` parts.
pub(crate) struct Extent {
    pub address: u64,
    pub len: u32,
    pub parts: usize,
}

impl Extent {
    /// One part, whose frame the device finds at this page.
    #[inline]
    fn of(part: &Part, page: u64) -> Extent {
        Extent {
            address: (page << PAGE_SHIFT) + part.offset as u64,
            len: part.len as u32,
            parts: 1,
        }
    }
}

/// Where a device finds a part that uses physical addresses.
#[inline]
pub(crate) fn physical(part: &Part) -> Extent {
    Extent::of(part, part.frame.number())
}

/// The addresses of a request's parts, as its device sees them.
pub(crate) struct Addresses<'a> {
    domain: &'a Domain,
    window: Option<&'a Window>,
    /// A part that was mapped: its frame, whether the device writes, its page.
    last: Option<(u32, bool, u64)>,
    mapped: usize,
}

impl<'a> Addresses<'a> {
    /// Of a request of [so many](addresses_of) addresses that is given to a device in this domain,
    /// by a slot with this window. [`None`] if the window has no room for them until a
    /// [flush](free_addresses).
    #[inline]
    pub(crate) fn new(
        domain: &'a Domain,
        window: Option<&'a Window>,
        addresses: usize,
    ) -> Option<Addresses<'a>> {
        let has_room = window.is_none_or(|it| it.has_room(addresses));
        has_room.then_some(Addresses {
            domain,
            window,
            last: None,
            mapped: 0,
        })
    }

    /// Where the next of a request's parts are, of which there are any: the first one, and those
    /// that continue it there. The device writes all of them, or else reads them.
    #[inline]
    pub(crate) fn of(&mut self, parts: &[Part], writes: bool) -> Extent {
        let part = &parts[0];
        let Some(window) = self.window else {
            return physical(part);
        };
        match self.lasting(part) {
            Some(page) => Extent::of(part, page),
            None => self.mapped(window, parts, writes),
        }
    }

    /// Where the part is mapped in this domain for as long as it lives.
    #[inline]
    fn lasting(&self, part: &Part) -> Option<u64> {
        let Lasting { domain, page } = part.lasting?;
        let strict = self.domain.strict()?;
        let is_its = strict.generation() == domain || Mistake::GenerationIgnored.is_made();
        is_its.then_some(page.into())
    }

    // Out of line: its loop needs the registers that its caller has in use.
    #[inline(never)]
    fn mapped(&mut self, window: &Window, parts: &[Part], writes: bool) -> Extent {
        let (page, pages, count) = window.map(parts, Part::plain, !writes, writes);
        self.mapped += pages;
        if count > 0 {
            return Extent {
                address: page << PAGE_SHIFT,
                len: (pages * PAGE_SIZE) as u32,
                parts: count,
            };
        }
        let part = &parts[0];
        Extent::of(part, self.page_of(window, part, writes))
    }

    /// The page at which the device finds the first of the part's frame or block, if that is mapped
    /// at all: those with bytes of the part are.
    fn page_of(&mut self, window: &Window, part: &Part, writes: bool) -> u64 {
        let index = part.frame.index();
        let (place, pages) = part.pages();
        match self.last {
            Some((last, direction, page)) if last == index && direction == writes => page,
            _ => {
                let rights = (!writes, writes);
                let page = window.map_pages(&part.frame, place as u32, pages, rights);
                let page = page - place as u64;
                self.mapped += pages;
                // Other parts of a block may have other pages.
                self.last = (!part.frame.is_block()).then_some((index, writes, page));
                page
            }
        }
    }

    /// The device may use them from now on.
    #[inline]
    pub(crate) fn give(self) {
        if let (Some(window), Some(strict)) = (self.window, self.domain.strict()) {
            strict.give(window, self.mapped);
        }
    }
}

/// The most addresses that a request with these parts takes, those before the end of a window's
/// table included that stay empty because a block does not fit there.
#[inline]
pub(crate) fn addresses_of(parts: &[Part]) -> usize {
    let (mut all, mut most) = (0, 0);
    for part in parts {
        let (_, pages) = part.pages();
        all += pages;
        most = pages.max(most);
    }
    all + most - usize::from(most > 0)
}

/// Invalidates the addresses of requests that are done, so that windows have room for others. No
/// lock is held.
#[cold]
pub(crate) fn free_addresses(domain: &Domain) {
    if let Some(strict) = domain.strict() {
        strict.flush(Counter::iotlb_ring_full);
    }
}

/// Invalidates them if there are as many as a batch. No lock is held.
#[inline]
pub(crate) fn flush_batch(domain: &Domain, batch: usize) {
    if let Some(strict) = domain.strict().filter(|it| it.stale() >= batch) {
        strict.flush(Counter::iotlb_batch);
    }
}

/// The addresses of a slot's request, which is done, are invalidated later. Any context.
#[inline]
pub(crate) fn take(domain: &Domain, window: &Window) {
    let Some(strict) = domain.strict() else {
        return;
    };
    if strict.take(window) {
        wake_cleaner();
    }
    if Mistake::PendingReleased.is_made() {
        strict.flush(Counter::iotlb_other);
    }
}

/// How long a frame may wait to be free at most, and a device may go on using it, when no other
/// request comes.
const WAIT: Duration = Duration::from_millis(10);

/// There is something to do for the cleaner.
static WANTED: AtomicBool = AtomicBool::new(false);
/// There is such a task.
static RUNS: AtomicBool = AtomicBool::new(false);
static CLEANER: Restart<WaitQueue> = Restart::new(WaitQueue::new());

/// Wakes the task that invalidates the stale addresses of requests. Any context.
pub(crate) fn wake_cleaner() {
    WANTED.store(true, SeqCst);
    CLEANER.wake_all();
}

/// Devices that reach nothing any more, whose drivers are to be notified.
static LOST: Places = Places::new();

/// The device reaches nothing any more: its driver's requests fail. Any context.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn report_lost(device: Device) {
    LOST.insert(device.0);
    wake_cleaner();
}

/// The domain of a device that begins to work.
///
/// # Errors
/// [`AttachError`].
pub(crate) fn domain_of(place: u16) -> Result<Arc<Attachment>, AttachError> {
    let domain = Domain::new(Device(place))?;
    if domain::policy() != Policy::Off && !RUNS.swap(true, SeqCst) {
        let spawned = task::spawn(Spawn::kernel("iommu"), Box::new(clean));
        spawned.inspect_err(|_| RUNS.store(false, SeqCst))?;
    }
    Ok(Arc::new(Attachment(Some(domain))))
}

/// The domain of a device that goes round the units: the addresses that it uses are physical ones.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) fn domain_beside(place: u16) -> Arc<Attachment> {
    let device = Device(place);
    if domain::policy() != Policy::Off {
        crate::log!("IOMMU: {device} goes round it, and reaches all memory");
    }
    Arc::new(Attachment(Some(Domain::beside(device))))
}

/// The cleaner. It ends when there is no domain left.
fn clean() {
    loop {
        let wanted = || (WANTED.swap(false, SeqCst) || !domain::any()).then_some(());
        CLEANER.wait_soundly(wanted);
        if !domain::any() {
            RUNS.store(false, SeqCst);
            // SeqCst, as the domain's count and `domain_of`: a domain that came meanwhile is seen
            // here, or its `domain_of` has seen that there is no cleaner.
            if !domain::any() || RUNS.swap(true, SeqCst) {
                return;
            }
        }
        // Others come until then, and go with the same invalidation.
        task::sleep(Sleep::within(WAIT));
        while let Some(place) = LOST.take() {
            domain::give_up(Device(place));
        }
        if domain::settle() {
            WANTED.store(true, SeqCst);
        }
    }
}

/// Invalidates the addresses of requests that are done, and frees the frames that waited for this.
/// For a task that needs memory; no lock is held.
pub fn settle() {
    domain::settle();
    wake_if_last();
}

/// As [`settle`] without the drivers of lost devices; returns whether there was anything.
pub(crate) fn free_stale() -> bool {
    let any = domain::flush_stale();
    wake_if_last();
    any
}

/// Wakes the cleaner to end if there is no domain left. Called after a walk through all domains,
/// which may have dropped the last handle of one.
pub(super) fn wake_if_last() {
    if !domain::any() {
        CLEANER.wake_all();
    }
}

/// Waits until the frames of requests that are done are free, and, with `all`, until no device is
/// left that has a domain: for the accounts of tests.
#[cfg(not(target_os = "none"))]
pub fn wait_settled(all: bool) {
    domain::settle();
    while all && domain::any() {
        task::sleep(Sleep::within(WAIT));
    }
}

/// Returns which memory devices reach.
pub fn policy() -> Policy {
    domain::policy()
}

/// Forgets the cleaner, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    while LOST.take().is_some() {}
    WANTED.store(false, SeqCst);
    RUNS.store(false, SeqCst);
    // SAFETY: the machine that used it is gone and the next has not started.
    unsafe { CLEANER.set(WaitQueue::new()) };
}

/// Audits the frames that devices behind an IOMMU reach: data that is held for them, and with
/// `iommu=open` those that are open (`iosup.txt` 2.3). Called by a task that holds no lock.
pub fn audit_devices(seen: &mut Seen, report: Report<'_>) {
    seen.device_pages += domain::audit(|frame| report(Violation::Reachable { frame }));
    wake_if_last();
}

/// Frames for a driver's messages. Dropping a [`Buffer`] gives its frame back.
pub struct Pool {
    domain: Option<Arc<Attachment>>,
    state: SpinLock<State>,
    keep: usize,
}

struct State {
    /// Those at the front may have other handles still: a device, or a task that waits for it.
    free: VecDeque<(Frame, Option<Lasting>)>,
    /// The number of frames, free or not, that stay mapped.
    made: usize,
}

/// A frame of a pool.
pub struct Buffer {
    pool: Arc<Pool>,
    frame: Option<Frame>,
    lasting: Option<Lasting>,
}

impl Pool {
    /// A pool that keeps up to `keep` frames when they are not in use.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(keep: usize) -> Result<Arc<Pool>, OutOfMemory> {
        Pool::in_domain(keep, None)
    }

    /// As [`new`](Pool::new); `keep` frames are mapped for a device while it lives.
    pub(crate) fn in_domain(
        keep: usize,
        domain: Option<Arc<Attachment>>,
    ) -> Result<Arc<Pool>, OutOfMemory> {
        let mut free = VecDeque::new();
        free.try_reserve_exact(keep).map_err(|_| OutOfMemory)?;
        Ok(Arc::new(Pool {
            domain: domain.filter(|it| it.strict().is_some()),
            state: SpinLock::new(Rank::Leaf, State { free, made: 0 }),
            keep,
        }))
    }

    /// A frame; its bytes are stale: those of the pool's messages before, or of others.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn take(self: &Arc<Pool>) -> Result<Buffer, OutOfMemory> {
        let kept = {
            let mut state = self.state.lock();
            let kept = state.free.pop_back();
            match kept {
                Some((frame, lasting)) if frame.handles() > 1 => {
                    state.free.push_front((frame, lasting));
                    None
                }
                kept => kept,
            }
        };
        let (frame, lasting) = match kept {
            Some(kept) => kept,
            None => {
                // Where devices reach what they are given, they read all of a page: nothing of
                // those who had it before is there.
                let frame = Frame::alloc(match self.domain {
                    Some(_) => Contents::Zeroed,
                    None => Contents::Stale,
                })?;
                let lasting = self.map(&frame);
                (frame, lasting)
            }
        };
        Ok(Buffer {
            pool: self.clone(),
            frame: Some(frame),
            lasting,
        })
    }

    /// Maps a frame for as long as the device lives, unless there are as many as are kept.
    fn map(&self, frame: &Frame) -> Option<Lasting> {
        let domain = self.domain.as_deref()?;
        {
            let mut state = self.state.lock();
            if state.made == self.keep {
                return None;
            }
            state.made += 1;
        }
        let lasting = Self::map_in(domain, frame);
        if lasting.is_none() {
            // Without memory for it, it is mapped for each message.
            self.state.lock().made -= 1;
        }
        lasting
    }

    fn map_in(domain: &Domain, frame: &Frame) -> Option<Lasting> {
        let generation = domain.strict()?.generation();
        let at = domain.map_lasting(frame, true, true).ok()?;
        Some(Lasting {
            domain: generation,
            page: u32::try_from(at >> PAGE_SHIFT).ok()?,
        })
    }
}

impl Buffer {
    /// Bytes `offset..offset + len` for a device.
    pub fn part(&self, offset: usize, len: usize) -> Part {
        Part {
            lasting: self.lasting,
            ..Part::new(self.frame().clone(), offset, len)
        }
    }

    fn frame(&self) -> &Frame {
        self.frame
            .as_ref()
            .expect("a buffer has its frame until it is dropped")
    }

    /// Copies bytes in; they fit.
    pub fn write(&self, offset: usize, from: &[u8]) {
        ephemeral::map(self.frame()).write(offset, from);
    }

    /// Copies bytes out; they are there.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        ephemeral::map(self.frame()).read(offset, to);
    }

    /// Fills bytes; they are there.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        ephemeral::map(self.frame()).fill(offset, len, byte);
    }
}

impl AsRef<Frame> for Buffer {
    fn as_ref(&self) -> &Frame {
        self.frame()
    }
}

/// Copies bytes into buffers, in their order; they fit.
pub fn write_all(buffers: &[Buffer], from: &[u8]) {
    for (run, bytes) in buffers.chunks(LONGEST_RUN).zip(from.chunks(RUN_BYTES)) {
        let run = &run[..bytes.len().div_ceil(PAGE_SIZE)];
        ephemeral::map_run(run).write(0, bytes);
    }
}

/// Copies bytes out of buffers, in their order; they are there.
pub fn read_all(buffers: &[Buffer], to: &mut [u8]) {
    for (run, bytes) in buffers.chunks(LONGEST_RUN).zip(to.chunks_mut(RUN_BYTES)) {
        let run = &run[..bytes.len().div_ceil(PAGE_SIZE)];
        ephemeral::map_run(run).read(0, bytes);
    }
}

const RUN_BYTES: usize = LONGEST_RUN * PAGE_SIZE;

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(frame) = self.frame.take() else {
            return;
        };
        // A device may still have a part of it (an answer that no task waited for): then it is no
        // more the pool's, unless it stays mapped anyway.
        let is_alone = frame.handles() == 1;
        if !is_alone && self.lasting.is_none() {
            return;
        }
        let mut state = self.pool.state.lock();
        // Never beyond what was reserved. Those that stay mapped are no more than that, and others
        // make room for them.
        let mut left = None;
        if state.free.len() == self.pool.keep && self.lasting.is_some() {
            let other = state.free.iter().position(|(_, it)| it.is_none());
            left = other.and_then(|other| state.free.remove(other));
        }
        if state.free.len() < self.pool.keep {
            match is_alone {
                true => state.free.push_back((frame, self.lasting)),
                false => state.free.push_front((frame, self.lasting)),
            }
        }
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
pub(in crate::dev) mod tests;
