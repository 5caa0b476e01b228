//! The simulated machine itself: CPUs, interrupts, the clock, and who goes on at which point.

use core::cell::{Cell, RefCell};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    Config, MAX_CPUS,
    fiber::{self, Stack},
    random::Random,
    tlb::Tlb,
};
use crate::{OutOfMemory, PAGE_SIZE, PhysAddr, sync::InterruptScope};

/// Room for counters.
const COUNTERS: usize = 64;
/// Frames below the managed memory; frame 1 is the root table of the kernel's own space.
pub(super) const FIRST_FRAME: u64 = 16;
/// The real-time clock's reading at the start of every run, nanoseconds.
const EPOCH: u64 = 1_700_000_000_000_000_000;

/// An interrupt that is on its way to a CPU; a bit of [`Cpu::pending`].
#[derive(Clone, Copy)]
enum Interrupt {
    Shootdown,
    Reschedule,
    Timer,
    Console,
}

const INTERRUPTS: [Interrupt; 4] = [
    Interrupt::Shootdown,
    Interrupt::Reschedule,
    Interrupt::Timer,
    Interrupt::Console,
];

pub(super) struct Cpu {
    /// The stack pointer of what runs on it, while another CPU goes on.
    stack_pointer: Cell<usize>,
    /// Whether it has begun to run.
    started: Cell<bool>,
    irqs: Cell<bool>,
    pending: Cell<u32>,
    halted: Cell<bool>,
    preempt_count: Cell<u32>,
    reschedule: Cell<bool>,
    task: Cell<usize>,
    timer: Cell<Option<u64>>,
    pub(super) in_program: Cell<bool>,
    pub(super) root: Cell<PhysAddr>,
    pub(super) tlb: RefCell<Tlb>,
    counters: [Cell<u64>; COUNTERS],
    boot_stack: Stack,
}

/// One run's machine. Everything in it is reached from one thread only.
pub(super) struct Machine {
    pub(super) config: Config,
    pub(super) random: Random,
    /// Base of physical memory, and bytes of it.
    memory: *mut u8,
    memory_bytes: usize,
    clock: Cell<u64>,
    /// Points so far.
    pub(super) points: Cell<u64>,
    /// Points until something happens.
    countdown: Cell<u64>,
    /// Points on average between two happenings; differs from seed to seed, as races differ in grain.
    stride: u64,
    /// One happening in so many moves the clock by a long time rather than a short one.
    leap: u64,
    current: Cell<usize>,
    pub(super) cpus: Vec<Cpu>,
    host_stack_pointer: Cell<usize>,
    /// How the run ended.
    pub(super) outcome: RefCell<Option<Result<(), String>>>,
    body_ended: Cell<bool>,
    console_out: RefCell<Vec<u8>>,
    console_in: RefCell<VecDeque<u8>>,
    pub(super) log: RefCell<Vec<u8>>,
    /// Translations made, to tell older from younger ones.
    pub(super) stamp: Cell<u64>,
    /// By frame: how many TLB entries lead to it.
    pub(super) reached: Vec<Cell<u32>>,
}

thread_local! {
    static MACHINE: Cell<*const Machine> = const { Cell::new(core::ptr::null()) };
}

/// The machine of the run that this thread drives.
#[inline]
pub(super) fn machine<'a>() -> Option<&'a Machine> {
    // SAFETY: `Machine::run` keeps it alive while the pointer is set, and nothing on its stacks
    // runs later.
    unsafe { MACHINE.get().as_ref() }
}

/// As [`machine`], where there must be one.
fn required<'a>() -> &'a Machine {
    machine().expect("this works inside sim::run only")
}

impl Machine {
    pub(super) fn new(config: Config) -> Machine {
        let frames = FIRST_FRAME as usize + config.pages;
        let memory_bytes = frames * PAGE_SIZE;
        let layout = memory_layout(memory_bytes);
        // SAFETY: not of size zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!memory.is_null(), "no memory for the simulated memory");
        let random = Random::new(config.seed);
        let stride = [1, 1, 2, 3, 8, 32, 128][random.below(7) as usize];
        let leap = [8, 64, 512][random.below(3) as usize];
        let cpus = (0..config.cpus.clamp(1, MAX_CPUS)).map(|_| Cpu {
            stack_pointer: Cell::new(0),
            started: Cell::new(false),
            irqs: Cell::new(false),
            pending: Cell::new(0),
            halted: Cell::new(false),
            preempt_count: Cell::new(0),
            reschedule: Cell::new(false),
            task: Cell::new(0),
            timer: Cell::new(None),
            in_program: Cell::new(false),
            root: Cell::new(kernel_root()),
            tlb: RefCell::new(Tlb::default()),
            counters: [const { Cell::new(0) }; COUNTERS],
            boot_stack: Stack::new(),
        });
        Machine {
            cpus: cpus.collect(),
            random,
            memory,
            memory_bytes,
            // Programs of the tests may look at times before the start.
            clock: Cell::new(1_000_000_000),
            points: Cell::new(0),
            countdown: Cell::new(1),
            stride,
            leap,
            current: Cell::new(0),
            host_stack_pointer: Cell::new(0),
            outcome: RefCell::new(None),
            body_ended: Cell::new(false),
            console_out: RefCell::default(),
            console_in: RefCell::default(),
            log: RefCell::default(),
            stamp: Cell::new(0),
            reached: vec![Cell::new(0); frames],
            config,
        }
    }

    /// Boots every CPU on a stack of its own, the first into `boot`, and goes on until the run ends.
    pub(super) fn run(&self, boot: extern "C" fn(usize) -> !, argument: usize) {
        for (index, cpu) in self.cpus.iter().enumerate() {
            let entry = if index == 0 { boot } else { boot_other };
            cpu.stack_pointer
                .set(cpu.boot_stack.prepare(entry, argument));
        }
        self.cpus[0].started.set(true);
        MACHINE.set(self);
        // SAFETY: prepared above.
        unsafe {
            fiber::switch(
                self.host_stack_pointer.as_ptr(),
                self.cpus[0].stack_pointer.get(),
            )
        };
        MACHINE.set(core::ptr::null());
    }

    /// Lets the other CPUs boot.
    pub(super) fn start_others(&self) {
        self.cpus.iter().for_each(|cpu| cpu.started.set(true));
    }

    pub(super) fn cpu(&self) -> &Cpu {
        &self.cpus[self.current.get()]
    }

    pub(super) fn current(&self) -> usize {
        self.current.get()
    }

    /// The test's body has returned.
    pub(super) fn body_ended(&self) {
        self.body_ended.set(true);
        if self.config.daemons {
            self.end(Ok(()));
        }
    }

    /// Ends the run from within; nothing on its stacks runs any more.
    pub(super) fn end(&self, outcome: Result<(), String>) -> ! {
        self.outcome.borrow_mut().get_or_insert(outcome);
        let mut unused = 0;
        // SAFETY: the host's stack waits in `run`, and is switched to once.
        unsafe { fiber::switch(&raw mut unused, self.host_stack_pointer.get()) };
        unreachable!("an ended run went on")
    }

    /// A task panicked: the run ends with the next thing that happens. A panic on top of a panic ends it here.
    pub(super) fn panicked(&self, message: String) {
        if self.outcome.borrow().is_some() {
            self.end(Ok(()));
        }
        *self.outcome.borrow_mut() = Some(Err(message));
        self.countdown.set(0);
    }

    /// Ends the run if a task has panicked.
    fn end_after_panic(&self) {
        if self.outcome.borrow().is_some() {
            self.end(Ok(()));
        }
    }

    /// Ends the run with a failure.
    pub(super) fn fail(&self, why: String) -> ! {
        self.end(Err(why))
    }

    fn can_run(&self, index: usize) -> bool {
        let cpu = &self.cpus[index];
        cpu.started.get()
            && (!cpu.halted.get()
                || cpu.pending.get() != 0
                || cpu.timer.get().is_some_and(|at| at <= self.clock.get()))
    }

    /// Another CPU that can go on, chosen at random.
    fn other(&self) -> Option<usize> {
        let count = self.cpus.len();
        let first = self.random.below(count as u64) as usize;
        (0..count)
            .map(|i| (first + i) % count)
            .find(|&i| i != self.current.get() && self.can_run(i))
    }

    fn switch_to(&self, index: usize) {
        self.end_after_panic();
        let from = self.cpu();
        self.current.set(index);
        // SAFETY: a CPU that is not current was left by a switch or has not begun.
        unsafe {
            fiber::switch(
                from.stack_pointer.as_ptr(),
                self.cpus[index].stack_pointer.get(),
            )
        };
    }

    /// Something happens, or not: time passes, an interrupt arrives, another CPU goes on.
    #[cold]
    fn happen(&self, interruptible: bool) {
        self.end_after_panic();
        let span = self.random.below(2 * self.stride) + 1;
        self.countdown.set(span);
        self.points.set(self.points.get() + span);
        if self.points.get() > self.config.max_points {
            self.no_end();
        }
        let passed = if self.random.one_in(self.leap) {
            self.random.below(15_000_000)
        } else {
            self.random.below(40 * span)
        };
        self.clock.set(self.clock.get() + passed);
        if self.random.one_in(8) {
            super::tlb::speculate(self);
        }
        if interruptible && self.random.one_in(2) {
            self.deliver();
        }
        if self.random.one_in(2)
            && let Some(other) = self.other()
        {
            self.switch_to(other);
        }
    }

    /// Lets another CPU go on now and then, and nothing else: between two steps of one instruction.
    pub(super) fn step(&self) {
        if self.countdown.get() <= 1 {
            self.happen(false);
        } else {
            self.countdown.set(self.countdown.get() - 1);
        }
    }

    fn no_end(&self) -> ! {
        self.fail(format!(
            "no end after {} points; {}",
            self.points.get(),
            self.who()
        ))
    }

    fn who(&self) -> String {
        let tasks = crate::task::report();
        format!("tasks: {}", tasks.join("; "))
    }

    /// Runs the handlers of interrupts that have arrived, if the CPU takes any. Returns whether there was one.
    fn deliver(&self) -> bool {
        let mut any = false;
        loop {
            let cpu = self.cpu();
            if let Some(at) = cpu.timer.get()
                && at <= self.clock.get()
            {
                cpu.timer.set(None);
                self.raise(self.current.get(), Interrupt::Timer);
            }
            if !cpu.irqs.get() || cpu.pending.get() == 0 {
                return any;
            }
            any = true;
            let start = self.random.below(4) as usize;
            let interrupt = (0..4)
                .map(|i| INTERRUPTS[(start + i) % 4])
                .find(|&i| cpu.pending.get() & 1 << i as u32 != 0);
            let Some(interrupt) = interrupt else {
                return any;
            };
            cpu.pending
                .set(cpu.pending.get() & !(1 << interrupt as u32));
            cpu.irqs.set(false);
            let in_program = cpu.in_program.replace(false);
            handle(interrupt, in_program);
            crate::task::preempt();
            // The task may be on another CPU by now.
            self.cpu().in_program.set(in_program);
            self.cpu().irqs.set(true);
        }
    }

    fn raise(&self, cpu: usize, interrupt: Interrupt) {
        let pending = &self.cpus[cpu].pending;
        pending.set(pending.get() | 1 << interrupt as u32);
    }

    /// Nothing can go on at this time: moves the clock to the next timer, if there is one.
    fn leap_to_next_timer(&self) -> bool {
        let next = self.cpus.iter().filter_map(|cpu| cpu.timer.get()).min();
        match next {
            Some(at) => {
                self.clock.set(self.clock.get().max(at));
                true
            }
            None => false,
        }
    }

    /// All CPUs sleep and no timer is set.
    fn all_asleep(&self) -> ! {
        let tasks = crate::task::report();
        if !self.body_ended.get() {
            self.fail(format!("deadlock: {}", tasks.join("; ")));
        }
        if !tasks.is_empty() {
            self.fail(format!("left asleep: {}", tasks.join("; ")));
        }
        self.end(Ok(()))
    }

    /// Where a physical address is in the host's memory.
    pub(super) fn memory(&self, at: PhysAddr) -> *mut u8 {
        if at.0 as usize >= self.memory_bytes {
            self.fail(format!("{at:?} is not memory"));
        }
        // SAFETY: inside the allocation.
        unsafe { self.memory.add(at.0 as usize) }
    }

    /// The page-table entry at a physical address.
    pub(super) fn entry(&self, at: PhysAddr) -> &AtomicU64 {
        // SAFETY: memory of the machine, aligned by the caller, and page tables are
        // accessed as atomic words by everyone.
        unsafe { &*self.memory(at).cast() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { std::alloc::dealloc(self.memory, memory_layout(self.memory_bytes)) };
    }
}

fn handle(interrupt: Interrupt, in_program: bool) {
    let _scope = InterruptScope::enter();
    match interrupt {
        Interrupt::Shootdown => crate::pmap::on_shootdown(),
        Interrupt::Reschedule => crate::task::on_reschedule(),
        Interrupt::Timer => crate::time::on_timer(in_program),
        Interrupt::Console => crate::console::on_input(),
    }
}

fn memory_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, PAGE_SIZE).expect("a size that the host can hold")
}

extern "C" fn boot_other(_: usize) -> ! {
    crate::task::run_on_this_cpu()
}

/// The CPU this runs on.
#[inline]
pub(crate) fn cpu() -> usize {
    machine().map_or(0, |m| m.current.get())
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

/// Whether the count reached 0, a reschedule is wanted and interrupts are on.
#[inline]
pub(crate) fn preempt_enable() -> bool {
    let Some(m) = machine() else { return false };
    let cpu = m.cpu();
    cpu.preempt_count.set(cpu.preempt_count.get() - 1);
    cpu.preempt_count.get() == 0 && cpu.reschedule.get() && cpu.irqs.get()
}

pub(crate) fn preempt_count() -> u32 {
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

/// Where the kernel reaches a physical address.
pub(crate) fn ptr(at: PhysAddr) -> *mut u8 {
    required().memory(at)
}

/// The root table of the kernel's own space: nothing is mapped in it.
pub(crate) fn kernel_root() -> PhysAddr {
    PhysAddr(PAGE_SIZE as u64)
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

/// The seed of the kernel's random numbers.
pub(crate) fn random_seed() -> u64 {
    required().random.next()
}

/// A random number from the run's seed, for what a test does.
pub fn random_u64() -> u64 {
    required().random.next()
}

/// Ends the run: well, if the code says that the machine is done.
pub(crate) fn stop(code: u8) -> ! {
    let outcome = if code == crate::power::Stop::Done as u8 {
        Ok(())
    } else {
        Err(format!("the machine was stopped with code {code:#x}"))
    };
    required().end(outcome)
}

/// A task's stack, and its place on it while it does not run.
pub(crate) struct Context {
    stack_pointer: Cell<usize>,
    /// None for the stack that a CPU booted on.
    _stack: Option<Stack>,
}

// SAFETY: the stack pointer is touched by `switch` only, and all of it on one thread of the host.
unsafe impl Sync for Context {}

impl Context {
    /// A thread that will run `entry(arg)` when first switched to, with interrupts off.
    pub(crate) fn new(
        entry: extern "C" fn(usize) -> !,
        arg: usize,
    ) -> Result<Context, OutOfMemory> {
        let stack = Stack::new();
        Ok(Context {
            stack_pointer: Cell::new(stack.prepare(entry, arg)),
            _stack: Some(stack),
        })
    }

    /// The thread that runs now, on the stack that the CPU was started with.
    pub(crate) fn current_boot() -> Context {
        Context {
            stack_pointer: Cell::new(0),
            _stack: None,
        }
    }

    /// Leaves `from`, which is the running thread, and runs `to` until something switches back.
    ///
    /// # Safety
    /// Interrupts are off. Both contexts live until `from` runs again; `to` does not run on any
    /// CPU, and nobody else switches to it.
    pub(crate) unsafe fn switch(from: &Context, to: &Context) {
        required().end_after_panic();
        // SAFETY: the caller's promise.
        unsafe { fiber::switch(from.stack_pointer.as_ptr(), to.stack_pointer.get()) };
    }
}

/// For word accesses to the simulated memory.
pub(super) const WORD: Ordering = Ordering::SeqCst;
