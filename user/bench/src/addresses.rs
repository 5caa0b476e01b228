//! The same addresses in each run.
//!
//! The addresses of a program's stack, libraries and mappings decide how many page tables they
//! need, and a kernel randomises them. In a count of instructions that would show as a difference
//! between kernels.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

/// The argument of `personality` that only queries.
const ASK: libc::c_ulong = 0xffff_ffff;

/// Restarts this program without randomised addresses. Returns if they are fixed already, or if the
/// kernel refuses.
pub fn fix() {
    // SAFETY: the call takes a number.
    let now = unsafe { libc::personality(ASK) };
    if now == -1 || now & libc::ADDR_NO_RANDOMIZE != 0 {
        return;
    }
    let words: Option<Vec<CString>> = std::env::args_os()
        .map(|word| CString::new(word.into_vec()).ok())
        .collect();
    let Some(words) = words else { return };
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: as above; the words live on, and the list of them ends with a null.
    unsafe {
        if libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) != -1 {
            libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr());
        }
    }
}
