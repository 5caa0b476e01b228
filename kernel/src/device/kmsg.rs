//! `/dev/kmsg`: the kernel's log, a record a read.

use alloc::{format, sync::Arc};
use core::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::general::{CAP_SYS_ADMIN, CAP_SYSLOG, O_NONBLOCK, SEEK_DATA, SEEK_END, SEEK_SET},
};
use fbuf::{Sink, Source};
use fs::{File, Location, OpenFlags, Ready};
use nucleus::{
    log,
    sync::Mutex,
    task::{self, Sleep, Watch, Woken},
    time,
};

use crate::process::{Credentials, signal, thread};

/// The minor.
pub const KMSG: u32 = 11;

/// The log wakes no waiter, so that it can be written in any context; a reader that waits for a
/// line polls at this interval.
const LOOK: Duration = Duration::from_millis(200);
/// A longer line is cut, as the log itself does.
pub const LINE: usize = 512;
/// "Informational", from the kernel itself.
const PRIORITY: u32 = 6;

/// `kernel.dmesg_restrict`: only programs with `CAP_SYSLOG` read the log. Set as in Debian.
pub static RESTRICTED: AtomicU32 = AtomicU32::new(1);

/// Checks that `who` may read the log.
///
/// # Errors
/// `EPERM`.
pub fn check_reader(who: &Credentials) -> Result<()> {
    let trusted = who.may(CAP_SYSLOG) || who.may(CAP_SYS_ADMIN);
    Errno::EPERM.unless(trusted || RESTRICTED.load(Relaxed) == 0)
}

struct Kmsg {
    location: Location,
    /// The byte of the log, counted from boot, that is read next.
    position: Mutex<u64>,
}

/// Opens the log from its oldest line on.
///
/// # Errors
/// `EPERM` for a reader who may not read it.
pub fn open(at: &Location, flags: OpenFlags) -> Result<Arc<dyn File>> {
    if flags.reads()
        && let Some(shared) = thread::current_shared()
    {
        check_reader(&shared.credentials)?;
    }
    Ok(Arc::new(Kmsg {
        location: at.clone(),
        position: Mutex::new(fs::rank::FILE, 0),
    }))
}

/// Waits for as long as a reader does before it looks again.
///
/// # Errors
/// `ERESTARTSYS` for a signal.
pub fn wait() -> Result<()> {
    let woken = task::sleep(Sleep {
        interruptible: true,
        deadline: Some(time::since_boot() + LOOK),
    });
    match woken {
        Woken::Interrupted => Err(signal::ERESTARTSYS),
        Woken::TimedOut => Ok(()),
    }
}

/// Returns the first line from `offset` on, and the offset behind it; if the line there is gone,
/// the first one that is left as a whole.
pub fn next_line(offset: u64, line: &mut [u8; LINE]) -> Option<(usize, u64)> {
    let (mut n, mut end) = log::read(offset, line);
    let mut start = end - n as u64;
    if start > offset {
        // The oldest bytes are the end of a line.
        let cut = line[..n].iter().position(|&byte| byte == b'\n')?;
        (n, end) = log::read(start + cut as u64 + 1, line);
        start = end - n as u64;
    }
    if n == 0 {
        return None;
    }
    let len = line[..n].iter().position(|&b| b == b'\n').unwrap_or(n);
    let next = start + (len + 1).min(n) as u64;
    Some((len, next))
}

/// The time in front of a line of the log, in microseconds, and the text behind it.
fn split_time(line: &[u8]) -> (u64, &[u8]) {
    let parse = || {
        let rest = line.strip_prefix(b"[")?;
        let end = rest.iter().position(|&b| b == b']')?;
        let time = core::str::from_utf8(&rest[..end]).ok()?.trim();
        let (seconds, micros) = time.split_once('.')?;
        let seconds: u64 = seconds.parse().ok()?;
        let micros: u64 = micros.parse().ok()?;
        let text = rest[end + 1..].strip_prefix(b" ")?;
        Some((seconds * 1_000_000 + micros, text))
    };
    parse().unwrap_or((0, line))
}

impl File for Kmsg {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let mut line = [0; LINE];
        let mut position = self.position.lock();
        let (len, next) = loop {
            if let Some((len, next)) = next_line(*position, &mut line) {
                let start = next - len as u64 - 1;
                if start > *position && *position > 0 {
                    // As on Linux the reader learns that lines are gone.
                    *position = start;
                    return Err(Errno::EPIPE);
                }
                break (len, next);
            }
            if flags.has(O_NONBLOCK) {
                return Err(Errno::EAGAIN);
            }
            wait()?;
        };
        let (micros, text) = split_time(&line[..len]);
        let head = format!("{PRIORITY},{},{micros},-;", *position);
        if head.len() + text.len() + 1 > to.room() {
            return Err(Errno::EINVAL);
        }
        let mut total = 0;
        for part in [head.as_bytes(), text, b"\n"] {
            total += to.put_bytes(part)?;
        }
        *position = next;
        Ok(total)
    }

    fn write(&self, _: Option<u64>, _: OpenFlags, from: &mut dyn Source) -> Result<usize> {
        let total = from.left();
        let mut text = [0; LINE];
        let n = from.take_bytes(&mut text)?;
        let text = alloc::string::String::from_utf8_lossy(&text[..n]);
        let text = text.trim_end_matches('\n');
        // A priority in front is Linux's way to say how grave it is; the log has one level.
        let text = match text.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((level, rest)) if level.parse::<u32>().is_ok() => rest,
            _ => text,
        };
        nucleus::log!("{text}");
        Ok(total)
    }

    fn seek(&self, offset: i64, whence: u32) -> Result<u64> {
        if offset != 0 {
            return Err(Errno::ESPIPE);
        }
        let mut position = self.position.lock();
        match whence {
            SEEK_SET | SEEK_DATA => *position = 0,
            SEEK_END => {
                let mut bytes = [0; LINE];
                loop {
                    let (n, end) = log::read(*position, &mut bytes);
                    *position = end;
                    if n == 0 {
                        break;
                    }
                }
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    fn poll<'a>(&'a self, _: Option<&mut dyn Watch<'a>>) -> Ready {
        let mut line = [0; LINE];
        let mut ready = Ready::OUT | Ready::WRNORM;
        if next_line(*self.position.lock(), &mut line).is_some() {
            ready |= Ready::IN | Ready::RDNORM;
        }
        ready
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
}
