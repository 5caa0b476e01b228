//! Mappings, and accesses that the compiler cannot leave out.

use std::ptr;

use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, c_int};

use crate::failure::{Outcome, Result};
use crate::{call, ensure};

/// The size of a page in bytes.
pub const PAGE: usize = 4096;

/// The usual protection of a mapping.
pub const READ_WRITE: c_int = PROT_READ | PROT_WRITE;

/// Makes a private anonymous mapping of `size` bytes.
pub fn map(size: usize) -> Result<*mut u8> {
    map_with(size, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)
}

/// Makes a shared anonymous mapping of `size` bytes.
pub fn shared_map(size: usize) -> Result<*mut u8> {
    map_with(size, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1)
}

/// Makes a private anonymous mapping below 2 GiB, for 32-bit pointers.
pub fn low_map(size: usize) -> Result<*mut u8> {
    let memory = map_with(
        size,
        READ_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_32BIT,
        -1,
    )?;
    ensure!((memory as usize) < 1 << 31, "MAP_32BIT gave {memory:?}");
    Ok(memory)
}

/// Makes a mapping at an address of the kernel's choice.
pub fn map_with(size: usize, protection: c_int, flags: c_int, file: c_int) -> Result<*mut u8> {
    Ok(call!(mmap(ptr::null_mut(), size, protection, flags, file, 0)).cast())
}

/// Makes a mapping of so many pages whose every other page is read-only: as many entries.
pub fn map_of_entries(pages: usize) -> Result<*mut u8> {
    let memory = map(pages * PAGE)?;
    for page in (0..pages).step_by(2) {
        let at = memory.wrapping_add(page * PAGE);
        call!(mprotect(at.cast(), PAGE, PROT_READ));
    }
    Ok(memory)
}

/// Writes a byte of each page of a mapping.
pub fn touch(memory: *mut u8, size: usize, value: u8) {
    for at in (0..size).step_by(PAGE) {
        poke(memory.wrapping_add(at), value);
    }
}

/// Removes a mapping.
pub fn unmap(memory: *mut u8, size: usize) -> Outcome {
    call!(munmap(memory.cast(), size));
    Ok(())
}

/// Puts a value into memory that is shared with the children forked afterwards, and never unmapped.
pub fn shared_value<T: Sync>(value: T) -> Result<&'static T> {
    let memory = shared_map(size_of::<T>().max(1))?.cast::<T>();
    // SAFETY: a fresh mapping, page-aligned, large enough, that lives as long as the process.
    unsafe {
        memory.write(value);
        Ok(&*memory)
    }
}

/// Reads a byte so that the compiler cannot leave it out.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "bad addresses are what it is for"
)]
pub fn peek(address: *const u8) -> u8 {
    // SAFETY: the test means to touch this address, and catches the fault if there is one.
    unsafe { address.read_volatile() }
}

/// Writes a byte so that the compiler cannot leave it out.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "bad addresses are what it is for"
)]
pub fn poke(address: *mut u8, value: u8) {
    // SAFETY: as for `peek`.
    unsafe { address.write_volatile(value) }
}
