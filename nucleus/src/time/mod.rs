//! Clocks and timers. Nanoseconds everywhere.
//!
//! Each CPU has a queue of timers, by deadline, and a one-shot timer of the machine that is set to
//! the earliest of them or to the scheduler's tick. The machine's timer is never put off: when what
//! it was set for is cancelled, it fires for nothing and is set anew then, which is cheaper than a
//! write to the timer's register at every cancellation.
//!
//! A timer ends the sleep of one task and does nothing else, so an expiry is a short piece of work
//! in interrupt context, and one interrupt does at most [`MOST_EXPIRIES`] of them. Work at a time
//! is a task's, which sleeps until then.

pub mod vdso;

pub use crate::hw::TICKS_PER_SECOND;

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use sched::pairing_heap::{Link, Linked, PairingHeap};

use crate::{
    cpu::percpu::Restart,
    hw::machine,
    lock::{Rank, SpinLock},
};

/// What to add to the time since boot for the time since the Unix epoch, in nanoseconds.
static EPOCH_AT_BOOT: AtomicU64 = AtomicU64::new(0);

/// Reads the real-time clock. Once, before the first task.
pub(crate) fn init() {
    EPOCH_AT_BOOT.store(machine::epoch_at_boot(), Ordering::Relaxed);
}

/// Time since boot, monotonic, the same on all CPUs.
pub fn since_boot() -> Duration {
    Duration::from_nanos(machine::nanoseconds())
}

/// Time since the Unix epoch, from the real-time clock at boot plus [`since_boot`] plus what was
/// set.
pub fn since_epoch() -> Duration {
    Duration::from_nanos(EPOCH_AT_BOOT.load(Ordering::Relaxed)) + since_boot()
}

/// Sets the time since the Unix epoch (`clock_settime`). A time before the machine's boot is taken
/// as that.
pub fn set_since_epoch(now: Duration) {
    vdso::publish(|| {
        let at_boot = nanos(now).saturating_sub(machine::nanoseconds());
        EPOCH_AT_BOOT.store(at_boot, Ordering::Relaxed);
        at_boot
    });
}

/// Tells programs what time it is.
#[cfg(target_os = "none")]
pub(crate) fn publish() {
    vdso::publish(|| EPOCH_AT_BOOT.load(Ordering::Relaxed));
}

/// As nanoseconds; what is more than 584 years is for ever.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Expiries in one interrupt. When more are due, the CPU first does other work for as long as these
/// took: it has half of its time left however many tasks sleep until one moment.
const MOST_EXPIRIES: usize = 32;

/// The timer of a sleeper, in the queue of the CPU on which it was started.
pub(crate) struct TimerNode {
    /// Lock of the queue.
    link: Link<NodeRef>,
    /// Lock of the queue; atomic so that a shared reference can change it.
    queued: AtomicBool,
    expired: AtomicBool,
    /// The CPU of its queue; set at the start.
    cpu: AtomicUsize,
    wake: unsafe fn(*const ()),
    /// What `wake` is called with; it outlives the timer.
    sleeper: *const (),
}

// SAFETY: what is not atomic is changed under the lock of a timer queue only, and a sleeper's task
// is `Sync` and outlives its node.
unsafe impl Send for TimerNode {}
// SAFETY: as above.
unsafe impl Sync for TimerNode {}

/// A handle to a timer that is queued, or about to be.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct NodeRef(NonNull<TimerNode>);

impl NodeRef {
    /// A handle to a timer.
    ///
    /// # Safety
    /// The timer lives as long as the handle and its copies, those in a queue included. The caller
    /// holds the lock of the timer's queue whenever it uses [`link`](Linked::link).
    unsafe fn new(node: &TimerNode) -> NodeRef {
        NodeRef(NonNull::from(node))
    }
}

impl Linked for NodeRef {
    #[inline]
    fn link(&self) -> &Link<NodeRef> {
        // SAFETY: `new`'s promise.
        unsafe { &self.0.as_ref().link }
    }
}

struct Timers {
    heap: PairingHeap<NodeRef>,
    /// The timer whose sleeper is woken now.
    firing: *const TimerNode,
}

// SAFETY: `firing` is only compared, and only under the lock followed.
unsafe impl Send for Timers {}

#[repr(align(64))]
struct CpuTimers {
    timers: SpinLock<Timers>,
    /// When the machine's timer will fire, `u64::MAX` if it will not. Its own CPU's, interrupts
    /// off.
    programmed: AtomicU64,
    /// When the scheduler wants its tick, `u64::MAX` if it does not. Its own CPU's, interrupts off.
    tick: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl CpuTimers {
    const fn new() -> CpuTimers {
        CpuTimers {
            timers: SpinLock::new(
                Rank::Timers,
                Timers {
                    heap: PairingHeap::new(),
                    firing: ptr::null(),
                },
            ),
            programmed: AtomicU64::new(NEVER),
            tick: AtomicU64::new(NEVER),
        }
    }

    /// Makes the machine's timer fire at `deadline` or earlier. On its own CPU, interrupts off.
    fn program(&self, deadline: u64) {
        if deadline < self.programmed.load(Ordering::Relaxed) {
            self.programmed.store(deadline, Ordering::Relaxed);
            machine::set_timer(Some(deadline));
        }
    }
}

static CPUS: [Restart<CpuTimers>; machine::MAX_CPUS] =
    [const { Restart::new(CpuTimers::new()) }; machine::MAX_CPUS];

impl TimerNode {
    /// A timer that wakes a sleeper by `wake(sleeper)`.
    ///
    /// # Safety
    /// The call is sound in interrupt context, on any CPU, as long as the timer lives.
    pub(crate) const unsafe fn for_sleeper(
        wake: unsafe fn(*const ()),
        sleeper: *const (),
    ) -> TimerNode {
        TimerNode {
            link: Link::new(),
            queued: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            cpu: AtomicUsize::new(0),
            wake,
            sleeper,
        }
    }

    /// Whether the time has come.
    pub(crate) fn has_expired(&self) -> bool {
        self.expired.load(Ordering::SeqCst)
    }

    /// Puts it into the queue of this CPU. Once in its life.
    ///
    /// # Safety
    /// It stays alive and in place until [`cancel`](TimerNode::cancel) has returned.
    pub(crate) unsafe fn start(&self, deadline: Duration) {
        let deadline = nanos(deadline);
        let irqs = machine::irqs_disable();
        let cpu = machine::cpu();
        self.cpu.store(cpu, Ordering::Relaxed);
        let own = &CPUS[cpu];
        {
            let mut timers = own.timers.lock_irq();
            self.queued.store(true, Ordering::Relaxed);
            // SAFETY: alive by this function's contract. In no heap, since this is its first start.
            timers.heap.insert(unsafe { NodeRef::new(self) }, deadline);
        }
        own.program(deadline);
        machine::irqs_restore(irqs);
    }

    /// Takes it out of its queue, or waits until its sleeper has been woken.
    pub(crate) fn cancel(&self) {
        let cpu = self.cpu.load(Ordering::Relaxed);
        loop {
            {
                let mut timers = CPUS[cpu].timers.lock_irq();
                if self.queued.load(Ordering::Relaxed) {
                    self.queued.store(false, Ordering::Relaxed);
                    // SAFETY: alive, and in this heap.
                    timers.heap.remove(unsafe { NodeRef::new(self) });
                    return;
                }
                if !ptr::eq(timers.firing, self) {
                    return;
                }
            }
            machine::spin_hint();
        }
    }
}

/// Asks for the scheduler's tick on this CPU at `deadline`. Interrupts off.
pub(crate) fn set_tick(deadline: u64) {
    let own = &CPUS[machine::cpu()];
    own.tick.store(deadline, Ordering::Relaxed);
    own.program(deadline);
}

/// Has the scheduler's tick on this CPU come at `deadline` at the latest. Interrupts off.
pub(crate) fn hasten_tick(deadline: u64) {
    if deadline < CPUS[machine::cpu()].tick.load(Ordering::Relaxed) {
        set_tick(deadline);
    }
}

/// Whether this CPU has a tick to come. Interrupts off.
#[inline]
pub(crate) fn has_tick() -> bool {
    CPUS[machine::cpu()].tick.load(Ordering::Relaxed) != NEVER
}

/// The machine's timer has fired on this CPU. Interrupts off. `tick` runs if the scheduler's tick
/// is due, with the time, and gives the time of the next one.
pub(crate) fn on_timer(tick: impl FnOnce(u64) -> Option<u64>) {
    let own = &CPUS[machine::cpu()];
    own.programmed.store(NEVER, Ordering::Relaxed);
    let now = machine::nanoseconds();
    let mut left = MOST_EXPIRIES;
    let next = loop {
        let node = {
            let mut timers = own.timers.lock_irq();
            match timers.heap.first_key() {
                Some(deadline) if deadline <= now => {}
                next => break next,
            }
            if left == 0 {
                let end = machine::nanoseconds();
                break Some(end + (end - now));
            }
            left -= 1;
            let Some(node) = timers.heap.pop() else {
                break None;
            };
            timers.firing = node.0.as_ptr();
            // SAFETY: nodes in a heap are alive, and the canceller of this one waits while it is
            // `firing`.
            let node = unsafe { node.0.as_ref() };
            node.queued.store(false, Ordering::Relaxed);
            node.expired.store(true, Ordering::SeqCst);
            node
        };
        // SAFETY: `for_sleeper`'s promise, and the node is kept by `firing`.
        unsafe { (node.wake)(node.sleeper) };
        own.timers.lock_irq().firing = ptr::null();
    };
    if own.tick.load(Ordering::Relaxed) <= now {
        let tick = tick(now).unwrap_or(NEVER);
        own.tick.store(tick, Ordering::Relaxed);
    }
    own.program(next.unwrap_or(NEVER));
    own.program(own.tick.load(Ordering::Relaxed));
}

/// Forgets all timers, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) fn reset() {
    for cpu in &CPUS {
        // SAFETY: the machine that used them is gone and the next has not started.
        unsafe { cpu.set(CpuTimers::new()) };
    }
}
