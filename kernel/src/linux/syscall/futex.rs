//! `futex`, `futex_waitv`, and the lists of locks that a thread may leave behind.

use core::{sync::atomic::AtomicU64, sync::atomic::Ordering::Relaxed, time::Duration};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, time};

use super::{Call, FlagSet, SystemCall, call, choice, flag_set, read_timespec};
use crate::process::{Ids, View};
use crate::{
    process::{
        Thread,
        futex::{self, Key, Wanted, pi},
        signal,
    },
    wall_clock::Deadline,
};

/// `FUTEX_LOCK_PI2`, which the bindings leave out.
const FUTEX_LOCK_PI2: u32 = 13;

const OPERATIONS: FlagSet = choice!(
    "futex_op",
    [
        raw::FUTEX_WAIT,
        raw::FUTEX_WAKE,
        raw::FUTEX_REQUEUE,
        raw::FUTEX_CMP_REQUEUE,
        raw::FUTEX_WAKE_OP,
        raw::FUTEX_LOCK_PI,
        raw::FUTEX_UNLOCK_PI,
        raw::FUTEX_TRYLOCK_PI,
        raw::FUTEX_WAIT_BITSET,
        raw::FUTEX_WAKE_BITSET,
        raw::FUTEX_WAIT_REQUEUE_PI,
        raw::FUTEX_CMP_REQUEUE_PI,
        FUTEX_LOCK_PI2,
    ],
    ENOSYS
);
const WAITV_FLAGS: FlagSet = flag_set!("flags", [], EINVAL);
const WAITV_CLOCKS: FlagSet = choice!(
    "clockid",
    [raw::CLOCK_REALTIME, raw::CLOCK_MONOTONIC],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_futex, futex).flags(&[&OPERATIONS]).note(
        "nice values and levels are lent; `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME` go \
             with the operations as on Linux",
    ),
    call!(__NR_futex_waitv, futex_waitv).flags(&[&WAITV_FLAGS, &WAITV_CLOCKS]),
    call!(__NR_set_robust_list, set_robust_list),
    call!(__NR_get_robust_list, get_robust_list),
];

/// `FUTEX_CMD_MASK` leaves these two out.
const OPTIONS: u32 = raw::FUTEX_PRIVATE_FLAG | raw::FUTEX_CLOCK_REALTIME;

/// A time of the epoch's clock or of that since boot.
fn deadline(time: Duration, of_epoch: bool) -> Deadline {
    match of_epoch {
        true => Deadline::OfDay(time),
        false => Deadline::SinceBoot(time),
    }
}

/// The time in argument 3.
fn timeout(call: &Call<'_>) -> Result<Option<Duration>> {
    match call.args[3] {
        0 => Ok(None),
        _ => read_timespec(call.address(3)).map(Some),
    }
}

fn futex(call: &mut Call<'_>) -> Result<usize> {
    let operation = call.unsigned(1);
    let command = OPERATIONS.check(call.caller(), u64::from(operation & !OPTIONS))? as u32;
    let private = operation & raw::FUTEX_PRIVATE_FLAG != 0;
    let epoch = operation & raw::FUTEX_CLOCK_REALTIME != 0;
    let address = call.address(0);
    let value = call.unsigned(2);
    let key = |n: usize| Key::new(call.space(), call.address(n), private);
    let word = |n: usize| Key::of_word(call.space(), call.address(n), private);
    let count = |n: u64| usize::try_from(n as i32).map_err(|_| Errno::EINVAL);
    let takes_epoch = matches!(
        command,
        raw::FUTEX_WAIT | raw::FUTEX_WAIT_BITSET | raw::FUTEX_WAIT_REQUEUE_PI | FUTEX_LOCK_PI2
    );
    if epoch && !takes_epoch {
        return Err(Errno::ENOSYS);
    }
    match command {
        raw::FUTEX_WAIT => {
            let end = timeout(call)?.map(|timeout| time::since_boot().saturating_add(timeout));
            wait_relative(call, key(0)?, value, end, private)
        }
        raw::FUTEX_WAIT_BITSET => {
            let end = timeout(call)?.map(|time| deadline(time, epoch));
            let bits = call.unsigned(5);
            futex::wait(call.thread, key(0)?, address, value, bits, end).map(|()| 0)
        }
        // A count of none wakes one all the same.
        raw::FUTEX_WAKE => futex::wake(word(0)?, (value as i32).max(1) as usize, u32::MAX),
        raw::FUTEX_WAKE_BITSET => match call.unsigned(5) {
            0 => Err(Errno::EINVAL),
            bits => futex::wake(word(0)?, (value as i32).max(1) as usize, bits),
        },
        raw::FUTEX_REQUEUE | raw::FUTEX_CMP_REQUEUE => {
            let expected = (command == raw::FUTEX_CMP_REQUEUE).then(|| (address, call.unsigned(5)));
            let (wakes, moves) = (count(u64::from(value))?, count(call.args[3])?);
            let (woken, moved) = futex::requeue(word(0)?, word(4)?, wakes, moves, expected)?;
            Ok(if expected.is_some() {
                woken + moved
            } else {
                woken
            })
        }
        raw::FUTEX_WAKE_OP => {
            let (one, two) = (word(0)?, key(4)?);
            let counts = (count(u64::from(value))?, count(call.args[3])?);
            let operation = call.unsigned(5);
            futex::wake_op(one, two, call.address(4), counts.0, counts.1, operation)
        }
        raw::FUTEX_LOCK_PI | FUTEX_LOCK_PI2 => {
            let epoch = epoch || command == raw::FUTEX_LOCK_PI;
            let end = timeout(call)?.map(|time| deadline(time, epoch));
            pi::lock(call.thread, key(0)?, address, end, None).map(|()| 0)
        }
        raw::FUTEX_TRYLOCK_PI => pi::try_lock(call.thread, key(0)?, address).map(|()| 0),
        raw::FUTEX_UNLOCK_PI => pi::unlock(call.thread, key(0)?, address).map(|()| 0),
        raw::FUTEX_WAIT_REQUEUE_PI => {
            let end = timeout(call)?.map(|time| deadline(time, epoch));
            let to = (key(4)?, call.address(4));
            pi::wait_requeue(call.thread, key(0)?, (address, value), to, end).map(|()| 0)
        }
        _ => {
            // `FUTEX_CMP_REQUEUE_PI`, which wakes one at most: the word has one owner.
            if value != 1 {
                return Err(Errno::EINVAL);
            }
            let moves = count(call.args[3])?;
            let expected = (address, call.unsigned(5));
            pi::requeue(key(0)?, word(4)?, expected, call.address(4), moves)
        }
    }
}

/// `FUTEX_WAIT`, whose relative time continues after a signal without a handler.
fn wait_relative(
    call: &mut Call<'_>,
    key: Key,
    value: u32,
    deadline: Option<Duration>,
    private: bool,
) -> Result<usize> {
    let address = call.address(0);
    let answer = {
        let end = deadline.map(Deadline::SinceBoot);
        futex::wait(call.thread, key, address, value, u32::MAX, end)
    };
    match (answer, deadline) {
        (Err(signal::ERESTARTSYS), Some(deadline)) => {
            let args = [
                address.0 as u64,
                u64::from(value),
                deadline.as_secs(),
                u64::from(deadline.subsec_nanos()),
                u64::from(private),
                0,
            ];
            Err(call.restart_with(wait_again, args))
        }
        (answer, _) => answer.map(|()| 0),
    }
}

fn wait_again(call: &mut Call<'_>) -> Result<usize> {
    let [_, value, seconds, nanoseconds, private, _] = call.args;
    let deadline = Duration::new(seconds, nanoseconds as u32);
    let private = private != 0;
    let key = Key::new(call.space(), call.address(0), private)?;
    wait_relative(call, key, value as u32, Some(deadline), private)
}

/// Words that `futex_waitv` waits for at most (`FUTEX_WAITV_MAX`).
const WAITV_MAX: u32 = 128;
/// `FUTEX_32`: the only size of a word.
const FUTEX_32: u32 = 2;

fn futex_waitv(call: &mut Call<'_>) -> Result<usize> {
    call.flags(2, &WAITV_FLAGS)?;
    let count = call.unsigned(1);
    if count == 0 || count > WAITV_MAX || call.args[0] == 0 {
        return Err(Errno::EINVAL);
    }
    let end = match call.args[3] {
        0 => None,
        _ => {
            let clock = call.choice(4, &WAITV_CLOCKS)?;
            let time = read_timespec(call.address(3))?;
            Some(deadline(time, clock == raw::CLOCK_REALTIME).since_boot())
        }
    };
    let mut words = nucleus::try_vec(count as usize)?;
    for [value, address, flags_and_reserved] in call.read_many::<[u64; 3]>(0, count as usize)? {
        let flags = flags_and_reserved as u32;
        let known = FUTEX_32 | raw::FUTEX_PRIVATE_FLAG;
        let is_word = flags & FUTEX_32 != 0 && u32::try_from(value).is_ok();
        if flags & !known != 0 || flags_and_reserved >> 32 != 0 || !is_word {
            return Err(Errno::EINVAL);
        }
        let address = VirtAddr(address as usize);
        words.push(Wanted {
            key: Key::new(call.space(), address, flags & raw::FUTEX_PRIVATE_FLAG != 0)?,
            address,
            expected: value as u32,
        });
    }
    futex::wait_for_any(&words, end)
}

/// Bytes of a list's head: three words.
const HEAD_LEN: usize = size_of::<raw::robust_list_head>();

fn set_robust_list(call: &mut Call<'_>) -> Result<usize> {
    if call.size(1) != HEAD_LEN {
        return Err(Errno::EINVAL);
    }
    call.thread.robust_list.store(call.args[0], Relaxed);
    Ok(0)
}

/// The same for lists of 32-bit words.
pub(in crate::linux) fn set_robust_list_32(call: &mut Call<'_>) -> Result<usize> {
    if call.size(1) != HEAD_LEN / 2 {
        return Err(Errno::EINVAL);
    }
    call.thread.robust_list_32.store(call.args[0], Relaxed);
    Ok(0)
}

/// The head of the list of the thread that argument 0 names, 0 for the caller.
fn head(call: &Call<'_>, of: impl Fn(&Thread) -> &AtomicU64) -> Result<u64> {
    let thread = call.thread_named(0)?;
    View::of(&thread, Ids::Real)?.while_same(|thread| of(thread).load(Relaxed))
}

fn get_robust_list(call: &mut Call<'_>) -> Result<usize> {
    let head = head(call, |thread| &thread.robust_list)?;
    call.write(2, &(HEAD_LEN as u64))?;
    call.write(1, &head)?;
    Ok(0)
}

/// See [`set_robust_list_32`].
pub(in crate::linux) fn get_robust_list_32(call: &mut Call<'_>) -> Result<usize> {
    let head = head(call, |thread| &thread.robust_list_32)?;
    call.write(2, &(HEAD_LEN as u32 / 2))?;
    call.write(1, &(head as u32))?;
    Ok(0)
}
