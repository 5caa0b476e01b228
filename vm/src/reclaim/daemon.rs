//! The task that frees frames.
//!
//! It sleeps until allocations report that fewer than `low` frames are free, then looks for victims in rounds until `high` are, those
//! that are on their way to a disk counted in. What a round gives decides about the next one: when little comes, it is more urgent
//! ([`Urgency`]); when nothing comes in the most urgent one and nothing is on its way either, memory is exhausted, and those
//! who wait for it are told.
//!
//! The task needs no memory for a round but what the block layer needs for a request, which comes from the kernel's reserve; a bound on
//! what is under way ([`IN_FLIGHT`]) bounds that as well.

use alloc::boxed::Box;
use core::{
    sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst},
    time::Duration,
};
use nucleus::{
    OutOfMemory,
    counters::Counter,
    frame,
    task::{self, Priority, Sleep, Spawn, WaitQueue},
    time,
};

use super::scan::{Scan, Tally, Urgency};
use super::{anonymous, caches};
use crate::chunks::Hand;
use crate::map::SPACES;
use crate::{supply, swap};

/// Pages that may be on their way to disks at a time: 8 MiB, or an eighth of a small machine. More would not make disks
/// faster, and each of them is a page that can't be used yet.
const IN_FLIGHT: usize = 2048;
/// Pages that a round looks for at most, so that those who wait are served in between.
const ROUND: usize = 512;
/// Pages that it looks at for each that it looks for.
const EFFORT: usize = 16;
/// How long it waits for something to end that will give frames.
const TURN: Duration = Duration::from_millis(10);
/// How long the weights of address spaces hold.
const WEIGHED: Duration = Duration::from_millis(100);
/// How long it rests after it has found nothing at all.
const REST: Duration = Duration::from_millis(20);

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);
/// Something that was on its way has arrived since the daemon looked.
static ARRIVED: AtomicBool = AtomicBool::new(false);
static STOPPED: WaitQueue = WaitQueue::new();

/// Starts the pagedaemon's task; before the first program.
///
/// # Errors
/// No memory for it.
pub fn start_pagedaemon() -> Result<(), OutOfMemory> {
    let spawn = Spawn {
        name: "pagedaemon",
        pmap: None,
        attachment: None,
        cpus: !0,
        // Others wait for what it does.
        priority: Priority::Share(-10),
    };
    STATE.store(RUNNING, SeqCst);
    supply::set_running(true);
    task::spawn(spawn, Box::new(|| Daemon::new().run())).map(drop)
}

/// Ends the pagedaemon's task, waits for that, and forgets all caches: for a machine that is started again (tests).
pub fn stop_pagedaemon() {
    supply::set_running(false);
    if STATE.swap(STOPPING, SeqCst) != IDLE {
        arrived();
        // A sound sleep ends by its condition.
        let _ = STOPPED.wait(Sleep::SOUND, || (STATE.load(SeqCst) == IDLE).then_some(()));
    }
    STATE.store(IDLE, SeqCst);
    caches::forget_all();
}

/// Pages have arrived where they were written to: their frames are free.
pub(crate) fn arrived() {
    ARRIVED.store(true, SeqCst);
    frame::report_shortage();
}

/// What the daemon remembers from one round to the next.
struct Daemon {
    spaces: Hand,
    anonymous: anonymous::Clocks,
    urgency: Urgency,
    weighed: Option<Duration>,
    /// Rounds in a row that found nothing in the most urgent way.
    failures: usize,
}

/// What became of a round.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    /// There are frames enough, or will be when what is under way has arrived.
    Enough,
    /// Some were found.
    Progress,
    /// None, but something is under way.
    Waiting,
    /// None at all.
    Nothing,
}

impl Daemon {
    fn new() -> Daemon {
        Daemon {
            spaces: Hand::default(),
            anonymous: anonymous::Clocks::new(),
            urgency: Urgency::Calm,
            weighed: None,
            failures: 0,
        }
    }

    fn run(mut self) {
        while !is_stopping() {
            let _ = frame::await_shortage(Sleep::SOUND, || {
                ARRIVED.swap(false, SeqCst) || supply::is_awaited() || is_stopping()
            });
            self.replenish();
        }
        self.anonymous.flush();
        while under_way() > 0 {
            task::yield_now();
        }
        STATE.store(IDLE, SeqCst);
        STOPPED.wake_all();
    }

    /// Frees frames until enough are free or none can be had.
    fn replenish(&mut self) {
        Counter::pageout_runs.add(1);
        loop {
            if is_stopping() {
                return;
            }
            let outcome = self.round();
            if outcome != Outcome::Progress {
                // What was gathered does not wait for more.
                self.anonymous.flush();
            }
            supply::replenished();
            match outcome {
                Outcome::Enough => {
                    (self.urgency, self.failures) = (Urgency::Calm, 0);
                    let short = frame::available() < frame::targets().low || supply::is_awaited();
                    if under_way() == 0 || !short {
                        if !supply::is_awaited() {
                            supply::forget_old_extra();
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
                        // Once may be bad luck: a lock was taken, an address space is about to come back.
                        if self.failures > 1 {
                            self.urgency = Urgency::Calm;
                            // Whoever wanted to do with less swap space can't.
                            if swap::refuse_removals() {
                                self.failures = 0;
                                continue;
                            }
                            supply::exhausted();
                        }
                        rest();
                        if !supply::is_awaited() {
                            return;
                        }
                    }
                },
            }
        }
    }

    /// One look round for some victims.
    fn round(&mut self) -> Outcome {
        let targets = frame::targets();
        let free = frame::available();
        let on_the_way = under_way();
        let missing = (targets.high + supply::extra()).saturating_sub(free + on_the_way);
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

    /// Takes pages of files and anonymous memory by their shares, and what is missing then from whoever has it. `writes`: pages
    /// that may be written out.
    fn reclaim(&mut self, wanted: usize, writes: usize) -> Tally {
        let effort = match self.urgency {
            Urgency::Desperate => usize::MAX,
            _ => wanted.saturating_mul(EFFORT),
        };
        let files = caches::pages();
        let anonymous = frame::usage().data.saturating_sub(files);
        let mut scan = Scan::new(0, effort, self.urgency);
        // Pages of files that can be had again by one read, often of many at once, count twice.
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

    /// Looks how large the address spaces are.
    fn weigh(&mut self) {
        let now = time::since_boot();
        if self.weighed.is_some_and(|then| now - then < WEIGHED) {
            return;
        }
        self.weighed = Some(now);
        self.spaces = Hand::default();
        while let Some(pmap) = SPACES.next(&mut self.spaces) {
            let pages = pmap.resident().pages;
            pmap.set_weight(u32::try_from(pages).unwrap_or(u32::MAX));
        }
    }
}

fn is_stopping() -> bool {
    STATE.load(SeqCst) == STOPPING
}

/// Pages on their way to a disk.
fn under_way() -> usize {
    anonymous::in_flight() + caches::in_flight()
}

fn in_flight_limit() -> usize {
    IN_FLIGHT.min(frame::total() / 8).max(32)
}

/// Waits until something has arrived, but not for long.
fn pause(most: Duration) {
    let how = Sleep {
        interruptible: false,
        deadline: Some(time::since_boot() + most),
    };
    let _ = frame::await_shortage(how, || ARRIVED.swap(false, SeqCst) || is_stopping());
}

/// Lets others run, who may give memory back.
fn rest() {
    task::sleep(Sleep {
        interruptible: false,
        deadline: Some(time::since_boot() + REST),
    });
}
