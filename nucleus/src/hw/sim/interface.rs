//! The machine interface, as the rest of the nucleus sees it. Outside a run there is one CPU on
//! which nothing happens.

use core::{cell::Cell, ops::Range};

use super::machine::{Interrupt, machine, required};
use crate::hw::date::Date;
use crate::hw::power::Stop;
use crate::hw::processor::{Cache, Processor};
use crate::{PAGE_SIZE, PhysAddr};

/// The real-time clock's reading at the start of every run, nanoseconds.
const EPOCH: u64 = 1_700_000_000_000_000_000;
const NANOSECONDS: u64 = 1_000_000_000;

/// The CPU this runs on.
#[inline]
pub(crate) fn cpu() -> usize {
    machine().map_or(0, |m| m.current.get())
}

/// Whether there is a machine: whether its CPUs are all that run.
#[inline]
pub(crate) fn is_running() -> bool {
    machine().is_some()
}

/// CPUs of the machine.
pub(crate) fn cpu_count() -> usize {
    machine().map_or(1, |m| m.cpus.len())
}

/// The word kept for the scheduler.
#[inline]
pub(crate) fn task_pointer() -> usize {
    machine().map_or(0, |m| m.cpu().task.get())
}

/// Sets the word kept for the scheduler.
pub(crate) fn set_task_pointer(task: usize) {
    required().cpu().task.set(task);
}

pub(crate) fn irqs_enabled() -> bool {
    machine().is_none_or(|m| m.cpu().irqs.get())
}

/// Returns whether they were enabled.
#[inline]
pub(crate) fn irqs_disable() -> bool {
    machine().is_none_or(|m| m.cpu().irqs.replace(false))
}

/// Sets the flag back; an interrupt that has arrived may run at once.
pub(crate) fn irqs_restore(enabled: bool) {
    if let Some(m) = machine() {
        m.cpu().irqs.set(enabled);
        if enabled {
            point();
        }
    }
}

/// As [`irqs_restore`], but nothing happens here.
pub(crate) fn irqs_restore_quietly(enabled: bool) {
    if let Some(m) = machine() {
        m.cpu().irqs.set(enabled);
    }
}

#[inline]
pub(crate) fn preempt_disable() {
    if let Some(m) = machine() {
        let count = &m.cpu().preempt_count;
        count.set(count.get() + 1);
    }
}

/// The current task runs its program from now on, or no longer.
pub fn set_in_program(in_program: bool) {
    if let Some(m) = machine() {
        m.cpu().in_program.set(in_program);
    }
}

/// Whether the count reached 0, a reschedule is wanted and interrupts are on.
#[inline]
pub(crate) fn preempt_enable() -> bool {
    let Some(m) = machine() else { return false };
    let cpu = m.cpu();
    cpu.preempt_count.set(cpu.preempt_count.get() - 1);
    cpu.preempt_count.get() == 0 && cpu.reschedule.get() && cpu.irqs.get()
}

pub(crate) fn preempt_count() -> u64 {
    machine().map_or(0, |m| m.cpu().preempt_count.get())
}

pub(crate) fn set_reschedule(wanted: bool) {
    required().cpu().reschedule.set(wanted);
}

#[inline]
pub(crate) fn reschedule_wanted() -> bool {
    machine().is_some_and(|m| m.cpu().reschedule.get())
}

/// Adds to a counter of this CPU.
#[inline]
pub(crate) fn counter_add(index: usize, n: u64) {
    if let Some(m) = machine() {
        let counter = &m.cpu().counters[index];
        counter.set(counter.get() + n);
    }
}

/// Reads a counter of any CPU.
pub(crate) fn counter_read(cpu: usize, index: usize) -> u64 {
    machine()
        .and_then(|m| m.cpus.get(cpu))
        .map_or(0, |cpu| cpu.counters[index].get())
}

/// A place where another CPU may go on and an interrupt may arrive.
#[inline]
pub fn point() {
    if let Some(m) = machine() {
        let left = m.countdown.get();
        if left > 1 {
            m.countdown.set(left - 1);
        } else {
            m.happen(true);
        }
    }
}

/// A point in a loop that waits for another CPU for a while: whether to go on.
pub(crate) fn look_again(until: u64) -> bool {
    point();
    // Looks of any number are tried, not many: time hardly goes on meanwhile.
    machine().is_some_and(|m| m.clock.get() < until && m.random.below(32) != 0)
}

/// A point in a loop that waits for another CPU, which therefore must go on.
pub(crate) fn spin_hint() {
    let Some(m) = machine() else {
        return std::hint::spin_loop();
    };
    m.end_after_panic();
    m.points.set(m.points.get() + 1);
    if m.points.get() > m.config.max_points {
        m.no_end();
    }
    m.clock.set(m.clock.get() + m.random.below(100));
    if m.deliver() {
        return;
    }
    match m.other() {
        Some(other) => m.switch_to(other),
        None if m.leap_to_next_timer() => {}
        None => m.fail(format!(
            "CPU {} spins, and no other CPU can end it; {}",
            m.current(),
            m.who()
        )),
    }
}

/// The running task is switched away from; not after a panic, which ends the run.
pub(crate) fn leave_thread() {
    required().end_after_panic();
}

/// Where the kernel reaches a physical address that is in its direct map.
pub(crate) fn ptr(at: PhysAddr) -> *mut u8 {
    let m = required();
    let outside = m.outside.get(at.frame_number() as usize);
    if outside.is_some_and(Cell::get) {
        m.fail(format!("{at:?} is outside of the direct map"));
    }
    m.memory(at)
}

/// Takes frames out of the direct map.
pub(crate) fn direct_hide(frames: Range<u32>) {
    set_outside(frames, true);
}

/// Brings frames into the direct map.
pub(crate) fn direct_show(frames: Range<u32>) {
    set_outside(frames, false);
}

fn set_outside(frames: Range<u32>, outside: bool) {
    for frame in frames {
        let before = required().outside[frame as usize].replace(outside);
        assert_ne!(before, outside, "the place of a frame is set twice");
    }
}

/// Makes all CPUs forget their translations of kernel addresses: they have those of the window.
pub(crate) fn flush_kernel() {
    point();
    super::window::flush_everywhere(required());
}

/// The root table of the kernel's own space: nothing is mapped in it.
pub(crate) fn kernel_root() -> PhysAddr {
    PhysAddr(PAGE_SIZE as u64)
}

/// Programs run under the kernel's roots.
pub(crate) fn entry_root() -> Option<PhysAddr> {
    None
}

/// Sends a shootdown interrupt to the CPUs of the mask.
pub(crate) fn send_shootdown(cpus: u64) {
    let m = required();
    for cpu in (0..m.cpus.len()).filter(|cpu| cpus & 1 << cpu != 0) {
        m.raise(cpu, Interrupt::Shootdown);
    }
    point();
}

/// Sends a reschedule interrupt.
pub(crate) fn send_reschedule(cpu: usize) {
    required().raise(cpu, Interrupt::Reschedule);
    point();
}

/// Since boot.
pub(crate) fn nanoseconds() -> u64 {
    machine().map_or(0, |m| m.clock.get())
}

/// Since the Unix epoch, at boot.
pub(crate) fn epoch_at_boot() -> u64 {
    EPOCH
}

/// The real-time clock's date. It changes in no time.
pub(crate) fn date() -> Option<Date> {
    let set_ahead = machine().map_or(0, |m| m.set_ahead.get());
    let now = (EPOCH + nanoseconds()) / NANOSECONDS;
    Some(Date::after_epoch(now.saturating_add_signed(set_ahead)))
}

/// Sets that date, if there is such a one.
pub(crate) fn set_date(date: &Date) -> bool {
    if date.is_valid() {
        let now = (EPOCH + nanoseconds()) / NANOSECONDS;
        let ahead = date.seconds() as i64 - now as i64;
        required().set_ahead.set(ahead);
    }
    date.is_valid()
}

/// Sets this CPU's one-shot timer.
pub(crate) fn set_timer(deadline: Option<u64>) {
    required().cpu().timer.set(deadline);
}

/// Waits for an interrupt and handles it. Called with interrupts off, returns with them on.
pub(crate) fn wait_for_interrupt() {
    let m = required();
    m.end_after_panic();
    m.cpu().halted.set(true);
    m.cpu().irqs.set(true);
    loop {
        if m.can_run(m.current()) {
            m.cpu().halted.set(false);
            m.deliver();
            return;
        }
        if let Some(other) = m.other() {
            m.switch_to(other);
        } else if !m.leap_to_next_timer() {
            m.all_asleep();
        }
    }
}

/// Writes to the console.
pub(crate) fn console_put(bytes: &[u8]) {
    required().console_out.borrow_mut().extend_from_slice(bytes);
}

/// Takes a byte that was typed.
pub(crate) fn console_get() -> Option<u8> {
    required().console_in.borrow_mut().pop_front()
}

/// Types on the console.
pub fn console_input(bytes: &[u8]) {
    let m = required();
    m.console_in.borrow_mut().extend(bytes);
    m.raise(0, Interrupt::Console);
}

/// Takes what was written to the console.
pub fn console_output() -> Vec<u8> {
    required().console_out.take()
}

/// Writes to the log, which a failure prints.
pub(crate) fn log_put(bytes: &[u8]) {
    if let Some(m) = machine() {
        m.log.borrow_mut().extend_from_slice(bytes);
    }
}

/// A random number of the processor.
pub(crate) fn processor_random() -> Option<u64> {
    Some(required().random.next())
}

/// No loader gives a seed.
pub(crate) fn take_loader_seed() -> Option<[u8; 32]> {
    None
}

/// A random number from the run's seed, for what a test does.
pub fn random_u64() -> u64 {
    required().random.next()
}

/// Ends the run: well, if the machine is done.
pub(crate) fn stop(cause: Stop) -> ! {
    required().end(match cause {
        Stop::Done => Ok(()),
        _ => Err(format!("the machine was stopped: {cause:?}")),
    })
}

/// The CPUs, as programs are told.
pub fn processor() -> Processor {
    let mut name = [0; 48];
    name[..9].copy_from_slice(b"simulated");
    Processor {
        vendor: *b"SimulatedCPU",
        name,
        family: 6,
        model: 0,
        stepping: 0,
        kilohertz: 1_000_000,
        capabilities: 0,
        capabilities2: 0,
        features: [0; 5],
    }
}

/// There are none.
pub fn bugs() -> crate::hw::bugs::Bugs {
    crate::hw::bugs::Bugs::empty()
}

/// Programs may restrict nothing: see [`bugs`].
pub fn choice_of(_kind: crate::hw::mitigations::Speculation) -> crate::hw::mitigations::Choice {
    crate::hw::mitigations::Choice::NotAffected
}

/// There are none.
pub(crate) fn restrictions(_stores: bool, _branches: bool) -> u32 {
    0
}

/// There are none, and no files about them.
pub fn vulnerabilities() -> Vec<(&'static str, std::string::String)> {
    Vec::new()
}

/// Its units are not shown.
pub(crate) fn iommu_units() -> impl Iterator<Item = crate::hw::iommu::UnitState> {
    core::iter::empty()
}

/// Its units record each fault.
pub(crate) fn iommu_lost_faults() -> u64 {
    0
}

/// Units of this machine have a queue.
pub(crate) fn iommu_has_no_queue() -> bool {
    false
}

/// The value of a switch of the mitigations: its first word.
pub(crate) fn choice(_name: &str) -> u32 {
    0
}

/// There are none.
pub fn caches() -> Vec<Cache> {
    Vec::new()
}

/// The machine has no caches to write back.
pub(crate) fn write_back_caches(_from: *const u8, _len: usize) {}
