//! The differences between a 32-bit call and the 64-bit one that serves it, as a list: most calls
//! are translated by theirs alone, without a shim of their own.

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    user::{self, compat_scratch},
};

use super::layout::{self, Field};
use crate::linux::syscall::Call;
use crate::process::signal::compat as siginfo;

use Difference::{
    Event, FileSets, GivesId, Id, InOut, Info, Join, Move, Narrow, Out, OutId, OutInfo, Set,
    Signed, Structure, Times, Unsigned, Vector, Wait,
};

/// One difference. The first number is the argument that the 64-bit call gets; pointers that are
/// null stay null.
pub(super) enum Difference {
    /// Is this number.
    Set(usize, u64),
    /// Is another argument.
    Move(usize, usize),
    /// Is made of a lower and an upper half.
    Join(usize, usize, usize),
    /// Is a signed number of 32 bits.
    Signed(usize),
    /// Is an id of 16 bits.
    Id(usize),
    /// Points to so many signed words.
    Narrow(usize, usize),
    /// Points to so many unsigned words.
    Unsigned(usize, usize),
    /// Points to so many 64-bit `timespec`s.
    Times(usize, usize),
    /// Points to the time of a wait, in 64-bit form or not, of which the rest is brought back
    /// whatever the result; as on Linux, it doesn't matter whether that succeeds.
    Wait(usize, bool),
    /// These three are the sets of `select`, for as many files as argument 0 says.
    FileSets,
    /// Points to `struct iovec`s, whose number is another argument.
    Vector(usize, usize),
    /// Points to a `struct sigevent`.
    Event(usize),
    /// Points to a `siginfo_t`; null is refused.
    Info(usize),
    /// Points to where the call writes so many words.
    Out(usize, usize),
    /// Points to so many signed words that the call changes.
    InOut(usize, usize),
    /// Points to where the call writes an id.
    OutId(usize),
    /// Points to where the call writes a `siginfo_t`.
    OutInfo(usize),
    /// Points to where the call writes a structure of so many 64-bit words, which has this layout
    /// for the program; null is refused.
    Structure(usize, usize, &'static [Field]),
    /// The result is an id.
    GivesId,
}

/// The most words of a structure that [`Narrow`] and its like translate.
const WORDS_MAX: usize = 26;
/// Bytes of a 64-bit `siginfo_t`.
const INFO_LEN: usize = 128;

/// Calls the body of a 64-bit call with translated arguments, and translates what it gives.
pub(super) fn call_native(
    call: &mut Call<'_>,
    native: u32,
    differences: &[Difference],
) -> Result<usize> {
    let to = call.args.map(|argument| VirtAddr(argument as usize));
    for difference in differences {
        match *difference {
            Set(n, value) => call.args[n] = value,
            Move(n, from) => call.args[n] = call.args[from],
            Join(n, low, high) => call.args[n] = call.joined(low, high),
            Signed(n) => call.args[n] = i64::from(call.int(n)) as u64,
            Id(n) => {
                call.args[n] = match call.args[n] as u16 {
                    u16::MAX => u64::from(u32::MAX),
                    id => u64::from(id),
                }
            }
            Narrow(n, words) | InOut(n, words) => narrow_in(call, n, words)?,
            Unsigned(n, words) => words_in(call, n, words, u64::from)?,
            Times(n, count) => times_in(call, n, count)?,
            Wait(n, wide) => wait_in(call, n, wide)?,
            FileSets => file_sets_in(call)?,
            Vector(n, count) => vector_in(call, n, call.size(count))?,
            Event(n) => event_in(call, n)?,
            Info(n) => call.lay(n, &siginfo::widen(&call.read(n)?))?,
            Out(n, words) | Structure(n, words, _) => drop(call.lay_room(n, words * 8)?),
            OutId(n) => drop(call.lay_room(n, 4)?),
            OutInfo(n) => drop(call.lay_room(n, INFO_LEN)?),
            GivesId => {}
        }
    }
    let result = call.native(native);
    for difference in differences {
        let _ = match *difference {
            Wait(n, true) if to[n].0 != 0 => copy(to[n], call.address(n), 16),
            Wait(n, false) => narrow_out(call, n, 2, to[n]),
            _ => Ok(()),
        };
    }
    let mut result = result?;
    for difference in differences {
        match *difference {
            Out(n, words) | InOut(n, words) => narrow_out(call, n, words, to[n])?,
            FileSets => {
                for n in (1..=3).filter(|&n| to[n].0 != 0) {
                    copy(to[n], call.address(n), file_set_len(call)?)?;
                }
            }
            OutId(n) => user::write(to[n], &short_id(call.read(n)?))?,
            OutInfo(n) if to[n].0 != 0 => user::write(to[n], &siginfo::narrow(&call.read(n)?))?,
            Structure(n, ..) if to[n].0 == 0 => return Err(Errno::EFAULT),
            Structure(n, words, layout) => {
                let mut wide = [0; WORDS_MAX];
                user::read_all(&mut wide[..words], call.address(n))?;
                layout::write(&[layout], &wide, to[n])?;
            }
            GivesId => result = usize::from(short_id(result as u32)),
            _ => {}
        }
    }
    Ok(result)
}

/// Returns an id of 16 bits; larger ones become the overflow id.
pub(super) fn short_id(id: u32) -> u16 {
    u16::try_from(id).unwrap_or(layout::OVERFLOW_ID)
}

fn words_in(call: &mut Call<'_>, n: usize, words: usize, widen: fn(u32) -> u64) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    let mut narrow = [0; WORDS_MAX];
    user::read_all(&mut narrow[..words], call.address(n))?;
    let wide = narrow.map(widen);
    call.args[n] = compat_scratch::put(&user::as_bytes(&wide)[..words * 8])?.0 as u64;
    Ok(())
}

/// Makes argument `n` point to the wide form of signed words, unless it is null.
pub(super) fn narrow_in(call: &mut Call<'_>, n: usize, words: usize) -> Result<()> {
    words_in(call, n, words, |word| i64::from(word as i32) as u64)
}

/// Brings the words that a body wrote where argument `n` points to `to`, unless that is null.
pub(super) fn narrow_out(call: &Call<'_>, n: usize, words: usize, to: VirtAddr) -> Result<()> {
    if to.0 == 0 {
        return Ok(());
    }
    let mut wide = [0u64; WORDS_MAX];
    user::read_all(&mut wide[..words], call.address(n))?;
    let narrow = wide.map(|word| word as u32);
    Ok(user::copy_out(to, &user::as_bytes(&narrow)[..words * 4])?)
}

/// Makes argument `n` point to `timespec`s as 64-bit programs give them, unless it is null: the
/// upper half of a `tv_nsec` of a 32-bit program counts for nothing.
pub(super) fn times_in(call: &mut Call<'_>, n: usize, count: usize) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    let mut times = [[0; 2]; WORDS_MAX / 2];
    user::read_all(&mut times[..count], call.address(n))?;
    for [_, nanoseconds] in &mut times {
        *nanoseconds &= u64::from(u32::MAX);
    }
    call.args[n] = compat_scratch::put(&user::as_bytes(&times)[..count * 16])?.0 as u64;
    Ok(())
}

/// Makes argument `n` point to a time as 64-bit programs give it, unless it is null.
pub(super) fn wait_in(call: &mut Call<'_>, n: usize, wide: bool) -> Result<()> {
    match wide {
        true => times_in(call, n, 1),
        false => narrow_in(call, n, 2),
    }
}

/// Files that a set of `select` tells of at most.
const FILES_MAX: usize = 1 << 20;

/// Bytes of a set of a 32-bit program.
fn file_set_len(call: &Call<'_>) -> Result<usize> {
    let files = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
    Ok(files.min(FILES_MAX).div_ceil(32) * 4)
}

/// 64-bit programs round the lengths of the sets up to longer words.
fn file_sets_in(call: &mut Call<'_>) -> Result<()> {
    let len = file_set_len(call)?;
    for n in 1..=3 {
        let from = call.lay_room(n, len.next_multiple_of(8))?;
        if from.0 != 0 {
            copy(call.address(n), from, len)?;
        }
    }
    Ok(())
}

/// Copies bytes between the program and the scratch space.
fn copy(mut to: VirtAddr, mut from: VirtAddr, len: usize) -> Result<()> {
    let mut piece = [0; 256];
    let mut left = len;
    while left > 0 {
        let piece = &mut piece[..left.min(256)];
        user::copy_in(piece, from)?;
        user::copy_out(to, piece)?;
        (to, from, left) = (to + piece.len(), from + piece.len(), left - piece.len());
    }
    Ok(())
}

/// The most buffers of a call (`UIO_MAXIOV`).
const BUFFERS_MAX: usize = 1024;

fn vector_in(call: &mut Call<'_>, n: usize, count: usize) -> Result<()> {
    if count > BUFFERS_MAX {
        return Err(Errno::EINVAL);
    }
    let from = call.address(n);
    let to = compat_scratch::reserve(count * 16)?;
    for i in 0..count {
        let [at, len]: [u32; 2] = user::read(VirtAddr(from.0 + i * 8))?;
        if len > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        user::write(to + i * 16, &[u64::from(at), u64::from(len)])?;
    }
    call.args[n] = to.0 as u64;
    Ok(())
}

fn event_in(call: &mut Call<'_>, n: usize) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    // The value; signal and way; a thread.
    let words: [u32; 16] = call.read(n)?;
    let way = u64::from(words[1]) | u64::from(words[2]) << 32;
    call.lay(n, &[words[0].into(), way, words[3].into(), 0, 0, 0, 0, 0])
}
