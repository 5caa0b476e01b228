//! The writers of a file and the programs that run it, which exclude each other (`ETXTBSY`).

use core::sync::atomic::{AtomicI32, Ordering};

use abi::{Errno, Result};

/// A count embedded in vnodes of files that can be executed: of open files that may write it, or,
/// below zero, of programs that run it.
#[derive(Default)]
pub struct DenyWrite {
    count: AtomicI32,
}

impl DenyWrite {
    /// A count of neither.
    pub const fn new() -> DenyWrite {
        DenyWrite {
            count: AtomicI32::new(0),
        }
    }

    /// Adds a writer (1) or a program (-1), unless there is one of the other kind.
    ///
    /// # Errors
    /// `ETXTBSY`.
    pub(crate) fn enter(&self, step: i32) -> Result<()> {
        let more = |count: i32| (count * step >= 0).then(|| count.checked_add(step))?;
        self.count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .map(|_| ())
            .map_err(|_| Errno::ETXTBSY)
    }

    /// Tells whether an open file may write it.
    pub(crate) fn is_written(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Takes an [`enter`](DenyWrite::enter) back.
    pub(crate) fn leave(&self, step: i32) {
        self.count.fetch_sub(step, Ordering::AcqRel);
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
