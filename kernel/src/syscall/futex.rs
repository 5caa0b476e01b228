//! `futex`.

use abi::{Errno, Result, raw::general as raw};
use nucleus::time;

use super::{Call, Entry, read_timespec};
use crate::{
    futex::{self, Key},
    signal,
};

pub(super) const CALLS: &[Entry] = &[Entry::new(raw::__NR_futex, "futex", futex)];

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
