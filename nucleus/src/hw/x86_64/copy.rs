//! Kernel code that touches a program's memory: the few instructions that may fault.
//!
//! Each is listed in a table with the place to go on at when the fault can't be resolved. With SMAP
//! the CPU lets only the code between `stac` and `clac` through.

use core::arch::{asm, global_asm};

use crate::VirtAddr;
use crate::addr::USER_END;

global_asm!(
    r#"
    /* Room for `stac` and `clac`, written over when the CPU has SMAP. */
    .macro OPEN_USER
9999:
    nop dword ptr [rax]
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad 0xcb010f
    .popsection
    .endm
    .macro CLOSE_USER
9999:
    nop dword ptr [rax]
    .pushsection .patch_sites, "a"
    .quad 9999b
    .quad 0xca010f
    .popsection
    .endm
    .macro FIXUP from, to
    .pushsection .fixups, "a"
    .quad \from
    .quad \to
    .popsection
    .endm

    .text
    /* copy_bytes(rdi: to, rsi: from, rdx: length) -> bytes left. Words first; when a word faults
       for good, the bytes before the bad page are still copied one by one. */
    .macro COPY_BYTES
    OPEN_USER
    mov rcx, rdx
    and edx, 7
    shr rcx, 3
1:  rep movsq
    mov ecx, edx
2:  rep movsb
3:  mov rax, rcx
    CLOSE_USER
    ret
4:  lea rcx, [rcx * 8 + rdx]
    jmp 2b
    FIXUP 1b, 4b
    FIXUP 2b, 3b
    .endm

    .balign 16
    .globl user_copy_bytes
    .type user_copy_bytes, @function
user_copy_bytes:
    COPY_BYTES

    /* The same of bytes that are mapped: no fault is resolved between here and the end. */
    .balign 16
    .globl user_copy_mapped
    .type user_copy_mapped, @function
user_copy_mapped:
    COPY_BYTES
    .globl user_copy_mapped_end
user_copy_mapped_end:

    /* load_word(rdi: from, rsi: to) -> 0, or 1 if it can't be read. */
    .balign 16
    .globl user_load_word
    .type user_load_word, @function
user_load_word:
    OPEN_USER
    mov eax, 1
1:  mov ecx, [rdi]
    mov [rsi], ecx
    xor eax, eax
2:  CLOSE_USER
    ret
    FIXUP 1b, 2b

    /* exchange_word(rdi: at, esi: old, edx: new, rcx: to) -> 0, or 1 if it can't be written. */
    .balign 16
    .globl user_exchange_word
    .type user_exchange_word, @function
user_exchange_word:
    OPEN_USER
    mov eax, esi
1:  lock cmpxchg [rdi], edx
    mov [rcx], eax
    xor eax, eax
    jmp 3f
2:  mov eax, 1
3:  CLOSE_USER
    ret
    FIXUP 1b, 2b
    "#
);

unsafe extern "C" {
    fn user_copy_bytes(to: usize, from: usize, len: usize) -> usize;
    fn user_copy_mapped(to: usize, from: usize, len: usize) -> usize;
    fn user_copy_mapped_end();
    fn user_load_word(from: usize, to: *mut u32) -> u32;
    fn user_exchange_word(at: usize, old: u32, new: u32, to: *mut u32) -> u32;
    static __fixups_start: [u64; 2];
    static __fixups_end: [u64; 2];
}

/// Where to go on after a fault at `rip` that can't be resolved, if that is one of ours.
pub fn fixup(rip: u64) -> Option<u64> {
    let mut entry = &raw const __fixups_start;
    while entry < &raw const __fixups_end {
        // SAFETY: the linker script collects pairs between the two symbols.
        let [from, to] = unsafe { *entry };
        if from == rip {
            return Some(to);
        }
        // SAFETY: at most one past the end.
        entry = unsafe { entry.add(1) };
    }
    None
}

/// Whether a fault at `rip` may be resolved: not in [`copy_mapped_from_user`] and
/// [`copy_mapped_to_user`].
pub fn may_resolve(rip: u64) -> bool {
    let mapped = user_copy_mapped as *const () as u64..user_copy_mapped_end as *const () as u64;
    !mapped.contains(&rip)
}

/// The address of a program that the caller has checked, also while the CPU only guesses that the
/// check passed: one of the kernel's becomes the last of programs', where nothing is mapped.
#[inline(always)]
fn checked(from: VirtAddr) -> usize {
    let mut address = from.0;
    // SAFETY: computes with registers.
    unsafe {
        asm!("cmp {address}, {end}", "cmova {address}, {end}", address = inlateout(reg) address,
            end = in(reg) USER_END.0, options(pure, nomem, nostack));
    }
    address
}

fn left(bytes: usize) -> Result<(), usize> {
    if bytes == 0 { Ok(()) } else { Err(bytes) }
}

/// Copies from the program; the error is the number of bytes not copied.
///
/// # Safety
/// `to` is valid for `len` bytes, and the program's range lies below `USER_END`.
#[inline]
pub(crate) unsafe fn copy_from_user(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), usize> {
    // SAFETY: the caller vouches for `to`; a fault on the other side is fixed up.
    left(unsafe { user_copy_bytes(to as usize, checked(from), len) })
}

/// As [`copy_from_user`] where pages are mapped: no fault is resolved.
///
/// # Safety
/// As [`copy_from_user`].
#[inline]
pub(crate) unsafe fn copy_mapped_from_user(
    to: *mut u8,
    from: VirtAddr,
    len: usize,
) -> Result<(), usize> {
    // SAFETY: as in `copy_from_user`.
    left(unsafe { user_copy_mapped(to as usize, checked(from), len) })
}

/// Copies to the program; the error is the number of bytes not copied.
///
/// # Safety
/// As [`copy_from_user`], for `from`.
#[inline]
pub(crate) unsafe fn copy_to_user(to: VirtAddr, from: *const u8, len: usize) -> Result<(), usize> {
    // SAFETY: the caller vouches for `from`; a fault on the other side is fixed up.
    left(unsafe { user_copy_bytes(to.0, from as usize, len) })
}

/// As [`copy_to_user`] where pages are mapped to be written: no fault is resolved.
///
/// # Safety
/// As [`copy_to_user`].
#[inline]
pub(crate) unsafe fn copy_mapped_to_user(
    to: VirtAddr,
    from: *const u8,
    len: usize,
) -> Result<(), usize> {
    // SAFETY: as in `copy_to_user`.
    left(unsafe { user_copy_mapped(to.0, from as usize, len) })
}

/// An aligned 32-bit load; an error if the address can't be used.
///
/// # Safety
/// `from` is aligned and lies below `USER_END`.
#[inline]
pub(crate) unsafe fn user_load_u32(from: VirtAddr) -> Result<u32, ()> {
    let mut value = 0;
    // SAFETY: a fault is fixed up.
    let failed = unsafe { user_load_word(checked(from), &mut value) };
    if failed == 0 { Ok(value) } else { Err(()) }
}

/// An aligned 32-bit compare-exchange; gives the old value.
///
/// # Safety
/// As [`user_load_u32`].
#[inline]
pub(crate) unsafe fn user_cmpxchg_u32(at: VirtAddr, old: u32, new: u32) -> Result<u32, ()> {
    let mut value = 0;
    // SAFETY: a fault is fixed up.
    let failed = unsafe { user_exchange_word(at.0, old, new, &mut value) };
    if failed == 0 { Ok(value) } else { Err(()) }
}
