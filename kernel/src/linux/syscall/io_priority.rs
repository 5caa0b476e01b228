//! `ioprio_get` and `ioprio_set`: the order in which a disk's queue would take requests. Kept and
//! inherited; there is no such queue.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};

use super::{
    Call, SystemCall, call,
    schedule::{Chosen, visit_chosen},
};
use crate::flags::{FlagSet, choice};
use crate::process::{Policy, Scheduling, Thread};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_ioprio_get, ioprio_get).flags(&[&WHICH]),
    call!(__NR_ioprio_set, ioprio_set).flags(&[&WHICH, &CLASSES]),
];

/// Numbers of `linux/ioprio.h`, which the bindings leave out.
const IOPRIO_WHO_PROCESS: u32 = 1;
const IOPRIO_WHO_PGRP: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;
const IOPRIO_CLASS_NONE: u16 = 0;
const IOPRIO_CLASS_RT: u16 = 1;
const IOPRIO_CLASS_BE: u16 = 2;
const IOPRIO_CLASS_IDLE: u16 = 3;
/// Where the class stands in a priority, and how many levels a class has below it.
const CLASS_SHIFT: u32 = 13;
const LEVELS: u16 = 8;

const WHICH: FlagSet = choice!(
    "which",
    [IOPRIO_WHO_PROCESS, IOPRIO_WHO_PGRP, IOPRIO_WHO_USER],
    EINVAL
);

const CLASSES: FlagSet = choice!(
    "class",
    [
        IOPRIO_CLASS_NONE,
        IOPRIO_CLASS_RT,
        IOPRIO_CLASS_BE,
        IOPRIO_CLASS_IDLE,
    ],
    EINVAL
);

/// Visits the threads that the first two arguments name.
fn visit_named(call: &Call<'_>, visit: impl FnMut(&Arc<Thread>) -> Result<()>) -> Result<()> {
    let by = match call.choice(0, &WHICH)? {
        IOPRIO_WHO_PROCESS => Chosen::Thread,
        IOPRIO_WHO_PGRP => Chosen::Group,
        _ => Chosen::User,
    };
    visit_chosen(call, by, visit)
}

/// The priority of a thread that has not set any.
fn effective(scheduling: &Scheduling) -> u16 {
    if scheduling.io_priority >> CLASS_SHIFT != IOPRIO_CLASS_NONE {
        return scheduling.io_priority;
    }
    let class = match scheduling.policy {
        Policy::Idle => IOPRIO_CLASS_IDLE,
        policy if policy.is_real_time() => IOPRIO_CLASS_RT,
        _ => IOPRIO_CLASS_BE,
    };
    (class << CLASS_SHIFT) | ((i16::from(scheduling.nice) + 20) as u16 / 5)
}

/// One thread's own, or the best of several.
fn ioprio_get(call: &mut Call<'_>) -> Result<usize> {
    let mut best = u16::MAX;
    let is_single = call.unsigned(0) == IOPRIO_WHO_PROCESS;
    visit_named(call, |thread| {
        let scheduling = thread.scheduling();
        best = best.min(match is_single {
            true => scheduling.io_priority,
            false => effective(&scheduling),
        });
        Ok(())
    })?;
    Ok(usize::from(best))
}

fn ioprio_set(call: &mut Call<'_>) -> Result<usize> {
    let own = call.credentials().clone();
    let priority = call.unsigned(2);
    CLASSES.check(call.caller(), u64::from(priority >> CLASS_SHIFT))?;
    let priority = priority as u16;
    let level = priority & ((1 << CLASS_SHIFT) - 1);
    match priority >> CLASS_SHIFT {
        IOPRIO_CLASS_RT if !own.may(raw::CAP_SYS_ADMIN) && !own.may(raw::CAP_SYS_NICE) => {
            return Err(Errno::EPERM);
        }
        IOPRIO_CLASS_RT | IOPRIO_CLASS_BE if level >= LEVELS => return Err(Errno::EINVAL),
        IOPRIO_CLASS_NONE if level != 0 => return Err(Errno::EINVAL),
        _ => {}
    }
    visit_named(call, |thread| {
        let same = thread
            .credentials()
            .is_some_and(|theirs| [own.effective_uid, own.real_uid].contains(&theirs.real_uid));
        if !same && !own.may(raw::CAP_SYS_NICE) {
            return Err(Errno::EPERM);
        }
        thread.set_scheduling(|scheduling| scheduling.io_priority = priority);
        Ok(())
    })?;
    Ok(0)
}
