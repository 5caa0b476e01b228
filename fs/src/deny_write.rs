//! Who writes a file and who runs it, which exclude each other (`ETXTBSY`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::{Errno, Result};

use crate::Vnode;

/// To be embedded in the vnode of a file that can be executed: open files that may write it, or, below zero, programs that
/// run it.
#[derive(Default)]
pub struct DenyWrite {
    count: AtomicI32,
}

impl DenyWrite {
    /// Neither.
    pub const fn new() -> DenyWrite {
        DenyWrite {
            count: AtomicI32::new(0),
        }
    }

    /// One more of the kind that `step` counts, unless there is one of the other kind.
    fn enter(&self, step: i32) -> Result<()> {
        let more = |count: i32| (count * step >= 0).then(|| count.checked_add(step))?;
        self.count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .map(|_| ())
            .map_err(|_| Errno::ETXTBSY)
    }

    /// Whether an open file may write it.
    pub(crate) fn is_written(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn leave(&self, step: i32) {
        self.count.fetch_sub(step, Ordering::AcqRel);
    }
}

/// A right to write, or to run, that ends with its drop.
struct Held {
    vnode: Arc<dyn Vnode>,
    step: i32,
}

impl Held {
    fn new(vnode: &Arc<dyn Vnode>, step: i32) -> Result<Held> {
        if let Some(text) = vnode.deny_write() {
            text.enter(step)?;
        }
        Ok(Held {
            vnode: vnode.clone(),
            step,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(text) = self.vnode.deny_write() {
            text.leave(self.step);
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
    /// `ETXTBSY` while a program runs that is in it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_and_programs_exclude_each_other() {
        let text = DenyWrite::new();
        assert_eq!((text.enter(1), text.enter(1)), (Ok(()), Ok(())));
        assert_eq!(text.enter(-1), Err(Errno::ETXTBSY));
        text.leave(1);
        text.leave(1);
        assert_eq!((text.enter(-1), text.enter(-1)), (Ok(()), Ok(())));
        assert_eq!(text.enter(1), Err(Errno::ETXTBSY));
        text.leave(-1);
        text.leave(-1);
        assert_eq!(text.enter(1), Ok(()));
    }
}
