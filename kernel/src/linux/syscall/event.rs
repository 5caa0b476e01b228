//! `eventfd`, `timerfd`, `signalfd`.

use alloc::sync::Arc;

use abi::{
    Errno, Result,
    raw::general::{
        CAP_WAKE_ALARM, EFD_CLOEXEC, EFD_NONBLOCK, EFD_SEMAPHORE, O_CLOEXEC, O_NONBLOCK, O_RDWR,
        TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET,
    },
};
use fs::{File, OpenFlags};

use super::{
    Call, FlagSet, SystemCall, call, flag_set,
    timer::{decode_timespecs, encode_timespecs},
};
use crate::{
    ipc::event::{Clock, EventFile, SignalFile, TimerFile},
    process::{files::OpenFile, signal::SignalSet},
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_eventfd, eventfd),
    call!(__NR_eventfd2, eventfd2).flags(&[&EVENT_FLAGS]),
    call!(__NR_timerfd_create, timerfd_create).flags(&[&TIMER_FLAGS]),
    call!(__NR_timerfd_settime, timerfd_settime).flags(&[&SET_FLAGS]),
    call!(__NR_timerfd_gettime, timerfd_gettime),
    call!(__NR_signalfd, |call| make_signalfd(call, 0)),
    call!(__NR_signalfd4, |call| {
        make_signalfd(call, call.flags(3, &SIGNAL_FLAGS)?)
    })
    .flags(&[&SIGNAL_FLAGS]),
];

/// `SFD_CLOEXEC` and `SFD_NONBLOCK`, which the bindings leave out.
const SFD_CLOEXEC: u32 = O_CLOEXEC;
const SFD_NONBLOCK: u32 = O_NONBLOCK;

const EVENT_FLAGS: FlagSet = flag_set!("flags", [EFD_SEMAPHORE, EFD_CLOEXEC, EFD_NONBLOCK], EINVAL);
const TIMER_FLAGS: FlagSet = flag_set!("flags", [TFD_CLOEXEC, TFD_NONBLOCK], EINVAL);
const SET_FLAGS: FlagSet = flag_set!(
    "flags",
    [TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET],
    EINVAL
);
const SIGNAL_FLAGS: FlagSet = flag_set!("flags", [SFD_CLOEXEC, SFD_NONBLOCK], EINVAL);

/// A descriptor for a new file of these kinds; of `flags`, `O_CLOEXEC` and `O_NONBLOCK` count, to
/// which all names of them are equal.
pub(super) fn install(
    call: &Call<'_>,
    flags: u32,
    access: u32,
    make: impl FnOnce() -> Result<Arc<dyn File>>,
) -> Result<usize> {
    call.takes_memory()?;
    let slot = call.files().reserve(0, call.descriptor_limit())?;
    let kept = OpenFlags::from_bits_retain(access | flags & O_NONBLOCK);
    let open = OpenFile::new(make()?, kept);
    Ok(slot.install(open, flags & O_CLOEXEC != 0))
}

fn eventfd(call: &mut Call<'_>) -> Result<usize> {
    let count = call.unsigned(0);
    install(call, 0, O_RDWR, || Ok(EventFile::new(count, false)))
}

fn eventfd2(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &EVENT_FLAGS)?;
    let (count, semaphore) = (call.unsigned(0), flags & EFD_SEMAPHORE != 0);
    install(call, flags, O_RDWR, || Ok(EventFile::new(count, semaphore)))
}

fn timerfd_create(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &TIMER_FLAGS)?;
    let clock = Clock::new(call.int(0))?;
    if clock.is_alarm() && !call.credentials().may(CAP_WAKE_ALARM) {
        return Err(Errno::EPERM);
    }
    install(call, flags, O_RDWR, || Ok(TimerFile::new(clock)))
}

fn timer_of(call: &Call<'_>) -> Result<Arc<TimerFile>> {
    let open = call.opened(0)?;
    TimerFile::of(open.file()).ok_or(Errno::EINVAL)
}

fn timerfd_settime(call: &mut Call<'_>) -> Result<usize> {
    let new: [i64; 4] = call.read(2)?;
    let flags = call.flags(1, &SET_FLAGS)?;
    let new = decode_timespecs(new)?;
    let timer = timer_of(call)?;
    if timer.clock.is_alarm() && !call.credentials().may(CAP_WAKE_ALARM) {
        return Err(Errno::EPERM);
    }
    let old = timer.set(new, flags)?;
    call.write_if(3, &encode_timespecs(old))?;
    Ok(0)
}

fn timerfd_gettime(call: &mut Call<'_>) -> Result<usize> {
    let setting = timer_of(call)?.setting();
    call.write(1, &encode_timespecs(setting))?;
    Ok(0)
}

fn make_signalfd(call: &Call<'_>, flags: u32) -> Result<usize> {
    if call.size(2) != size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    let set = SignalSet(call.read(1)?);
    let fd = call.int(0);
    if fd == -1 {
        return install(call, flags, O_RDWR, || Ok(SignalFile::new(set)));
    }
    let open = call.files().get(fd)?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    let file = open.downcast::<SignalFile>().ok_or(Errno::EINVAL)?;
    file.set_set(set, call.thread);
    Ok(fd as usize)
}
