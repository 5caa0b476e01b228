//! Swap space: `swapon`, `swapoff`.

use abi::{Result, raw::general::CAP_SYS_ADMIN};

use super::{Call, FlagSet, SystemCall, call, flag_set, path};
use crate::swap;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_swapon, swapon).flags(&[&SWAP_FLAGS]).note(
        "`SWAP_FLAG_DISCARD` discards the whole area once; pages are not discarded one by one",
    ),
    call!(__NR_swapoff, swapoff),
];

/// A priority is given, in the lowest bits.
const SWAP_FLAG_PREFER: u32 = 0x8000;
const SWAP_FLAG_PRIO_MASK: u32 = 0x7fff;
const SWAP_FLAG_DISCARD: u32 = 0x10000;
const SWAP_FLAG_DISCARD_ONCE: u32 = 0x20000;
const SWAP_FLAG_DISCARD_PAGES: u32 = 0x40000;

const SWAP_FLAGS: FlagSet = flag_set!(
    "swapflags",
    [
        SWAP_FLAG_PRIO_MASK,
        SWAP_FLAG_PREFER,
        SWAP_FLAG_DISCARD,
        SWAP_FLAG_DISCARD_ONCE,
        SWAP_FLAG_DISCARD_PAGES
    ],
    EINVAL
);

fn swapon(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &SWAP_FLAGS)?;
    call.require(CAP_SYS_ADMIN)?;
    let at = path::named(call, 0)?;
    let priority = (flags & SWAP_FLAG_PREFER != 0).then_some(flags & SWAP_FLAG_PRIO_MASK);
    let once = flags & SWAP_FLAG_DISCARD != 0 && flags & SWAP_FLAG_DISCARD_PAGES == 0;
    swap::on(at, priority.map(|it| it as i32), once)?;
    Ok(0)
}

fn swapoff(call: &mut Call<'_>) -> Result<usize> {
    call.require(CAP_SYS_ADMIN)?;
    let at = path::named(call, 0)?;
    swap::off(&at)?;
    Ok(0)
}
