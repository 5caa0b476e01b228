//! 32-bit code in a 64-bit process: a far jump into the 32-bit code segment, a loop of calls, a far
//! jump back.
//!
//! A far return could enter as well, but QEMU's emulation reads its stack as the kernel, which SMAP
//! forbids.

use std::arch::asm;
use std::ptr;

use crate::{Failure, call};

/// Linux's code segments for programs.
const CODE_32: u16 = 0x23;
const CODE_64: u16 = 0x33;

/// Offsets in the caller's page.
const SAVED_STACK: usize = 0x800;
const WAY_IN: usize = 0x808;
const STACK_END: usize = 0x1000;

/// A page below 2 GiB with a loop in 32-bit code.
pub struct Caller {
    page: u32,
}

impl Caller {
    /// Makes a page whose loop makes the 32-bit call with this number, which takes no arguments.
    ///
    /// # Errors
    /// When there is no memory below 2 GiB.
    pub fn new(number: u32) -> Result<Self, Failure> {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        let at = call!(mmap(ptr::null_mut(), 4096, protection, flags, -1, 0))?;
        let page = u32::try_from(at as usize).map_err(|_| "MAP_32BIT gave a high address")?;
        let mut code = Vec::new();
        // 32-bit: mov eax, number; int 0x80; dec esi; jnz to the start.
        code.push(0xb8);
        code.extend(number.to_le_bytes());
        code.extend([0xcd, 0x80, 0xff, 0xce, 0x75]);
        let next = code.len() + 1;
        code.push((next as u8).wrapping_neg());
        // A far jump to the 64-bit code behind it.
        let back = page + next as u32 + 7;
        code.push(0xea);
        code.extend(back.to_le_bytes());
        code.extend(CODE_64.to_le_bytes());
        // 64-bit: mov rsp, [saved]; ret.
        code.extend([0x48, 0x8b, 0x24, 0x25]);
        code.extend((page + SAVED_STACK as u32).to_le_bytes());
        code.push(0xc3);
        let mut way_in = page.to_le_bytes().to_vec();
        way_in.extend(CODE_32.to_le_bytes());
        // SAFETY: the page was just mapped, and has room for both.
        unsafe {
            at.cast::<u8>().copy_from(code.as_ptr(), code.len());
            let to = at.cast::<u8>().add(WAY_IN);
            to.copy_from(way_in.as_ptr(), way_in.len());
        }
        Ok(Self { page })
    }

    /// Makes the call so many times, at least once; returns the last result.
    pub fn call(&self, times: u32) -> i32 {
        let page = u64::from(self.page);
        let result: u64;
        // SAFETY: the page has the code written by `new`, which uses its own stack, returns with
        // this one, and changes no memory. Registers whose upper halves 32-bit code may change are
        // named here or restored.
        unsafe {
            asm!(
                "sub rsp, 128",
                "push rbx",
                "push rbp",
                "lea rax, [rip + 2f]",
                "push rax",
                "mov [rdi], rsp",
                "mov rsp, rdx",
                "jmp fword ptr [rcx]",
                "2:",
                "pop rbp",
                "pop rbx",
                "add rsp, 128",
                inlateout("rcx") page + WAY_IN as u64 => _,
                inlateout("rdx") page + STACK_END as u64 => _,
                inlateout("rsi") u64::from(times.max(1)) => _,
                inlateout("rdi") page + SAVED_STACK as u64 => _,
                lateout("rax") result,
                lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
                lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            );
        }
        result as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::alone;

    #[test]
    fn thirty_two_bit_code_calls_and_comes_back() {
        // A host without 32-bit calls kills the process that makes one.
        let call = |times| {
            alone(10, || {
                Caller::new(20)
                    .map(|c| c.call(times))
                    .map_or(0, own)
                    .to_string()
            })
        };
        let own_call = alone(10, || own(super::super::int80(20)).to_string());
        if own_call.is_ok() {
            assert_eq!([1, 2, 1000].map(call), [(); 3].map(|()| Ok("1".into())));
        }
    }

    /// Returns 1 if it is this process's id.
    fn own(number: i32) -> i32 {
        // SAFETY: asks for a number.
        i32::from(number == unsafe { libc::getpid() })
    }
}
