//! A machine inside an ordinary process.

#![allow(dead_code, unused_variables)]

use crate::{Access, OutOfMemory, PhysAddr, VirtAddr};

/// Most CPUs that are used.
pub(crate) const MAX_CPUS: usize = 16;

/// The CPU this runs on.
pub(crate) fn cpu() -> usize {
    todo!()
}
pub(crate) fn cpu_count() -> usize {
    todo!()
}
pub(crate) fn task_pointer() -> usize {
    todo!()
}
pub(crate) fn set_task_pointer(task: usize) {
    todo!()
}
pub(crate) fn irqs_enabled() -> bool {
    todo!()
}
/// Returns whether they were enabled.
pub(crate) fn irqs_disable() -> bool {
    todo!()
}
pub(crate) fn irqs_restore(enabled: bool) {
    todo!()
}
pub(crate) fn preempt_disable() {
    todo!()
}
/// Whether the count reached 0, a reschedule is wanted and interrupts are on.
pub(crate) fn preempt_enable() -> bool {
    todo!()
}
pub(crate) fn preempt_count() -> u32 {
    todo!()
}
pub(crate) fn set_reschedule(wanted: bool) {
    todo!()
}
pub(crate) fn counter_add(index: usize, n: u64) {
    todo!()
}
pub(crate) fn counter_read(cpu: usize, index: usize) -> u64 {
    todo!()
}
pub(crate) fn spin_hint() {
    todo!()
}
/// A schedule point of the simulation; nothing on bare metal.
pub(crate) fn point() {}
/// The oracle of the simulation checks that no TLB can still reach the frame; nothing on bare metal.
pub(crate) fn frame_freed(frame: PhysAddr) {}
/// Where the kernel reaches a physical address.
pub(crate) fn ptr(at: PhysAddr) -> *mut u8 {
    todo!()
}
pub(crate) fn load_space(root: PhysAddr) {
    todo!()
}
pub(crate) fn kernel_root() -> PhysAddr {
    todo!()
}
pub(crate) fn invalidate_page(at: VirtAddr) {
    todo!()
}
pub(crate) fn invalidate_all() {
    todo!()
}
pub(crate) fn send_shootdown(cpus: u64) {
    todo!()
}
pub(crate) fn send_reschedule(cpu: usize) {
    todo!()
}
/// Raw copies that may fault; the error is the number of bytes not copied.
///
/// # Safety
/// `to` is valid for `len` bytes, and the user range lies below `USER_END`.
pub(crate) unsafe fn copy_from_user(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), usize> {
    todo!()
}
/// # Safety
/// As [`copy_from_user`].
pub(crate) unsafe fn copy_to_user(to: VirtAddr, from: *const u8, len: usize) -> Result<(), usize> {
    todo!()
}
/// An aligned 32-bit load; an error if the address can't be used.
///
/// # Safety
/// `from` is aligned and lies below `USER_END`.
pub(crate) unsafe fn user_load_u32(from: VirtAddr) -> Result<u32, ()> {
    todo!()
}
/// An aligned 32-bit compare-exchange; gives the old value.
///
/// # Safety
/// As [`user_load_u32`].
pub(crate) unsafe fn user_cmpxchg_u32(at: VirtAddr, old: u32, new: u32) -> Result<u32, ()> {
    todo!()
}
pub(crate) fn nanoseconds() -> u64 {
    todo!()
}
pub(crate) fn epoch_at_boot() -> u64 {
    todo!()
}
pub(crate) fn set_timer(deadline: Option<u64>) {
    todo!()
}
pub(crate) fn wait_for_interrupt() {
    todo!()
}
pub(crate) fn console_put(bytes: &[u8]) {
    todo!()
}
pub(crate) fn console_get() -> Option<u8> {
    todo!()
}
pub(crate) fn log_put(bytes: &[u8]) {
    todo!()
}
pub(crate) fn random_seed() -> u64 {
    todo!()
}
pub(crate) fn stop(code: u8) -> ! {
    todo!()
}
pub(crate) fn reschedule_wanted() -> bool {
    todo!()
}
/// A kernel thread's stack, and its registers while it does not run.
pub(crate) struct Context {}
impl Context {
    /// A thread that will run `entry(arg)` when first switched to, with interrupts off.
    pub(crate) fn new(
        entry: extern "C" fn(usize) -> !,
        arg: usize,
    ) -> Result<Context, OutOfMemory> {
        todo!()
    }
    /// The thread that runs now, on the stack that the CPU was started with.
    pub(crate) fn current_boot() -> Context {
        todo!()
    }
    /// Leaves `from`, which is the running thread, and runs `to` until something switches back.
    ///
    /// # Safety
    /// Interrupts are off. Both contexts live until `from` runs again; `to` does not run on any
    /// CPU, and nobody else switches to it.
    pub(crate) unsafe fn switch(from: &Context, to: &Context) {
        todo!()
    }
}
pub(crate) fn irqs_restore_quietly(enabled: bool) {
    todo!()
}
/// A program's state outside the general registers.
pub(crate) struct UserState {}
impl UserState {
    pub(crate) fn new() -> Result<UserState, OutOfMemory> {
        todo!()
    }
    pub(crate) fn duplicate(&self) -> Result<UserState, OutOfMemory> {
        todo!()
    }
    pub(crate) fn reset(&mut self) {
        todo!()
    }
    /// The FS and GS bases that the program has now; `wanted` are those that the kernel last put into its registers.
    pub(crate) fn take_bases(&mut self, wanted: [u64; 2]) -> [u64; 2] {
        todo!()
    }
    pub(crate) fn stored_size() -> usize {
        todo!()
    }
    pub(crate) fn store(&mut self, to: &mut [u8]) {
        todo!()
    }
    pub(crate) fn restore(&mut self, from: &[u8]) -> bool {
        todo!()
    }
}
pub(crate) fn run(regs: &mut crate::trap::Registers, state: &mut UserState) -> crate::trap::Event {
    todo!()
}
