//! The pagedaemon's task.
//!
//! It sleeps until allocations report that fewer than `low` frames are free, then reclaims in
//! rounds until `high` are free, counting pages that are being written. The yield of a round
//! decides about the next: a low yield raises the [`Urgency`]; no yield at the highest urgency with
//! nothing under way means that memory is exhausted, and the waiters are told.
//!
//! A round allocates only the block layer's requests, from the kernel's reserve, and the bound on
//! pages under way ([`IN_FLIGHT`]) bounds these.

use crate::counters::Counter;
use alloc::boxed::Box;
use core::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    time::Duration,
};
use nucleus::{
    OutOfMemory, frame, heap,
    task::{self, Priority, Sleep, Spawn, WaitQueue},
    time,
};

use super::scan::{Scan, Tally, Urgency};
use super::{anonymous, caches};
use crate::chunks::Hand;
use crate::map::SPACES;
use crate::{memory_wait, swap};

/// The most pages under writeback: 8 MiB, or an eighth of a small machine. More would not speed
/// disks up, and such pages cannot be used yet.
const IN_FLIGHT: usize = 2048;
/// The most pages that a round reclaims, so that waiters are served in between.
const ROUND: usize = 512;
/// Pages inspected for each page wanted.
const EFFORT: usize = 16;
/// How long it waits for a write to end.
const TURN: Duration = Duration::from_millis(10);
/// How long the weights of address spaces are valid, and how many times as long as it took to work
/// them out, which costs a look at each page table: programs may have many.
const WEIGHED: Duration = Duration::from_millis(100);
const WEIGHED_TIMES: u32 = 20;
/// How long it pauses after a round without any yield.
const REST: Duration = Duration::from_millis(20);

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);
/// A write has ended since the last check.
static ARRIVED: AtomicBool = AtomicBool::new(false);
static STOPPED: WaitQueue = WaitQueue::new();

/// Starts the pagedaemon's task, before the first program.
///
/// # Errors
/// No memory for it.
pub fn start_pagedaemon() -> Result<(), OutOfMemory> {
    let spawn = Spawn {
        name: "pagedaemon",
        pmap: None,
        attachment: None,
        cpus: !0,
        // Other tasks wait for its progress.
        priority: Priority::Share(-10),
    };
    STATE.store(RUNNING, SeqCst);
    memory_wait::set_running(true);
    task::spawn(spawn, Box::new(|| Daemon::new().run())).map(drop)
}

/// Stops the pagedaemon's task, waits for its end, and forgets all caches: for a machine that
/// starts again (tests).
pub fn stop_pagedaemon() {
    memory_wait::set_running(false);
    if STATE.swap(STOPPING, SeqCst) != IDLE {
        arrived();
        STOPPED.wait_soundly(|| (STATE.load(SeqCst) == IDLE).then_some(()));
    }
    STATE.store(IDLE, SeqCst);
    caches::forget_all();
}

/// Notes that writes have ended: their frames are free.
pub(crate) fn arrived() {
    ARRIVED.store(true, SeqCst);
    frame::report_shortage();
}

/// State kept from one round to the next.
struct Daemon {
    spaces: Hand,
    anonymous: anonymous::Clocks,
    urgency: Urgency,
    /// Until when the weights are valid.
    weighed_until: Duration,
    /// Rounds in a row without yield at the highest urgency.
    failures: usize,
}

/// The outcome of a round.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    /// Enough frames are free, or will be once the writes under way have ended.
    Enough,
    /// Some pages were reclaimed.
    Progress,
    /// None was, but writes are under way.
    Waiting,
    /// None was, and no writes are under way.
    Nothing,
}

impl Daemon {
    fn new() -> Daemon {
        Daemon {
            spaces: Hand::default(),
            anonymous: anonymous::Clocks::new(),
            urgency: Urgency::Calm,
            weighed_until: Duration::ZERO,
            failures: 0,
        }
    }

    fn run(mut self) {
        while !is_stopping() {
            self.await_work();
            self.replenish();
        }
        self.anonymous.flush();
        while under_way() > 0 {
            task::yield_now();
        }
        STATE.store(IDLE, SeqCst);
        STOPPED.wake_all();
    }

    /// Sleeps until memory is short or the task is to stop. Meanwhile gives back page tables that
    /// are kept and nothing needs, now and then as long as there are some.
    fn await_work(&self) {
        let mut look_at: Option<Duration> = None;
        loop {
            let has_tables = Cell::new(false);
            let woken = frame::await_shortage(look_at.map_or(Sleep::SOUND, Sleep::until), || {
                has_tables.set(look_at.is_none() && frame::has_unneeded_tables());
                let is_needed =
                    ARRIVED.swap(false, SeqCst) || memory_wait::is_awaited() || is_stopping();
                if is_needed {
                    has_tables.set(false);
                }
                is_needed || has_tables.get()
            });
            let again = match woken {
                Ok(()) if has_tables.get() => true,
                Ok(()) => return,
                Err(_) => frame::age_tables(),
            };
            look_at = again.then(|| time::since_boot() + frame::TABLE_PERIOD);
        }
    }

    /// Reclaims until enough frames are free or none can be freed.
    fn replenish(&mut self) {
        Counter::pageout_runs.add(1);
        heap::trim();
        if frame::available() < frame::targets().low {
            frame::drain_tables();
        }
        loop {
            if is_stopping() {
                return;
            }
            let outcome = self.round();
            if outcome != Outcome::Progress {
                // The gathered cluster is written without waiting for more pages.
                self.anonymous.flush();
            }
            memory_wait::replenished();
            match outcome {
                Outcome::Enough => {
                    (self.urgency, self.failures) = (Urgency::Calm, 0);
                    let short =
                        frame::available() < frame::targets().low || memory_wait::is_awaited();
                    if under_way() == 0 || !short {
                        if !memory_wait::is_awaited() {
                            memory_wait::forget_old_extra();
                        }
                        return;
                    }
                    pause(TURN);
                }
                Outcome::Progress => self.failures = 0,
                Outcome::Waiting => pause(TURN),
                Outcome::Nothing => match self.urgency.more() {
                    Some(more) => self.urgency = more,
                    None => {
                        self.failures += 1;
                        // A single failure may be transient: a chunk was locked, or an address
                        // space was being weighed.
                        if self.failures > 1 {
                            self.urgency = Urgency::Calm;
                            // Removals of swap devices are given up first.
                            if swap::refuse_removals() {
                                self.failures = 0;
                                continue;
                            }
                            memory_wait::exhausted();
                        }
                        rest();
                        if !memory_wait::is_awaited() {
                            return;
                        }
                    }
                },
            }
        }
    }

    /// One round.
    fn round(&mut self) -> Outcome {
        let targets = frame::targets();
        let free = frame::available();
        let on_the_way = under_way();
        let missing = (targets.high + memory_wait::extra()).saturating_sub(free + on_the_way);
        if missing == 0 {
            return Outcome::Enough;
        }
        self.weigh();
        let wanted = missing.min(ROUND);
        let done = self.reclaim(wanted, in_flight_limit().saturating_sub(on_the_way));
        if done.freed * 4 < wanted
            && let Some(more) = self.urgency.more()
            && done.freed > 0
        {
            self.urgency = more;
        } else if done.freed * 2 >= wanted {
            self.urgency = Urgency::Calm;
        }
        match done.freed {
            0 if on_the_way > 0 => Outcome::Waiting,
            0 => Outcome::Nothing,
            _ => Outcome::Progress,
        }
    }

    /// Reclaims file pages and anonymous pages in proportion, then the rest from either. At most
    /// `writes` pages are written.
    fn reclaim(&mut self, wanted: usize, writes: usize) -> Tally {
        let effort = match self.urgency {
            Urgency::Desperate => usize::MAX,
            _ => wanted.saturating_mul(EFFORT),
        };
        let files = caches::pages();
        let anonymous = frame::usage().data.saturating_sub(files);
        let mut scan = Scan::new(0, effort, self.urgency);
        // File pages count twice: one read often brings many back.
        let of_files = match anonymous::can_go() {
            true => (wanted * 2 * files).div_ceil((2 * files + anonymous).max(1)),
            false => wanted,
        };
        scan.extend(of_files.min(wanted), effort);
        caches::reclaim(&mut scan);
        scan.extend(wanted, effort);
        self.anonymous.reclaim(&mut scan, anonymous, writes);
        if !scan.is_done() && of_files < wanted {
            caches::reclaim(&mut scan);
        }
        scan.tally
    }

    /// Weighs the address spaces by their resident pages.
    fn weigh(&mut self) {
        let start = time::since_boot();
        if start < self.weighed_until {
            return;
        }
        self.spaces = Hand::default();
        while let Some(pmap) = SPACES.next(&mut self.spaces) {
            let pages = pmap.resident().pages;
            pmap.set_weight(u32::try_from(pages).unwrap_or(u32::MAX));
        }
        let end = time::since_boot();
        self.weighed_until = end + WEIGHED.max((end - start) * WEIGHED_TIMES);
    }
}

fn is_stopping() -> bool {
    STATE.load(SeqCst) == STOPPING
}

/// Pages under writeback.
fn under_way() -> usize {
    anonymous::in_flight() + caches::in_flight()
}

fn in_flight_limit() -> usize {
    IN_FLIGHT.min(frame::total() / 8).max(32)
}

/// Waits briefly for a write to end.
fn pause(most: Duration) {
    let how = Sleep::within(most);
    let _ = frame::await_shortage(how, || ARRIVED.swap(false, SeqCst) || is_stopping());
}

/// Lets other tasks run, which may free memory.
fn rest() {
    task::sleep(Sleep::within(REST));
}
