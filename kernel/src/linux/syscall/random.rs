//! `getrandom`.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, random, user};

use super::{Call, FlagSet, SystemCall, call, flag_set};

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
