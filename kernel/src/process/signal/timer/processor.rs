//! Timers of processor time, and `RLIMIT_CPU`: looked at when the clock's tick has interrupted a
//! thread; the timers also after calls, once a tick, for a program that spends its time in the
//! kernel.

use core::sync::atomic::Ordering::Relaxed;

use abi::raw::general as raw;

use nucleus::time;

use super::{
    expiry::send,
    list::{Clock, Id, Notify, TICK, Timers},
};
use crate::process::{
    Thread,
    signal::{Info, send_to_process},
};

impl Timers {
    /// Expires timers of processor time if there are any and a tick has passed since they were
    /// looked at. Called after each call, so it costs one load where there are none.
    #[inline]
    pub fn check_after_call(&self, thread: &Thread) {
        if !self.processor.load(Relaxed) {
            return;
        }
        let tick = time::since_boot().as_nanos() as u64 / TICK.as_nanos() as u64;
        if self.looked_at.swap(tick, Relaxed) != tick {
            self.check_processor_time(thread);
        }
    }

    /// Expires timers of processor time and enforces `RLIMIT_CPU`. Called after each tick that
    /// interrupted a thread of the process.
    pub fn check_processor_time(&self, thread: &Thread) {
        let process = thread.process();
        let limit = process.limits().get(raw::RLIMIT_CPU);
        if !self.processor.load(Relaxed) && limit.soft == u64::MAX {
            return;
        }
        let times = process.times();
        let seconds = times.total().as_secs();
        if seconds >= limit.hard {
            process.signals.end(raw::SIGKILL as i32);
        } else if seconds >= limit.soft {
            // Once a second from now on.
            let mut next = limit;
            next.soft = seconds + 1;
            process.limits().set(raw::RLIMIT_CPU, next);
            let _ = send_to_process(process, Info::kernel(raw::SIGXCPU));
        }
        if !self.processor.load(Relaxed) {
            return;
        }
        let own = thread.times().total();
        let mut due: [Option<(Id, u64, Notify, i32)>; 4] = [None; 4];
        let mut running = false;
        {
            let mut list = self.list.lock();
            let mut slots = due.iter_mut();
            for timer in list.iter_mut() {
                let now = match timer.clock {
                    Clock::Processor { kernel_too: true } => times.total(),
                    Clock::Processor { kernel_too: false } => times.user,
                    Clock::Thread(of) if of.number == thread.lasting_id().number => own,
                    // Its own ticks find it.
                    Clock::Thread(_) => {
                        running |= timer.deadline.is_some();
                        continue;
                    }
                    Clock::Boot | Clock::Epoch => continue,
                };
                running |= timer.deadline.is_some();
                // Those that find no slot expire at the next tick.
                if timer.deadline.is_some_and(|d| d <= now)
                    && let Some(slot) = slots.next()
                {
                    let missed = timer.advance(now);
                    timer.sending += 1;
                    *slot = Some((timer.id, timer.generation, timer.notify, missed));
                }
            }
        }
        if !running {
            self.processor.store(false, Relaxed);
        }
        for (id, generation, notify, missed) in due.into_iter().flatten() {
            send(process, id, &notify, missed);
            self.sent(id, generation);
        }
    }
}
