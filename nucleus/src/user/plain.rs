//! What may be copied between the kernel and a program byte by byte.

use linux_raw_sys::{elf_uapi, general, system};

/// A structure that may be copied between the kernel and a program byte by byte: any bit pattern
/// is a valid value. Build one to be written out from [`zeroed`], so that padding carries nothing.
///
/// # Safety
/// The implementor promises that every bit pattern is valid and that nothing has to be dropped.
/// `nucleus` implements it for integers, for arrays of them and for the structures of
/// `linux-raw-sys` that the system calls exchange.
pub unsafe trait Plain: Sized + 'static {}

/// The value whose bytes are all zero.
#[inline]
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: `Plain`: every bit pattern is valid.
    unsafe { core::mem::zeroed() }
}

/// The value's bytes (for an in-kernel buffer).
#[inline]
pub fn as_bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the memory of the value, for as long as it is borrowed. A value that goes to a
    // program was built from `zeroed`, so its padding is initialised too.
    unsafe { core::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

/// The value that begins `bytes`, or `None` if they are too few.
#[inline]
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: enough bytes, read without an assumption about their alignment; any pattern is valid.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

// SAFETY: an array of values for which every pattern is valid.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Says of types that they are [`Plain`].
macro_rules! plain {
    ($($type:ty),* $(,)?) => { $(
        // SAFETY: an integer, or a C structure of integers, pointers and function pointers that may
        // be null; none of their bit patterns is invalid, and nothing dereferences the pointers.
        unsafe impl Plain for $type {}
    )* };
}

plain! {
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize,
    general::__kernel_fd_set, general::__kernel_fsid_t, general::__kernel_itimerspec,
    general::statx_timestamp, general::__kernel_old_itimerval, general::__kernel_old_timespec,
    general::__kernel_old_timeval, general::__kernel_timespec,
    general::__user_cap_data_struct, general::__user_cap_header_struct,
    general::clone_args, general::epoll_event, general::f_owner_ex, general::flock,
    general::futex_waitv, general::iovec, general::itimerspec, general::itimerval,
    general::kernel_sigaction, general::kernel_sigset_t, general::open_how, general::pollfd,
    general::rlimit, general::rlimit64, general::robust_list, general::robust_list_head,
    general::rusage, general::sigaltstack, general::siginfo, general::stat, general::statfs,
    general::statfs64, general::statx, general::termio, general::termios, general::termios2,
    general::timespec, general::timeval, general::timezone, general::user_desc,
    general::winsize, general::ktermios, general::sigevent,
    system::new_utsname, system::sysinfo,
    elf_uapi::elf32_hdr, elf_uapi::elf32_phdr, elf_uapi::elf64_hdr, elf_uapi::elf64_phdr,
}
