//! The frame that a handler finds on its stack, exactly as Linux on x86-64 lays it out
//! (`struct rt_sigframe`), and the way back.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    trap::{self, Registers, UserContext},
    user,
};

use super::{Action, AltStack, Info, SignalSet};
use crate::process::{Own, Thread};

/// Words of the frame before the FPU state: the return address, `ucontext` (flags, link, stack, 32
/// words of machine context, mask) and `siginfo`.
const WORDS: usize = 1 + 38 + 16;
/// First word of the machine context.
const CONTEXT: usize = 1 + 5;
/// Word of the mask.
const MASK: usize = CONTEXT + 32;
/// First word of `siginfo`.
const INFO: usize = MASK + 1;

/// `uc_flags`: the FPU state is in the XSAVE layout, the frame has SS and it is restored strictly.
const UC_FLAGS: u64 = 1 | 2 | UC_STRICT_RESTORE_SS;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// Bytes below the stack pointer that a program may write without moving it.
const RED_ZONE: u64 = 128;
/// Flags that a handler starts without: trap, direction, resume.
pub(super) const CLEARED_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 16;
/// Flags that a program may set through a frame: arithmetic, trap, direction, overflow, resume,
/// alignment check.
pub(super) const RESTORED_FLAGS: u64 = 0x50dd5;

/// Where the parts of a frame go below `top`: the FPU state and the frame itself.
fn place(top: u64, fpu: u64) -> Option<(u64, u64)> {
    let fpu_at = top.checked_sub(fpu)? & !63;
    // The stack pointer is as after a call: 8 off a multiple of 16.
    let at = (fpu_at.checked_sub(WORDS as u64 * 8)? & !15).checked_sub(8)?;
    Some((fpu_at, at))
}

/// The frame's words. `orig_rax` is not part of it.
fn encode(
    regs: &Registers,
    restorer: u64,
    stack: [u64; 3],
    fault: [u64; 3],
    mask: SignalSet,
    fpu_at: u64,
    info: &Info,
) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = restorer;
    words[1] = UC_FLAGS;
    words[3..6].copy_from_slice(&stack);
    let [error, trap, address] = fault;
    words[CONTEXT..CONTEXT + 24].copy_from_slice(&[
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.rflags,
        // CS, GS, FS, SS: 16 bits each.
        regs.cs & 0xffff | (regs.ss & 0xffff) << 48,
        error,
        trap,
        mask.0,
        address,
        fpu_at,
    ]);
    words[MASK] = mask.0;
    words[INFO..].copy_from_slice(&info.encode());
    words
}

/// Sets the registers from the words of a frame's machine context. Segments that the program may
/// not load are found when it goes on.
fn decode(regs: &mut Registers, words: &[u64], flags: u64) {
    regs.r8 = words[0];
    regs.r9 = words[1];
    regs.r10 = words[2];
    regs.r11 = words[3];
    regs.r12 = words[4];
    regs.r13 = words[5];
    regs.r14 = words[6];
    regs.r15 = words[7];
    regs.rdi = words[8];
    regs.rsi = words[9];
    regs.rbp = words[10];
    regs.rbx = words[11];
    regs.rdx = words[12];
    regs.rax = words[13];
    regs.rcx = words[14];
    regs.rsp = words[15];
    regs.rip = words[16];
    regs.rflags = regs.rflags & !RESTORED_FLAGS | words[17] & RESTORED_FLAGS;
    regs.cs = words[18] & 0xffff | 3;
    regs.ss = words[18] >> 48 | 3;
    if regs.cs == trap::USER_CODE && flags & UC_STRICT_RESTORE_SS == 0 {
        regs.ss = trap::USER_DATA;
    }
}

/// Puts a frame on the program's stack and makes the program run the handler. On an error nothing
/// but the stack's memory has changed.
pub(super) fn push(
    own: &mut Own,
    context: &mut UserContext,
    info: &Info,
    action: &Action,
    mask: SignalSet,
) -> Result<()> {
    if !action.has(raw::SA_RESTORER) {
        return Err(Errno::EFAULT);
    }
    let sp = context.regs.rsp;
    let alt = own.alt_stack;
    let on_alt = alt.contains(sp);
    let below = || sp.checked_sub(RED_ZONE);
    let top = alt
        .top_for(action, sp)
        .or_else(below)
        .ok_or(Errno::EFAULT)?;

    let size = UserContext::fpu_size();
    let (fpu_at, at) = place(top, size as u64).ok_or(Errno::EFAULT)?;
    if on_alt && !alt.contains(at) {
        return Err(Errno::EFAULT);
    }
    user::copy_out(VirtAddr(fpu_at as usize), context.fpu_frame())?;

    let stack = [alt.base, alt.visible_flags(sp) as u64, alt.size];
    let words = encode(
        &context.regs,
        action.restorer,
        stack,
        own.last_fault,
        mask,
        fpu_at,
        info,
    );
    user::write(VirtAddr(at as usize), &words)?;

    own.alt_stack.used();
    let regs = &mut context.regs;
    regs.rdi = info.signal as u64;
    regs.rsi = at + INFO as u64 * 8;
    regs.rdx = at + 8;
    regs.rax = 0;
    regs.rip = action.handler;
    regs.rsp = at;
    // The program may have been in 32-bit code.
    (regs.cs, regs.ss) = (trap::USER_CODE, trap::USER_DATA);
    regs.rflags &= !CLEARED_FLAGS;
    context.reset_fpu();
    Ok(())
}

/// `rt_sigreturn`: restores what [`push`] saved; the result is the program's `rax`.
///
/// # Errors
/// `EFAULT` for a frame that can't be read or an FPU state that the processor would refuse: the
/// caller forces SIGSEGV.
pub fn sigreturn(thread: &Thread, own: &mut Own, context: &mut UserContext) -> Result<u64> {
    // The handler's return has taken the first word off.
    let at = context.regs.rsp.wrapping_sub(8);
    let words: [u64; WORDS] = user::read(VirtAddr(at as usize))?;
    let fpu_at = words[CONTEXT + 23];
    if fpu_at == 0 {
        context.reset_fpu();
    } else {
        let from = VirtAddr(fpu_at as usize);
        match context.load_fpu(|to| user::copy_in(to, from)) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(Errno::EFAULT),
        }
    }
    decode(&mut context.regs, &words[CONTEXT..CONTEXT + 24], words[1]);
    own.alt_stack = AltStack::decode(words[3], words[4] as u32, words[5]);
    thread.set_mask(SignalSet(words[MASK]));
    // No system call is left to be restarted.
    context.regs.orig_rax = u64::MAX;
    Ok(context.regs.rax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_linux() {
        // offsetof(struct rt_sigframe, uc.uc_mcontext) = 8 + 40, uc_sigmask at 8 + 296, info at 8 +
        // 304.
        assert_eq!(CONTEXT * 8, 48);
        assert_eq!(MASK * 8, 304);
        assert_eq!(INFO * 8, 312);
        assert_eq!(WORDS * 8, 440);
    }

    #[test]
    fn a_frame_is_aligned_as_after_a_call() {
        for top in [0x7fff_0000u64, 0x7fff_0001, 0x7ffe_ffff, 5000] {
            let (fpu, at) = place(top, 2700).unwrap();
            assert_eq!(fpu % 64, 0);
            assert_eq!(at % 16, 8);
            assert!(at + WORDS as u64 * 8 <= fpu && fpu + 2700 <= top);
        }
        assert_eq!(place(100, 2700), None);
    }

    #[test]
    fn registers_survive_the_round_trip() {
        let regs = Registers {
            r8: 1,
            r15: 2,
            rax: 3,
            rsp: 4,
            rip: 5,
            rflags: 0x246,
            cs: 0x33,
            ss: 0x2b,
            ..Registers::default()
        };
        let words = encode(&regs, 9, [0; 3], [0; 3], SignalSet(7), 0, &Info::kernel(11));
        let mut back = Registers {
            rflags: 0x202,
            ..Registers::default()
        };
        decode(&mut back, &words[CONTEXT..CONTEXT + 24], words[1]);
        assert_eq!(
            (back.r8, back.r15, back.rax, back.rsp, back.rip),
            (1, 2, 3, 4, 5)
        );
        assert_eq!(back.rflags, 0x246);
        assert_eq!((back.cs, back.ss), (0x33, 0x2b));
        assert_eq!(words[MASK], 7);
    }

    #[test]
    fn privileged_flags_stay() {
        let mut words = [0u64; 24];
        words[17] = !0;
        let mut regs = Registers {
            rflags: 0x202,
            ..Registers::default()
        };
        decode(&mut regs, &words, 0);
        assert_eq!(regs.rflags & 0x3000, 0, "no I/O privilege");
        assert_eq!(regs.rflags & 0x20000, 0, "no virtual-8086 mode");
    }
}
