//! The open file of a device that only answers requests.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fbuf::{Sink, Source};
use nucleus::VirtAddr;

use crate::{File, Location, OpenFlags, Ready};

/// Answers a request (`ioctl`) with this argument.
pub type Answer = fn(request: u32, argument: VirtAddr) -> Result<usize>;

/// The open file of a device that only answers requests: it has no bytes and is always ready.
pub struct RequestFile {
    location: Location,
    answer: Answer,
}

impl RequestFile {
    /// Returns the file of the device whose node is at `at`.
    pub fn new(at: &Location, answer: Answer) -> Arc<RequestFile> {
        Arc::new(RequestFile {
            location: at.clone(),
            answer,
        })
    }
}

impl File for RequestFile {
    fn read(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, _: &mut dyn Source) -> Result<usize> {
        Err(Errno::EINVAL)
    }

    fn has_readiness(&self) -> bool {
        false
    }

    fn ready_now(&self) -> Option<Ready> {
        Some(Ready::ALWAYS)
    }

    fn ioctl(&self, request: u32, argument: VirtAddr) -> Result<usize> {
        (self.answer)(request, argument)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}
