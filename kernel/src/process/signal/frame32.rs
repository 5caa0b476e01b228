//! The frames that handlers of 32-bit programs find on their stacks, exactly as Linux lays them out
//! (`struct sigframe_ia32` and `struct rt_sigframe_ia32`), and the way back.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    trap::{self, Registers, Selectors, UserContext},
    user,
};

use super::{
    Action, AltStack, Info, SignalSet, compat,
    frame::{CLEARED_FLAGS, RESTORED_FLAGS},
    x87,
};
use crate::process::{Own, Thread};

/// Words of the machine context.
const CONTEXT: usize = 22;
/// Words of a plain frame: return address, signal, context, room for an FPU state that is not used,
/// the upper half of the mask, code.
const PLAIN: usize = 2 + CONTEXT + 156 + 1 + 2;
/// First word of the machine context, and the upper half of the mask.
const PLAIN_CONTEXT: usize = 2;
const PLAIN_MASK: usize = PLAIN - 3;
/// Words of a frame with `siginfo`: return address, signal, two pointers, `siginfo`, `ucontext`
/// (flags, link, stack, context, mask), code.
const FULL: usize = 4 + compat::WORDS + 5 + CONTEXT + 2 + 2;
/// First words of `siginfo`, `ucontext`, the machine context and the mask.
const INFO: usize = 4;
const UCONTEXT: usize = INFO + compat::WORDS;
const FULL_CONTEXT: usize = UCONTEXT + 5;
const FULL_MASK: usize = FULL_CONTEXT + CONTEXT;
/// Words of the machine context: where the FPU state is, and the lower half of the mask.
const FPU_AT: usize = 19;
const OLD_MASK: usize = 20;

/// `pop eax; mov eax, 119; int 0x80`, for programs without a restorer of their own.
const RETURN_PLAIN: [u32; 2] = [0x0077_b858, 0x80cd_0000];
/// `mov eax, 173; int 0x80`.
const RETURN_FULL: [u32; 2] = [0x0000_adb8, 0x0080_cd00];

/// The words of a machine context.
fn encode(
    regs: &Registers,
    selectors: Selectors,
    fault: [u64; 3],
    mask: SignalSet,
    fpu_at: u64,
) -> [u32; CONTEXT] {
    let [error, trap, address] = fault;
    [
        u64::from(selectors.gs),
        u64::from(selectors.fs),
        u64::from(selectors.es),
        u64::from(selectors.ds),
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rsp,
        regs.rbx,
        regs.rdx,
        regs.rcx,
        regs.rax,
        trap,
        error,
        regs.rip,
        regs.cs,
        regs.rflags,
        regs.rsp,
        regs.ss,
        fpu_at,
        mask.0,
        address,
    ]
    .map(|word| word as u32)
}

/// Sets the registers from the words of a machine context. Segments of code and stack that the
/// program may not load are found when it goes on.
fn decode(regs: &mut Registers, words: &[u32]) -> Selectors {
    let wide = |at: usize| u64::from(words[at]);
    *regs = Registers {
        rdi: wide(4),
        rsi: wide(5),
        rbp: wide(6),
        rsp: wide(7),
        rbx: wide(8),
        rdx: wide(9),
        rcx: wide(10),
        rax: wide(11),
        rip: wide(14),
        cs: wide(15) & 0xffff | 3,
        ss: wide(18) & 0xffff | 3,
        rflags: regs.rflags & !RESTORED_FLAGS | wide(16) & RESTORED_FLAGS,
        ..*regs
    };
    // A selector of no privilege is the program's own.
    let own = |word: u32| match word as u16 {
        0..=3 => word as u16,
        selector => selector | 3,
    };
    Selectors {
        gs: own(words[0]),
        fs: own(words[1]),
        es: own(words[2]),
        ds: own(words[3]),
    }
}

/// Saves the FPU state below `top`: gives where it begins.
fn push_fpu(context: &mut UserContext, top: u64, data: u16) -> Result<u64> {
    let size = UserContext::fpu_size();
    let fx_at = top.checked_sub(size as u64).ok_or(Errno::EFAULT)? & !63;
    let at = fx_at.checked_sub(x87::LEN as u64).ok_or(Errno::EFAULT)?;
    let mut state = nucleus::try_vec(size)?;
    state.extend_from_slice(context.fpu_frame());
    if size > EXTENDED_SIZE + 4 {
        // With the part that stands before it.
        let mut word = [0; 4];
        word.copy_from_slice(&state[EXTENDED_SIZE..EXTENDED_SIZE + 4]);
        let len = u32::from_le_bytes(word);
        if len != 0 {
            let len = len + x87::LEN as u32;
            state[EXTENDED_SIZE..EXTENDED_SIZE + 4].copy_from_slice(&len.to_le_bytes());
        }
    }
    let old = x87::from_fx(&state, context.regs.cs as u16, data);
    let out = |at: u64, bytes: &[u8]| user::copy_out(VirtAddr(at as usize), bytes);
    out(at, &old).and_then(|()| out(fx_at, &state))?;
    Ok(at)
}

/// Where the length of the whole state stands in it (`fx_sw_reserved`).
const EXTENDED_SIZE: usize = 468;

/// Restores the FPU state at `at`; 0 for the initial one.
fn pop_fpu(context: &mut UserContext, at: u64) -> Result<()> {
    if at == 0 {
        context.reset_fpu();
        return Ok(());
    }
    let old: [u8; x87::LEN] = user::read(VirtAddr(at as usize))?;
    let from = VirtAddr(at as usize + x87::LEN);
    let read = |state: &mut [u8]| {
        user::copy_in(state, from)?;
        x87::into_fx(&old, state);
        Ok::<(), user::BadAddress>(())
    };
    match context.load_fpu(read) {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(Errno::EFAULT),
    }
}

/// Pushes as [`frame::push`](super::frame::push) does, for a handler that was set by a 32-bit call.
pub(super) fn push(
    own: &mut Own,
    context: &mut UserContext,
    info: &Info,
    action: &Action,
    mask: SignalSet,
) -> Result<()> {
    let sp = context.regs.rsp;
    let alt = own.alt_stack;
    let on_alt = alt.contains(sp);
    // A stack in a segment of the program's own can't take a frame: the restorer that is none says
    // where there is room, as in the oldest programs.
    let is_own = context.regs.ss != trap::USER_DATA && !on_alt;
    let names_room = is_own && !action.has(raw::SA_RESTORER) && action.restorer != 0;
    let below = if names_room { action.restorer } else { sp };
    let top = alt.top_for(action, sp).unwrap_or(below);
    let selectors = context.selectors();
    let fpu_at = push_fpu(context, top, selectors.ds)?;
    let full = action.has(raw::SA_SIGINFO);
    let len = 4 * if full { FULL } else { PLAIN } as u64;
    // The stack pointer is as after a call: 4 off a multiple of 16.
    let below = fpu_at.checked_sub(len).ok_or(Errno::EFAULT)?;
    let at = (below.wrapping_add(4) & !15).wrapping_sub(4);
    if on_alt && !alt.contains(at) {
        return Err(Errno::EFAULT);
    }
    let machine = encode(&context.regs, selectors, own.last_fault, mask, fpu_at);
    let upper_mask = (mask.0 >> 32) as u32;
    let restorer = |code: usize| match action.has(raw::SA_RESTORER) {
        true => action.restorer as u32,
        false => at as u32 + 4 * code as u32,
    };
    let place = VirtAddr(at as usize);
    let (second, third) = if full {
        let mut words = [0u32; FULL];
        let (info_at, context_at) = (at as u32 + 4 * INFO as u32, at as u32 + 4 * UCONTEXT as u32);
        words[..4].copy_from_slice(&[restorer(FULL - 2), info.signal, info_at, context_at]);
        words[INFO..UCONTEXT].copy_from_slice(&compat::narrow(&info.encode()));
        // The FPU state is in the XSAVE layout.
        words[UCONTEXT] = 1;
        words[UCONTEXT + 2] = alt.base as u32;
        words[UCONTEXT + 3] = alt.visible_flags(sp);
        words[UCONTEXT + 4] = alt.size as u32;
        words[FULL_CONTEXT..FULL_MASK].copy_from_slice(&machine);
        words[FULL_MASK..FULL_MASK + 2].copy_from_slice(&[mask.0 as u32, upper_mask]);
        words[FULL - 2..].copy_from_slice(&RETURN_FULL);
        user::write(place, &words)?;
        (info_at, context_at)
    } else {
        let mut words = [0u32; PLAIN];
        words[..2].copy_from_slice(&[restorer(PLAIN - 2), info.signal]);
        words[PLAIN_CONTEXT..PLAIN_CONTEXT + CONTEXT].copy_from_slice(&machine);
        words[PLAIN_MASK] = upper_mask;
        words[PLAIN - 2..].copy_from_slice(&RETURN_PLAIN);
        user::write(place, &words)?;
        (0, 0)
    };
    own.alt_stack.used();
    context.set_selectors(Selectors {
        ds: Selectors::FLAT.ds,
        es: Selectors::FLAT.es,
        ..selectors
    });
    let regs = &mut context.regs;
    regs.rax = u64::from(info.signal);
    regs.rdx = u64::from(second);
    regs.rcx = u64::from(third);
    regs.rip = action.handler;
    regs.rsp = at;
    (regs.cs, regs.ss) = (trap::USER_CODE_32, trap::USER_DATA);
    regs.rflags &= !CLEARED_FLAGS;
    context.reset_fpu();
    Ok(())
}

/// `sigreturn`: restores what [`push`] saved for a handler without `SA_SIGINFO`; the result is the
/// program's `eax`.
///
/// # Errors
/// Those of [`frame::sigreturn`](super::frame::sigreturn).
pub fn sigreturn_plain(thread: &Thread, context: &mut UserContext) -> Result<u64> {
    // The handler's return and the code after it have taken two words off.
    let at = (context.regs.rsp as u32).wrapping_sub(8);
    let words: [u32; PLAIN] = user::read(VirtAddr(at as usize))?;
    let machine = &words[PLAIN_CONTEXT..PLAIN_CONTEXT + CONTEXT];
    let mask = u64::from(machine[OLD_MASK]) | u64::from(words[PLAIN_MASK]) << 32;
    restore(thread, context, machine, mask)
}

/// `rt_sigreturn`: restores what [`push`] saved for a handler with `SA_SIGINFO`; the result is the
/// program's `eax`.
///
/// # Errors
/// Those of [`frame::sigreturn`](super::frame::sigreturn).
pub fn sigreturn_full(thread: &Thread, own: &mut Own, context: &mut UserContext) -> Result<u64> {
    // The handler's return has taken the first word off.
    let at = (context.regs.rsp as u32).wrapping_sub(4);
    let words: [u32; FULL] = user::read(VirtAddr(at as usize))?;
    let mask = u64::from(words[FULL_MASK]) | u64::from(words[FULL_MASK + 1]) << 32;
    let machine = &words[FULL_CONTEXT..FULL_MASK];
    let result = restore(thread, context, machine, mask)?;
    let [base, flags, size] = [2, 3, 4].map(|n| words[UCONTEXT + n]);
    own.alt_stack = AltStack::decode(u64::from(base), flags, u64::from(size));
    Ok(result)
}

fn restore(thread: &Thread, context: &mut UserContext, machine: &[u32], mask: u64) -> Result<u64> {
    pop_fpu(context, u64::from(machine[FPU_AT]))?;
    let selectors = decode(&mut context.regs, machine);
    context.set_selectors(selectors);
    thread.set_mask(SignalSet(mask));
    // No system call is left to be restarted.
    context.regs.orig_rax = u64::MAX;
    Ok(context.regs.rax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_linux() {
        // sizeof(struct sigcontext_32), offsetof(struct sigframe_ia32, extramask), offsetof(struct
        // rt_sigframe_ia32, uc) and uc.uc_mcontext, uc.uc_sigmask in it.
        assert_eq!(CONTEXT * 4, 88);
        assert_eq!(PLAIN_MASK * 4, 8 + 88 + 624);
        assert_eq!(UCONTEXT * 4, 144);
        assert_eq!(FULL_CONTEXT * 4, 144 + 20);
        assert_eq!(FULL_MASK * 4, 144 + 20 + 88);
    }

    #[test]
    fn registers_survive_the_round_trip() {
        let regs = Registers {
            rax: 1,
            rbx: 2,
            rcx: 3,
            rdx: 4,
            rsi: 5,
            rdi: 6,
            rbp: 7,
            rsp: 8,
            rip: 9,
            rflags: 0x246,
            cs: trap::USER_CODE_32,
            ss: trap::USER_DATA,
            ..Registers::default()
        };
        let selectors = Selectors {
            gs: 0x63,
            ..Selectors::FLAT
        };
        let words = encode(&regs, selectors, [0; 3], SignalSet(7), 0);
        let mut back = Registers {
            rflags: 0x202,
            ..Registers::default()
        };
        assert_eq!(decode(&mut back, &words), selectors);
        assert_eq!((back.rax, back.rbp, back.rsp, back.rip), (1, 7, 8, 9));
        assert_eq!((back.rflags, back.cs), (0x246, trap::USER_CODE_32));
        assert_eq!(back.ss, trap::USER_DATA);
    }
}
