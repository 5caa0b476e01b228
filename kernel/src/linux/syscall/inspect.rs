//! Looking into other processes: `kcmp`, `process_vm_readv`, `process_vm_writev`.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::cmp::Ordering;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{Frame, PAGE_SIZE, VirtAddr, ephemeral, random, speculation, sync::OnceBox, user};
use vm::{CopyReason, Map, Moved, TransferCall, count_moved};

use super::{Call, FlagSet, NO_FLAGS, SystemCall, arguments::find, call, choice};
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

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_kcmp, kcmp).flags(&[&KCMP_TYPES]),
    call!(__NR_process_vm_readv, |call| transfer(call, false)).flags(&[&NO_FLAGS]),
    call!(__NR_process_vm_writev, |call| transfer(call, true)).flags(&[&NO_FLAGS]),
];

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

/// The ranges of an array of `iovec`s.
pub(super) fn ranges(array: VirtAddr, count: usize) -> Result<Vec<[u64; 2]>> {
    if count > raw::UIO_MAXIOV as usize {
        return Err(Errno::EINVAL);
    }
    let mut ranges = nucleus::try_vec(count)?;
    let mut total = 0u64;
    for at in 0..count {
        let [base, len]: [u64; 2] = user::read(VirtAddr(array.0.wrapping_add(at * 16)))?;
        total = total.checked_add(len).ok_or(Errno::EINVAL)?;
        if total > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if len > 0 {
            ranges.push([base, len]);
        }
    }
    Ok(ranges)
}

/// Source pages that are held at a time.
const HELD: usize = 16;

/// Pages that bytes are copied from, held ahead of the copy.
struct Source<'a> {
    map: &'a Map,
    /// The address of the first one held.
    first: VirtAddr,
    held: Vec<Frame>,
}

impl<'a> Source<'a> {
    fn new(map: &'a Map) -> Result<Source<'a>> {
        let held = nucleus::try_vec(HELD)?;
        Ok(Source {
            map,
            first: VirtAddr(0),
            held,
        })
    }

    /// The page of `at`; `len` bytes from there on will be wanted.
    #[inline(always)]
    fn page(&mut self, at: VirtAddr, len: u64) -> Option<&Frame> {
        if !self.holds(at) {
            self.hold(at, len);
        }
        self.held.get(self.number(at))
    }

    /// Whether the page of `at` was brought in ahead.
    #[inline(always)]
    fn holds(&self, at: VirtAddr) -> bool {
        self.number(at) < self.held.len()
    }

    #[inline(always)]
    fn number(&self, at: VirtAddr) -> usize {
        at.0.wrapping_sub(self.first.0) / PAGE_SIZE
    }

    /// Holds the page of `at` and those behind it.
    #[inline(never)]
    fn hold(&mut self, at: VirtAddr, len: u64) {
        self.held.clear();
        self.first = at.page_floor();
        let pages = (at.page_offset() as u64 + len).div_ceil(PAGE_SIZE as u64);
        let most = pages.min(HELD as u64) as usize;
        self.map.hold_readable(at, most, &mut self.held);
    }
}

/// Copies between the caller's ranges and another process's, page by page and once, until one side
/// ends or fails.
fn transfer(call: &mut Call<'_>, writes: bool) -> Result<usize> {
    call.flags(5, &NO_FLAGS)?;
    let local = ranges(call.address(1), call.size(2))?;
    if local.is_empty() {
        return Ok(0);
    }
    let remote = ranges(call.address(3), call.size(4))?;
    if remote.is_empty() {
        return Ok(0);
    }
    let (mut local, mut remote) = (local.into_iter(), remote.into_iter());
    let target = find(call.int(0), pid_table::find_thread)?;
    let (space, own) = (View::space_of(&target, Ids::Real)?, call.space());
    let (source_map, target_map) = match writes {
        true => (own.map(), space.map()),
        false => (space.map(), own.map()),
    };
    let mut source = Source::new(source_map)?;
    let mut done = 0;
    let (mut here, mut there) = ([0; 2], [0; 2]);
    // Some bytes are copied before passing is tried again.
    let mut passes_from = 0;
    let mut why = CopyReason::Small;
    loop {
        if here[1] == 0 {
            let Some(next) = local.next() else { break };
            here = next;
        }
        if there[1] == 0 {
            let Some(next) = remote.next() else { break };
            there = next;
        }
        let (own, other) = (VirtAddr(here[0] as usize), VirtAddr(there[0] as usize));
        let (from, to) = if writes { (own, other) } else { (other, own) };
        // No further than one page of either side, so that what fails does so as a whole.
        let wanted = here[1].min(there[1]);
        let in_page = PAGE_SIZE - from.page_offset().max(to.page_offset());
        let len = wanted.min(in_page as u64) as usize;
        let offset = from.page_offset();
        let passed = match done >= passes_from {
            true => source.map.pass_to(from, target_map, to, wanted as usize),
            false => Err(why),
        };
        let len = match passed {
            Err(now) => {
                // A page that was not there may be lent as soon as it is.
                let may_come = now == CopyReason::NotLent && !source.holds(from);
                if done >= passes_from && !may_come {
                    passes_from = done + HELD * PAGE_SIZE;
                }
                why = now;
                let copied = match source.page(from, wanted) {
                    None => false,
                    Some(page) if writes => target_map.write_from(to, page, offset, len).is_ok(),
                    Some(page) => {
                        user::copy_out_page(to, &ephemeral::map(page), offset, len).is_ok()
                    }
                };
                if !copied {
                    if done == 0 {
                        return Err(Errno::EFAULT);
                    }
                    break;
                }
                count_moved(TransferCall::Process, Moved::Copied(why), len);
                len
            }
            Ok(passed) => {
                count_moved(TransferCall::Process, Moved::Passed, passed * PAGE_SIZE);
                passed * PAGE_SIZE
            }
        };
        done += len;
        for range in [&mut here, &mut there] {
            range[0] = range[0].wrapping_add(len as u64);
            range[1] -= len as u64;
        }
        if call.thread.signals.needs_attention() && call.thread.is_dying() {
            break;
        }
    }
    Ok(done)
}
