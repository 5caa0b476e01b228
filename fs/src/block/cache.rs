//! The pages of a block device that is open as a file: the cache under `/dev/vda`.
//!
//! There are pages while anybody has the device open or mapped; who closes it last writes them back and lets them go, so that
//! what a file system or swap does to the device past them is seen by who opens it next.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use abi::Result;
use nucleus::{
    Frame, PAGE_SIZE,
    dma::Part,
    ephemeral, log,
    sync::{Mutex, Rank},
};
use vm::{Description, Object, Pager, PagerError};

use super::{Claim, Device, Done, Request, SECTOR, Transfer, make_room};
use crate::page_cache::{BackingStore, Cached, PageCache};

const SECTORS: u64 = (PAGE_SIZE / SECTOR) as u64;

/// A device as a file system of one file.
pub struct DeviceStore(Arc<Device>);

impl DeviceStore {
    /// The bytes of a device, for pages of them that are kept apart from those of who opens it.
    pub(crate) fn new(device: Arc<Device>) -> DeviceStore {
        DeviceStore(device)
    }

    /// Sectors of pages `first..first + count` that there are: the last page may have fewer than others.
    fn sectors(&self, first: u64, count: usize) -> Range<u64> {
        let all = self.0.sectors();
        (first * SECTORS).min(all)..((first + count as u64) * SECTORS).min(all)
    }

    /// The parts of the frames that these sectors fill, from the first one on.
    fn parts(frames: &[Frame], sectors: &Range<u64>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        make_room(&mut parts, frames.len())?;
        let mut left = (sectors.end - sectors.start) as usize * SECTOR;
        for frame in frames {
            let len = left.min(PAGE_SIZE);
            if len == 0 {
                break;
            }
            left -= len;
            parts.push(Part {
                frame: frame.clone(),
                offset: 0,
                len,
            });
        }
        Ok(parts)
    }

    /// Begins a transfer of frames, as a whole, or where memory does not suffice for that in halves of halves.
    fn transfer(
        &self,
        request: fn(u64, Vec<Part>) -> Request,
        first: u64,
        frames: &[Frame],
        done: Done,
    ) {
        let sectors = self.sectors(first, frames.len());
        match DeviceStore::parts(frames, &sectors) {
            Ok(parts) => self.0.submit(request(sectors.start, parts), done),
            Err(_) if frames.len() > 1 => {
                let transfer = Transfer::new(done);
                let (front, rest) = frames.split_at(frames.len() / 2);
                self.transfer(request, first, front, transfer.expect());
                self.transfer(request, first + front.len() as u64, rest, transfer.expect());
                transfer.end(Ok(()));
            }
            Err(error) => done(Err(error)),
        }
    }
}

impl BackingStore for DeviceStore {
    fn read(&self, first: u64, frames: &[Frame], done: Done) {
        let sectors = self.sectors(first, frames.len());
        let there = (sectors.end - sectors.start) as usize * SECTOR;
        for (i, frame) in frames.iter().enumerate() {
            let has = there.saturating_sub(i * PAGE_SIZE).min(PAGE_SIZE);
            if has < PAGE_SIZE {
                ephemeral::map(frame).fill(has, PAGE_SIZE - has, 0);
            }
        }
        self.transfer(Request::read, first, frames, done);
    }

    fn write(&self, first: u64, frames: &[Frame], done: Done) {
        self.transfer(Request::write, first, frames, done);
    }

    fn sync(&self, _: bool) -> Result<()> {
        self.0.flush()
    }

    fn identity(&self) -> (u64, u64) {
        (0, self.0.number())
    }

    fn size_max(&self) -> u64 {
        self.0.size()
    }

    fn is_device(&self) -> bool {
        true
    }
}

/// How often a device is open, and its pages while it is.
pub(super) struct Openers {
    count: usize,
    pages: Option<Arc<PageCache<DeviceStore>>>,
}

impl Openers {
    pub(super) const fn new() -> Mutex<Openers> {
        Mutex::new(
            Rank::BlockOpen,
            Openers {
                count: 0,
                pages: None,
            },
        )
    }
}

impl Device {
    /// Opens the device as a file: its pages are there until the last one who has opened it lets go.
    pub fn open(self: &Arc<Device>) -> Arc<Opened> {
        let mut openers = self.openers.lock();
        openers.count += 1;
        let pages = openers
            .pages
            .get_or_insert_with(|| PageCache::new(DeviceStore(self.clone()), self.size()))
            .clone();
        drop(openers);
        Arc::new(Opened {
            device: self.clone(),
            pages,
        })
    }

    /// Its pages, if anybody has it open.
    pub fn cached(&self) -> Option<Arc<PageCache<DeviceStore>>> {
        self.openers.lock().pages.clone()
    }

    /// Brings onto the medium what was written to it as a file.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`. That pages could not be written is told by [`Cached::errors`].
    pub fn sync(&self) -> Result<()> {
        match self.cached() {
            Some(pages) => Cached::sync(&*pages, 0..u64::MAX, true),
            None => self.flush(),
        }
    }

    /// Writes back what was written to it as a file, and lets go of all pages: what is past them and they agree.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn drop_cache(&self) -> Result<()> {
        let Some(pages) = self.cached() else {
            return Ok(());
        };
        pages.write_through(0..u64::MAX)?;
        pages.invalidate(0..u64::MAX);
        Ok(())
    }
}

/// A device that is open as a file; also what a mapping of it maps.
pub struct Opened {
    device: Arc<Device>,
    pages: Arc<PageCache<DeviceStore>>,
}

impl Opened {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its pages.
    pub fn pages(&self) -> &Arc<PageCache<DeviceStore>> {
        &self.pages
    }

    /// Sees to it that bytes `bytes` of the device are what its pages have: for a read past them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn write_through(&self, bytes: Range<u64>) -> Result<()> {
        self.pages.write_through(Opened::pages_of(&bytes))
    }

    /// As [`write_through`](Opened::write_through), and has no page there that could be read again, nor any that is being read, but what programs store into it
    /// just now: before and after a change past them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn settle(&self, bytes: Range<u64>) -> Result<()> {
        self.write_through(bytes.clone())?;
        self.pages.invalidate(Opened::pages_of(&bytes));
        Ok(())
    }

    fn pages_of(bytes: &Range<u64>) -> Range<u64> {
        let page = PAGE_SIZE as u64;
        bytes.start / page..bytes.end.div_ceil(page)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut openers = self.device.openers.lock();
        openers.count -= 1;
        if openers.count > 0 {
            return;
        }
        // Who opens it next waits until this is done.
        if self.pages.write_through(0..u64::MAX).is_err() || self.pages.counts().dirty > 0 {
            log!(
                "disk: {}: pages that can't be written are lost",
                self.device.name()
            );
        }
        let pages = openers.pages.take();
        drop(openers);
        drop(pages);
    }
}

/// Passes everything on to the pages; only keeps the device open as well.
impl Pager for Opened {
    fn object(&self) -> &Object {
        self.pages.object()
    }

    fn get(&self, index: u64) -> core::result::Result<Frame, PagerError> {
        self.pages.get(index)
    }

    fn read_in(&self, index: u64, window: Range<u64>) -> core::result::Result<(), PagerError> {
        self.pages.read_in(index, window)
    }

    fn will_need(&self, pages: Range<u64>) {
        self.pages.will_need(pages);
    }

    fn evict(&self, pages: Range<u64>) {
        self.pages.evict(pages);
    }

    fn writeback(&self, pages: Range<u64>) -> core::result::Result<(), PagerError> {
        self.pages.writeback(pages)
    }

    fn start_writeback(&self, pages: Range<u64>) -> core::result::Result<(), PagerError> {
        self.pages.start_writeback(pages)
    }

    fn reference(&self, writable: bool) {
        self.pages.reference(writable);
    }

    fn detach(&self, writable: bool) {
        self.pages.detach(writable);
    }

    fn about_to_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        self.pages.about_to_write(index)
    }

    fn prepare_write(&self, index: u64) -> core::result::Result<(), PagerError> {
        self.pages.prepare_write(index)
    }

    fn may_still_be_written(&self, index: u64) -> bool {
        self.pages.may_still_be_written(index)
    }

    fn may_be_written(&self, index: u64) {
        self.pages.may_be_written(index);
    }

    fn describe(&self) -> Description {
        self.pages.describe()
    }
}

impl Claim {
    /// What is done past the pages from now on, and what was done until now, is not hidden by them.
    pub(super) fn settle(&self) {
        // What can't be written now is written by who has it open, or lost with a message.
        let _ = self.device().drop_cache();
    }
}

#[cfg(test)]
mod tests;

/// Brings onto the media what was written to devices as files (`sync`).
pub fn sync_all() {
    for device in super::all() {
        // Who wants to know of errors asks the device.
        let _ = device.sync();
    }
}
