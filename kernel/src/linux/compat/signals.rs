//! Signals: actions, sets of 32 signals, details of a signal.

use abi::{Errno, Result, raw::general as raw};
use nucleus::user;

use super::{
    row::{Row, differs, shim},
    translate::{
        Difference::{Info, Narrow, Out, OutInfo, Set, Times, Unsigned},
        call_native,
    },
};
use crate::linux::syscall::{Call, signal::returned};
use crate::process::signal;

/// `SIG_ERR` is never an action; the flags of `signal`.
const ONE_SHOT: u32 = raw::SA_RESETHAND | raw::SA_NODEFER;

pub(super) const CALLS: &[Row] = &[
    shim(48, raw::__NR_rt_sigaction, signal),
    shim(67, raw::__NR_rt_sigaction, sigaction),
    shim(68, raw::__NR_rt_sigprocmask, |call| {
        Ok(call.thread.signals.mask().0 as u32 as usize)
    }),
    shim(69, raw::__NR_rt_sigprocmask, ssetmask),
    shim(72, raw::__NR_rt_sigsuspend, |call| {
        let mask = call.args[2];
        call.lay(0, &mask)?;
        call.args[1] = 8;
        call.native(raw::__NR_rt_sigsuspend)
    }),
    differs(73, raw::__NR_rt_sigpending, &[Set(1, 4)]),
    shim(119, raw::__NR_rt_sigreturn, |call| {
        let restored = signal::sigreturn_plain(call.thread, call.context);
        Ok(returned(call, restored))
    }),
    shim(126, raw::__NR_rt_sigprocmask, sigprocmask),
    shim(173, raw::__NR_rt_sigreturn, |call| {
        let restored = signal::sigreturn_full(call.thread, call.own, call.context);
        Ok(returned(call, restored))
    }),
    shim(174, raw::__NR_rt_sigaction, rt_sigaction),
    differs(177, raw::__NR_rt_sigtimedwait, &[Narrow(2, 2), OutInfo(1)]),
    differs(178, raw::__NR_rt_sigqueueinfo, &[Info(2)]),
    differs(186, raw::__NR_sigaltstack, &[Unsigned(0, 3), Out(1, 3)]),
    differs(335, raw::__NR_rt_tgsigqueueinfo, &[Info(3)]),
    differs(421, raw::__NR_rt_sigtimedwait, &[Times(2, 1), OutInfo(1)]),
    shim(424, raw::__NR_pidfd_send_signal, |call| {
        let list: &[_] = if call.args[2] == 0 { &[] } else { &[Info(2)] };
        call_native(call, raw::__NR_pidfd_send_signal, list)
    }),
];

/// An action's words: handler, flags, restorer, mask.
type Action = [u64; 4];

/// Sets and asks for an action.
fn exchange(call: &mut Call<'_>, new: Option<Action>) -> Result<Action> {
    match new {
        Some(new) => call.lay(1, &new)?,
        None => call.args[1] = 0,
    }
    call.lay(2, &Action::default())?;
    call.args[3] = 8;
    call.native(raw::__NR_rt_sigaction)?;
    call.read(2)
}

fn rt_sigaction(call: &mut Call<'_>) -> Result<usize> {
    if call.size(3) != 8 {
        return Err(Errno::EINVAL);
    }
    let new = match call.args[1] {
        0 => None,
        _ => {
            let [handler, flags, restorer, low, high]: [u32; 5] = call.read(1)?;
            let mask = u64::from(low) | u64::from(high) << 32;
            Some([handler.into(), flags.into(), restorer.into(), mask])
        }
    };
    let to = call.address(2);
    let [handler, flags, restorer, mask] = exchange(call, new)?;
    if to.0 != 0 {
        let words = [handler, flags, restorer, mask, mask >> 32].map(|word| word as u32);
        user::write(to, &words)?;
    }
    Ok(0)
}

/// `sigaction`: handler, mask, flags, restorer.
fn sigaction(call: &mut Call<'_>) -> Result<usize> {
    let new = match call.args[1] {
        0 => None,
        _ => {
            let [handler, mask, flags, restorer]: [u32; 4] = call.read(1)?;
            Some([handler, flags, restorer, mask].map(u64::from))
        }
    };
    let to = call.address(2);
    let [handler, flags, restorer, mask] = exchange(call, new)?;
    if to.0 != 0 {
        user::write(
            to,
            &[handler, mask, flags, restorer].map(|word| word as u32),
        )?;
    }
    Ok(0)
}

/// `signal`: gives the old handler.
fn signal(call: &mut Call<'_>) -> Result<usize> {
    let new = [call.args[1], u64::from(ONE_SHOT), 0, 0];
    let [handler, ..] = exchange(call, Some(new))?;
    Ok(handler as usize)
}

/// Changes the mask and gives the old one.
fn change_mask(call: &mut Call<'_>, how: u64, set: Option<u64>) -> Result<u64> {
    call.args[0] = how;
    match set {
        Some(set) => call.lay(1, &set)?,
        None => call.args[1] = 0,
    }
    call.lay(2, &0u64)?;
    call.args[3] = 8;
    call.native(raw::__NR_rt_sigprocmask)?;
    call.read(2)
}

/// `sigprocmask`: signals from 33 on keep their places in the mask.
fn sigprocmask(call: &mut Call<'_>) -> Result<usize> {
    let (how, to) = (call.args[0], call.address(2));
    let upper = match how as u32 {
        raw::SIG_SETMASK => call.thread.signals.mask().0 & !u64::from(u32::MAX),
        _ => 0,
    };
    let set = match call.args[1] {
        0 => None,
        _ => Some(upper | u64::from(user::read::<u32>(call.address(1))?)),
    };
    let old = change_mask(call, how, set)?;
    if to.0 != 0 {
        user::write(to, &(old as u32))?;
    }
    Ok(0)
}

/// `ssetmask`: gives the old mask.
fn ssetmask(call: &mut Call<'_>) -> Result<usize> {
    let upper = call.thread.signals.mask().0 & !u64::from(u32::MAX);
    let set = upper | u64::from(call.unsigned(0));
    let old = change_mask(call, u64::from(raw::SIG_SETMASK), Some(set))?;
    Ok(old as u32 as usize)
}
