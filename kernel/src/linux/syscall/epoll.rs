//! `epoll`.

use abi::{
    Errno, Result,
    raw::general::{
        EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET,
        EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLWAKEUP, O_RDWR, epoll_event,
    },
};
use nucleus::addr::USER_END;

use super::{Call, FlagSet, SystemCall, call, choice, event::install, flag_set, poll::Wait};
use crate::ipc::epoll::{Epoll, Interest};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_epoll_create, epoll_create),
    call!(__NR_epoll_create1, |call| {
        create(call, call.flags(0, &CREATE_FLAGS)?)
    })
    .flags(&[&CREATE_FLAGS]),
    call!(__NR_epoll_ctl, epoll_ctl)
        .flags(&[&OPERATIONS])
        .note("`EPOLLWAKEUP` has no effect: the machine never sleeps by itself"),
    call!(__NR_epoll_wait, epoll_wait),
    call!(__NR_epoll_pwait, epoll_pwait),
    call!(__NR_epoll_pwait2, epoll_pwait2),
];

const CREATE_FLAGS: FlagSet = flag_set!("flags", [EPOLL_CLOEXEC], EINVAL);
const OPERATIONS: FlagSet = choice!("op", [EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD], EINVAL);

/// The events that are allowed together with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: u32 =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

fn epoll_create(call: &mut Call<'_>) -> Result<usize> {
    // The size is a hint of old that must only be positive.
    if call.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    create(call, 0)
}

fn create(call: &Call<'_>, flags: u32) -> Result<usize> {
    let account = call.process().account();
    install(call, flags, O_RDWR, || Ok(Epoll::new(account)?))
}

fn epoll_ctl(call: &mut Call<'_>) -> Result<usize> {
    let operation = call.unsigned(1);
    let fd = call.int(2);
    let interest = match operation {
        EPOLL_CTL_DEL => None,
        _ => {
            let event: epoll_event = call.read(3)?;
            Some(Interest {
                events: event.events | EPOLLERR | EPOLLHUP,
                data: event.data,
            })
        }
    };
    let epoll = call.files().get(call.int(0))?;
    let open = call.files().get(fd)?;
    if epoll.is_path() || open.is_path() {
        return Err(Errno::EBADF);
    }
    if !open.file().has_readiness() {
        return Err(Errno::EPERM);
    }
    let set = epoll.downcast::<Epoll>().ok_or(Errno::EINVAL)?;
    if alloc::sync::Arc::ptr_eq(&epoll, &open) {
        return Err(Errno::EINVAL);
    }
    if let Some(interest) = interest
        && interest.events & EPOLLEXCLUSIVE != 0
    {
        let nested = open.downcast::<Epoll>().is_some();
        let allowed = operation == EPOLL_CTL_ADD && interest.events & !WITH_EXCLUSIVE == 0;
        if nested || !allowed {
            return Err(Errno::EINVAL);
        }
    }
    match (call.choice(1, &OPERATIONS)?, interest) {
        (EPOLL_CTL_ADD, Some(interest)) => {
            call.takes_memory()?;
            set.add(&open, fd, interest)?;
        }
        (EPOLL_CTL_MOD, Some(interest)) => set.modify(&open, fd, interest)?,
        _ => set.remove(&open, fd)?,
    }
    Ok(0)
}

fn epoll_wait(call: &mut Call<'_>) -> Result<usize> {
    wait(call, Wait::for_milliseconds(call.int(3)))
}

fn epoll_pwait(call: &mut Call<'_>) -> Result<usize> {
    super::poll::set_mask(call, call.address(4), call.size(5))?;
    epoll_wait(call)
}

fn epoll_pwait2(call: &mut Call<'_>) -> Result<usize> {
    let until = super::poll::read_timespec(call.address(3))?;
    super::poll::set_mask(call, call.address(4), call.size(5))?;
    wait(call, until)
}

fn wait(call: &Call<'_>, until: Wait) -> Result<usize> {
    let most = usize::try_from(call.int(2)).unwrap_or(0);
    if most == 0 || most > i32::MAX as usize / size_of::<epoll_event>() {
        return Err(Errno::EINVAL);
    }
    let to = call.address(1);
    let end = to.checked_add(most * size_of::<epoll_event>());
    if end.is_none_or(|end| end > USER_END) {
        return Err(Errno::EFAULT);
    }
    let open = call.opened(0)?;
    let epoll = open.downcast::<Epoll>().ok_or(Errno::EINVAL)?;
    epoll.wait(to, most, until.sleep())
}
