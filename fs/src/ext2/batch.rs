//! A batch of requests to a device, and the wait for all of them.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use abi::Result;
use nucleus::{
    sync::{Rank, SpinLock},
    task::WaitQueue,
};

use crate::block::Done;

/// Requests that each carry a value of type `T`, which is returned if they fail.
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
    /// Returns an empty batch.
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

    /// Adds a request that carries `it`; returns its completion.
    pub fn expect(&self, it: T) -> Done {
        self.0.state.lock().under_way += 1;
        let shared = self.0.clone();
        Box::new(move |result| {
            // A value that is not returned is dropped before the waiter can see the end.
            let failed = result.is_err().then_some(it);
            let mut state = shared.state.lock();
            state.under_way -= 1;
            state.result = state.result.and(result);
            state.failed.extend(failed);
            let last = state.under_way == 0;
            drop(state);
            if last {
                shared.queue.wake_all();
            }
        })
    }

    /// Sleeps until all requests have ended. Returns one of the errors, and the values of failed
    /// requests.
    pub fn wait(self) -> (Result<()>, Vec<T>) {
        let ended = || {
            let mut state = self.0.state.lock();
            let all = state.under_way == 0;
            all.then(|| (state.result, core::mem::take(&mut state.failed)))
        };
        self.0.queue.wait_soundly(ended)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use abi::Errno;
    use nucleus::{
        sim::{self, Config},
        task,
    };

    use super::*;
    use crate::support::Tasks;

    /// A value that takes long to drop.
    struct Carried(Arc<AtomicUsize>);

    impl Drop for Carried {
        fn drop(&mut self) {
            for _ in 0..50 {
                task::yield_now();
            }
            self.0.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn a_waiter_finds_nothing_that_was_carried() {
        sim::check("batch", 0..4, Config::default(), || {
            let left = Arc::new(AtomicUsize::new(3));
            let (batch, tasks) = (Batch::new(), Arc::new(Tasks::default()));
            for result in [Ok(()), Err(Errno::EIO), Ok(())] {
                let done = batch.expect(Carried(left.clone()));
                tasks.begin(move || done(result));
            }
            let (result, failed) = batch.wait();
            assert_eq!((result, failed.len()), (Err(Errno::EIO), 1));
            assert_eq!(left.load(SeqCst), 1, "only what failed is there yet");
            drop(failed);
        });
    }
}
