//! Guards that keep a file open for writing, or running.

use alloc::sync::Arc;

use abi::Result;

use crate::Vnode;

/// While it lives, the file may be written and not be executed.
pub type Writing = DenyGuard<1>;

/// While it lives, the file runs and can't be opened for writing.
pub type Running = DenyGuard<-1>;

/// A step of the vnode's [`DenyWrite`](crate::DenyWrite) that its drop takes back.
pub struct DenyGuard<const STEP: i32>(Arc<dyn Vnode>);

impl<const STEP: i32> DenyGuard<STEP> {
    /// Begins to write or to run `vnode`.
    ///
    /// # Errors
    /// `ETXTBSY` while the other is done.
    pub fn begin(vnode: &Arc<dyn Vnode>) -> Result<DenyGuard<STEP>> {
        if let Some(count) = vnode.deny_write() {
            count.enter(STEP)?;
        }
        Ok(DenyGuard(vnode.clone()))
    }
}

impl<const STEP: i32> Drop for DenyGuard<STEP> {
    fn drop(&mut self) {
        if let Some(count) = self.0.deny_write() {
            count.leave(STEP);
        }
    }
}
