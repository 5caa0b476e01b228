//! The processor state of a program: registers, FPU, segments.

use alloc::sync::Arc;
use core::marker::PhantomData;

use super::local_segments::LocalSegments;
use super::machine::{self, UserState};
use super::registers::{Event, Registers, Selectors, USER_CODE, USER_DATA};
use crate::OutOfMemory;

/// A segment that a 32-bit program has set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Segment {
    pub base: u32,
    /// The last offset, in bytes or pages; 20 bits.
    pub limit: u32,
    pub in_pages: bool,
    /// Code instead of data: never 64-bit code.
    pub is_code: bool,
    /// Data that may be written, or code that may be read.
    pub writable: bool,
    /// Data whose valid offsets are those past the limit, or code that is conforming.
    pub grows_down: bool,
    /// A bit without a meaning to the CPU.
    pub available: bool,
    /// Loading it faults.
    pub is_absent: bool,
}

impl Segment {
    /// As the CPU wants it: accessed, 32-bit, of programs' privilege. The bit of 64-bit code stays
    /// clear.
    pub(crate) fn encode(&self) -> u64 {
        let (base, limit) = (u64::from(self.base), u64::from(self.limit & 0xf_ffff));
        let bit = |set: bool, at: u32| u64::from(set) << at;
        limit & 0xffff
            | (base & 0xff_ffff) << 16
            | 0x71 << 40
            | bit(self.writable, 41)
            | bit(self.grows_down, 42)
            | bit(self.is_code, 43)
            | bit(!self.is_absent, 47)
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
            is_code: bit(43),
            writable: bit(41),
            grows_down: bit(42),
            available: bit(52),
            is_absent: !bit(47),
        })
    }
}

/// Turns of a thread's segments before its space is better large. A turn is a trap and a return,
/// with registers saved and segments loaded: more than the load of a root that it may save, and its
/// refills. A program that turns now and then, as for an error number, gets so far in seconds.
pub(crate) const MOST_TURNS: u32 = 256;

/// A program's whole processor state. It stays with the task that has it, whose CPU may hold a part
/// of it in its registers; to another task it goes [parked](UserContext::park).
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<nucleus::trap::UserContext>();
/// ```
#[repr(C, align(16))]
pub struct UserContext {
    /// FPU and vector registers, and the bases that the program has now.
    state: UserState,
    /// The general registers. A program can't be given privileges through them: `run` forces the
    /// flags to values that are safe. Where the code or stack selector is none that the program
    /// could load itself, `run` says that the program has the fault of that. A program may change
    /// its FS and GS bases without the kernel's knowledge: see
    /// [`sync_bases`](UserContext::sync_bases).
    pub regs: Registers,
    _of_task: PhantomData<*mut ()>,
}

/// A [`UserContext`] on its way to another task.
pub struct ParkedContext(UserContext);

// SAFETY: no CPU's registers hold a part of it (`park`), and nothing is done with it before it is
// the context of the task that takes it out.
unsafe impl Send for ParkedContext {}

impl ParkedContext {
    /// The context, the current task's from now on.
    pub fn unpark(self) -> UserContext {
        self.0
    }
}

#[cfg(target_os = "none")]
const _: () = {
    // The CPU aligns the stack pointer that it takes from the task state to 16 bytes, and that is
    // the address just past `ss`.
    assert!(align_of::<UserContext>() == 16);
    let end = core::mem::offset_of!(UserContext, regs) + core::mem::offset_of!(Registers, fs_base);
    assert!(end % 16 == 0);
};

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
            _of_task: PhantomData,
        })
    }

    /// A copy for a new thread or process, FPU state included.
    pub fn duplicate(&self) -> Result<UserContext, OutOfMemory> {
        Ok(UserContext {
            state: self.state.duplicate()?,
            regs: self.regs,
            _of_task: PhantomData,
        })
    }

    /// The same for another task.
    pub fn park(mut self) -> ParkedContext {
        self.state.park();
        ParkedContext(self)
    }

    /// Runs the program until something happens, unless `must_return` holds once interrupts are off
    /// and a wish to reschedule has been served; then the event is [`Event::Interrupt`].
    #[inline]
    pub(crate) fn run_unless(&mut self, must_return: impl FnOnce() -> bool) -> Event {
        machine::run_program(&mut self.regs, &mut self.state, must_return)
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

    /// Restricts the program's speculation, of what it [may](crate::processor::choice_of): that its
    /// loads pass earlier stores, and that its branches go where the core's other thread has taught
    /// them to go.
    pub fn restrict(&mut self, stores: bool, branches: bool) {
        self.state
            .set_restrictions(machine::restrictions(stores, branches));
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

    /// Makes it the context of a 32-bit program with these local segments, or of a 64-bit one.
    /// While the former runs, there is no 64-bit code segment that it could load.
    pub fn set_local_segments(&mut self, local: Option<Arc<LocalSegments>>) {
        self.state.set_local_segments(local);
    }

    /// The local segments of a 32-bit program; none for a 64-bit one.
    pub fn local_segments(&self) -> Option<&Arc<LocalSegments>> {
        self.state.local_segments()
    }

    /// Sets the thread's own segment `n`, below [`TLS_SEGMENTS`]. A selector that names it is
    /// loaded again.
    pub fn set_segment(&mut self, n: usize, segment: Option<Segment>) {
        let mut descriptors = self.state.descriptors();
        descriptors[n] = segment.map_or(0, |segment| segment.encode());
        self.state.set_descriptors(descriptors);
    }

    /// Whether the thread's segments, in a small space, were turned round so often for offsets of
    /// both signs that a space of its own is cheaper (see `hw::segment`).
    pub fn has_turned_too_often(&self) -> bool {
        self.state.turns() >= MOST_TURNS
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

    /// Takes the FPU state from a signal frame, of which `read` fills in the bytes,
    /// [`fpu_size`](UserContext::fpu_size) of them. `Ok(false)`, or what `read` fails with, leaves
    /// the initial state: the former for one that the processor would refuse.
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
            ..Segment::default()
        };
        assert_eq!(Segment::decode(odd.encode()), Some(odd));
        let code = Segment {
            is_code: true,
            is_absent: true,
            ..odd
        };
        assert_eq!(Segment::decode(code.encode()), Some(code));
        // Whatever is set: 32-bit, not 64-bit.
        assert_eq!(code.encode() >> 53 & 3, 2);
        assert_eq!(Segment::decode(flat.encode()), Some(flat));
        assert_eq!(Segment::decode(0), None);
    }
}
