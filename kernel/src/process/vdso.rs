//! The object that programs call for the time, in each address space.

use alloc::sync::Arc;

use abi::Result;
use nucleus::{Frame, PAGE_SIZE, Prot, VirtAddr, sync::OnceBox, vdso};
use vm::{Backing, Map, MapRequest, Object, Pager, PagerError, Place};

use super::image::no_memory;

/// The pages of `nucleus::vdso` as an object.
struct Pages {
    object: Object,
}

impl Pager for Pages {
    fn object(&self) -> &Object {
        &self.object
    }

    fn get(&self, index: u64) -> core::result::Result<Frame, PagerError> {
        let frame = usize::try_from(index)
            .ok()
            .and_then(|at| vdso::pages().get(at))
            .ok_or(PagerError::BeyondEnd)?;
        self.object.get_or_insert(index, || Ok(frame.clone()))
    }
}

/// Maps the numbers and the object; gives the object's address, 0 if this machine has none.
///
/// # Errors
/// `ENOMEM`.
pub fn map(map: &Map) -> Result<VirtAddr> {
    static PAGES: OnceBox<Arc<Pages>> = OnceBox::new();
    let count = vdso::pages().len();
    if count < 2 {
        return Ok(VirtAddr(0));
    }
    let pager = PAGES.get_or_insert(|| {
        alloc::boxed::Box::new(Arc::new(Pages {
            object: Object::new(),
        }))
    });
    let part = |first: usize, pages: usize, prot: Prot| MapRequest {
        backing: Backing::Object {
            pager: pager.clone(),
            offset: (first * PAGE_SIZE) as u64,
        },
        ..MapRequest::zero(pages * PAGE_SIZE, prot)
    };
    // Room for both, of which the object then takes its part.
    let numbers = map
        .map(MapRequest {
            max_prot: Prot::READ,
            label: "[vvar]",
            ..part(0, count, Prot::READ)
        })
        .map_err(no_memory)?;
    let object = numbers + PAGE_SIZE;
    map.map(MapRequest {
        place: Place::Fixed(object),
        label: "[vdso]",
        ..part(1, count - 1, Prot::READ | Prot::EXEC)
    })
    .map_err(no_memory)?;
    Ok(object)
}
