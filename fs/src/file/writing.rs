//! Guards that keep a file open for writing, or running.

use alloc::sync::Arc;

use abi::Result;

use crate::Vnode;

/// A count in the vnode that its drop takes back.
struct Held {
    vnode: Arc<dyn Vnode>,
    step: i32,
}

impl Held {
    fn new(vnode: &Arc<dyn Vnode>, step: i32) -> Result<Held> {
        if let Some(count) = vnode.deny_write() {
            count.enter(step)?;
        }
        Ok(Held {
            vnode: vnode.clone(),
            step,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(count) = self.vnode.deny_write() {
            count.leave(self.step);
        }
    }
}

/// While it lives, the file may be written and not be executed.
pub struct Writing {
    _held: Held,
}

impl Writing {
    /// Begins to write `vnode`.
    ///
    /// # Errors
    /// `ETXTBSY` while a program runs it.
    pub fn begin(vnode: &Arc<dyn Vnode>) -> Result<Writing> {
        Held::new(vnode, 1).map(|held| Writing { _held: held })
    }
}

/// While it lives, the file runs and can't be opened for writing.
pub struct Running {
    _held: Held,
}

impl Running {
    /// Begins to run `vnode`.
    ///
    /// # Errors
    /// `ETXTBSY` while it is open for writing.
    pub fn begin(vnode: &Arc<dyn Vnode>) -> Result<Running> {
        Held::new(vnode, -1).map(|held| Running { _held: held })
    }
}
