//! What fits nowhere else: futexes, thread-local storage, random bytes, `prctl`.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{general as raw, prctl as raw_prctl},
};
use nucleus::{VirtAddr, addr::USER_END, random, task, time, user};

use super::{Call, Entry, read_timespec};
use crate::{
    futex::{self, Key},
    process::thread::NAME_LEN,
    signal,
};

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_futex, "futex", futex),
    Entry::new(raw::__NR_arch_prctl, "arch_prctl", arch_prctl),
    Entry::new(raw::__NR_prctl, "prctl", prctl),
    Entry::new(raw::__NR_getrandom, "getrandom", getrandom),
    Entry::new(raw::__NR_membarrier, "membarrier", membarrier),
    Entry::new(raw::__NR_personality, "personality", personality),
];

/// `FUTEX_CMD_MASK` leaves these two out.
const FUTEX_OPTIONS: u32 = raw::FUTEX_PRIVATE_FLAG | raw::FUTEX_CLOCK_REALTIME;

fn futex(call: &mut Call<'_>) -> Result<usize> {
    let operation = call.unsigned(1);
    let command = operation & !FUTEX_OPTIONS;
    let private = operation & raw::FUTEX_PRIVATE_FLAG != 0;
    let epoch = operation & raw::FUTEX_CLOCK_REALTIME != 0;
    let address = call.address(0);
    let value = call.unsigned(2);
    let key = |call: &Call<'_>, n: usize| Key::new(call.space(), call.address(n), private);
    let count = |n: u64| {
        let n = n as i32;
        usize::try_from(n).map_err(|_| Errno::EINVAL)
    };
    if epoch && !matches!(command, raw::FUTEX_WAIT_BITSET | raw::FUTEX_WAIT) {
        return Err(Errno::ENOSYS);
    }
    match command {
        raw::FUTEX_WAIT | raw::FUTEX_WAIT_BITSET => {
            let timeout = match call.args[3] {
                0 => None,
                _ => Some(read_timespec(call.address(3))?),
            };
            let now = time::since_boot();
            let absolute = command == raw::FUTEX_WAIT_BITSET;
            let deadline = timeout.map(|timeout| match (absolute, epoch) {
                (false, _) => now.saturating_add(timeout),
                (true, false) => timeout,
                (true, true) => now.saturating_add(timeout.saturating_sub(time::since_epoch())),
            });
            let bits = if absolute { call.unsigned(5) } else { u32::MAX };
            let key = key(call, 0)?;
            let answer = futex::wait(call.thread, key, address, value, bits, deadline);
            match (answer, deadline) {
                (Ok(()), _) => Ok(0),
                // The time that is left is not what was asked for.
                (Err(signal::ERESTARTSYS), Some(deadline)) if !absolute => {
                    let args = [
                        call.args[0],
                        u64::from(value),
                        deadline.as_secs(),
                        u64::from(deadline.subsec_nanos()),
                        u64::from(private),
                        0,
                    ];
                    Err(call.restart_with(futex_again, args))
                }
                (Err(error), _) => Err(error),
            }
        }
        raw::FUTEX_WAKE => {
            let woken = futex::wake(key(call, 0)?, (value as i32).max(1) as usize, u32::MAX);
            Ok(woken)
        }
        raw::FUTEX_WAKE_BITSET => {
            let bits = call.unsigned(5);
            if bits == 0 {
                return Err(Errno::EINVAL);
            }
            let woken = futex::wake(key(call, 0)?, (value as i32).max(1) as usize, bits);
            Ok(woken)
        }
        raw::FUTEX_REQUEUE | raw::FUTEX_CMP_REQUEUE => {
            let expected = (command == raw::FUTEX_CMP_REQUEUE).then(|| (address, call.unsigned(5)));
            let (from, to) = (key(call, 0)?, key(call, 4)?);
            let (woken, moved) = futex::requeue(
                from,
                to,
                count(u64::from(value))?,
                count(call.args[3])?,
                expected,
            )?;
            Ok(if expected.is_some() {
                woken + moved
            } else {
                woken
            })
        }
        raw::FUTEX_WAKE_OP => {
            let (one, two) = (key(call, 0)?, key(call, 4)?);
            futex::wake_op(
                one,
                two,
                call.address(4),
                count(u64::from(value))?,
                count(call.args[3])?,
                call.unsigned(5),
            )
        }
        // Priority inheritance, and what Linux no longer has.
        _ => Err(Errno::ENOSYS),
    }
}

/// `FUTEX_WAIT` with a relative time goes on after a signal without a handler.
fn futex_again(call: &mut Call<'_>) -> Result<usize> {
    let deadline = core::time::Duration::new(call.args[2], call.args[3] as u32);
    let address = call.address(0);
    let value = call.unsigned(1);
    let key = Key::new(call.space(), address, call.args[4] != 0)?;
    match futex::wait(call.thread, key, address, value, u32::MAX, Some(deadline)) {
        Ok(()) => Ok(0),
        Err(signal::ERESTARTSYS) => Err(call.restart_with(futex_again, call.args)),
        Err(error) => Err(error),
    }
}

// `asm/prctl.h` numbers the four in a row; the bindings have the second one only.
const ARCH_SET_GS: u32 = raw::ARCH_SET_FS - 1;
const ARCH_GET_FS: u32 = raw::ARCH_SET_FS + 1;
const ARCH_GET_GS: u32 = raw::ARCH_SET_FS + 2;

fn arch_prctl(call: &mut Call<'_>) -> Result<usize> {
    let address = call.args[1];
    let is_user = (address as usize) < USER_END.0;
    call.context.sync_bases();
    match call.unsigned(0) {
        raw::ARCH_SET_FS if is_user => call.context.regs.fs_base = address,
        ARCH_SET_GS if is_user => call.context.regs.gs_base = address,
        raw::ARCH_SET_FS | ARCH_SET_GS => return Err(Errno::EPERM),
        ARCH_GET_FS => {
            let base = call.context.regs.fs_base;
            call.write(1, &base)?;
        }
        ARCH_GET_GS => {
            let base = call.context.regs.gs_base;
            call.write(1, &base)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

pub(super) fn prctl(call: &mut Call<'_>) -> Result<usize> {
    let rest_is_zero = |from: usize| call.args[from..5].iter().all(|arg| *arg == 0);
    match call.unsigned(0) {
        raw_prctl::PR_SET_NAME => {
            let mut name = [0; NAME_LEN];
            read_name(call, &mut name)?;
            call.thread.set_name(&name);
            Ok(0)
        }
        raw_prctl::PR_GET_NAME => {
            let mut padded = [0; NAME_LEN];
            let name = call.thread.name();
            padded[..name.len()].copy_from_slice(&name);
            call.write(1, &padded)?;
            Ok(0)
        }
        raw_prctl::PR_SET_PDEATHSIG => {
            if call.args[1] > 64 {
                return Err(Errno::EINVAL);
            }
            call.thread.set_parent_death_signal(call.unsigned(1));
            Ok(0)
        }
        raw_prctl::PR_GET_PDEATHSIG => {
            let signal = call.thread.parent_death_signal();
            call.write(1, &signal)?;
            Ok(0)
        }
        raw_prctl::PR_SET_DUMPABLE => {
            if call.args[1] > 1 {
                return Err(Errno::EINVAL);
            }
            call.process().dumpable.store(call.unsigned(1), Relaxed);
            Ok(0)
        }
        raw_prctl::PR_GET_DUMPABLE => Ok(call.process().dumpable.load(Relaxed) as usize),
        raw_prctl::PR_GET_KEEPCAPS => Ok(0),
        // Capabilities follow the user id here: there are none to keep.
        raw_prctl::PR_SET_KEEPCAPS if call.args[1] <= 1 => Ok(0),
        raw_prctl::PR_GET_SECCOMP => Ok(0),
        raw_prctl::PR_GET_NO_NEW_PRIVS if rest_is_zero(1) => {
            Ok(usize::from(call.process().has_no_new_privileges()))
        }
        raw_prctl::PR_SET_NO_NEW_PRIVS if call.args[1] == 1 && rest_is_zero(2) => {
            call.process().set_no_new_privileges();
            Ok(0)
        }
        raw_prctl::PR_GET_TIMERSLACK => Ok(50_000),
        raw_prctl::PR_SET_TIMERSLACK => Ok(0),
        raw_prctl::PR_CAPBSET_READ if call.args[1] <= u64::from(raw::CAP_LAST_CAP) => Ok(1),
        raw_prctl::PR_SET_CHILD_SUBREAPER => {
            call.process().set_subreaper(call.args[1] != 0);
            Ok(0)
        }
        raw_prctl::PR_GET_CHILD_SUBREAPER => {
            let set = i32::from(call.process().is_subreaper());
            call.write(1, &set)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Reads a name up to its NUL: what stands behind it may not be mapped.
fn read_name(call: &Call<'_>, name: &mut [u8; NAME_LEN]) -> Result<()> {
    for (at, byte) in name[..NAME_LEN - 1].iter_mut().enumerate() {
        let address = VirtAddr(call.address(1).0.wrapping_add(at));
        *byte = user::read(address).map_err(|_| Errno::EFAULT)?;
        if *byte == 0 {
            break;
        }
    }
    Ok(())
}

pub(super) fn getrandom(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.unsigned(2);
    let both = raw::GRND_INSECURE | raw::GRND_RANDOM;
    if flags & !(raw::GRND_NONBLOCK | both) != 0 || flags & both == both {
        return Err(Errno::EINVAL);
    }
    let wanted = call.size(1).min(i32::MAX as usize);
    let mut done = 0;
    let mut buffer = [0; 256];
    while done < wanted {
        let piece = &mut buffer[..(wanted - done).min(256)];
        random::fill(piece);
        let to = VirtAddr(call.address(0).0.wrapping_add(done));
        if user::copy_out(to, piece).is_err() {
            return if done == 0 {
                Err(Errno::EFAULT)
            } else {
                Ok(done)
            };
        }
        done += piece.len();
        if call.thread.signals.needs_attention() && done < wanted {
            return Ok(done);
        }
    }
    Ok(done)
}

fn membarrier(call: &mut Call<'_>) -> Result<usize> {
    use raw::membarrier_cmd as command;
    if call.unsigned(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let global = command::MEMBARRIER_CMD_GLOBAL as u32;
    match call.unsigned(0) {
        // The query: which commands there are.
        0 => Ok(global as usize),
        n if n == global => {
            visit_cpus(call);
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Runs on every processor in turn: each has passed a full barrier then.
fn visit_cpus(call: &Call<'_>) {
    let task = task::current();
    for cpu in 0..task::cpu_count() {
        task.set_cpus(1 << cpu);
        while task::cpu() != cpu {
            task::yield_now();
        }
    }
    task.set_cpus(call.thread.cpus());
}

fn personality(call: &mut Call<'_>) -> Result<usize> {
    let process = call.process();
    let old = process.personality();
    let new = call.unsigned(0);
    if new != u32::MAX {
        process.set_personality(new);
    }
    Ok(old as usize)
}
