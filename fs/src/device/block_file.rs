//! An open block device: `/dev/vda`.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU32, Ordering};

use abi::{
    Errno, Result,
    raw::general::{
        O_APPEND, O_DIRECT, O_EXCL, SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET,
    },
    raw::ioctl as control,
};
use fbuf::{Sink, Source};
use nucleus::{PAGE_SIZE, VirtAddr, dma::Part, frame::Contents, sync::Mutex, user};
use vm::Pager;

use super::Opened;
use crate::{
    Attributes, File, Location, OpenFlags, Ready,
    block::{Claim, Device, SECTOR},
    page_cache::{Cached, ErrorMark, SizeLimit},
};

/// The readahead that programs are told, in sectors: Linux's default.
const READ_AHEAD: u64 = 256;
/// Pages of zeros of one request.
const FRAMES: usize = 64;

/// An open device. The position's lock is held as an open file's is, see
/// [`VnodeFile`](crate::file::VnodeFile).
pub struct BlockFile {
    location: Location,
    opened: Arc<Opened>,
    position: Mutex<u64>,
    /// The block size that `BLKBSZGET` returns.
    block_size: AtomicU32,
    /// It was opened to be written.
    writes: bool,
    /// The writeback errors that it has reported.
    told: ErrorMark,
    /// With `O_EXCL`: excludes mounts and swap.
    _claim: Option<Claim>,
}

impl BlockFile {
    /// Opens `device`, whose node is at `location`.
    ///
    /// # Errors
    /// `EACCES` to write to a read-only one, `EBUSY` with `O_EXCL` for one that is claimed.
    pub fn open(
        device: &Arc<Device>,
        location: &Location,
        flags: OpenFlags,
    ) -> Result<Arc<BlockFile>> {
        if flags.writes() && device.is_read_only() {
            return Err(Errno::EACCES);
        }
        let claim = match flags.has(O_EXCL) {
            true => Some(device.claim("an open file")?),
            false => None,
        };
        // The largest block size up to a page of which the device's size is a multiple.
        let block_size = (device.size() | PAGE_SIZE as u64).trailing_zeros();
        let opened = device.open();
        Ok(Arc::new(BlockFile {
            location: location.clone(),
            told: opened.pages().errors().mark(),
            opened,
            position: Mutex::new(crate::rank::FILE, 0),
            block_size: AtomicU32::new(1 << block_size),
            writes: flags.writes(),
            _claim: claim,
        }))
    }

    fn device(&self) -> &Arc<Device> {
        self.opened.device()
    }

    fn read_at(&self, at: u64, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        match flags.has(O_DIRECT) {
            true => self.opened.pages().read_direct(at, to),
            false => self.opened.pages().read(at, to),
        }
    }

    fn write_at(&self, at: u64, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if from.left() > 0 && at >= self.device().size() {
            return Err(Errno::ENOSPC);
        }
        let pages = self.opened.pages();
        let written = match flags.has(O_DIRECT) {
            true => pages.write_direct(&SizeLimit::none(), at, false, from),
            false => pages.write(at, false, from),
        };
        written.map(|(n, _)| n)
    }

    /// Reads the range that a program wants to change, in sectors.
    fn range(&self, argument: VirtAddr) -> Result<(u64, u64)> {
        if !self.writes {
            return Err(Errno::EBADF);
        }
        let [start, len]: [u64; 2] = user::read(argument)?;
        let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
        let sector = SECTOR as u64;
        let fits = start.is_multiple_of(sector)
            && len.is_multiple_of(sector)
            && end <= self.device().size();
        match fits {
            true => {
                self.opened.settle(start..end)?;
                Ok((start / sector, len / sector))
            }
            false => Err(Errno::EINVAL),
        }
    }

    /// Pages of these sectors that were read during the change are stale.
    fn changed_past(&self, sector: u64, sectors: u64) -> Result<usize> {
        let size = SECTOR as u64;
        self.opened
            .settle(sector * size..(sector + sectors) * size)?;
        Ok(0)
    }

    /// Writes zeros.
    fn zero(&self, mut sector: u64, mut sectors: u64) -> Result<()> {
        let page = vm::alloc_frame(Contents::Zeroed)?;
        while sectors > 0 {
            let mut left = sectors.min((FRAMES * PAGE_SIZE / SECTOR) as u64);
            let mut parts = Vec::new();
            while left > 0 {
                let count = left.min((PAGE_SIZE / SECTOR) as u64);
                parts.push(Part::new(page.clone(), 0, count as usize * SECTOR));
                left -= count;
                sectors -= count;
            }
            let count: usize = parts.iter().map(|part| part.len / SECTOR).sum();
            self.device().write(sector, parts)?;
            sector += count as u64;
        }
        Ok(())
    }
}

fn give<T: user::ToUser>(argument: VirtAddr, value: T) -> Result<usize> {
    user::write(argument, &value)?;
    Ok(0)
}

impl File for BlockFile {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if !flags.reads() {
            return Err(Errno::EBADF);
        }
        if let Some(at) = at {
            return self.read_at(at, flags, to);
        }
        let mut position = self.position.lock();
        let n = self.read_at(*position, flags, to)?;
        *position += n as u64;
        Ok(n)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if !flags.writes() {
            return Err(Errno::EBADF);
        }
        if let Some(at) = at {
            return self.write_at(at, flags, from);
        }
        let mut position = self.position.lock();
        if flags.has(O_APPEND) {
            *position = self.device().size();
        }
        let n = self.write_at(*position, flags, from)?;
        *position += n as u64;
        Ok(n)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let mut position = self.position.lock();
        let size = self.device().size();
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => *position,
            SEEK_END => size,
            SEEK_DATA | SEEK_HOLE => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                if from >= size {
                    return Err(Errno::ENXIO);
                }
                *position = match whence {
                    SEEK_DATA => from,
                    _ => size,
                };
                return Ok(*position);
            }
            _ => return Err(Errno::EINVAL),
        };
        let to = (base as i64).checked_add(offset).ok_or(Errno::EOVERFLOW)?;
        // A device ends at its size, even for a seek.
        let to = u64::try_from(to).ok().filter(|&to| to <= size);
        *position = to.ok_or(Errno::EINVAL)?;
        Ok(*position)
    }

    fn has_readiness(&self) -> bool {
        false
    }

    fn ready_now(&self) -> Option<Ready> {
        Some(Ready::ALWAYS)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        let synced = self.device().sync();
        self.check_written().and(synced)
    }

    fn cached(&self) -> Option<Arc<dyn Cached>> {
        Some(self.opened.pages().clone())
    }

    fn check_written(&self) -> Result<()> {
        self.opened.pages().errors().tell(&self.told)
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        let device = self.device();
        let limits = device.limits();
        match command {
            control::BLKROGET => give(argument, i32::from(limits.read_only)),
            control::BLKGETSIZE => give(argument, device.sectors()),
            control::BLKGETSIZE64 => give(argument, device.size()),
            control::BLKSSZGET => give(argument, limits.block_size as i32),
            control::BLKPBSZGET | control::BLKIOMIN => give(argument, limits.physical_block_size),
            control::BLKIOOPT | control::BLKALIGNOFF | control::BLKDISCARDZEROES => {
                give(argument, 0u32)
            }
            control::BLKROTATIONAL => give(argument, 0u16),
            control::BLKRAGET => give(argument, READ_AHEAD),
            control::BLKBSZGET => give(argument, self.block_size.load(Ordering::Relaxed)),
            control::BLKBSZSET => {
                let size: u32 = user::read(argument)?;
                if !size.is_power_of_two()
                    || !(limits.block_size..=PAGE_SIZE as u32).contains(&size)
                {
                    return Err(Errno::EINVAL);
                }
                self.block_size.store(size, Ordering::Relaxed);
                Ok(0)
            }
            control::BLKFLSBUF => {
                device.drop_cache()?;
                device.flush()?;
                Ok(0)
            }
            control::BLKDISCARD => {
                let (sector, sectors) = self.range(argument)?;
                device.discard(sector, sectors)?;
                self.changed_past(sector, sectors)
            }
            control::BLKZEROOUT => {
                let (sector, sectors) = self.range(argument)?;
                self.zero(sector, sectors)?;
                self.changed_past(sector, sectors)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn attributes(&self) -> Result<Attributes> {
        self.location.attributes()
    }

    fn pager(&self) -> Result<Arc<dyn Pager>> {
        Ok(self.opened.pager())
    }
}
