//! `syslog`: the kernel's log, line by line, as `klogctl` and `dmesg -S` read it.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, log, sync::Mutex, user};

use super::{Call, FlagSet, SystemCall, call, choice};
use crate::device::kmsg::{self, LINE};

// `linux/syslog.h` is not for programs: the numbers stand in `syslog(2)`.
const CLOSE: u32 = 0;
const OPEN: u32 = 1;
const READ: u32 = 2;
const READ_ALL: u32 = 3;
const READ_CLEAR: u32 = 4;
const CLEAR: u32 = 5;
const CONSOLE_OFF: u32 = 6;
const CONSOLE_ON: u32 = 7;
const CONSOLE_LEVEL: u32 = 8;
const SIZE_UNREAD: u32 = 9;
const SIZE_BUFFER: u32 = 10;

const ACTIONS: FlagSet = choice!(
    "type",
    [
        CLOSE,
        OPEN,
        READ,
        READ_ALL,
        READ_CLEAR,
        CLEAR,
        CONSOLE_OFF,
        CONSOLE_ON,
        CONSOLE_LEVEL,
        SIZE_UNREAD,
        SIZE_BUFFER
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_syslog, syslog)
    .flags(&[&ACTIONS])
    .note("the log goes to a port of its own, so that the console's level changes nothing")];

/// The prefix of each line: facility kernel, level informational.
const MARK: &[u8] = b"<6>";

/// `CLEAR` hides the bytes in front of this one from `READ_ALL`.
static CLEARED: AtomicU64 = AtomicU64::new(0);
/// `READ` goes on here.
static READ_UP_TO: Mutex<u64> = Mutex::new(fs::rank::FILE, 0);

/// Calls `each` with each line from byte `from` of the log on, its mark in front and a newline
/// behind, and the byte behind it in the log, until it returns false.
fn lines(mut from: u64, each: &mut dyn FnMut(&[u8], u64) -> Result<bool>) -> Result<()> {
    let mut text = [0; MARK.len() + LINE + 1];
    let mut line = [0; LINE];
    while let Some((len, next)) = kmsg::next_line(from, &mut line) {
        let whole = MARK.len() + len + 1;
        text[..MARK.len()].copy_from_slice(MARK);
        text[MARK.len()..whole - 1].copy_from_slice(&line[..len]);
        text[whole - 1] = b'\n';
        if !each(&text[..whole], next)? {
            break;
        }
        from = next;
    }
    Ok(())
}

/// Bytes of all lines from `from` on, and the end of the last one in the log.
fn length(from: u64) -> (usize, u64) {
    let (mut bytes, mut end) = (0, from);
    // Counting does not fail.
    let _ = lines(from, &mut |line, next| {
        bytes += line.len();
        end = next;
        Ok(true)
    });
    (bytes, end)
}

/// Copies lines from `from` on as long as they fit in `room`; returns the bytes and where it
/// stopped in the log.
fn copy(from: u64, to: VirtAddr, room: usize) -> Result<(usize, u64)> {
    let (mut done, mut end) = (0, from);
    lines(from, &mut |line, next| {
        if line.len() > room - done {
            return Ok(false);
        }
        let address = VirtAddr(to.0.wrapping_add(done));
        user::copy_out(address, line)?;
        done += line.len();
        end = next;
        Ok(true)
    })?;
    Ok((done, end))
}

/// The last lines that fit.
fn read_all(to: VirtAddr, room: usize, clear: bool) -> Result<usize> {
    let mut from = CLEARED.load(Relaxed);
    let (mut bytes, end) = length(from);
    lines(from, &mut |line, next| {
        if bytes <= room {
            return Ok(false);
        }
        bytes -= line.len();
        from = next;
        Ok(true)
    })?;
    let (done, _) = copy(from, to, room)?;
    if clear {
        CLEARED.store(end, Relaxed);
    }
    Ok(done)
}

/// Returns unread lines; waits for one.
fn read(to: VirtAddr, room: usize) -> Result<usize> {
    let mut at = READ_UP_TO.lock();
    loop {
        let (done, end) = copy(*at, to, room)?;
        *at = end;
        // A line that does not fit into an empty buffer is not waited for.
        if done > 0 || length(end).0 > 0 {
            return Ok(done);
        }
        kmsg::wait()?;
    }
}

fn syslog(call: &mut Call<'_>) -> Result<usize> {
    let action = call.choice(0, &ACTIONS)?;
    let who = call.credentials();
    match action {
        READ_ALL | SIZE_BUFFER => kmsg::check_reader(who)?,
        _ if !who.may(raw::CAP_SYSLOG) && !who.may(raw::CAP_SYS_ADMIN) => return Err(Errno::EPERM),
        _ => {}
    }
    match action {
        READ | READ_ALL | READ_CLEAR => {
            let to = call.address(1);
            let room = usize::try_from(call.int(2)).map_err(|_| Errno::EINVAL)?;
            match room {
                _ if to.0 == 0 => Err(Errno::EINVAL),
                0 => Ok(0),
                _ if action == READ => read(to, room),
                _ => read_all(to, room, action == READ_CLEAR),
            }
        }
        CLEAR => {
            CLEARED.store(length(0).1, Relaxed);
            Ok(0)
        }
        CONSOLE_LEVEL if !(1..=8).contains(&call.int(2)) => Err(Errno::EINVAL),
        SIZE_UNREAD => Ok(length(*READ_UP_TO.lock()).0),
        SIZE_BUFFER => Ok(log::CAPACITY),
        // Opening and closing do nothing, and lines of the log never go to the console of programs.
        _ => Ok(0),
    }
}
