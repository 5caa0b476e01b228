//! Transfers of many pages, in several requests.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use nucleus::{
    frame,
    sync::{Rank, SpinLock},
};

use super::Done;

/// Bytes of a list for which frames that stand together may be needed.
const LARGE: usize = 2048;

/// A transfer in several requests.
pub struct Transfer {
    state: SpinLock<TransferState>,
}

struct TransferState {
    /// And one for the task that starts them.
    under_way: usize,
    result: Result<()>,
    done: Option<Done>,
}

impl Transfer {
    /// One end is to come: that of the task that starts it.
    pub fn new(done: Done) -> Arc<Transfer> {
        Arc::new(Transfer {
            state: SpinLock::new(
                Rank::Leaf,
                TransferState {
                    under_way: 1,
                    result: Ok(()),
                    done: Some(done),
                },
            ),
        })
    }

    /// Returns the completion of one more request.
    pub fn expect(self: &Arc<Transfer>) -> Done {
        self.state.lock().under_way += 1;
        let transfer = self.clone();
        Box::new(move |result| transfer.end(result))
    }

    /// Ends a part of it; the last one completes the transfer.
    pub fn end(&self, result: Result<()>) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        if result.is_err() {
            state.result = result;
        }
        let told = match state.under_way {
            0 => state.done.take().map(|done| (done, state.result)),
            _ => None,
        };
        drop(state);
        if let Some((done, result)) = told {
            done(result);
        }
    }
}

/// Makes room for more in a list that a transfer takes. When memory is scarce, a list must not be
/// longer than a small object of the heap, which there is as long as the reserve lasts: shorter
/// transfers, each half as long as one that was refused, have such lists. So pages can be written
/// from a memory without two neighbouring free frames.
pub(crate) fn make_room<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    let bytes = (list.len() + more) * size_of::<T>();
    if bytes > LARGE && list.capacity() - list.len() < more && frame::is_scarce() {
        return Err(Errno::ENOMEM);
    }
    list.try_reserve(more).map_err(|_| Errno::ENOMEM)
}
