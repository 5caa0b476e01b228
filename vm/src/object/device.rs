//! The device pager: memory that is not RAM, mapped where it lies (`uvm.txt` 4, 6).

use alloc::sync::Arc;
use nucleus::{DeviceMemory, OutOfMemory};

use super::Object;
use super::pager::{Description, Lookup, Pager, PagerError};

/// The memory of a device. Its pages never become resident: a fault asks for each of them and maps
/// it, and nothing evicts, copies or writes them back. The kernel itself does not reach them, so
/// calls that transfer a program's memory by its frames fail with `EFAULT`, as on Linux.
pub struct DeviceObject {
    object: Object,
    memory: DeviceMemory,
    description: Description,
}

impl DeviceObject {
    /// Returns an object of this memory, which `/proc/PID/maps` shows as `description`.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the kernel's memory is scarce.
    pub fn new(
        memory: DeviceMemory,
        description: Description,
    ) -> Result<Arc<DeviceObject>, OutOfMemory> {
        nucleus::frame::check_not_scarce()?;
        Ok(Arc::new(DeviceObject {
            object: Object::new(),
            memory,
            description,
        }))
    }
}

impl Pager for DeviceObject {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        let page = self.memory.page(index);
        page.map(Lookup::Device).ok_or(PagerError::BeyondEnd)
    }

    fn page_in(&self, _: u64, _: core::ops::Range<u64>) -> Result<(), PagerError> {
        Ok(())
    }

    fn prefetch(&self, _: core::ops::Range<u64>) {}

    fn describe(&self) -> Description {
        self.description.clone()
    }
}
