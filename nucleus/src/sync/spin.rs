//! Looking at a held lock before sleeping.

use crate::hw::machine;

/// How often a task looks at a lock that is held for microseconds at a time, shootdowns included,
/// before it sleeps: about 10 microseconds, or up to 40 where `pause` takes long. A sleep and a
/// wake-up cost less time than that, but write what other CPUs use: the bucket of the parking lot,
/// a run queue, and often an interrupt for a CPU that is idle by then. Few on the simulated
/// machine, whose runs are to sleep, too.
pub(super) const SHORT_LOOKS: usize = match cfg!(target_os = "none") {
    true => 1000,
    false => 20,
};

/// Calls `is_over` until it returns true, but only so many times, and never with a single CPU: the
/// holder does not run meanwhile. Returns whether it did.
#[inline]
pub(super) fn spin(looks: usize, mut is_over: impl FnMut() -> bool) -> bool {
    machine::cpu_count() > 1
        && (0..looks).any(|_| {
            machine::spin_hint();
            is_over()
        })
}
