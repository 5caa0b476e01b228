//! The entry of 32-bit system calls, from 64-bit code.

use std::arch::asm;

/// Makes a 32-bit call; negative results are error numbers.
pub fn int80<const N: usize>(number: u32, arguments: [u32; N]) -> i32 {
    let mut a = [0u64; 6];
    for (wide, narrow) in a.iter_mut().zip(arguments) {
        *wide = u64::from(narrow);
    }
    let result: u64;
    // SAFETY: the callers pass numbers and memory that the calls ask for. The two registers that
    // the compiler reserves are restored; the interrupt may change r8 to r11.
    unsafe {
        asm!(
            "push rbx", "push rbp",
            "mov rbx, r8", "mov rbp, r9",
            "int 0x80",
            "pop rbp", "pop rbx",
            inlateout("rax") u64::from(number) => result,
            in("rcx") a[1], in("rdx") a[2], in("rsi") a[3], in("rdi") a[4],
            inlateout("r8") a[0] => _, inlateout("r9") a[5] => _,
            lateout("r10") _, lateout("r11") _,
        );
    }
    result as i32
}
