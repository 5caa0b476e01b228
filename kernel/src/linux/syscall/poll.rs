//! Waiting for any of several files: `poll` and `select`.

use alloc::{sync::Arc, vec::Vec};
use core::{cell::Cell, time::Duration};

use abi::{
    Errno, Result,
    raw::general::{RLIMIT_NOFILE, pollfd},
};
use fs::Ready;
use nucleus::{
    VirtAddr,
    task::{Sleep, WaitSet, Watch, Woken},
    time, user,
};

use super::{Call, SystemCall, call};
use crate::process::{files::OpenFile, signal::ERESTARTNOHAND};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_poll, poll),
    call!(__NR_ppoll, ppoll),
    call!(__NR_select, select),
    call!(__NR_pselect6, pselect),
];

/// A polled descriptor: its file, the wanted events, the found ones.
struct Watched {
    /// None if there is nothing to look at; then `found` says it all.
    open: Option<Arc<OpenFile>>,
    wanted: Ready,
    found: Cell<Ready>,
}

impl Watched {
    /// The descriptor of an open file, of which this is wanted. Errors and ends are news to
    /// everyone.
    fn new(open: Arc<OpenFile>, wanted: Ready) -> Watched {
        Watched {
            open: Some(open),
            wanted: wanted | Ready::ERR | Ready::HUP | Ready::NVAL,
            found: Cell::new(Ready::empty()),
        }
    }

    /// A descriptor without a file, and the answer for it.
    fn nothing(found: Ready) -> Watched {
        Watched {
            open: None,
            wanted: Ready::empty(),
            found: Cell::new(found),
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not at all.
    No,
    /// Until this time since boot.
    Until(Duration),
    Forever,
}

impl Wait {
    /// So many milliseconds from now on; for ever if negative.
    pub fn for_milliseconds(milliseconds: i32) -> Wait {
        match u64::try_from(milliseconds) {
            Ok(milliseconds) => Wait::for_duration(Duration::from_millis(milliseconds)),
            Err(_) => Wait::Forever,
        }
    }

    /// The sleep for it, which a signal may end; `None` for not at all.
    pub fn sleep(self) -> Option<Sleep> {
        let deadline = match self {
            Wait::No => return None,
            Wait::Until(end) => Some(end),
            Wait::Forever => None,
        };
        Some(Sleep {
            interruptible: true,
            deadline,
        })
    }

    fn for_duration(duration: Duration) -> Wait {
        if duration.is_zero() {
            return Wait::No;
        }
        match time::since_boot().checked_add(duration) {
            Some(end) => Wait::Until(end),
            None => Wait::Forever,
        }
    }

    /// Returns the time that is left now.
    fn left(self) -> Duration {
        match self {
            Wait::Until(end) => end.saturating_sub(time::since_boot()),
            _ => Duration::ZERO,
        }
    }
}

/// Looks at all files; the number of those of which something wanted is ready.
fn look<'a>(watched: &'a [Watched], mut set: Option<&mut WaitSet<'a>>) -> usize {
    let mut count = 0;
    for watched in watched {
        let Some(open) = &watched.open else { continue };
        let watch = set.as_deref_mut().map(|set| set as &mut dyn Watch<'a>);
        let found = open.file().poll(watch) & watched.wanted;
        watched.found.set(found);
        count += usize::from(!found.is_empty());
    }
    count
}

/// Waits until something wanted is ready of one file at least. Returns the number of those files, 0
/// after the time.
fn wait_for_any(watched: &[Watched], wait: Wait) -> Result<usize> {
    let count = look(watched, None);
    let Some(sleep) = wait.sleep().filter(|_| count == 0) else {
        return Ok(count);
    };
    let mut set = WaitSet::new();
    // From here on every change wakes; what changed since the first look is seen by this one.
    let mut count = look(watched, Some(&mut set));
    while count == 0 {
        let woken = set.wait(sleep);
        count = look(watched, None);
        if count > 0 {
            break;
        }
        match woken {
            Ok(()) => {}
            Err(Woken::TimedOut) => return Ok(0),
            Err(Woken::Interrupted) => return Err(ERESTARTNOHAND),
        }
    }
    Ok(count)
}

fn poll(call: &mut Call<'_>) -> Result<usize> {
    let wait = Wait::for_milliseconds(call.int(2));
    poll_until(call, wait)
}

/// A signal without a handler does not make the time begin anew.
fn poll_until(call: &mut Call<'_>, wait: Wait) -> Result<usize> {
    let result = poll_files(call, wait);
    if result == Err(ERESTARTNOHAND)
        && let Wait::Until(end) = wait
    {
        let [files, count, ..] = call.args;
        let (seconds, rest) = (end.as_secs(), u64::from(end.subsec_nanos()));
        return Err(call.restart_with(poll_again, [files, count, seconds, rest, 0, 0]));
    }
    result
}

fn poll_again(call: &mut Call<'_>) -> Result<usize> {
    let end = Duration::new(call.args[2], call.args[3] as u32);
    poll_until(call, Wait::Until(end))
}

fn ppoll(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(2);
    let wait = read_timespec(at)?;
    set_mask(call, call.address(3), call.size(4))?;
    let result = poll_files(call, wait);
    write_timespec(at, wait, result)
}

/// How many descriptors are fetched from the program, and looked up, at a time.
const BLOCK: usize = 16;

fn poll_files(call: &Call<'_>, wait: Wait) -> Result<usize> {
    let (at, count) = (call.address(0), call.unsigned(1) as usize);
    if count as u64 > call.process().limits().soft(RLIMIT_NOFILE) {
        return Err(Errno::EINVAL);
    }
    let entry = |i: usize| at.checked_add(i * size_of::<pollfd>()).ok_or(Errno::EFAULT);
    let mut watched: Vec<Watched> = nucleus::try_vec(count)?;
    // Descriptors that are not open are an answer at once; negative ones are left out.
    let mut bad = 0;
    let mut asked: [pollfd; BLOCK] = user::zeroed();
    while watched.len() < count {
        let asked = &mut asked[..(count - watched.len()).min(BLOCK)];
        user::read_all(asked, entry(watched.len())?)?;
        call.files()
            .get_each(asked.iter().map(|poll| (poll.fd, poll)), |poll, open| {
                let wanted = Ready::from_bits_truncate(poll.events as u16 as u32);
                watched.push(match open {
                    Some(open) => Watched::new(open, wanted),
                    None => {
                        let negative = poll.fd < 0;
                        bad += usize::from(!negative);
                        Watched::nothing(if negative {
                            Ready::empty()
                        } else {
                            Ready::NVAL
                        })
                    }
                });
            });
    }
    let wait = if bad > 0 { Wait::No } else { wait };
    let ready = wait_for_any(&watched, wait)?;
    // Only the answers are written: the program may use the rest of the structures meanwhile. They
    // have been read, so no address wraps.
    let mut to = at.0.wrapping_add(core::mem::offset_of!(pollfd, revents));
    for watched in &watched {
        let found = watched.found.get().bits() as i16;
        user::write(VirtAddr(to), &found)?;
        to = to.wrapping_add(size_of::<pollfd>());
    }
    Ok(ready + bad)
}

/// A relative time of `ppoll` or `pselect6`; none at all is for ever.
pub(super) fn read_timespec(at: VirtAddr) -> Result<Wait> {
    if at.0 == 0 {
        return Ok(Wait::Forever);
    }
    super::read_timespec(at).map(Wait::for_duration)
}

/// Tells the program how much of its time is left. Whether it can be told doesn't matter to the
/// result, as on Linux.
fn write_timespec(at: VirtAddr, wait: Wait, result: Result<usize>) -> Result<usize> {
    if at.0 != 0 {
        let _ = super::write_timespec(at, wait.left());
    }
    result
}

/// The signal mask that a call wants while it waits.
pub(super) fn set_mask(call: &Call<'_>, at: VirtAddr, size: usize) -> Result<()> {
    if at.0 == 0 {
        return Ok(());
    }
    if size != size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    let mask: u64 = user::read(at)?;
    call.thread
        .set_temporary_mask(crate::process::signal::SignalSet(mask));
    Ok(())
}

fn select(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(4);
    let wait = if at.0 == 0 {
        Wait::Forever
    } else {
        let [seconds, microseconds]: [i64; 2] = user::read(at)?;
        let seconds = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?;
        let microseconds = u64::try_from(microseconds).map_err(|_| Errno::EINVAL)?;
        let rest = Duration::from_micros(microseconds);
        match Duration::from_secs(seconds).checked_add(rest) {
            Some(duration) => Wait::for_duration(duration),
            None => Wait::Forever,
        }
    };
    let result = select_files(call, wait);
    if at.0 != 0 {
        let left = wait.left();
        // As with `ppoll`: the result stands whether or not the program can be told.
        let _ = user::write(at, &[left.as_secs(), left.subsec_micros().into()]);
    }
    result
}

fn pselect(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(4);
    let wait = read_timespec(at)?;
    let mask = call.address(5);
    if mask.0 != 0 {
        // The sixth argument is a pointer to a pointer and a size.
        let [mask, size]: [usize; 2] = user::read(mask)?;
        set_mask(call, VirtAddr(mask), size)?;
    }
    let result = select_files(call, wait);
    write_timespec(at, wait, result)
}

/// The events of each of the three sets of `select`.
const ASKS: [Ready; 3] = [
    Ready::IN
        .union(Ready::RDNORM)
        .union(Ready::RDBAND)
        .union(Ready::HUP)
        .union(Ready::ERR),
    Ready::OUT
        .union(Ready::WRNORM)
        .union(Ready::WRBAND)
        .union(Ready::ERR),
    Ready::PRI,
];

fn zeros(words: usize) -> Result<Vec<u64>> {
    let mut set = nucleus::try_vec(words)?;
    set.resize(words, 0);
    Ok(set)
}

fn select_files(call: &Call<'_>, wait: Wait) -> Result<usize> {
    let count = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    // Bits beyond the table can't be of open files; Linux leaves them out, too.
    let count = count.min(call.files().size());
    let words = count.div_ceil(64);
    let mut asked: [Vec<u64>; 3] = Default::default();
    for (set, asked) in asked.iter_mut().enumerate() {
        *asked = match call.args[1 + set] {
            0 => zeros(words)?,
            _ => call.read_many(1 + set, words)?,
        };
    }
    let is_in = |set: &[u64], fd: usize| set[fd / 64] & 1 << (fd % 64) != 0;
    let mut watched = Vec::new();
    let mut descriptors = Vec::new();
    for fd in 0..count {
        let mut wanted = Ready::empty();
        for (set, asks) in asked.iter().zip(ASKS) {
            if is_in(set, fd) {
                wanted |= asks;
            }
        }
        if wanted.is_empty() {
            continue;
        }
        let open = call.files().get(fd as i32)?;
        if open.is_path() {
            return Err(Errno::EBADF);
        }
        watched.try_reserve(1)?;
        descriptors.try_reserve(1)?;
        watched.push(Watched {
            open: Some(open),
            wanted,
            found: Cell::new(Ready::empty()),
        });
        descriptors.push(fd);
    }
    wait_for_any(&watched, wait)?;
    let mut total = 0;
    for (set, asks) in asked.iter_mut().zip(ASKS) {
        let mut answer = zeros(words)?;
        for (&fd, watched) in descriptors.iter().zip(&watched) {
            if is_in(set, fd) && watched.found.get().intersects(asks) {
                answer[fd / 64] |= 1 << (fd % 64);
                total += 1;
            }
        }
        *set = answer;
    }
    for (set, answer) in asked.iter().enumerate() {
        if call.args[1 + set] != 0 {
            call.write_many(1 + set, answer)?;
        }
    }
    Ok(total)
}
