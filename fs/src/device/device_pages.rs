//! The pages of a block device that is open as a file: the cache under `/dev/vda`.
//!
//! There are pages while the device is open or mapped; the last one to close it writes them back
//! and drops them, so that the next opener sees what a file system or swap did to the device past
//! them.

use alloc::{sync::Arc, vec::Vec};
use core::{any::Any, ops::Range};

use abi::Result;
use nucleus::{Frame, PAGE_SIZE, dma::Part, ephemeral, log};
use vm::Pager;

use crate::{
    block::{Device, DevicePages, Done, Request, SECTOR, Transfer, all, make_room},
    page_cache::{BlockStore, Cached, PageCache, Properties, WriteBack, pages_with},
    vnode::Mapped,
};

const SECTORS: u64 = (PAGE_SIZE / SECTOR) as u64;

/// A device as a file system of one file.
pub struct DeviceStore(Arc<Device>);

impl DeviceStore {
    /// The bytes of a device, for pages that are kept apart from those of its openers.
    pub(crate) fn new(device: Arc<Device>) -> DeviceStore {
        DeviceStore(device)
    }

    /// What is fixed about them.
    pub(crate) fn properties(device: &Device) -> Properties {
        Properties {
            size_max: device.size(),
            is_device: true,
            ..Properties::of((0, device.number()))
        }
    }

    /// Returns the sectors of pages `first..first + count`: the last page may have fewer than
    /// others.
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
            parts.push(Part::new(frame.clone(), 0, len));
        }
        Ok(parts)
    }

    /// Starts a transfer of frames, as a whole, or where memory does not suffice for that in halves
    /// of halves.
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

impl BlockStore for DeviceStore {
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

    fn direct_block(&self) -> usize {
        self.0.limits().block_size as usize
    }

    fn is_written(&self, _: Range<u64>) -> Result<bool> {
        Ok(true)
    }

    fn read_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        self.0.read(at / SECTOR as u64, parts)
    }

    fn write_direct(&self, at: u64, parts: Vec<Part>) -> Result<()> {
        self.0.write(at / SECTOR as u64, parts)
    }
}

impl DevicePages for PageCache<WriteBack<DeviceStore>> {
    fn write_and_drop(&self) -> Result<()> {
        self.write_through(0..u64::MAX)?;
        self.invalidate(0..u64::MAX);
        Ok(())
    }
}

/// The pages of an open device, as they are kept by it.
fn pages_of(pages: &Arc<dyn DevicePages>) -> Option<Arc<PageCache<WriteBack<DeviceStore>>>> {
    let any: Arc<dyn Any + Send + Sync> = pages.clone();
    any.downcast().ok()
}

impl Device {
    /// Opens the device as a file: its pages stay until its last opener closes it.
    pub fn open(self: &Arc<Device>) -> Arc<Opened> {
        let mut openers = self.openers.lock();
        openers.count += 1;
        let pages = openers.pages.as_ref().and_then(pages_of);
        let pages = pages.unwrap_or_else(|| {
            let properties = DeviceStore::properties(self);
            let pages = PageCache::new(DeviceStore(self.clone()), self.size(), properties);
            openers.pages = Some(pages.clone());
            pages
        });
        drop(openers);
        Arc::new(Opened {
            device: self.clone(),
            pages,
        })
    }

    /// Its pages, if it is open.
    pub fn cached(&self) -> Option<Arc<PageCache<WriteBack<DeviceStore>>>> {
        self.openers.lock().pages.as_ref().and_then(pages_of)
    }

    /// Brings writes to it as a file onto the medium.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`. [`Cached::errors`] reports failed writes of pages.
    pub fn sync(&self) -> Result<()> {
        match self.cached() {
            Some(pages) => Cached::sync(&*pages, 0..u64::MAX, true),
            None => self.flush(),
        }
    }
}

/// A device that is open as a file.
pub struct Opened {
    device: Arc<Device>,
    pages: Arc<PageCache<WriteBack<DeviceStore>>>,
}

impl Opened {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its pages.
    pub fn pages(&self) -> &Arc<PageCache<WriteBack<DeviceStore>>> {
        &self.pages
    }

    /// Returns the pager of its mappings, which keeps it open.
    pub fn pager(self: &Arc<Opened>) -> Arc<dyn Pager> {
        Mapped::keeping(self.pages.clone(), self.clone())
    }

    /// Writes the pages of `bytes` back, and evicts all pages there that could be read again or are
    /// being read, but for concurrent stores of programs: before and after a change past them.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn settle(&self, bytes: Range<u64>) -> Result<()> {
        let pages = pages_with(&bytes);
        self.pages.write_through(pages.clone())?;
        self.pages.invalidate(pages);
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut openers = self.device.openers.lock();
        openers.count -= 1;
        if openers.count > 0 {
            return;
        }
        // The next opener waits until this is done.
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

#[cfg(test)]
mod tests;

/// Brings writes to devices as files onto the media (`sync`).
pub fn sync_all() {
    for device in all() {
        // Callers that need to know of errors ask the device.
        let _ = device.sync();
    }
}
