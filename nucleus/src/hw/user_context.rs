//! The processor state of a program: registers, FPU, segments.

use alloc::sync::Arc;
use core::marker::PhantomData;

use super::local_segments::{LocalSegments, Segment};
use super::machine::{self, UserState};
use super::registers::{Event, Registers, Selectors, USER_CODE, USER_DATA};
use super::segment;
use crate::OutOfMemory;

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
        self.state.turns() >= segment::MOST_TURNS
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
