//! Settings of a thread or process about itself: `prctl`, `arch_prctl`, `personality`.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{general as raw, prctl as raw_prctl},
};
use nucleus::{VirtAddr, addr::USER_END, processor::Speculation, user};

use super::{
    Call, FlagSet, SystemCall, call, choice,
    credentials::{adopt, copy},
    seccomp,
};
use crate::process::{
    CapabilitySet, KEEP_CAPS, LAST_CAPABILITY, NO_AMBIENT_RAISE, SECURE_BITS, SECURE_LOCKS,
    thread::NAME_LEN,
};

const OPTIONS: FlagSet = choice!(
    "option",
    [
        raw_prctl::PR_SET_PDEATHSIG,
        raw_prctl::PR_GET_PDEATHSIG,
        raw_prctl::PR_GET_DUMPABLE,
        raw_prctl::PR_SET_DUMPABLE,
        raw_prctl::PR_GET_KEEPCAPS,
        raw_prctl::PR_SET_KEEPCAPS,
        raw_prctl::PR_GET_TIMING,
        raw_prctl::PR_SET_TIMING,
        raw_prctl::PR_SET_NAME,
        raw_prctl::PR_GET_NAME,
        raw_prctl::PR_GET_SECCOMP,
        raw_prctl::PR_SET_SECCOMP,
        raw_prctl::PR_CAPBSET_READ,
        raw_prctl::PR_CAPBSET_DROP,
        raw_prctl::PR_GET_TSC,
        raw_prctl::PR_GET_SECUREBITS,
        raw_prctl::PR_SET_SECUREBITS,
        raw_prctl::PR_SET_TIMERSLACK,
        raw_prctl::PR_GET_TIMERSLACK,
        raw_prctl::PR_MCE_KILL_GET,
        raw_prctl::PR_SET_CHILD_SUBREAPER,
        raw_prctl::PR_GET_CHILD_SUBREAPER,
        raw_prctl::PR_SET_NO_NEW_PRIVS,
        raw_prctl::PR_GET_NO_NEW_PRIVS,
        raw_prctl::PR_GET_TID_ADDRESS,
        raw_prctl::PR_SET_THP_DISABLE,
        raw_prctl::PR_GET_THP_DISABLE,
        raw_prctl::PR_CAP_AMBIENT,
        raw_prctl::PR_GET_SPECULATION_CTRL,
        raw_prctl::PR_SET_SPECULATION_CTRL,
    ],
    EINVAL
);

// `asm/prctl.h` numbers the first four in a row; the bindings have one of them only.
const ARCH_SET_GS: u32 = raw::ARCH_SET_FS - 1;
const ARCH_SET_FS: u32 = raw::ARCH_SET_FS;
const ARCH_GET_FS: u32 = raw::ARCH_SET_FS + 1;
const ARCH_GET_GS: u32 = raw::ARCH_SET_FS + 2;
const ARCH_GET_CPUID: u32 = 0x1011;
const ARCH_SET_CPUID: u32 = 0x1012;
const ARCH_CODES: FlagSet = choice!(
    "code",
    [
        ARCH_SET_GS,
        ARCH_SET_FS,
        ARCH_GET_FS,
        ARCH_GET_GS,
        ARCH_GET_CPUID,
        ARCH_SET_CPUID
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_prctl, prctl).flags(&[&OPTIONS]),
    call!(__NR_arch_prctl, arch_prctl).flags(&[&ARCH_CODES]),
    call!(__NR_personality, personality)
        .note("`ADDR_NO_RANDOMIZE` and `PER_LINUX32`'s name of the machine have an effect"),
];

fn arch_prctl(call: &mut Call<'_>) -> Result<usize> {
    let address = call.args[1];
    let is_user = (address as usize) < USER_END.0;
    call.context.sync_bases();
    match call.choice(0, &ARCH_CODES)? {
        ARCH_SET_FS if is_user => call.context.regs.fs_base = address,
        ARCH_SET_GS if is_user => call.context.regs.gs_base = address,
        ARCH_SET_FS | ARCH_SET_GS => return Err(Errno::EPERM),
        ARCH_GET_FS => call.write(1, &call.context.regs.fs_base)?,
        ARCH_GET_GS => call.write(1, &call.context.regs.gs_base)?,
        // Programs may use the instruction; nothing here can take it away.
        ARCH_GET_CPUID => return Ok(1),
        _ => return Err(Errno::ENODEV),
    }
    Ok(0)
}

/// `SECURE_KEEP_CAPS` and the bit that locks it.
const KEEP_CAPS_LOCK: u32 = KEEP_CAPS << 1;
/// `PR_TSC_ENABLE`: programs may read the time-stamp counter.
const TSC_ENABLE: i32 = 1;

fn prctl(call: &mut Call<'_>) -> Result<usize> {
    let option = call.choice(0, &OPTIONS)?;
    let value = call.args[1];
    let rest_is_zero = |from: usize| call.args[from..5].iter().all(|arg| *arg == 0);
    match option {
        raw_prctl::PR_SET_NAME => {
            let mut name = [0; NAME_LEN];
            read_name(call, &mut name)?;
            call.thread.set_name(&name);
        }
        raw_prctl::PR_GET_NAME => {
            let mut padded = [0; NAME_LEN];
            let name = call.thread.name();
            padded[..name.len()].copy_from_slice(&name);
            call.write(1, &padded)?;
        }
        raw_prctl::PR_SET_PDEATHSIG if value <= 64 => {
            call.thread.parent_death_signal.store(value as u32, Relaxed);
        }
        raw_prctl::PR_GET_PDEATHSIG => {
            call.write(1, &call.thread.parent_death_signal.load(Relaxed))?
        }
        raw_prctl::PR_SET_DUMPABLE if value <= 1 => {
            call.space().set_dumpable(value as u32);
        }
        raw_prctl::PR_GET_DUMPABLE => return Ok(call.space().dumpable() as usize),
        raw_prctl::PR_SET_SECCOMP => return seccomp::set_mode(call, value),
        // In strict mode the call does not return.
        raw_prctl::PR_GET_SECCOMP => return Ok(call.thread.seccomp.mode() as usize),
        raw_prctl::PR_GET_NO_NEW_PRIVS if rest_is_zero(1) => {
            return Ok(usize::from(call.process().no_new_privileges.load(Relaxed)));
        }
        raw_prctl::PR_SET_NO_NEW_PRIVS if value == 1 && rest_is_zero(2) => {
            call.process().no_new_privileges.store(true, Relaxed);
        }
        raw_prctl::PR_GET_TIMERSLACK => return Ok(call.thread.timer_slack() as usize),
        raw_prctl::PR_SET_TIMERSLACK => call.thread.set_timer_slack(value),
        // Times are sampled by the clock's tick.
        raw_prctl::PR_GET_TIMING => {}
        raw_prctl::PR_SET_TIMING if value == 0 => {}
        raw_prctl::PR_GET_TSC => call.write(1, &TSC_ENABLE)?,
        raw_prctl::PR_MCE_KILL_GET if rest_is_zero(1) => {
            return Ok(raw_prctl::PR_MCE_KILL_DEFAULT as usize);
        }
        raw_prctl::PR_SET_CHILD_SUBREAPER => call.process().subreaper.store(value != 0, Relaxed),
        raw_prctl::PR_GET_CHILD_SUBREAPER => {
            call.write(1, &i32::from(call.process().subreaper.load(Relaxed)))?
        }
        raw_prctl::PR_GET_TID_ADDRESS => call.write(1, &call.own.clear_child_tid)?,
        raw_prctl::PR_GET_THP_DISABLE if rest_is_zero(1) => {
            return Ok(usize::from(
                call.process().large_pages_disabled.load(Relaxed),
            ));
        }
        raw_prctl::PR_SET_THP_DISABLE if rest_is_zero(2) => {
            call.process()
                .large_pages_disabled
                .store(value != 0, Relaxed);
            call.space().map().allow_large_pages(value == 0);
        }
        raw_prctl::PR_CAP_AMBIENT if rest_is_zero(3) => return ambient(call),
        raw_prctl::PR_GET_SPECULATION_CTRL if rest_is_zero(2) => {
            return Ok(match speculation(value)? {
                Some(kind) => call.thread.restrictions.get(kind),
                None => raw_prctl::PR_SPEC_FORCE_DISABLE,
            } as usize);
        }
        raw_prctl::PR_SET_SPECULATION_CTRL if rest_is_zero(3) => {
            let kind = speculation(value)?.ok_or(Errno::EPERM)?;
            let thread = call.thread;
            thread.restrictions.set(kind, call.args[2])?;
            thread.restrictions.apply(call.context);
            if kind == Speculation::Branches && thread.restrictions.has_own_branches() {
                call.space().distrust();
            }
        }
        raw_prctl::PR_GET_KEEPCAPS
        | raw_prctl::PR_SET_KEEPCAPS
        | raw_prctl::PR_GET_SECUREBITS
        | raw_prctl::PR_SET_SECUREBITS
        | raw_prctl::PR_CAPBSET_READ
        | raw_prctl::PR_CAPBSET_DROP => return capability_option(call, option, value),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The kind of speculation that `PR_SPEC_*` names. None: the first-level cache is never flushed, as
/// on Linux without the option for it.
fn speculation(name: u64) -> Result<Option<Speculation>> {
    match u32::try_from(name) {
        Ok(raw_prctl::PR_SPEC_STORE_BYPASS) => Ok(Some(Speculation::Stores)),
        Ok(raw_prctl::PR_SPEC_INDIRECT_BRANCH) => Ok(Some(Speculation::Branches)),
        Ok(raw_prctl::PR_SPEC_L1D_FLUSH) => Ok(None),
        _ => Err(Errno::ENODEV),
    }
}

/// Options about the bounding set and what `execve` and a change of ids do to capabilities.
fn capability_option(call: &mut Call<'_>, option: u32, value: u64) -> Result<usize> {
    let mut new = copy(call);
    let may_change = new.may(raw::CAP_SETPCAP);
    let own = &mut new.capabilities;
    let bits = own.secure_bits;
    match option {
        raw_prctl::PR_GET_KEEPCAPS => return Ok(usize::from(bits & KEEP_CAPS != 0)),
        raw_prctl::PR_GET_SECUREBITS => return Ok(bits as usize),
        raw_prctl::PR_SET_KEEPCAPS if value > 1 => return Err(Errno::EINVAL),
        raw_prctl::PR_SET_KEEPCAPS if bits & KEEP_CAPS_LOCK != 0 => return Err(Errno::EPERM),
        raw_prctl::PR_SET_KEEPCAPS => {
            own.secure_bits = bits & !KEEP_CAPS | if value == 1 { KEEP_CAPS } else { 0 };
        }
        raw_prctl::PR_SET_SECUREBITS => {
            let locked = (bits & SECURE_LOCKS) >> 1;
            let changed = bits ^ value as u32;
            let unlocks = bits & SECURE_LOCKS & !(value as u32) != 0;
            if value > u64::from(SECURE_BITS) || unlocks || changed & locked != 0 || !may_change {
                return Err(Errno::EPERM);
            }
            own.secure_bits = value as u32;
        }
        _ => {
            let capability = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
            if capability > LAST_CAPABILITY {
                return Err(Errno::EINVAL);
            }
            if option == raw_prctl::PR_CAPBSET_READ {
                return Ok(usize::from(own.bounding.has(capability)));
            }
            if !may_change {
                return Err(Errno::EPERM);
            }
            own.bounding = own.bounding.without(CapabilitySet::of(&[capability]));
        }
    }
    adopt(call, new);
    Ok(0)
}

/// `PR_CAP_AMBIENT`.
fn ambient(call: &mut Call<'_>) -> Result<usize> {
    let capability = call.args[2];
    let mut new = copy(call);
    let own = &mut new.capabilities;
    if call.unsigned(1) == raw_prctl::PR_CAP_AMBIENT_CLEAR_ALL {
        if capability != 0 {
            return Err(Errno::EINVAL);
        }
        own.ambient = CapabilitySet::EMPTY;
        adopt(call, new);
        return Ok(0);
    }
    if capability > u64::from(LAST_CAPABILITY) {
        return Err(Errno::EINVAL);
    }
    let one = CapabilitySet::of(&[capability as u32]);
    match call.unsigned(1) {
        raw_prctl::PR_CAP_AMBIENT_IS_SET => {
            return Ok(usize::from(one.is_within(own.ambient)));
        }
        raw_prctl::PR_CAP_AMBIENT_RAISE => {
            let held = one.is_within(own.permitted) && one.is_within(own.inheritable);
            if !held || own.secure_bits & NO_AMBIENT_RAISE != 0 {
                return Err(Errno::EPERM);
            }
            own.ambient = own.ambient.union(one);
        }
        raw_prctl::PR_CAP_AMBIENT_LOWER => own.ambient = own.ambient.without(one),
        _ => return Err(Errno::EINVAL),
    }
    adopt(call, new);
    Ok(0)
}

/// Reads a name up to its NUL: the memory behind it may not be mapped.
fn read_name(call: &Call<'_>, name: &mut [u8; NAME_LEN]) -> Result<()> {
    for (at, byte) in name[..NAME_LEN - 1].iter_mut().enumerate() {
        let address = VirtAddr(call.address(1).0.wrapping_add(at));
        *byte = user::read(address)?;
        if *byte == 0 {
            break;
        }
    }
    Ok(())
}

fn personality(call: &mut Call<'_>) -> Result<usize> {
    let process = call.process();
    let old = process.personality.load(Relaxed);
    let new = call.unsigned(0);
    if new != u32::MAX {
        process.personality.store(new, Relaxed);
    }
    Ok(old as usize)
}
