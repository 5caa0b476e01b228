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
use vm::account::Charge;

use super::{Call, SystemCall, call};
use crate::process::{charge_waits, files::OpenFile, signal::ERESTARTNOHAND};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_poll, poll),
    call!(__NR_ppoll, ppoll),
    call!(__NR_select, select),
    call!(__NR_pselect6, pselect),
];

/// A polled descriptor of a call that sleeps: its file, the wanted events, the found ones.
struct Watched {
    /// None if there is nothing to look at.
    open: Option<Arc<OpenFile>>,
    wanted: Ready,
    found: Cell<Ready>,
}

impl Watched {
    fn new(open: Option<Arc<OpenFile>>, wanted: Ready) -> Watched {
        Watched {
            open,
            wanted,
            found: Cell::new(Ready::empty()),
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

/// Memory for a file that is waited for, most of which have one queue.
const WATCHED_BYTES: usize = size_of::<Watched>() + WaitSet::PLACE_BYTES;

/// Sleeps until something wanted is ready of one file at least. Returns the number of those files,
/// 0 after the time. `charge` is for as many places.
fn wait_for_any(watched: &[Watched], sleep: Sleep, mut charge: Option<Charge>) -> Result<usize> {
    let mut set = WaitSet::new();
    // From here on every change wakes; what changed since the first look is seen by this one.
    let mut count = look(watched, Some(&mut set));
    set.check()?;
    if let Some(charge) = &mut charge
        && let more @ 1.. = set.len().saturating_sub(watched.len())
    {
        charge.add(0, more * WaitSet::PLACE_BYTES);
    }
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

/// Descriptors that are looked at together, with one lock of the table.
const BLOCK: usize = 32;
/// Files that must be asked without the table's lock, by their places among those.
type Unasked = [Option<Arc<OpenFile>>; BLOCK];

/// The array of `poll`.
#[derive(Clone, Copy)]
struct Polled {
    at: VirtAddr,
    count: usize,
}

impl Polled {
    fn address(self, i: usize) -> Result<VirtAddr> {
        let offset = i * size_of::<pollfd>();
        self.at.checked_add(offset).ok_or(Errno::EFAULT)
    }

    /// Reads the entries from `from` on, as many as there are or `buffer` has room for.
    fn read(self, from: usize, buffer: &mut [pollfd; BLOCK]) -> Result<&mut [pollfd]> {
        let asked = &mut buffer[..(self.count - from).min(BLOCK)];
        user::read_all(asked, self.address(from)?)?;
        Ok(asked)
    }

    /// Writes what was found of entry `i`. Only this is written: the program may use the rest of
    /// the entry meanwhile.
    #[inline]
    fn answer(self, i: usize, found: Ready) -> Result<()> {
        let to = self.address(i)?.0 + core::mem::offset_of!(pollfd, revents);
        user::write(VirtAddr(to), &(found.bits() as i16))?;
        Ok(())
    }
}

/// The events that an entry asks for. Errors and ends are news to everyone.
fn wanted(entry: &pollfd) -> Ready {
    const ALWAYS: Ready = Ready::ERR.union(Ready::HUP).union(Ready::NVAL);
    Ready::from_bits_truncate(entry.events as u16 as u32) | ALWAYS
}

fn poll_files(call: &Call<'_>, wait: Wait) -> Result<usize> {
    let polled = Polled {
        at: call.address(0),
        count: call.unsigned(1) as usize,
    };
    if polled.count as u64 > call.process().limits().soft(RLIMIT_NOFILE) {
        return Err(Errno::EINVAL);
    }
    let ready = look_at_polled(call, polled)?;
    match wait.sleep().filter(|_| ready == 0) {
        None => Ok(ready),
        Some(sleep) => poll_asleep(call, polled, sleep),
    }
}

/// Looks at all files once, without memory and, for most, without a handle of the file. Returns for
/// how many entries there is an answer. One that stands in its entry already is not written again.
fn look_at_polled(call: &Call<'_>, polled: Polled) -> Result<usize> {
    let mut buffer: [pollfd; BLOCK] = user::zeroed();
    let mut answers = [Ready::empty(); BLOCK];
    let mut unasked: Unasked = [const { None }; BLOCK];
    let mut ready = 0;
    let mut from = 0;
    while from < polled.count {
        let asked = polled.read(from, &mut buffer)?;
        let mut any_unasked = false;
        let places = asked.iter().zip(&mut answers).zip(&mut unasked);
        let fds = places.map(|((entry, answer), unasked)| (entry.fd, (entry, answer, unasked)));
        call.files().look_up(fds, |(entry, answer, unasked), open| {
            *answer = match open {
                Some(open) => match open.file().ready_now() {
                    Some(found) => found & wanted(entry),
                    None => {
                        *unasked = Some(open.clone());
                        any_unasked = true;
                        Ready::empty()
                    }
                },
                // Negative descriptors are left out.
                None if entry.fd < 0 => Ready::empty(),
                None => Ready::NVAL,
            };
        });
        if any_unasked {
            for ((entry, answer), unasked) in asked.iter().zip(&mut answers).zip(&mut unasked) {
                if let Some(open) = unasked.take() {
                    *answer = open.file().poll(None) & wanted(entry);
                }
            }
        }
        for (i, (entry, &answer)) in asked.iter().zip(&answers).enumerate() {
            ready += usize::from(!answer.is_empty());
            if entry.revents != answer.bits() as i16 {
                polled.answer(from + i, answer)?;
            }
        }
        from += asked.len();
    }
    Ok(ready)
}

/// Sleeps until there is an answer for one entry at least.
#[cold]
fn poll_asleep(call: &Call<'_>, polled: Polled, sleep: Sleep) -> Result<usize> {
    let charge = charge_waits(polled.count, polled.count * WATCHED_BYTES)?;
    let mut watched: Vec<Watched> = nucleus::try_vec(polled.count)?;
    let mut buffer: [pollfd; BLOCK] = user::zeroed();
    // Descriptors that were closed since the look are an answer at once.
    let mut closed = 0;
    while watched.len() < polled.count {
        let asked = polled.read(watched.len(), &mut buffer)?;
        let fds = asked.iter().map(|entry| (entry.fd, entry));
        call.files().look_up(fds, |entry, open| {
            let watch = Watched::new(open.cloned(), wanted(entry));
            if open.is_none() && entry.fd >= 0 {
                closed += 1;
                watch.found.set(Ready::NVAL);
            }
            watched.push(watch);
        });
    }
    let ready = match closed {
        0 => wait_for_any(&watched, sleep, charge)?,
        _ => look(&watched, None) + closed,
    };
    for (i, watched) in watched.iter().enumerate() {
        polled.answer(i, watched.found.get())?;
    }
    Ok(ready)
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

/// Words of a set that need no memory: those of 256 descriptors.
const WORDS: usize = 4;

/// The sets of `select`: a bit for each descriptor.
struct Sets<'a> {
    /// Words of one set.
    words: usize,
    /// What is asked, set by set.
    asked: &'a [u64],
    /// What is found, likewise.
    answer: &'a mut [u64],
}

impl Sets<'_> {
    /// What is asked in the words of all sets at one place.
    #[inline]
    fn asked(&self, word: usize) -> [u64; 3] {
        [0, 1, 2].map(|set| self.asked[set * self.words + word])
    }

    /// The descriptors of one word of any set.
    #[inline]
    fn any(&self, word: usize) -> u64 {
        let [read, write, except] = self.asked(word);
        read | write | except
    }

    /// Notes what was found in the words at one place. Returns how many bits.
    #[inline]
    fn find(&mut self, word: usize, found: [u64; 3]) -> usize {
        let mut total = 0;
        for (set, (found, asked)) in found.into_iter().zip(self.asked(word)).enumerate() {
            if found & asked != 0 {
                self.answer[set * self.words + word] = found & asked;
                total += (found & asked).count_ones() as usize;
            }
        }
        total
    }
}

/// Adds the bit of a descriptor to the words of the sets for which something was found.
#[inline]
fn note(words: &mut [u64; 3], bit: usize, found: Ready) {
    for (word, asks) in words.iter_mut().zip(ASKS) {
        *word |= u64::from(found.intersects(asks)) << bit;
    }
}

fn select_files(call: &Call<'_>, wait: Wait) -> Result<usize> {
    let count = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    // Bits beyond the table can't be of open files; Linux leaves them out, too.
    let count = count.min(call.files().size());
    let words = count.div_ceil(64);
    let mut few = [0; 6 * WORDS];
    let mut many: Vec<u64>;
    let all = match words {
        ..=WORDS => &mut few[..6 * words],
        _ => {
            many = nucleus::try_filled(6 * words, 0)?;
            &mut many[..]
        }
    };
    let (asked, answer) = all.split_at_mut(3 * words);
    if words > 0 {
        for (set, asked) in asked.chunks_exact_mut(words).enumerate() {
            if call.args[1 + set] != 0 {
                user::read_all(asked, call.address(1 + set))?;
                // Those behind the last descriptor are not meant.
                asked[words - 1] &= !0 >> (words * 64 - count);
            }
        }
    }
    let mut sets = Sets {
        words,
        asked,
        answer,
    };
    let mut total = look_at_selected(call, &mut sets)?;
    if let Some(sleep) = wait.sleep().filter(|_| total == 0) {
        total = select_asleep(call, &mut sets, sleep)?;
    }
    if words > 0 {
        for (set, answer) in sets.answer.chunks_exact(words).enumerate() {
            if call.args[1 + set] != 0 {
                user::write_words(call.address(1 + set), answer)?;
            }
        }
    }
    Ok(total)
}

/// The descriptors whose bits are set in one word.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as usize;
        let any = word != 0;
        word &= word.wrapping_sub(1);
        any.then_some(bit)
    })
}

/// Looks at all files once, as [`look_at_polled`]. Returns how many bits were found.
fn look_at_selected(call: &Call<'_>, sets: &mut Sets<'_>) -> Result<usize> {
    let mut unasked: Unasked = [const { None }; BLOCK];
    let mut total = 0;
    for word in 0..sets.words {
        let mut left = sets.any(word);
        let mut found = [0; 3];
        while left != 0 {
            let mut any_unasked = false;
            let mut is_open = true;
            let fds = bits(left).take(BLOCK).zip(&mut unasked);
            let fds = fds.map(|(bit, unasked)| ((word * 64 + bit) as i32, (bit, unasked)));
            let mut last = 0;
            call.files().look_up(fds, |(bit, unasked), open| {
                last = bit;
                match open {
                    Some(open) if !open.is_path() => match open.file().ready_now() {
                        Some(ready) if ready.is_empty() => {}
                        Some(ready) => note(&mut found, bit, ready),
                        None => {
                            *unasked = Some(open.clone());
                            any_unasked = true;
                        }
                    },
                    _ => is_open = false,
                }
            });
            if !is_open {
                return Err(Errno::EBADF);
            }
            if any_unasked {
                for (bit, unasked) in bits(left).zip(&mut unasked) {
                    if let Some(open) = unasked.take() {
                        note(&mut found, bit, open.file().poll(None));
                    }
                }
            }
            // Without those up to the last one.
            left &= !1 << last;
        }
        total += sets.find(word, found);
    }
    Ok(total)
}

/// Sleeps until a bit can be found.
#[cold]
fn select_asleep(call: &Call<'_>, sets: &mut Sets<'_>, sleep: Sleep) -> Result<usize> {
    let count = (0..sets.words).map(|word| sets.any(word).count_ones() as usize);
    let count = count.sum();
    let sets_bytes = match sets.words {
        ..=WORDS => 0,
        _ => size_of_val(sets.asked) + size_of_val(sets.answer),
    };
    let charge = charge_waits(count, count * WATCHED_BYTES + sets_bytes)?;
    let mut watched: Vec<Watched> = nucleus::try_vec(count)?;
    for word in 0..sets.words {
        for bit in bits(sets.any(word)) {
            let open = call.files().get((word * 64 + bit) as i32)?;
            if open.is_path() {
                return Err(Errno::EBADF);
            }
            let mut wanted = Ready::empty();
            for (set, asks) in sets.asked(word).into_iter().zip(ASKS) {
                if set & 1 << bit != 0 {
                    wanted |= asks;
                }
            }
            watched.push(Watched::new(Some(open), wanted));
        }
    }
    wait_for_any(&watched, sleep, charge)?;
    let mut total = 0;
    let mut watched = watched.iter();
    for word in 0..sets.words {
        let mut found = [0; 3];
        for (bit, watched) in bits(sets.any(word)).zip(&mut watched) {
            note(&mut found, bit, watched.found.get());
        }
        total += sets.find(word, found);
    }
    Ok(total)
}
