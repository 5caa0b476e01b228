//! The task behind a device: requests enter its queue, leave it as commands, and complete.

use alloc::{boxed::Box, sync::Arc};
use core::time::Duration;

use crate::counters::Counter;
use abi::Result;
use nucleus::{
    sync::SpinLock,
    task::{Sleep, WaitQueue},
    time,
};

use super::{
    Command, Disk, Limits, Operation, Statistics,
    command::{Completion, Entries, Entry},
    queue::Queue,
};

/// The state that a device's handle, its task and its commands share.
pub(super) struct Core {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) limits: Limits,
    state: SpinLock<State>,
    /// The task's bell where the disk has none.
    bell: WaitQueue,
}

struct State {
    queue: Queue,
    /// Entries whose requests are done and that the task is to complete.
    done: Entries,
    statistics: Statistics,
    /// The last handle of the device is gone.
    dropped: bool,
}

impl Core {
    /// Over a disk with these limits.
    pub(super) fn new(disk: Arc<dyn Disk>, limits: Limits) -> Arc<Core> {
        Arc::new(Core {
            disk,
            limits,
            state: SpinLock::new(
                crate::rank::BLOCK,
                State {
                    queue: Queue::new(),
                    done: Entries::default(),
                    statistics: Statistics::default(),
                    dropped: false,
                },
            ),
            bell: WaitQueue::new(),
        })
    }

    /// Its statistics.
    pub(super) fn statistics(&self) -> Statistics {
        let statistics = self.state.lock().statistics;
        statistics.at(time::since_boot())
    }

    /// Notes that the last handle is gone: the task ends when all requests are done.
    pub(super) fn let_go(&self) {
        self.state.lock().dropped = true;
        self.bell().wake_all();
    }

    pub(super) fn bell(&self) -> &WaitQueue {
        self.disk.bell().unwrap_or(&self.bell)
    }

    /// Queues requests that came together, and starts as many as the disk has room for.
    pub(super) fn put(self: &Arc<Core>, mut entries: Entries) {
        let count = entries.len();
        {
            let mut state = self.state.lock();
            state.statistics.came(count, time::since_boot());
            while let Some(entry) = entries.pop() {
                state.queue.put(entry);
            }
        }
        Counter::disk_requests.add(count as u64);
        self.dispatch();
    }

    /// Tells the disk as much as it has room for.
    fn dispatch(self: &Arc<Core>) {
        loop {
            let taken = self.state.lock().queue.take(&self.limits);
            let Some(entries) = taken else { return };
            let command = Command::new(self.clone(), entries, time::since_boot());
            self.disk.start(command);
            if self.disk.patience().is_some() {
                // The task has to begin looking.
                self.bell().wake_all();
            }
        }
    }

    /// A command is done.
    pub(super) fn conclude(
        self: &Arc<Core>,
        operation: Operation,
        mut entries: Entries,
        result: Result<()>,
    ) {
        let now = time::since_boot();
        let count = entries.len();
        // One of several requests has failed, it is not known which: each is retried alone.
        let again = result.is_err() && count > 1 && operation != Operation::Flush;
        let (mut ended, mut sectors, mut took) = (Entries::default(), 0, Duration::ZERO);
        if !again {
            while let Some(entry) = entries.pop() {
                sectors += entry.request.sectors;
                took += now.saturating_sub(entry.since);
                ended.push(entry);
            }
        }
        {
            let mut state = self.state.lock();
            state.queue.landed(operation);
            while let Some(mut entry) = entries.pop() {
                entry.alone = true;
                state.queue.put(entry);
            }
            if !again {
                state.statistics.went(count, now);
            }
            let tally = state.statistics.of(operation);
            tally.commands += 1;
            if !again {
                tally.merged += count as u64 - 1;
            }
            tally.sectors += sectors;
            tally.time += took;
        }
        match operation {
            Operation::Read => Counter::disk_sectors_read.add(sectors),
            Operation::Write => Counter::disk_sectors_written.add(sectors),
            Operation::Flush => Counter::disk_flushes.add(1),
            Operation::Discard => {}
        }
        // Counted before the completion: the caller finds its own request counted.
        let mut calls = Entries::default();
        while let Some(entry) = ended.pop() {
            if let Some(entry) = entry.settle(result) {
                calls.push(entry);
            }
        }
        let ring = {
            let mut state = self.state.lock();
            while let Some(entry) = calls.pop() {
                state.done.push(entry);
            }
            state.has_work(&self.limits)
        };
        if !again {
            Counter::disk_merged.add(count as u64 - 1);
        }
        if ring {
            self.bell().wake_all();
        }
    }

    /// Completes a request that the disk need not see, in the task.
    pub(super) fn refuse(&self, entry: Box<Entry>, result: Result<()>) {
        if let Some(entry) = entry.settle(result) {
            self.state.lock().done.push(entry);
            self.bell().wake_all();
        }
    }

    /// The device's task.
    pub(super) fn work(self: &Arc<Core>) {
        loop {
            self.disk.reap();
            let mut done = core::mem::take(&mut self.state.lock().done);
            while let Some(mut entry) = done.pop() {
                if let Some(Completion::Call(call)) = entry.completion.take() {
                    call(entry.result);
                }
            }
            self.dispatch();
            let (ends, busy) = {
                let state = self.state.lock();
                (state.ends(), state.queue.in_flight > 0)
            };
            if ends {
                return;
            }
            let patience = self.disk.patience().filter(|_| busy);
            let how = Sleep {
                interruptible: false,
                deadline: patience.map(|patience| time::since_boot() + patience),
            };
            // A timeout is only a reason to look.
            let _ = self.bell().wait(how, || {
                self.disk.reap();
                let state = self.state.lock();
                let looks = busy != (state.queue.in_flight > 0) && self.disk.patience().is_some();
                (state.has_work(&self.limits) || looks).then_some(())
            });
        }
    }
}

impl State {
    /// Whether the task has something to do.
    fn has_work(&self, limits: &Limits) -> bool {
        !self.done.is_empty() || self.queue.has_turn(limits) || self.ends()
    }

    /// Whether the task has nothing more to do, ever.
    fn ends(&self) -> bool {
        self.dropped
            && self.done.is_empty()
            && self.queue.in_flight == 0
            && self.queue.waiting() == 0
    }
}
