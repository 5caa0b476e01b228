//! What may be copied between the kernel and a program byte by byte.
//!
//! | trait | promise | direction |
//! |---|---|---|
//! | [`Plain`] | every bit pattern is a value | from a program |
//! | [`Unpadded`] | every byte is a part of a field | to a program, as it stands in memory |
//! | [`ToUser`] | has bytes without what fields leave open | to a program |
//!
//! Padding is not memory of a value: a move may leave anything there, what the kernel's stack held
//! last included. So a structure with padding is copied field by field over zeros on its way to a
//! program, and of all others a constant is computed that does not compile if the fields do not
//! fill the structure.

use core::ffi::c_int;

use linux_raw_sys::{elf_uapi, general, system};

/// A value that may be copied from a program byte by byte: any bit pattern is a valid one.
///
/// # Safety
/// The implementor promises that every bit pattern is valid and that nothing has to be dropped.
/// `nucleus` implements it for integers, for arrays of them and for the structures of
/// `linux-raw-sys` that the system calls exchange.
pub unsafe trait Plain: Sized + 'static {}

/// A [`Plain`] value without padding: all of its bytes are initialised.
///
/// # Safety
/// The implementor promises that.
pub unsafe trait Unpadded: Plain {}

/// A [`Plain`] value that may be copied to a program: padding arrives as zeros.
pub trait ToUser: Plain {
    /// Calls `f` with the value's bytes.
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;
}

impl<T: Unpadded> ToUser for T {
    #[inline]
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(as_bytes(self))
    }
}

/// The value whose bytes are all zero.
#[inline]
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: `Plain`: every bit pattern is valid.
    unsafe { core::mem::zeroed() }
}

/// The value's bytes (for an in-kernel buffer).
#[inline]
pub fn as_bytes<T: Unpadded>(value: &T) -> &[u8] {
    // SAFETY: the memory of the value, for as long as it is borrowed, all of it initialised.
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
// SAFETY: nothing lies between the values of an array.
unsafe impl<T: Unpadded, const N: usize> Unpadded for [T; N] {}

/// Says of types without parts that they are [`Unpadded`].
macro_rules! scalars {
    ($($type:ty),* $(,)?) => { $(
        // SAFETY: none of its bit patterns is invalid.
        unsafe impl Plain for $type {}
        // SAFETY: it has no parts, so nothing lies between them.
        unsafe impl Unpadded for $type {}
    )* };
}

scalars! {
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize,
    // Nothing dereferences or calls these.
    Option<unsafe extern "C" fn(c_int)>, Option<unsafe extern "C" fn()>,
    *mut general::robust_list, *mut linux_raw_sys::ctypes::c_void,
    general::__BindgenBitfieldUnit<[u8; 1]>,
}

/// The size of a field without padding of its own, by what reads it.
const fn unpadded_size<T, F: Unpadded>(_: fn(T) -> F) -> usize {
    size_of::<F>()
}

/// Says of C structures that they are [`Unpadded`], and proves it.
macro_rules! unpadded {
    ($($path:ident :: $name:ident { $($field:ident),* $(,)? }),* $(,)?) => { $(
        const _: () = {
            let fields = 0 $(+ unpadded_size(|it: $path::$name| it.$field))*;
            assert!(fields == size_of::<$path::$name>());
        };
        // SAFETY: a C structure of `Plain` fields.
        unsafe impl Plain for $path::$name {}
        // SAFETY: the fields, without padding of their own, fill it.
        unsafe impl Unpadded for $path::$name {}
    )* };
}

/// Has C structures with padding copied to programs field by field.
macro_rules! padded {
    ($($path:ident :: $name:ident { $($field:ident),* $(,)? }),* $(,)?) => { $(
        // SAFETY: a C structure of `Plain` fields: `with_bytes` below would not compile otherwise.
        unsafe impl Plain for $path::$name {}

        impl ToUser for $path::$name {
            fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
                let mut bytes = [0; size_of::<$path::$name>()];
                $(
                    let field = as_bytes(&self.$field);
                    let at = core::mem::offset_of!($path::$name, $field);
                    bytes[at..at + field.len()].copy_from_slice(field);
                )*
                f(&bytes)
            }
        }
    )* };
}

/// Says of types that they are [`Plain`], and are read only.
macro_rules! plain {
    ($($type:ty),* $(,)?) => { $(
        // SAFETY: C structures and unions of integers and pointers, which nothing dereferences.
        unsafe impl Plain for $type {}
    )* };
}

plain! { general::siginfo, general::sigevent }

unpadded! {
    general::__kernel_fd_set { fds_bits },
    general::__kernel_fsid_t { val },
    general::__kernel_timespec { tv_sec, tv_nsec },
    general::__kernel_itimerspec { it_interval, it_value },
    general::statx_timestamp { tv_sec, tv_nsec, __reserved },
    general::__kernel_old_timeval { tv_sec, tv_usec },
    general::__kernel_old_itimerval { it_interval, it_value },
    general::__kernel_old_timespec { tv_sec, tv_nsec },
    general::__user_cap_data_struct { effective, permitted, inheritable },
    general::__user_cap_header_struct { version, pid },
    general::clone_args {
        flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup,
    },
    general::epoll_event { events, data },
    general::f_owner_ex { type_, pid },
    general::futex_waitv { val, uaddr, flags, __reserved },
    general::iovec { iov_base, iov_len },
    general::timespec { tv_sec, tv_nsec },
    general::itimerspec { it_interval, it_value },
    general::timeval { tv_sec, tv_usec },
    general::itimerval { it_interval, it_value },
    general::kernel_sigset_t { sig },
    general::kernel_sigaction { sa_handler_kernel, sa_flags, sa_restorer, sa_mask },
    general::open_how { flags, mode, resolve },
    general::pollfd { fd, events, revents },
    general::rlimit { rlim_cur, rlim_max },
    general::rlimit64 { rlim_cur, rlim_max },
    general::robust_list { next },
    general::robust_list_head { list, futex_offset, list_op_pending },
    general::rusage {
        ru_utime, ru_stime, ru_maxrss, ru_ixrss, ru_idrss, ru_isrss, ru_minflt, ru_majflt,
        ru_nswap, ru_inblock, ru_oublock, ru_msgsnd, ru_msgrcv, ru_nsignals, ru_nvcsw, ru_nivcsw,
    },
    general::stat {
        st_dev, st_ino, st_nlink, st_mode, st_uid, st_gid, __pad0, st_rdev, st_size, st_blksize,
        st_blocks, st_atime, st_atime_nsec, st_mtime, st_mtime_nsec, st_ctime, st_ctime_nsec,
        __unused,
    },
    general::statfs {
        f_type, f_bsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_fsid, f_namelen,
        f_frsize, f_flags, f_spare,
    },
    general::statfs64 {
        f_type, f_bsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_fsid, f_namelen,
        f_frsize, f_flags, f_spare,
    },
    general::statx {
        stx_mask, stx_blksize, stx_attributes, stx_nlink, stx_uid, stx_gid, stx_mode, __spare0,
        stx_ino, stx_size, stx_blocks, stx_attributes_mask, stx_atime, stx_btime, stx_ctime,
        stx_mtime, stx_rdev_major, stx_rdev_minor, stx_dev_major, stx_dev_minor, stx_mnt_id,
        stx_dio_mem_align, stx_dio_offset_align, stx_subvol, stx_atomic_write_unit_min,
        stx_atomic_write_unit_max, stx_atomic_write_segments_max, stx_dio_read_offset_align,
        stx_atomic_write_unit_max_opt, __spare2, __spare3,
    },
    general::termios { c_iflag, c_oflag, c_cflag, c_lflag, c_line, c_cc },
    general::termios2 { c_iflag, c_oflag, c_cflag, c_lflag, c_line, c_cc, c_ispeed, c_ospeed },
    general::timezone { tz_minuteswest, tz_dsttime },
    general::winsize { ws_row, ws_col, ws_xpixel, ws_ypixel },
    general::ktermios { c_iflag, c_oflag, c_cflag, c_lflag, c_line, c_cc, c_ispeed, c_ospeed },
    general::user_desc {
        entry_number, base_addr, limit, _bitfield_align_1, _bitfield_1, __bindgen_padding_0,
    },
    system::new_utsname { sysname, nodename, release, version, machine, domainname },
    elf_uapi::elf32_hdr {
        e_ident, e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize,
        e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx,
    },
    elf_uapi::elf32_phdr {
        p_type, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_flags, p_align,
    },
    elf_uapi::elf64_hdr {
        e_ident, e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize,
        e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx,
    },
    elf_uapi::elf64_phdr {
        p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align,
    },
}

padded! {
    general::flock { l_type, l_whence, l_start, l_len, l_pid },
    general::sigaltstack { ss_sp, ss_flags, ss_size },
    general::termio { c_iflag, c_oflag, c_cflag, c_lflag, c_line, c_cc },
    system::sysinfo {
        uptime, loads, totalram, freeram, sharedram, bufferram, totalswap, freeswap, procs, pad,
        totalhigh, freehigh, mem_unit,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stood in the padding of a structure does not arrive.
    #[test]
    fn padding_arrives_as_zeros() {
        let mut lock: general::flock = zeroed();
        // SAFETY: a C structure of integers is overwritten.
        unsafe { core::ptr::write_bytes(&raw mut lock, 0xff, 1) };
        lock.l_type = 1;
        lock.l_whence = 2;
        lock.l_start = 3;
        lock.l_len = 4;
        lock.l_pid = 5;
        let words = lock.with_bytes(from_bytes::<[u64; 4]>);
        assert_eq!(words, Some([0x2_0001, 3, 4, 5]));
        let all: system::sysinfo = from_bytes(&[0xff; size_of::<system::sysinfo>()]).unwrap();
        let holes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 0).count();
        assert_eq!(all.with_bytes(holes), 8);
    }
}
