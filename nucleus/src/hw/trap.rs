//! Running a program until it traps.
//!
//! A task that runs a program loops: [`UserContext::run`], then handle the [`Event`]. Entering
//! and leaving the program saves only what the program and the ABI of the kernel need; there is
//! no lock and no allocation.

use crate::hw::machine::{self, UserState};
use crate::{Access, OutOfMemory, VirtAddr};

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

/// The data selectors of a program. 64-bit programs rarely load them; for a 32-bit program they are what it reaches its
/// memory through.
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

/// A data segment of a 32-bit thread.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Segment {
    pub base: u32,
    /// The last offset, in bytes or pages; 20 bits.
    pub limit: u32,
    pub in_pages: bool,
    pub writable: bool,
    pub grows_down: bool,
    /// A bit without a meaning to the CPU.
    pub available: bool,
}

impl Segment {
    /// As the CPU wants it: present, accessed, 32-bit, of programs' privilege.
    fn encode(&self) -> u64 {
        let (base, limit) = (u64::from(self.base), u64::from(self.limit & 0xf_ffff));
        let bit = |set: bool, at: u32| u64::from(set) << at;
        limit & 0xffff
            | (base & 0xff_ffff) << 16
            | 0xf1 << 40
            | bit(self.writable, 41)
            | bit(self.grows_down, 42)
            | (limit >> 16) << 48
            | bit(self.available, 52)
            | 1 << 54
            | bit(self.in_pages, 55)
            | (base >> 24) << 56
    }

    fn decode(descriptor: u64) -> Option<Segment> {
        let bit = |at: u32| descriptor >> at & 1 != 0;
        (descriptor != 0).then(|| Segment {
            base: (descriptor >> 16 & 0xff_ffff | descriptor >> 56 << 24) as u32,
            limit: (descriptor & 0xffff | descriptor >> 48 << 16 & 0xf_0000) as u32,
            in_pages: bit(55),
            writable: bit(41),
            grows_down: bit(42),
            available: bit(52),
        })
    }
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
    /// 0x33 for a 64-bit program, 0x23 for a 32-bit one.
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

/// A program's whole processor state.
#[repr(C, align(16))]
pub struct UserContext {
    /// FPU and vector registers, and the bases that the program has now.
    state: UserState,
    /// The general registers. A program can't be given privileges through them: `run` forces the
    /// selectors and the flags to values that are safe. A program may change its FS and GS bases without the kernel's
    /// knowledge: see [`sync_bases`](UserContext::sync_bases).
    pub regs: Registers,
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
    /// opcode 6, general protection 13, stack 12, x87 16, alignment 17, SIMD 19 ...
    Exception { vector: u8, code: u64 },
    /// A device or timer interrupt was handled; the kernel looks for signals and may reschedule.
    Interrupt,
}

impl UserContext {
    /// A fresh context: registers zero, FPU in its initial state.
    pub fn new() -> Result<UserContext, OutOfMemory> {
        let regs = Registers {
            cs: USER_CODE,
            ss: USER_DATA,
            ..Registers::default()
        };
        Ok(UserContext {
            state: UserState::new()?,
            regs,
        })
    }

    /// A copy for a new thread or process, FPU state included.
    pub fn duplicate(&self) -> Result<UserContext, OutOfMemory> {
        Ok(UserContext {
            state: self.state.duplicate()?,
            regs: self.regs,
        })
    }

    /// Runs the program in the current task's pmap until something happens. Preemption by the timer
    /// comes back as [`Event::Interrupt`]; a wish to reschedule has been served before the return.
    /// Returns [`Event::Interrupt`] at once while the task is [interrupted](crate::task::Task::interrupt), or was switched to
    /// and [wants to know](crate::task::Task::watch_switches).
    #[inline]
    pub fn run(&mut self) -> Event {
        machine::run_program(&mut self.regs, &mut self.state)
    }

    /// Brings `regs.fs_base` and `regs.gs_base` up to date with what the program has made of them.
    /// Until then they hold what the kernel last put there; what it puts there takes effect at the
    /// next [`run`](UserContext::run) if it differs.
    pub fn sync_bases(&mut self) {
        [self.regs.fs_base, self.regs.gs_base] = self
            .state
            .take_bases([self.regs.fs_base, self.regs.gs_base]);
    }

    /// Resets the FPU to its initial state; the bases stay.
    pub fn reset_fpu(&mut self) {
        self.sync_bases();
        // What the registers say differs now from what the state says, and counts.
        self.state.reset();
    }

    /// The data selectors that the program has now.
    pub fn selectors(&mut self) -> Selectors {
        self.state.selectors()
    }

    /// Sets the data selectors. One that programs can't load is loaded as 0.
    pub fn set_selectors(&mut self, selectors: Selectors) {
        self.state.set_selectors(selectors);
    }

    /// The thread's own segment `n`, below [`TLS_SEGMENTS`].
    pub fn segment(&self, n: usize) -> Option<Segment> {
        Segment::decode(self.state.descriptors()[n])
    }

    /// Sets the thread's own segment `n`, below [`TLS_SEGMENTS`]. A selector that names it is loaded again.
    pub fn set_segment(&mut self, n: usize, segment: Option<Segment>) {
        let mut descriptors = self.state.descriptors();
        descriptors[n] = segment.map_or(0, |segment| segment.encode());
        self.state.set_descriptors(descriptors);
    }

    /// Bytes of the extended state in the XSAVE layout that a signal frame carries (Linux's
    /// `_fpstate`/`_xstate`, the software-reserved bytes included).
    pub fn fpu_size() -> usize {
        UserState::frame_size()
    }

    /// The FPU state as a signal frame has it.
    pub fn fpu_frame(&mut self) -> &[u8] {
        self.state.frame()
    }

    /// Takes the FPU state from a signal frame, of which `read` fills in the bytes, [`fpu_size`](UserContext::fpu_size) of
    /// them. `Ok(false)`, or what `read` fails with, leaves the initial state: the former for one that the processor would
    /// refuse.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn load_fpu<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.state.load_frame(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_encoded_as_the_processor_wants_them() {
        let flat = Segment {
            base: 0,
            limit: 0xf_ffff,
            in_pages: true,
            writable: true,
            ..Segment::default()
        };
        assert_eq!(flat.encode(), 0x00cf_f300_0000_ffff);
        let odd = Segment {
            base: 0x1234_5678,
            limit: 0x9_abcd,
            in_pages: false,
            writable: false,
            grows_down: true,
            available: true,
        };
        assert_eq!(Segment::decode(odd.encode()), Some(odd));
        assert_eq!(Segment::decode(flat.encode()), Some(flat));
        assert_eq!(Segment::decode(0), None);
    }
}
