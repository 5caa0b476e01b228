//! Processors and priorities.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{task, user};

use super::{Call, SystemCall, call, write_timespec};
use crate::flags::{FlagSet, choice, flag_set};
use crate::process::{Pid, Policy, Process, Scheduling, Thread, pid_table, thread::all_cpus};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_sched_yield, sched_yield),
    call!(__NR_sched_getaffinity, sched_getaffinity),
    call!(__NR_sched_setaffinity, sched_setaffinity),
    call!(__NR_sched_getscheduler, sched_getscheduler),
    call!(__NR_sched_setscheduler, sched_setscheduler).flags(&[&POLICIES]),
    call!(__NR_sched_getattr, sched_getattr),
    call!(__NR_sched_setattr, sched_setattr).flags(&[&POLICIES, &ATTRIBUTE_FLAGS]),
    call!(__NR_sched_getparam, sched_getparam),
    call!(__NR_sched_setparam, sched_setparam),
    call!(__NR_sched_get_priority_max, |call| Ok(levels(call)?[1])),
    call!(__NR_sched_get_priority_min, |call| Ok(levels(call)?[0])),
    call!(__NR_sched_rr_get_interval, sched_rr_get_interval),
    call!(__NR_getpriority, getpriority).flags(&[&WHICH]),
    call!(__NR_setpriority, setpriority).flags(&[&WHICH]),
    call!(__NR_getcpu, getcpu),
];

fn sched_yield(_: &mut Call<'_>) -> Result<usize> {
    task::yield_now();
    Ok(0)
}

/// The thread that argument 0 names, where a negative number is invalid.
fn named(call: &Call<'_>) -> Result<Arc<Thread>> {
    match call.int(0) {
        ..0 => Err(Errno::EINVAL),
        _ => call.thread_named(0),
    }
}

/// Whether the caller may change `target`.
fn may_change(call: &Call<'_>, target: &Thread) -> Result<()> {
    let own = call.credentials();
    let theirs = target.credentials().ok_or(Errno::ESRCH)?;
    if own.may(raw::CAP_SYS_NICE)
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
    let cpus = call.thread_named(0)?.cpus() & all_cpus();
    call.write(2, &cpus)?;
    Ok(8)
}

fn sched_setaffinity(call: &mut Call<'_>) -> Result<usize> {
    let target = call.thread_named(0)?;
    let mut mask = [0; 8];
    let size = call.size(1).min(mask.len());
    user::copy_in(&mut mask[..size], call.address(2))?;
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

/// `SCHED_DEADLINE` is not there, and neither are hints about the use of a processor.
const POLICIES: FlagSet = choice!(
    "policy",
    [
        raw::SCHED_NORMAL,
        raw::SCHED_BATCH,
        raw::SCHED_IDLE,
        raw::SCHED_FIFO,
        raw::SCHED_RR,
    ],
    EINVAL
);

const ATTRIBUTE_FLAGS: FlagSet = flag_set!(
    "sched_flags",
    [
        raw::SCHED_FLAG_RESET_ON_FORK,
        raw::SCHED_FLAG_KEEP_POLICY,
        raw::SCHED_FLAG_KEEP_PARAMS,
    ],
    EINVAL
);

/// Bytes of `struct sched_attr` in its first version, and words of the one that this kernel knows.
const ATTRIBUTES_LEAST: usize = 48;
const ATTRIBUTES_WORDS: usize = 7;

/// The highest level.
const LEVEL_MAX: u32 = 99;

/// The policy with a number.
fn policy(call: &Call<'_>, number: u32) -> Result<Policy> {
    POLICIES.check(call.caller(), u64::from(number))?;
    Policy::of(number).ok_or(Errno::EINVAL)
}

/// A level as `policy` has one: 1 to 99, or none.
fn level(policy: Policy, level: u32) -> Result<u8> {
    if level > LEVEL_MAX || policy.is_real_time() != (level != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(level as u8)
}

/// Whether a nice value is within what `RLIMIT_NICE` lets a process without privilege have.
fn is_within_limit(target: &Thread, nice: i32) -> bool {
    (20 - nice) as u64 <= target.process().limits().soft(raw::RLIMIT_NICE)
}

/// Gives `target` a policy and what belongs to it, where the caller may do that.
fn reschedule(call: &Call<'_>, target: &Thread, new: Scheduling) -> Result<usize> {
    let old = target.scheduling();
    let most = target.process().limits().soft(raw::RLIMIT_RTPRIO);
    let new_nice = i32::from(new.nice);
    let within_limits = if new.policy.is_real_time() {
        let may_begin = new.policy == old.policy || most != 0;
        may_begin && (new.level <= old.level || u64::from(new.level) <= most)
    } else {
        new.policy == Policy::Idle || new.nice >= old.nice || is_within_limit(target, new_nice)
    };
    // An idle thread counts as nice 20.
    let leaves_idle = old.policy == Policy::Idle && new.policy != Policy::Idle;
    let permitted = within_limits
        && (!leaves_idle || is_within_limit(target, i32::from(old.nice)))
        && (!old.reset_on_fork || new.reset_on_fork)
        && may_change(call, target).is_ok();
    if !permitted && !call.credentials().may(raw::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    target.set_scheduling(|scheduling| {
        *scheduling = Scheduling {
            io_priority: scheduling.io_priority,
            ..new
        }
    });
    Ok(0)
}

fn sched_getscheduler(call: &mut Call<'_>) -> Result<usize> {
    let scheduling = named(call)?.scheduling();
    let reset = match scheduling.reset_on_fork {
        true => raw::SCHED_RESET_ON_FORK,
        false => 0,
    };
    Ok((scheduling.policy.number() | reset) as usize)
}

fn sched_setscheduler(call: &mut Call<'_>) -> Result<usize> {
    let number = call.unsigned(1);
    if (number as i32) < 0 || call.args[2] == 0 {
        return Err(Errno::EINVAL);
    }
    let priority: u32 = call.read(2)?;
    let target = named(call)?;
    let policy = policy(call, number & !raw::SCHED_RESET_ON_FORK)?;
    let new = Scheduling {
        policy,
        level: level(policy, priority)?,
        reset_on_fork: number & raw::SCHED_RESET_ON_FORK != 0,
        ..target.scheduling()
    };
    reschedule(call, &target, new)
}

fn sched_getparam(call: &mut Call<'_>) -> Result<usize> {
    if call.args[1] == 0 {
        return Err(Errno::EINVAL);
    }
    let scheduling = named(call)?.scheduling();
    call.write(1, &i32::from(scheduling.level))?;
    Ok(0)
}

fn sched_setparam(call: &mut Call<'_>) -> Result<usize> {
    if call.args[1] == 0 {
        return Err(Errno::EINVAL);
    }
    let priority: u32 = call.read(1)?;
    let target = named(call)?;
    let old = target.scheduling();
    let new = Scheduling {
        level: level(old.policy, priority)?,
        ..old
    };
    reschedule(call, &target, new)
}

fn sched_setattr(call: &mut Call<'_>) -> Result<usize> {
    if call.args[1] == 0 || call.int(0) < 0 || call.unsigned(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let size = match call.read::<u32>(1)? as usize {
        0 => ATTRIBUTES_LEAST,
        size => size,
    };
    let words: Result<[u64; ATTRIBUTES_WORDS]> = match size {
        ATTRIBUTES_LEAST.. => call.read_words(1, size),
        _ => Err(Errno::E2BIG),
    };
    if words == Err(Errno::E2BIG) {
        // The caller learns how much there is.
        call.write(1, &(8 * ATTRIBUTES_WORDS as u32))?;
    }
    let [head, flags, nice_and_level, ..] = words?;
    let number = (head >> 32) as u32;
    if (number as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let target = named(call)?;
    let flags = ATTRIBUTE_FLAGS.check(call.caller(), flags)? as u32;
    let old = target.scheduling();
    let policy = match flags & raw::SCHED_FLAG_KEEP_POLICY {
        0 => policy(call, number)?,
        _ => old.policy,
    };
    let nice = (nice_and_level as i32).clamp(-20, 19) as i8;
    let wanted = (nice_and_level >> 32) as u32;
    let (nice, wanted) = match flags & raw::SCHED_FLAG_KEEP_PARAMS {
        0 => (nice, wanted),
        _ => (old.nice, u32::from(old.level)),
    };
    let new = Scheduling {
        policy,
        level: level(policy, wanted)?,
        // Kept while a level is what counts.
        nice: if policy.is_real_time() {
            old.nice
        } else {
            nice
        },
        reset_on_fork: match flags & raw::SCHED_FLAG_KEEP_POLICY {
            0 => flags & raw::SCHED_FLAG_RESET_ON_FORK != 0,
            _ => old.reset_on_fork,
        },
        io_priority: old.io_priority,
    };
    reschedule(call, &target, new)
}

fn sched_getattr(call: &mut Call<'_>) -> Result<usize> {
    let size = call.unsigned(2) as usize;
    let fits = (ATTRIBUTES_LEAST..=nucleus::PAGE_SIZE).contains(&size);
    if call.args[1] == 0 || call.int(0) < 0 || !fits || call.unsigned(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let scheduling = named(call)?.scheduling();
    let size = size.min(8 * ATTRIBUTES_WORDS);
    let flags = u64::from(scheduling.reset_on_fork) * u64::from(raw::SCHED_FLAG_RESET_ON_FORK);
    let nice_and_level = match scheduling.policy.is_real_time() {
        true => u64::from(scheduling.level) << 32,
        false => u64::from(i32::from(scheduling.nice) as u32),
    };
    let head = size as u64 | u64::from(scheduling.policy.number()) << 32;
    let words = [head, flags, nice_and_level, 0, 0, 0, 0];
    call.write_many(1, &words[..size / 8])?;
    Ok(0)
}

/// The lowest and the highest level of the policy in argument 0.
fn levels(call: &Call<'_>) -> Result<[usize; 2]> {
    match call.unsigned(0) {
        raw::SCHED_FIFO | raw::SCHED_RR => Ok([1, LEVEL_MAX as usize]),
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE | raw::SCHED_DEADLINE => Ok([0; 2]),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_rr_get_interval(call: &mut Call<'_>) -> Result<usize> {
    let slice = match named(call)?.scheduling().policy {
        Policy::RoundRobin => Duration::from_nanos(task::TURN),
        // It has no end.
        Policy::Fifo => Duration::ZERO,
        _ => Duration::from_secs(1) / nucleus::time::TICKS_PER_SECOND,
    };
    write_timespec(call.address(1), slice)?;
    Ok(0)
}

/// The kind of id in argument 1 of `getpriority`, `ioprio_get` and related calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chosen {
    Thread,
    Group,
    User,
}

/// Visits the threads that argument 1 names, without memory for a list of them; 0 is the caller, or
/// its group or user.
///
/// # Errors
/// `ESRCH` if there is none; the first of `visit`, which ends the visits.
pub(super) fn visit_chosen(
    call: &Call<'_>,
    by: Chosen,
    mut visit: impl FnMut(&Arc<Thread>) -> Result<()>,
) -> Result<()> {
    let mut found = false;
    let mut note = |thread: Arc<Thread>| {
        found = true;
        visit(&thread)
    };
    let mut visit_all = |processes: &mut dyn Iterator<Item = Arc<Process>>| -> Result<()> {
        for process in processes {
            process.threads().try_for_each(&mut note)?;
        }
        Ok(())
    };
    let who = call.int(1);
    match by {
        Chosen::Thread => call.thread_named(1).into_iter().try_for_each(&mut note)?,
        Chosen::Group => {
            let group = match who {
                0 => call.process().group_id(),
                id => Pid::try_from(id).map_err(|_| Errno::ESRCH)?,
            };
            visit_all(&mut pid_table::members(group))?;
        }
        Chosen::User => {
            let uid = match who {
                0 => call.credentials().real_uid,
                uid => uid as u32,
            };
            visit_all(&mut Process::by_id().filter(|process| process.real_uid() == uid))?;
        }
    }
    Errno::ESRCH.unless(found)
}

const WHICH: FlagSet = choice!(
    "which",
    [raw::PRIO_PROCESS, raw::PRIO_PGRP, raw::PRIO_USER],
    EINVAL
);

/// Visits the threads that `getpriority` and `setpriority` are about.
fn visit_prioritized(call: &Call<'_>, visit: impl FnMut(&Arc<Thread>) -> Result<()>) -> Result<()> {
    let by = match call.choice(0, &WHICH)? {
        raw::PRIO_PROCESS => Chosen::Thread,
        raw::PRIO_PGRP => Chosen::Group,
        _ => Chosen::User,
    };
    visit_chosen(call, by, visit)
}

/// Gives 20 less the nice value, so that no answer looks like an error.
fn getpriority(call: &mut Call<'_>) -> Result<usize> {
    let mut best = i32::MAX;
    visit_prioritized(call, |thread| {
        best = best.min(thread.nice());
        Ok(())
    })?;
    Ok((20 - best) as usize)
}

fn setpriority(call: &mut Call<'_>) -> Result<usize> {
    let nice = call.int(2).clamp(-20, 19);
    let mut result = Ok(0);
    visit_prioritized(call, |thread| {
        let raises = nice < thread.nice() && !is_within_limit(thread, nice);
        if may_change(call, thread).is_err() {
            result = Err(Errno::EPERM);
        } else if raises && !call.credentials().may(raw::CAP_SYS_NICE) {
            result = Err(Errno::EACCES);
        } else {
            thread.set_scheduling(|scheduling| scheduling.nice = nice as i8);
        }
        Ok(())
    })?;
    result
}

/// One memory node: 0.
fn getcpu(call: &mut Call<'_>) -> Result<usize> {
    let cpu = task::cpu() as u32;
    call.write_if(0, &cpu)?;
    call.write_if(1, &0u32)?;
    Ok(0)
}
