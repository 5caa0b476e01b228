//! The simulated machine itself: CPUs, interrupts, the clock, and who goes on at which point.

use core::cell::{Cell, RefCell};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    Config, MAX_CPUS, WINDOW_PAGES,
    fiber::{self, Stack},
    kernel_root,
    random::Random,
    tlb::Tlb,
};
use crate::{PAGE_SIZE, PhysAddr, counters::MAX_COUNTERS, sync::InterruptScope};

/// Frames below the managed memory; frame 1 is the root table of the kernel's own space.
pub(super) const FIRST_FRAME: u64 = 16;

/// An interrupt that is on its way to a CPU; a bit of [`Cpu::pending`].
#[derive(Clone, Copy)]
pub(super) enum Interrupt {
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
    pub(super) stack_pointer: Cell<usize>,
    /// Whether it has begun to run.
    pub(super) started: Cell<bool>,
    pub(super) irqs: Cell<bool>,
    pub(super) pending: Cell<u32>,
    pub(super) halted: Cell<bool>,
    pub(super) preempt_count: Cell<u32>,
    pub(super) reschedule: Cell<bool>,
    pub(super) task: Cell<usize>,
    pub(super) timer: Cell<Option<u64>>,
    pub(super) in_program: Cell<bool>,
    pub(super) root: Cell<PhysAddr>,
    pub(super) tlb: RefCell<Tlb>,
    /// What it holds of the kernel's window: frames by the address's number.
    pub(super) window: RefCell<BTreeMap<usize, u64>>,
    pub(super) counters: [Cell<u64>; MAX_COUNTERS],
    pub(super) boot_stack: Stack,
}

/// One run's machine. Everything in it is reached from one thread only.
pub(super) struct Machine {
    pub(super) config: Config,
    pub(super) random: Random,
    /// Base of physical memory, and bytes of it.
    pub(super) memory: *mut u8,
    pub(super) memory_bytes: usize,
    pub(super) clock: Cell<u64>,
    /// Points so far.
    pub(super) points: Cell<u64>,
    /// Points until something happens.
    pub(super) countdown: Cell<u64>,
    /// Points on average between two happenings; differs from seed to seed, as races differ in
    /// grain.
    pub(super) stride: u64,
    /// One happening in so many moves the clock by a long time rather than a short one.
    pub(super) leap: u64,
    pub(super) current: Cell<usize>,
    pub(super) cpus: Vec<Cpu>,
    pub(super) host_stack_pointer: Cell<usize>,
    /// How the run ended.
    pub(super) outcome: RefCell<Option<Result<(), String>>>,
    pub(super) body_ended: Cell<bool>,
    pub(super) console_out: RefCell<Vec<u8>>,
    pub(super) console_in: RefCell<VecDeque<u8>>,
    pub(super) log: RefCell<Vec<u8>>,
    /// Translations made, to tell older from younger ones.
    pub(super) stamp: Cell<u64>,
    /// The window's page-table entries: frames.
    pub(super) window: [Cell<Option<u64>>; WINDOW_PAGES],
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
pub(super) fn required<'a>() -> &'a Machine {
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
            window: RefCell::default(),
            counters: [const { Cell::new(0) }; MAX_COUNTERS],
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
            window: [const { Cell::new(None) }; WINDOW_PAGES],
            reached: vec![Cell::new(0); frames],
            config,
        }
    }

    /// Boots every CPU on a stack of its own, the first into `boot`, and goes on until the run
    /// ends.
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

    /// A task panicked: the run ends with the next thing that happens. A panic on top of a panic
    /// ends it here.
    pub(super) fn panicked(&self, message: String) {
        if self.outcome.borrow().is_some() {
            self.end(Ok(()));
        }
        *self.outcome.borrow_mut() = Some(Err(message));
        self.countdown.set(0);
    }

    /// Ends the run if a task has panicked.
    pub(super) fn end_after_panic(&self) {
        if self.outcome.borrow().is_some() {
            self.end(Ok(()));
        }
    }

    /// Ends the run with a failure.
    pub(super) fn fail(&self, why: String) -> ! {
        self.end(Err(why))
    }

    pub(super) fn can_run(&self, index: usize) -> bool {
        let cpu = &self.cpus[index];
        cpu.started.get()
            && (!cpu.halted.get()
                || cpu.pending.get() != 0
                || cpu.timer.get().is_some_and(|at| at <= self.clock.get()))
    }

    /// Another CPU that can go on, chosen at random.
    pub(super) fn other(&self) -> Option<usize> {
        let count = self.cpus.len();
        let first = self.random.below(count as u64) as usize;
        (0..count)
            .map(|i| (first + i) % count)
            .find(|&i| i != self.current.get() && self.can_run(i))
    }

    pub(super) fn switch_to(&self, index: usize) {
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
    pub(super) fn happen(&self, interruptible: bool) {
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
            super::window::speculate(self);
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

    pub(super) fn no_end(&self) -> ! {
        self.fail(format!(
            "no end after {} points; {}",
            self.points.get(),
            self.who()
        ))
    }

    pub(super) fn who(&self) -> String {
        let tasks = crate::task::report();
        format!("tasks: {}", tasks.join("; "))
    }

    /// Runs the handlers of interrupts that have arrived, if the CPU takes any. Returns whether
    /// there was one.
    pub(super) fn deliver(&self) -> bool {
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

    pub(super) fn raise(&self, cpu: usize, interrupt: Interrupt) {
        let pending = &self.cpus[cpu].pending;
        pending.set(pending.get() | 1 << interrupt as u32);
    }

    /// Nothing can go on at this time: moves the clock to the next timer, if there is one.
    pub(super) fn leap_to_next_timer(&self) -> bool {
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
    pub(super) fn all_asleep(&self) -> ! {
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
        fiber::take_back();
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

/// For word accesses to the simulated memory.
pub(super) const WORD: Ordering = Ordering::SeqCst;
