//! Handles to locations (`O_PATH`).

use abi::{Errno, Result};
use fbuf::{Sink, Source};

use crate::{Attributes, Location, vnode::Emit};
use crate::{File, OpenFlags, Ready};

/// A handle to a location, for `fstat`, `fchdir` and the `*at` calls; it can't be read or written.
pub struct PlaceFile {
    location: Location,
}

impl PlaceFile {
    /// Creates a handle to `location`.
    pub fn new(location: Location) -> PlaceFile {
        PlaceFile { location }
    }
}

impl File for PlaceFile {
    fn read(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EBADF)
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Source) -> Result<usize> {
        Err(Errno::EBADF)
    }

    fn seek(&self, _: i64, _: u32) -> Result<u64> {
        Err(Errno::EBADF)
    }

    fn poll<'a>(&'a self, _: Option<&mut dyn nucleus::task::Watch<'a>>) -> Ready {
        Ready::NVAL
    }

    fn ioctl(&self, _: u32, _: nucleus::VirtAddr) -> Result<usize> {
        Err(Errno::EBADF)
    }

    fn list(&self, _: &mut Emit<'_>) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    fn attributes(&self) -> Result<Attributes> {
        self.location.attributes()
    }

    fn pager(&self) -> Result<alloc::sync::Arc<dyn vm::Pager>> {
        Err(Errno::EBADF)
    }
}
