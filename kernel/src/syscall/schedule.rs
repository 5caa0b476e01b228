//! Processors and priorities.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{task, user};

use super::{Call, Entry, write_timespec};
use crate::process::{Pid, Process, Thread, family, thread::all_cpus};

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_sched_yield, "sched_yield", sched_yield),
    Entry::new(
        raw::__NR_sched_getaffinity,
        "sched_getaffinity",
        sched_getaffinity,
    ),
    Entry::new(
        raw::__NR_sched_setaffinity,
        "sched_setaffinity",
        sched_setaffinity,
    ),
    Entry::new(
        raw::__NR_sched_getscheduler,
        "sched_getscheduler",
        sched_getscheduler,
    ),
    Entry::new(
        raw::__NR_sched_setscheduler,
        "sched_setscheduler",
        sched_setscheduler,
    ),
    Entry::new(raw::__NR_sched_getparam, "sched_getparam", sched_getparam),
    Entry::new(raw::__NR_sched_setparam, "sched_setparam", sched_setparam),
    Entry::new(
        raw::__NR_sched_get_priority_max,
        "sched_get_priority_max",
        sched_get_priority_max,
    ),
    Entry::new(
        raw::__NR_sched_get_priority_min,
        "sched_get_priority_min",
        sched_get_priority_min,
    ),
    Entry::new(
        raw::__NR_sched_rr_get_interval,
        "sched_rr_get_interval",
        sched_rr_get_interval,
    ),
    Entry::new(raw::__NR_getpriority, "getpriority", getpriority),
    Entry::new(raw::__NR_setpriority, "setpriority", setpriority),
    Entry::new(raw::__NR_getcpu, "getcpu", getcpu),
];

pub(super) fn sched_yield(_: &mut Call<'_>) -> Result<usize> {
    task::yield_now();
    Ok(0)
}

/// The thread that argument 0 names; 0 is the caller.
fn named(call: &Call<'_>) -> Result<Arc<Thread>> {
    match call.int(0) {
        0 => Ok(call.thread.clone()),
        tid if tid < 0 => Err(Errno::EINVAL),
        tid => family::find_thread(tid as Pid).ok_or(Errno::ESRCH),
    }
}

/// The same where a negative number is only nobody's.
fn any_named(call: &Call<'_>) -> Result<Arc<Thread>> {
    if call.int(0) < 0 {
        return Err(Errno::ESRCH);
    }
    named(call)
}

/// Whether the caller may change `target`.
fn may_change(call: &Call<'_>, target: &Thread) -> Result<()> {
    let own = call.credentials();
    let theirs = target.shared().ok_or(Errno::ESRCH)?.credentials;
    if own.is_privileged()
        || own.effective_uid == theirs.real_uid
        || own.effective_uid == theirs.effective_uid
    {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

fn sched_getaffinity(call: &mut Call<'_>) -> Result<usize> {
    let size = call.size(1);
    if !size.is_multiple_of(8) || size < task::cpu_count().div_ceil(8) {
        return Err(Errno::EINVAL);
    }
    let cpus = any_named(call)?.cpus() & all_cpus();
    call.write(2, &cpus)?;
    Ok(8)
}

fn sched_setaffinity(call: &mut Call<'_>) -> Result<usize> {
    let target = any_named(call)?;
    let mut mask = [0; 8];
    let size = call.size(1).min(mask.len());
    user::copy_in(&mut mask[..size], call.address(2)).map_err(|_| Errno::EFAULT)?;
    may_change(call, &target)?;
    let cpus = u64::from_le_bytes(mask) & all_cpus();
    if cpus == 0 {
        return Err(Errno::EINVAL);
    }
    target.set_cpus(cpus);
    if cpus & 1 << task::cpu() == 0 && Arc::ptr_eq(&target, call.thread) {
        task::yield_now();
    }
    Ok(0)
}

/// All threads share the processors in time slices.
fn sched_getscheduler(call: &mut Call<'_>) -> Result<usize> {
    named(call)?;
    Ok(raw::SCHED_NORMAL as usize)
}

fn check_policy(policy: u32, priority: i32) -> Result<()> {
    match policy & !raw::SCHED_RESET_ON_FORK {
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE if priority == 0 => Ok(()),
        // There is no real-time scheduling that could be granted.
        raw::SCHED_FIFO | raw::SCHED_RR if (1..=99).contains(&priority) => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_setscheduler(call: &mut Call<'_>) -> Result<usize> {
    let priority: i32 = call.read(2)?;
    let target = named(call)?;
    check_policy(call.unsigned(1), priority)?;
    may_change(call, &target)?;
    Ok(0)
}

fn sched_getparam(call: &mut Call<'_>) -> Result<usize> {
    named(call)?;
    call.write(1, &0i32)?;
    Ok(0)
}

fn sched_setparam(call: &mut Call<'_>) -> Result<usize> {
    let priority: i32 = call.read(1)?;
    let target = named(call)?;
    check_policy(raw::SCHED_NORMAL, priority)?;
    may_change(call, &target)?;
    Ok(0)
}

fn sched_get_priority_max(call: &mut Call<'_>) -> Result<usize> {
    match call.unsigned(0) {
        raw::SCHED_FIFO | raw::SCHED_RR => Ok(99),
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE | raw::SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_get_priority_min(call: &mut Call<'_>) -> Result<usize> {
    match call.unsigned(0) {
        raw::SCHED_FIFO | raw::SCHED_RR => Ok(1),
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE | raw::SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_rr_get_interval(call: &mut Call<'_>) -> Result<usize> {
    named(call)?;
    let slice = core::time::Duration::from_secs(1) / nucleus::time::TICKS_PER_SECOND;
    write_timespec(call.address(1), slice)?;
    Ok(0)
}

/// The threads that `getpriority` and `setpriority` are about.
fn chosen(call: &Call<'_>) -> Result<Vec<Arc<Thread>>> {
    let who = call.int(1);
    let threads = match call.unsigned(0) {
        raw::PRIO_PROCESS => {
            let thread = match who {
                0 => Some(call.thread.clone()),
                tid => Pid::try_from(tid).ok().and_then(family::find_thread),
            };
            thread.into_iter().collect()
        }
        raw::PRIO_PGRP => {
            let group = match who {
                0 => call.process().group_id(),
                id => Pid::try_from(id).map_err(|_| Errno::ESRCH)?,
            };
            family::members(group)
                .iter()
                .flat_map(|process| process.threads())
                .collect()
        }
        raw::PRIO_USER => {
            let uid = match who {
                0 => call.credentials().real_uid,
                uid => uid as u32,
            };
            Process::all()
                .iter()
                .filter(|process| process.real_uid() == uid)
                .flat_map(|process| process.threads())
                .collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    let threads: Vec<Arc<Thread>> = threads;
    if threads.is_empty() {
        return Err(Errno::ESRCH);
    }
    Ok(threads)
}

/// Gives 20 less the nice value, so that no answer looks like an error.
pub(super) fn getpriority(call: &mut Call<'_>) -> Result<usize> {
    let best = chosen(call)?.iter().map(|thread| thread.nice()).min();
    Ok((20 - best.unwrap_or(0)) as usize)
}

pub(super) fn setpriority(call: &mut Call<'_>) -> Result<usize> {
    let nice = call.int(2).clamp(-20, 19);
    let lowest = 20 - call.process().limits().soft(raw::RLIMIT_NICE).min(40) as i32;
    for thread in chosen(call)? {
        may_change(call, &thread)?;
        if nice < thread.nice() && nice < lowest && !call.credentials().is_privileged() {
            return Err(Errno::EACCES);
        }
        thread.set_nice(nice);
    }
    Ok(0)
}

/// One memory node: 0.
fn getcpu(call: &mut Call<'_>) -> Result<usize> {
    let cpu = task::cpu() as u32;
    if call.args[0] != 0 {
        call.write(0, &cpu)?;
    }
    if call.args[1] != 0 {
        call.write(1, &0u32)?;
    }
    Ok(0)
}
