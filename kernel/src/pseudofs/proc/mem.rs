//! `/proc/PID/mem` and `pagemap`: a process's memory, and which pages stand behind it, at the
//! addresses as positions.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::general::{CAP_SYS_ADMIN, SEEK_CUR, SEEK_SET},
};
use fbuf::{Sink, Source};
use fs::{Attributes, File, Location, OpenFlags};
use nucleus::{PAGE_SIZE, VirtAddr, addr::USER_END, pmap};
use vm::Map;

use super::subject::{Subject, may};

/// The memory seen through a [`Window`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// The bytes.
    Memory,
    /// Eight bytes for each page.
    Pages {
        /// With the numbers of the frames.
        numbers: bool,
    },
}

/// An open file that shows an address space. It does not keep the memory of a process that ends.
struct Window {
    location: Location,
    map: Weak<Map>,
    view: View,
    position: AtomicU64,
}

/// Opens `mem`. A process that may inspect the target at that time may read and write its memory
/// through the file; so may later holders of the file.
///
/// # Errors
/// `EACCES`, `ESRCH`.
pub(super) fn memory(subject: &Subject, at: &Location) -> Result<Arc<dyn File>> {
    open(subject, at, View::Memory)
}

/// Opens `pagemap`. Only the administrator is shown the numbers of frames.
///
/// # Errors
/// `EACCES`, `ESRCH`.
pub(super) fn pages(subject: &Subject, at: &Location) -> Result<Arc<dyn File>> {
    let numbers = may(CAP_SYS_ADMIN);
    open(subject, at, View::Pages { numbers })
}

fn open(subject: &Subject, at: &Location, view: View) -> Result<Arc<dyn File>> {
    // Of a process without memory there is nothing to see.
    Ok(Arc::new(Window {
        location: at.clone(),
        map: subject.memory()?,
        view,
        position: AtomicU64::new(0),
    }))
}

/// The word for a page, see `proc(5)`.
fn describe(map: &Map, va: VirtAddr, numbers: bool) -> u64 {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE_OR_SHARED: u64 = 1 << 61;
    const MAPPED_ONCE: u64 = 1 << 56;
    let Some(page) = map.mapped_page(va) else {
        return 0;
    };
    let mut word = PRESENT;
    if !page.anonymous {
        word |= OF_FILE_OR_SHARED;
    }
    if pmap::mappings_of_spaces(&page.frame) == 1 {
        word |= MAPPED_ONCE;
    }
    if numbers {
        word |= page.frame.number();
    }
    word
}

impl Window {
    fn read_memory(&self, map: &Map, from: u64, to: &mut dyn Sink) -> Result<usize> {
        let mut buffer = nucleus::try_filled(PAGE_SIZE, 0)?;
        let mut done = 0;
        while to.room() > 0 {
            let at = from.checked_add(done as u64).ok_or(Errno::EIO)?;
            let want = to.room().min(PAGE_SIZE - at as usize % PAGE_SIZE);
            let there = map.read(VirtAddr(at as usize), &mut buffer[..want]);
            if there == 0 {
                return fbuf::moved(done, Err(Errno::EIO));
            }
            match to.put_bytes(&buffer[..there]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return fbuf::moved(done, Err(error)),
            }
        }
        Ok(done)
    }

    fn read_pages(&self, map: &Map, from: u64, numbers: bool, to: &mut dyn Sink) -> Result<usize> {
        const WORD: usize = size_of::<u64>();
        if !from.is_multiple_of(WORD as u64) || !to.room().is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let mut done = 0;
        while to.room() > 0 {
            let page = from.saturating_add(done as u64) / WORD as u64;
            let address = page.saturating_mul(PAGE_SIZE as u64);
            if address > USER_END.0 as u64 {
                break;
            }
            let word = describe(map, VirtAddr(address as usize), numbers);
            match to.put_bytes(&word.to_le_bytes()) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return fbuf::moved(done, Err(error)),
            }
        }
        Ok(done)
    }
}

impl File for Window {
    fn read(&self, at: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if !flags.reads() {
            return Err(Errno::EBADF);
        }
        let from = at.unwrap_or_else(|| self.position.load(Relaxed));
        let Some(map) = self.map.upgrade() else {
            return Ok(0);
        };
        let n = match self.view {
            View::Memory => self.read_memory(&map, from, to)?,
            View::Pages { numbers } => self.read_pages(&map, from, numbers, to)?,
        };
        if at.is_none() {
            self.position.store(from + n as u64, Relaxed);
        }
        Ok(n)
    }

    fn write(&self, at: Option<u64>, flags: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        if !flags.writes() {
            return Err(Errno::EBADF);
        }
        if self.view != View::Memory {
            return Err(Errno::EINVAL);
        }
        let to = at.unwrap_or_else(|| self.position.load(Relaxed));
        let Some(map) = self.map.upgrade() else {
            return Ok(0);
        };
        let mut buffer = nucleus::try_filled(PAGE_SIZE, 0)?;
        let mut done = 0;
        while from.left() > 0 {
            let at = to.checked_add(done as u64).ok_or(Errno::EIO)?;
            let want = from.left().min(PAGE_SIZE - at as usize % PAGE_SIZE);
            let taken = match from.take_bytes(&mut buffer[..want]) {
                Ok(0) => break,
                Ok(taken) => taken,
                Err(error) => return fbuf::moved(done, Err(error)),
            };
            let written = map.write(VirtAddr(at as usize), &buffer[..taken]);
            done += written;
            if written < taken {
                return fbuf::moved(done, Err(Errno::EIO));
            }
        }
        if at.is_none() {
            self.position.store(to + done as u64, Relaxed);
        }
        Ok(done)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        let to = match whence {
            SEEK_SET => offset as u64,
            SEEK_CUR => self.position.load(Relaxed).wrapping_add_signed(offset),
            _ => return Err(Errno::EINVAL),
        };
        self.position.store(to, Relaxed);
        Ok(to)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn attributes(&self) -> Result<Attributes> {
        self.location.attributes()
    }
}
