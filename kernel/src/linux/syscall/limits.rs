//! Resource limits and usage.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{PAGE_SIZE, speculation, user};

use super::{Call, SystemCall, call};
use crate::process::{Limit, Process, RESOURCES, Usage, ticks};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getrlimit, getrlimit),
    call!(__NR_setrlimit, setrlimit),
    call!(__NR_prlimit64, prlimit64),
    call!(__NR_getrusage, getrusage),
    call!(__NR_times, times),
];

/// `RLIMIT_NOFILE` can't be raised above this (`/proc/sys/fs/nr_open`).
const FILES_MAX: u64 = 1 << 20;

fn resource(call: &Call<'_>, n: usize) -> Result<u32> {
    let resource = call.unsigned(n);
    if resource as usize >= RESOURCES {
        return Err(Errno::EINVAL);
    }
    Ok(speculation::mask_index(resource as usize, RESOURCES) as u32)
}

fn set(call: &Call<'_>, target: &Arc<Process>, resource: u32, new: [u64; 2]) -> Result<()> {
    let [soft, hard] = new;
    if soft > hard {
        return Err(Errno::EINVAL);
    }
    if resource == raw::RLIMIT_NOFILE && hard > FILES_MAX {
        return Err(Errno::EPERM);
    }
    let limits = target.limits();
    if hard > limits.get(resource).hard && !call.credentials().may(raw::CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    limits.set(resource, Limit { soft, hard });
    if matches!(
        resource,
        raw::RLIMIT_AS | raw::RLIMIT_DATA | raw::RLIMIT_STACK | raw::RLIMIT_MEMLOCK
    ) {
        target.apply_limits();
    }
    Ok(())
}

fn getrlimit(call: &mut Call<'_>) -> Result<usize> {
    let Limit { soft, hard } = call.process().limits().get(resource(call, 0)?);
    call.write(1, &[soft, hard])?;
    Ok(0)
}

fn setrlimit(call: &mut Call<'_>) -> Result<usize> {
    let resource = resource(call, 0)?;
    let new = call.read(1)?;
    set(call, &call.process().clone(), resource, new)?;
    Ok(0)
}

fn prlimit64(call: &mut Call<'_>) -> Result<usize> {
    let resource = resource(call, 1)?;
    let target = call.process_named(0)?;
    if !Arc::ptr_eq(&target, call.process()) {
        let theirs = target.credentials().ok_or(Errno::ESRCH)?;
        if !call.credentials().may_limit(&theirs) {
            return Err(Errno::EPERM);
        }
    }
    let new: Option<[u64; 2]> = call.read_if(2)?;
    let old = target.limits().get(resource);
    if let Some(new) = new {
        set(call, &target, resource, new)?;
    }
    call.write_if(3, &[old.soft, old.hard])?;
    Ok(0)
}

fn timeval(time: Duration) -> raw::__kernel_old_timeval {
    raw::__kernel_old_timeval {
        tv_sec: time.as_secs() as i64,
        tv_usec: i64::from(time.subsec_micros()),
    }
}

/// As `struct rusage`.
pub(super) fn encode_usage(usage: &Usage) -> raw::rusage {
    let mut out: raw::rusage = user::zeroed();
    out.ru_utime = timeval(usage.times.user);
    out.ru_stime = timeval(usage.times.system);
    out.ru_maxrss = (usage.peak_pages * (PAGE_SIZE as u64 / 1024)) as i64;
    [out.ru_minflt, out.ru_majflt] = usage.faults.map(|n| n as i64);
    [out.ru_nvcsw, out.ru_nivcsw] = usage.switches.map(|n| n as i64);
    out
}

fn getrusage(call: &mut Call<'_>) -> Result<usize> {
    let usage = match call.int(0) {
        0 => call.process().usage(),
        raw::RUSAGE_CHILDREN => call.process().children_usage(),
        1 => call.thread.usage(),
        _ => return Err(Errno::EINVAL),
    };
    call.write(1, &encode_usage(&usage))?;
    Ok(0)
}

fn times(call: &mut Call<'_>) -> Result<usize> {
    if call.args[0] != 0 {
        let own = call.process().times();
        let children = call.process().children_usage().times;
        call.write(
            0,
            &[own.user, own.system, children.user, children.system].map(ticks),
        )?;
    }
    Ok(ticks(nucleus::time::since_boot()) as usize)
}
