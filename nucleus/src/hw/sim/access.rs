//! Kernel code that touches the program's memory: through the TLB, with faults.

use core::sync::atomic::AtomicU32;

use super::{
    interface::point,
    machine::{Machine, WORD, machine},
    tlb::translate,
};
use crate::{Access, PAGE_SIZE, PhysAddr, VirtAddr};

/// Faults on one access that are resolved before it is clear that it never will be.
const FAULTS: usize = 10_000;

fn resolved(m: &Machine, at: VirtAddr, access: Access) -> Option<PhysAddr> {
    for _ in 0..FAULTS {
        if let Some(physical) = translate(m, at, access) {
            return Some(physical);
        }
        if !super::irqs_enabled() || super::preempt_count() != 0 {
            m.fail(format!(
                "a fault at {at:?} with interrupts off or a spin lock held"
            ));
        }
        if !crate::hw::handlers::resolve_fault(at, access) {
            return None;
        }
    }
    m.fail(format!("{access:?} at {at:?} faults again and again"))
}

/// Copies in pieces that end where pages do and, often, before: between two of them anything may
/// happen. `find` finds where a byte lies.
fn copy(
    at: VirtAddr,
    len: usize,
    find: impl Fn(&Machine, VirtAddr) -> Option<PhysAddr>,
    mut piece: impl FnMut(*mut u8, usize, usize),
) -> Result<(), usize> {
    let m = machine().expect("programs run inside sim::run only");
    let mut done = 0;
    while done < len {
        point();
        let here = at + done;
        let whole = (PAGE_SIZE - here.page_offset()).min(len - done);
        let part = if m.random.one_in(4) {
            1 + m.random.below(whole as u64) as usize
        } else {
            whole
        };
        let Some(physical) = find(m, here) else {
            return Err(len - done);
        };
        piece(m.memory(physical), done, part);
        done += part;
    }
    Ok(())
}

/// Raw copies that may fault; the error is the number of bytes not copied.
///
/// # Safety
/// `to` is valid for `len` bytes, and the user range lies below `USER_END`.
pub(crate) unsafe fn copy_from_user(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), usize> {
    let find = |m: &Machine, at| resolved(m, at, Access::Read);
    copy(from, len, find, |memory, done, part| {
        // SAFETY: inside one page of the machine's memory, and inside the caller's buffer; a
        // program's page and a kernel buffer may be the same page, hence `copy`.
        unsafe { core::ptr::copy(memory, to.add(done), part) }
    })
}

/// As [`copy_from_user`] where pages are mapped: no fault is resolved.
///
/// # Safety
/// As [`copy_from_user`].
pub(crate) unsafe fn copy_mapped_from_user(
    to: *mut u8,
    from: VirtAddr,
    len: usize,
) -> Result<(), usize> {
    let find = |m: &Machine, at| translate(m, at, Access::Read);
    copy(from, len, find, |memory, done, part| {
        // SAFETY: as in `copy_from_user`.
        unsafe { core::ptr::copy(memory, to.add(done), part) }
    })
}

/// # Safety
/// As [`copy_from_user`].
pub(crate) unsafe fn copy_to_user(to: VirtAddr, from: *const u8, len: usize) -> Result<(), usize> {
    let find = |m: &Machine, at| resolved(m, at, Access::Write);
    copy(to, len, find, |memory, done, part| {
        // SAFETY: as in `copy_from_user`.
        unsafe { core::ptr::copy(from.add(done), memory, part) }
    })
}

/// As [`copy_to_user`] where pages are mapped to be written: no fault is resolved.
///
/// # Safety
/// As [`copy_to_user`].
pub(crate) unsafe fn copy_mapped_to_user(
    to: VirtAddr,
    from: *const u8,
    len: usize,
) -> Result<(), usize> {
    let find = |m: &Machine, at| translate(m, at, Access::Write);
    copy(to, len, find, |memory, done, part| {
        // SAFETY: as in `copy_to_user`.
        unsafe { core::ptr::copy(from.add(done), memory, part) }
    })
}

/// The word of a program, for an access, as an atomic.
///
/// # Safety
/// `at` is aligned.
unsafe fn word<'a>(at: VirtAddr, access: Access) -> Result<&'a AtomicU32, ()> {
    let m = machine().ok_or(())?;
    point();
    let physical = resolved(m, at, access).ok_or(())?;
    // SAFETY: aligned by the caller's promise, inside one page.
    Ok(unsafe { &*m.memory(physical).cast() })
}

/// An aligned 32-bit load; an error if the address can't be used.
///
/// # Safety
/// `from` is aligned and lies below `USER_END`.
pub(crate) unsafe fn user_load_u32(from: VirtAddr) -> Result<u32, ()> {
    // SAFETY: the caller's promise.
    Ok(unsafe { word(from, Access::Read) }?.load(WORD))
}

/// An aligned 32-bit compare-exchange; gives the old value.
///
/// # Safety
/// As [`user_load_u32`].
pub(crate) unsafe fn user_cmpxchg_u32(at: VirtAddr, old: u32, new: u32) -> Result<u32, ()> {
    // SAFETY: the caller's promise.
    let word = unsafe { word(at, Access::Write) }?;
    Ok(match word.compare_exchange(old, new, WORD, WORD) {
        Ok(was) | Err(was) => was,
    })
}
