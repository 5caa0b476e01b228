//! The registers of a program, and why it stopped running.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use crate::{Access, VirtAddr};

/// The code selector of 64-bit programs.
pub const USER_CODE: u64 = 0x33;
/// The code selector of 32-bit programs.
pub const USER_CODE_32: u64 = 0x23;
/// The selector of programs' data and stack.
pub const USER_DATA: u64 = 0x2b;

/// The number of the first descriptor that a thread of a 32-bit program can set, which is Linux's.
pub const FIRST_TLS_SEGMENT: usize = 12;
/// How many it can set.
pub const TLS_SEGMENTS: usize = 3;

/// The data selectors of a program. 64-bit programs rarely load them; for a 32-bit program they are
/// what it reaches its memory through.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Selectors {
    pub ds: u16,
    pub es: u16,
    pub fs: u16,
    pub gs: u16,
}

impl Selectors {
    /// What a 32-bit program starts with.
    pub const FLAT: Selectors = Selectors {
        ds: USER_DATA as u16,
        es: USER_DATA as u16,
        fs: 0,
        gs: 0,
    };
}

/// The registers of a program that the kernel may look at and change, in Linux's order
/// (`user_regs_struct`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    /// 0x33 in 64-bit code, 0x23 or one of the program's own segments in 32-bit code.
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

impl Registers {
    /// A number for the values of a program's general registers, its place and its flags: other
    /// values rarely have the same one.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub(crate) fn fingerprint(&self) -> u64 {
        // 32-bit programs have no others.
        let own = [
            self.rax,
            self.rbx,
            self.rcx,
            self.rdx,
            self.rsi,
            self.rdi,
            self.rbp,
            self.rsp,
            self.rip,
            self.rflags,
        ];
        // The prime of FNV-1a.
        own.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, it| {
            (sum ^ it).wrapping_mul(0x100_0000_01b3)
        })
    }
}

/// Why a program stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `syscall`: the number is in `orig_rax`, arguments in rdi, rsi, rdx, r10, r8, r9; the result
    /// goes to `rax`.
    SystemCall,
    /// `int 0x80`: the number is in `orig_rax`, arguments in ebx, ecx, edx, esi, edi, ebp.
    SystemCall32,
    /// A page fault at an address of any value.
    PageFault {
        addr: VirtAddr,
        access: Access,
        present: bool,
    },
    /// Any other exception: divide error 0, debug 1, breakpoint 3, overflow 4, bound 5, invalid
    /// opcode 6, absent segment 11, stack 12, general protection 13, x87 16, alignment 17, SIMD 19
    /// ...
    Exception { vector: u8, code: u64 },
    /// A device or timer interrupt was handled; the kernel looks for signals and may reschedule.
    Interrupt,
}
