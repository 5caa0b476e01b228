//! The simulated machine itself: CPUs, interrupts, the clock, and which CPU goes on at which point.

use core::cell::{Cell, RefCell};
use std::{
    collections::{BTreeMap, VecDeque},
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    MAX_COUNTERS, MAX_CPUS, WINDOW_PAGES,
    fiber::{self, Stack},
    iommu::{self, Iommu},
    kernel_root,
    random::Random,
    tlb::{self, Tlb},
    window,
};
use crate::hw::context::{prepare, switch_stacks};
use crate::hw::iommu::Policy;
use crate::hw::{DirectMap, Window, handlers};
use crate::{PAGE_SIZE, PhysAddr};

/// Frames below the managed memory; frame 1 is the root table of the kernel's own space.
pub(crate) const FIRST_FRAME: u64 = 16;
/// Pages behind the managed memory, which are a device's.
pub(crate) const DEVICE_PAGES: usize = 1024;

/// What the machine is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// 1 to 16.
    pub cpus: usize,
    /// Frames of memory.
    pub pages: usize,
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Points after which the run is taken to have no end.
    pub max_points: u64,
    /// The run ends with its body, whatever the other tasks do. Without it, every task must come to
    /// its end, and one that sleeps for ever is a failure.
    pub daemons: bool,
    /// Which frames are in the direct map; chosen by the seed if this says nothing.
    pub direct_map: Option<DirectMap>,
    /// Which memory devices reach; chosen by the seed if this says nothing.
    pub iommu: Option<Policy>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cpus: 2,
            pages: 2048,
            seed: 0,
            max_points: 100_000_000,
            daemons: false,
            direct_map: None,
            iommu: None,
        }
    }
}

impl Config {
    /// Which memory devices reach.
    pub(crate) fn policy(&self) -> Policy {
        self.iommu.unwrap_or(iommu::policy_of(self.seed))
    }
}

/// An interrupt that is on its way to a CPU; a bit of [`Cpu::pending`].
#[derive(Clone, Copy)]
pub(crate) enum Interrupt {
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

pub(crate) struct Cpu {
    /// The stack pointer of what runs on it, while another CPU goes on.
    pub(crate) stack_pointer: Cell<usize>,
    /// Whether it has begun to run.
    pub(crate) started: Cell<bool>,
    pub(crate) irqs: Cell<bool>,
    pub(crate) pending: Cell<u32>,
    pub(crate) halted: Cell<bool>,
    pub(crate) preempt_count: Cell<u64>,
    pub(crate) reschedule: Cell<bool>,
    pub(crate) task: Cell<usize>,
    pub(crate) timer: Cell<Option<u64>>,
    pub(crate) in_program: Cell<bool>,
    pub(crate) root: Cell<PhysAddr>,
    /// Where the program that it runs is.
    pub(super) program: Cell<Window>,
    /// What it holds by each tag, and the one that it uses.
    pub(super) tlbs: Vec<RefCell<Tlb>>,
    pub(super) tag: Cell<usize>,
    /// What it holds of the kernel's window: frames by the address's number.
    pub(crate) window: RefCell<BTreeMap<usize, u64>>,
    /// How often it has dropped all translations.
    pub(crate) flushes: Cell<u64>,
    pub(crate) counters: [Cell<u64>; MAX_COUNTERS],
    pub(crate) boot_stack: Stack,
}

/// One run's machine. Everything in it is reached from one thread only.
pub(crate) struct Machine {
    pub(crate) config: Config,
    pub(crate) random: Random,
    /// Base of physical memory, and bytes of it.
    pub(crate) memory: *mut u8,
    pub(crate) memory_bytes: usize,
    pub(crate) clock: Cell<u64>,
    /// Seconds by which the real-time clock was set ahead.
    pub(crate) set_ahead: Cell<i64>,
    /// Points so far.
    pub(crate) points: Cell<u64>,
    /// Points until something happens.
    pub(crate) countdown: Cell<u64>,
    /// Points on average between two happenings; differs from seed to seed, as races differ in
    /// grain.
    pub(crate) stride: u64,
    /// One happening in so many moves the clock by a long time rather than a short one.
    pub(crate) leap: u64,
    pub(crate) current: Cell<usize>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) host_stack_pointer: Cell<usize>,
    /// How the run ended.
    pub(crate) outcome: RefCell<Option<Result<(), String>>>,
    pub(crate) body_ended: Cell<bool>,
    pub(crate) console_out: RefCell<Vec<u8>>,
    pub(crate) console_in: RefCell<VecDeque<u8>>,
    pub(crate) log: RefCell<Vec<u8>>,
    /// Translations made, to tell older from younger ones.
    pub(crate) stamp: Cell<u64>,
    /// The window's page-table entries.
    pub(crate) window: [Cell<window::Entry>; WINDOW_PAGES],
    /// By frame: whether the kernel can't reach it without a mapping.
    pub(crate) outside: Vec<Cell<bool>>,
    /// By frame: how many TLB entries lead to it.
    pub(crate) reached: Vec<Cell<u32>>,
    pub(crate) iommu: Iommu,
}

thread_local! {
    static MACHINE: Cell<*const Machine> = const { Cell::new(core::ptr::null()) };
}

/// The machine of the run that this thread drives.
#[inline]
pub(crate) fn machine<'a>() -> Option<&'a Machine> {
    // SAFETY: `Machine::run` keeps it alive while the pointer is set, and nothing on its stacks
    // runs later.
    unsafe { MACHINE.get().as_ref() }
}

/// As [`machine`], where there must be one.
pub(crate) fn required<'a>() -> &'a Machine {
    machine().expect("this works inside sim::run only")
}

impl Cpu {
    /// What it holds by the tag that it uses.
    pub(super) fn tlb(&self) -> &RefCell<Tlb> {
        &self.tlbs[self.tag.get()]
    }
}

impl Machine {
    pub(crate) fn new(config: Config) -> Machine {
        let frames = FIRST_FRAME as usize + config.pages;
        let memory_bytes = (frames + DEVICE_PAGES) * PAGE_SIZE;
        let layout = memory_layout(memory_bytes);
        // SAFETY: not of size zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!memory.is_null(), "no memory for the simulated memory");
        let random = Random::new(config.seed);
        let stride = [1, 1, 2, 3, 8, 32, 128][random.below(7) as usize];
        let leap = [8, 64, 512][random.below(3) as usize];
        let tags = tlb::tags_of(config.seed);
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
            program: Cell::new(Window::ALL),
            tlbs: (0..=tags).map(|_| RefCell::default()).collect(),
            tag: Cell::new(0),
            window: RefCell::default(),
            flushes: Cell::new(0),
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
            set_ahead: Cell::new(0),
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
            window: core::array::from_fn(|_| Cell::default()),
            outside: vec![Cell::new(false); frames],
            reached: vec![Cell::new(0); frames],
            iommu: Iommu::new(config.seed, config.policy(), frames),
            config,
        }
    }

    /// Boots every CPU on a stack of its own, the first into `boot`, and goes on until the run
    /// ends.
    pub(crate) fn run(&self, boot: extern "C" fn(usize) -> !, argument: usize) {
        for (index, cpu) in self.cpus.iter().enumerate() {
            let entry = if index == 0 { boot } else { boot_other };
            // SAFETY: the CPU's own stack, on which nothing runs yet.
            let start = unsafe { prepare(cpu.boot_stack.top(), entry, argument) };
            cpu.stack_pointer.set(start);
        }
        self.cpus[0].started.set(true);
        MACHINE.set(self);
        // SAFETY: prepared above.
        unsafe {
            switch_stacks(
                self.host_stack_pointer.as_ptr(),
                self.cpus[0].stack_pointer.get(),
            );
        };
        MACHINE.set(core::ptr::null());
    }

    /// Lets the other CPUs boot.
    pub(crate) fn start_others(&self) {
        self.cpus.iter().for_each(|cpu| cpu.started.set(true));
    }

    pub(crate) fn cpu(&self) -> &Cpu {
        &self.cpus[self.current.get()]
    }

    pub(crate) fn current(&self) -> usize {
        self.current.get()
    }

    /// The test's body has returned.
    pub(crate) fn body_ended(&self) {
        self.body_ended.set(true);
        if self.config.daemons {
            self.end(Ok(()));
        }
    }

    /// Ends the run from within; nothing on its stacks runs any more.
    pub(crate) fn end(&self, outcome: Result<(), String>) -> ! {
        self.outcome.borrow_mut().get_or_insert(outcome);
        let mut unused = 0;
        // SAFETY: the host's stack waits in `run`, and is switched to once.
        unsafe { switch_stacks(&raw mut unused, self.host_stack_pointer.get()) };
        unreachable!("an ended run went on")
    }

    /// A task panicked: the run ends with the next thing that happens. A panic on top of a panic
    /// ends the process, with both messages: the run cannot end here, inside the panic hook, whose
    /// lock the test harness wants in the end, and what follows is an abort without a message.
    pub(crate) fn panicked(&self, message: String) {
        if let Some(Err(first)) = &*self.outcome.borrow() {
            let seed = self.config.seed;
            let text = format!("{first}\nand on top of it, {message}\nrepeat with SEED={seed}\n");
            // Not captured by the harness, unlike what is printed.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(101);
        }
        *self.outcome.borrow_mut() = Some(Err(message));
        self.countdown.set(0);
    }

    /// Ends the run if a task has panicked.
    pub(crate) fn end_after_panic(&self) {
        if self.outcome.borrow().is_some() {
            self.end(Ok(()));
        }
    }

    /// Ends the run with a failure.
    pub(crate) fn fail(&self, why: String) -> ! {
        self.end(Err(why))
    }

    pub(crate) fn can_run(&self, index: usize) -> bool {
        let cpu = &self.cpus[index];
        cpu.started.get()
            && (!cpu.halted.get()
                || cpu.pending.get() != 0
                || cpu.timer.get().is_some_and(|at| at <= self.clock.get()))
    }

    /// Another CPU that can go on, chosen at random.
    pub(crate) fn other(&self) -> Option<usize> {
        let count = self.cpus.len();
        let first = self.random.below(count as u64) as usize;
        (0..count)
            .map(|i| (first + i) % count)
            .find(|&i| i != self.current.get() && self.can_run(i))
    }

    pub(crate) fn switch_to(&self, index: usize) {
        self.end_after_panic();
        let from = self.cpu();
        self.current.set(index);
        // SAFETY: a CPU that is not current was left by a switch or has not begun.
        unsafe {
            switch_stacks(
                from.stack_pointer.as_ptr(),
                self.cpus[index].stack_pointer.get(),
            );
        };
    }

    /// Something happens, or not: time passes, an interrupt arrives, another CPU goes on.
    #[cold]
    pub(crate) fn happen(&self, interruptible: bool) {
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
            iommu::speculate(self);
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
    pub(crate) fn step(&self) {
        if self.countdown.get() <= 1 {
            self.happen(false);
        } else {
            self.countdown.set(self.countdown.get() - 1);
        }
    }

    pub(crate) fn no_end(&self) -> ! {
        self.fail(format!(
            "no end after {} points; {}",
            self.points.get(),
            self.who()
        ))
    }

    pub(crate) fn who(&self) -> String {
        let tasks = handlers::report_tasks();
        format!("tasks: {}", tasks.join("; "))
    }

    /// Runs the handlers of interrupts that have arrived, if the CPU takes any. Returns whether
    /// there was one.
    pub(crate) fn deliver(&self) -> bool {
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
            if cpu.reschedule.get() {
                handlers::reschedule(in_program);
            }
            // The task may be on another CPU by now.
            self.cpu().in_program.set(in_program);
            self.cpu().irqs.set(true);
        }
    }

    pub(crate) fn raise(&self, cpu: usize, interrupt: Interrupt) {
        let pending = &self.cpus[cpu].pending;
        pending.set(pending.get() | 1 << interrupt as u32);
    }

    /// Nothing can go on at this time: moves the clock to the next timer, if there is one.
    pub(crate) fn leap_to_next_timer(&self) -> bool {
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
    pub(crate) fn all_asleep(&self) -> ! {
        let tasks = handlers::report_tasks();
        if !self.body_ended.get() {
            self.fail(format!("deadlock: {}", tasks.join("; ")));
        }
        if !tasks.is_empty() {
            self.fail(format!("left asleep: {}", tasks.join("; ")));
        }
        self.end(Ok(()))
    }

    /// Where a physical address is in the host's memory.
    pub(crate) fn memory(&self, at: PhysAddr) -> *mut u8 {
        if at.0 as usize >= self.memory_bytes {
            self.fail(format!("{at:?} is not memory"));
        }
        // SAFETY: inside the allocation.
        unsafe { self.memory.add(at.0 as usize) }
    }

    /// The page-table entry at a physical address.
    pub(crate) fn entry(&self, at: PhysAddr) -> &AtomicU64 {
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
    match interrupt {
        Interrupt::Shootdown => handlers::on_shootdown(),
        Interrupt::Reschedule => required().cpu().reschedule.set(true),
        Interrupt::Timer => handlers::on_timer(in_program),
        Interrupt::Console => handlers::on_console(),
    }
}

fn memory_layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, PAGE_SIZE).expect("a size that the host can hold")
}

extern "C" fn boot_other(_: usize) -> ! {
    handlers::join_scheduler()
}

/// Runs another task if one is wanted, unless preemption is disabled. Restores the interrupt flag.
#[inline]
pub(crate) fn preempt() {
    if machine().is_some_and(|m| m.cpu().reschedule.get()) {
        handlers::reschedule(false);
    }
}

/// For word accesses to the simulated memory.
pub(crate) const WORD: Ordering = Ordering::SeqCst;
