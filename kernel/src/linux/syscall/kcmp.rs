//! Whether two processes share something: `kcmp`.

use alloc::{boxed::Box, sync::Arc};
use core::cmp::Ordering;

use abi::{Errno, Result};
use nucleus::{random, speculation, sync::OnceBox};

use super::{Call, FlagSet, SystemCall, arguments::find, call, choice};
use crate::process::{Ids, Part, View, pid_table};

// `linux/kcmp.h`, which the bindings leave out.
const KCMP_FILE: u32 = 0;
const KCMP_VM: u32 = 1;
const KCMP_FILES: u32 = 2;
const KCMP_FS: u32 = 3;
const KCMP_SIGHAND: u32 = 4;
const KINDS: usize = 5;
const KCMP_TYPES: FlagSet = choice!(
    "type",
    [KCMP_FILE, KCMP_VM, KCMP_FILES, KCMP_FS, KCMP_SIGHAND],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_kcmp, kcmp).flags(&[&KCMP_TYPES])];

/// Looks into the thread that argument `n` names.
fn view(call: &Call<'_>, n: usize) -> Result<View> {
    View::of(&find(call.int(n), pid_table::find_thread)?, Ids::Real)
}

/// Mixes the address of something of a kind so that no program learns it, and there is still an
/// order. The orders of two kinds say nothing about each other.
fn mixed(kind: u32, address: usize) -> usize {
    // Bijections: different things stay different.
    let [mask, factor] = keys()[speculation::mask_index(kind as usize, KINDS)];
    (address ^ mask).wrapping_mul(factor | 1)
}

/// Two random numbers for each kind, the same as long as the machine runs.
fn keys() -> &'static [[usize; 2]; KINDS] {
    static KEYS: OnceBox<[[usize; 2]; KINDS]> = OnceBox::new();
    KEYS.get_or_insert(|| Box::new([(); KINDS].map(|()| [(); 2].map(|()| random::u64() as usize))))
}

/// 0 if both share it, else 1 or 2 by an order that stays.
fn kcmp(call: &mut Call<'_>) -> Result<usize> {
    let exists = |n| find(call.int(n), pid_table::find_thread).map(drop);
    exists(0).and_then(|()| exists(1))?;
    let kind = call.choice(2, &KCMP_TYPES)?;
    let (one, two) = (view(call, 0)?, view(call, 1)?);
    // Both are there until the addresses have been compared.
    let mut files = None;
    let places = match kind {
        KCMP_FILE => {
            let file = |view: &View, n: usize| {
                view.file(i32::try_from(call.args[n]).map_err(|_| Errno::EBADF)?)
            };
            let (a, b) = files.insert((file(&one, 3)?, file(&two, 4)?));
            [a, b].map(|open| Arc::as_ptr(open).addr())
        }
        _ => {
            let part = match kind {
                KCMP_VM => Part::Memory,
                KCMP_FILES => Part::Files,
                KCMP_FS => Part::FsContext,
                _ => Part::SignalActions,
            };
            [&one, &two].map(|view| view.place_of(part))
        }
    };
    let [a, b] = places.map(|place| mixed(kind, place));
    Ok(match a.cmp(&b) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    })
}
