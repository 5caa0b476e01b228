//! `getrandom`.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, random, task::Sleep, user};

use super::{Call, FlagSet, SystemCall, call, flag_set};
use crate::process::signal;

const FLAGS: FlagSet = flag_set!(
    "flags",
    [raw::GRND_NONBLOCK, raw::GRND_RANDOM, raw::GRND_INSECURE],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_getrandom, getrandom).flags(&[&FLAGS])];

fn getrandom(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &FLAGS)?;
    let both = raw::GRND_INSECURE | raw::GRND_RANDOM;
    if flags & both == both {
        return Err(Errno::EINVAL);
    }
    if flags & raw::GRND_INSECURE == 0 && !random::is_seeded() {
        if flags & raw::GRND_NONBLOCK != 0 {
            return Err(Errno::EAGAIN);
        }
        random::wait_until_seeded(Sleep::INTERRUPTIBLE).map_err(signal::woken)?;
    }
    let wanted = call.size(1).min(i32::MAX as usize);
    let mut buffer = [0; 256];
    let result = copy_out(call, wanted, &mut buffer);
    random::erase(&mut buffer);
    result
}

/// Gives the program `wanted` bytes, fewer if a signal comes.
fn copy_out(call: &Call<'_>, wanted: usize, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < wanted {
        let count = (wanted - done).min(buffer.len());
        let piece = &mut buffer[..count];
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
