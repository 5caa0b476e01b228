//! Time: the time-stamp counter as the clock, the local APIC's timer for deadlines, the real-time
//! clock for the date at boot.

use core::sync::atomic::{AtomicU64, Ordering};

use super::apic;
use super::cmos;
use super::cpu::{Features, features, msr, time_stamp, write_msr};
use super::port::{in8, out8};
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// Ticks a second of the interval timer.
const PIT_RATE: u64 = 1_193_182;
/// Its ticks that a calibration lasts: 10 ms.
const PIT_TICKS: u64 = PIT_RATE / 100;
/// Its command port, and the port of the count of channel 0.
const PIT_COMMAND: u16 = 0x43;
const PIT_COUNT: u16 = 0x40;
/// Commands for channel 0: hold the count for reading; count down once from what is written next;
/// give the status, in which a bit tells that it has run down.
const PIT_LATCH: u8 = 0x00;
const PIT_COUNT_DOWN_ONCE: u8 = 0x30;
const PIT_READ_STATUS: u8 = 0xe2;
const PIT_OUTPUT: u8 = 0x80;
/// Looks at a timer that does not move, some seconds' worth, before it is given up.
const PATIENCE: u32 = 100_000;
/// Calibrations that a busy host may spoil.
const ATTEMPTS: u32 = 100;
const NANOSECONDS: u64 = 1_000_000_000;

/// The counter's value at time 0.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds a tick of the counter, times 2^32.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// Ticks of the counter a nanosecond, times 2^32.
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);
/// Ticks of the APIC's timer a nanosecond, times 2^32.
static TIMER_PER_NS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds since the epoch at time 0.
static EPOCH: AtomicU64 = AtomicU64::new(0);

fn scale(value: u64, factor: &AtomicU64) -> u64 {
    ((u128::from(value) * u128::from(factor.load(Ordering::Relaxed))) >> 32) as u64
}

fn ratio(numerator: u64, denominator: u64) -> u64 {
    ((u128::from(numerator) << 32) / u128::from(denominator.max(1))) as u64
}

/// Rates in ticks a second.
struct Rates {
    counter: u64,
    timer: u64,
}

/// How long so many ticks of the counter last.
pub fn picoseconds(ticks: u64) -> u64 {
    scale(ticks.saturating_mul(1000), &NS_PER_TICK)
}

/// Learns the rates of the counter and the timer, and the date. Once, on the boot CPU, when its
/// local APIC is on. False if nothing tells the rates.
pub fn start() -> bool {
    let Some(rates) = told().or_else(measured) else {
        return false;
    };
    NS_PER_TICK.store(ratio(NANOSECONDS, rates.counter), Ordering::Relaxed);
    TICKS_PER_NS.store(ratio(rates.counter, NANOSECONDS), Ordering::Relaxed);
    TIMER_PER_NS.store(ratio(rates.timer, NANOSECONDS), Ordering::Relaxed);
    START.store(time_stamp(), Ordering::Relaxed);
    EPOCH.store(date() * NANOSECONDS, Ordering::Relaxed);
    true
}

/// The rates that the CPU or the hypervisor tells.
fn told() -> Option<Rates> {
    if features().contains(Features::HYPERVISOR) {
        // A convention of several hypervisors: kHz of the counter and of the APIC's timer.
        let highest = __cpuid(0x4000_0000).eax;
        if (0x4000_0010..0x4001_0000).contains(&highest) {
            let leaf = __cpuid(0x4000_0010);
            if leaf.eax != 0 && leaf.ebx != 0 {
                return Some(Rates {
                    counter: u64::from(leaf.eax) * 1000,
                    timer: u64::from(leaf.ebx) * 1000,
                });
            }
        }
    }
    if __cpuid(0).eax >= 0x15 {
        let leaf = __cpuid_count(0x15, 0);
        if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 {
            let crystal = u64::from(leaf.ecx);
            let counter = crystal * u64::from(leaf.ebx) / u64::from(leaf.eax);
            return Some(Rates {
                counter,
                timer: crystal,
            });
        }
    }
    None
}

/// One look at all three clocks, as close together as it gets.
struct Sample {
    counter: u64,
    timer: u32,
    /// Counts down from 65535.
    pit: u16,
}

fn sample() -> Sample {
    let mut best: Option<(u64, Sample)> = None;
    for _ in 0..5 {
        let before = time_stamp();
        // SAFETY: the interval timer's channel 0 drives an interrupt line that is masked.
        let pit = unsafe {
            out8(PIT_COMMAND, PIT_LATCH);
            u16::from_le_bytes([in8(PIT_COUNT), in8(PIT_COUNT)])
        };
        let timer = apic::timer_count();
        let width = time_stamp() - before;
        if best.as_ref().is_none_or(|(least, _)| width < *least) {
            best = Some((
                width,
                Sample {
                    counter: before + width / 2,
                    timer,
                    pit,
                },
            ));
        }
    }
    best.expect("five were taken").1
}

/// Measures the rates against the interval timer; `None` if that does not run. The clocks are read
/// at the begin and at the end, so a host that takes this CPU away in between spoils nothing; only
/// when it is away for longer than the timer takes to run down (55 ms) all is done again.
fn measured() -> Option<Rates> {
    apic::set_timer_count(u32::MAX);
    for _ in 0..ATTEMPTS {
        // SAFETY: as in `sample`.
        unsafe {
            out8(PIT_COMMAND, PIT_COUNT_DOWN_ONCE);
            out8(PIT_COUNT, 0xff);
            out8(PIT_COUNT, 0xff);
        }
        let from = sample();
        let mut to = sample();
        let mut patience = PATIENCE;
        while u64::from(from.pit.wrapping_sub(to.pit)) < PIT_TICKS {
            patience -= 1;
            if patience == 0 {
                return None;
            }
            to = sample();
        }
        // SAFETY: as above.
        let ran_down = unsafe {
            out8(PIT_COMMAND, PIT_READ_STATUS);
            in8(PIT_COUNT) & PIT_OUTPUT != 0
        };
        let elapsed = u64::from(from.pit.wrapping_sub(to.pit));
        if !ran_down && elapsed < 0xf000 {
            apic::set_timer_count(0);
            let rate = |ticks: u64| {
                (u128::from(ticks) * u128::from(PIT_RATE) / u128::from(elapsed)) as u64
            };
            return Some(Rates {
                counter: rate(to.counter - from.counter),
                timer: rate(from.timer.wrapping_sub(to.timer).into()),
            });
        }
    }
    None
}

/// What [`nanoseconds`] computes with: the counter's value at time 0, and nanoseconds a tick of it
/// times 2^32.
pub fn conversion() -> (u64, u64) {
    (
        START.load(Ordering::Relaxed),
        NS_PER_TICK.load(Ordering::Relaxed),
    )
}

/// Nanoseconds since boot, monotonic, the same on all CPUs.
#[inline]
pub(crate) fn nanoseconds() -> u64 {
    scale(
        time_stamp().wrapping_sub(START.load(Ordering::Relaxed)),
        &NS_PER_TICK,
    )
}

/// Nanoseconds from the epoch to [`nanoseconds`] 0.
pub(crate) fn epoch_at_boot() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// Makes this CPU's timer interrupt at a time, or at once if that has passed; `None` stops it. It
/// may fire early when the time is further away than the timer can count.
#[inline]
pub(crate) fn set_timer(deadline: Option<u64>) {
    if features().contains(Features::TSC_DEADLINE) {
        let stamp = deadline.map_or(0, |ns| {
            let ticks = scale(ns, &TICKS_PER_NS).saturating_add(1);
            START.load(Ordering::Relaxed).saturating_add(ticks).max(1)
        });
        // SAFETY: the timer's interrupt has a handler.
        unsafe { write_msr(msr::TSC_DEADLINE, stamp) };
        return;
    }
    let count = deadline.map_or(0, |ns| {
        let ticks = scale(ns.saturating_sub(nanoseconds()), &TIMER_PER_NS);
        ticks.saturating_add(1).min(u32::MAX.into()) as u32
    });
    apic::set_timer_count(count);
}

/// The rate of the time-stamp counter, which is the CPU's nominal one.
pub fn kilohertz() -> u64 {
    scale(1_000_000, &TICKS_PER_NS)
}

/// Spins for a time. Before [`start`] it spins for some time.
pub fn delay(ns: u64) {
    let rate = TICKS_PER_NS.load(Ordering::Relaxed);
    let ticks = match rate {
        0 => ns * 4,
        _ => scale(ns, &TICKS_PER_NS),
    };
    let start = time_stamp();
    while time_stamp().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// Seconds since the epoch by the real-time clock; it is taken to run in UTC.
fn date() -> u64 {
    // An update takes 2 ms at most; a clock that is broken for good gives some date.
    let date = (0..10_000).find_map(|_| cmos::date());
    date.unwrap_or_else(cmos::date_now).seconds()
}

/// Lets a moment pass in a loop that waits for another CPU for a while; whether it is before
/// `until`, nanoseconds since boot.
#[inline]
pub fn look_again(until: u64) -> bool {
    core::hint::spin_loop();
    nanoseconds() < until
}
