//! The object that programs call for the time, in each address space.

use alloc::sync::Arc;

use abi::Result;
use nucleus::{PAGE_SIZE, Prot, VirtAddr, sync::OnceBox, vdso};
use vm::{Backing, Lookup, Map, MapRequest, Object, Pager, PagerError};

use super::image::no_memory;

struct Pages {
    object: Object,
}

impl Pager for Pages {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> core::result::Result<Lookup, PagerError> {
        let frame = usize::try_from(index)
            .ok()
            .and_then(|at| vdso::pages().get(at))
            .ok_or(PagerError::BeyondEnd)?;
        self.object.get_or_insert(index, || Ok(frame.clone()))
    }
}

/// Maps the object and the numbers behind it; gives the object's address, 0 if this machine has
/// none.
///
/// One entry has both (`uvm.txt` 3.2: a map with fewer entries is searched, copied and torn down
/// sooner), so a program could run the numbers as well as read them. The mapping is private: writes
/// after an `mprotect` change the program's own copy.
///
/// # Errors
/// `ENOMEM`.
pub fn map(map: &Map) -> Result<VirtAddr> {
    static PAGES: OnceBox<Arc<Pages>> = OnceBox::new();
    let count = vdso::pages().len();
    if count == 0 {
        return Ok(VirtAddr(0));
    }
    let pager = PAGES.get_or_insert(|| {
        alloc::boxed::Box::new(Arc::new(Pages {
            object: Object::new(),
        }))
    });
    let request = MapRequest {
        backing: Backing::Object {
            pager: pager.clone(),
            offset: 0,
        },
        label: "[vdso]",
        ..MapRequest::zero(count * PAGE_SIZE, Prot::READ | Prot::EXEC)
    };
    map.map(request).map_err(no_memory)
}
