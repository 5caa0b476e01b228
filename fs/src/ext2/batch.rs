//! Several requests to a device, and one who waits for all of them.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use abi::Result;
use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use crate::block::Done;

/// Requests that carry something of type `T`, which comes back if they fail.
pub(super) struct Batch<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: SpinLock<State<T>>,
    queue: WaitQueue,
}

struct State<T> {
    under_way: usize,
    result: Result<()>,
    failed: Vec<T>,
}

impl<T: Send + 'static> Batch<T> {
    /// No requests.
    pub fn new() -> Batch<T> {
        let state = State {
            under_way: 0,
            result: Ok(()),
            failed: Vec::new(),
        };
        Batch(Arc::new(Shared {
            state: SpinLock::new(Rank::Leaf, state),
            queue: WaitQueue::new(),
        }))
    }

    /// What one more request, which carries `it`, calls at its end.
    pub fn expect(&self, it: T) -> Done {
        self.0.state.lock().under_way += 1;
        let shared = self.0.clone();
        Box::new(move |result| {
            let mut state = shared.state.lock();
            state.under_way -= 1;
            let mut done = Some(it);
            if let Err(error) = result {
                state.result = Err(error);
                state.failed.extend(done.take());
            }
            let last = state.under_way == 0;
            drop(state);
            drop(done);
            if last {
                shared.queue.wake_all();
            }
        })
    }

    /// Sleeps until all have ended. One of the errors, and what the failed ones carried.
    pub fn wait(self) -> (Result<()>, Vec<T>) {
        let ended = || {
            let mut state = self.0.state.lock();
            let all = state.under_way == 0;
            all.then(|| (state.result, core::mem::take(&mut state.failed)))
        };
        loop {
            // A sound sleep ends only when what it waits for is there.
            if let Ok(result) = self.0.queue.wait(Sleep::SOUND, ended) {
                return result;
            }
        }
    }
}
