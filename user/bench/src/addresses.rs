//! The same addresses in each run.
//!
//! Where a program's stack, libraries and mappings stand decides how many page tables they need, and a kernel chooses it
//! at random. Where instructions are counted that would be a difference between two kernels that is none.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

/// The argument of `personality` that asks and changes nothing.
const ASK: libc::c_ulong = 0xffff_ffff;

/// Starts this program again with addresses that are not random, unless they are so already. Returns when there is
/// nothing to do, or when the kernel does not do it.
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
