//! The pager of mappings whose pages a call gives them (`TCP_ZEROCOPY_RECEIVE`).

use core::ops::Range;

use alloc::sync::Arc;
use nucleus::{OutOfMemory, frame};

use super::Object;
use super::pager::{Description, Lookup, Pager, PagerError};

/// An object without pages. Its mappings are private and read-only, their pages are anons that
/// [`Map::show`](crate::Map::show) puts there, and a fault elsewhere is SIGBUS.
pub struct GivenPages {
    object: Object,
    description: Description,
}

impl GivenPages {
    /// Returns an object that `/proc/PID/maps` shows as `description`.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the kernel's memory is scarce.
    pub fn new(description: Description) -> Result<Arc<GivenPages>, OutOfMemory> {
        frame::check_not_scarce()?;
        Ok(Arc::new(GivenPages {
            object: Object::new(),
            description,
        }))
    }
}

impl Pager for GivenPages {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, _: u64) -> Result<Lookup, PagerError> {
        Err(PagerError::BeyondEnd)
    }

    fn page_in(&self, _: u64, _: Range<u64>) -> Result<(), PagerError> {
        Err(PagerError::BeyondEnd)
    }

    fn prefetch(&self, _: Range<u64>) {}

    fn shows_given_pages(&self) -> bool {
        true
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }
}
