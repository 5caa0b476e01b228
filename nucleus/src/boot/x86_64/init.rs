//! From the first Rust instruction to the first task.

use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

use alloc::boxed::Box;

use super::super::set;
use super::smp;
use crate::OutOfMemory;
use crate::ephemeral::{self, Backend};
use crate::hw::DirectMap;
use crate::hw::iommu::Policy;
use crate::hw::power::{Stop, stop};
use crate::hw::x86_64::acpi::Tables;
use crate::hw::x86_64::percpu::{self, MAX_CPUS, PerCpu};
use crate::hw::x86_64::space::Mapped;
use crate::hw::x86_64::{
    apic, clock, cpu, entry, fpu, gdt, guard, identify, idt, layout, loader, mitigations, patch,
    power, serial, space, tags, user, vectors, vtd,
};
use crate::mem::{self, KernelStack, frame};
use crate::selftest::fault_injection;
use crate::time::{self, vdso};
use crate::{boot, random, task};

/// Interrupt stacks of the boot CPU until there are real ones: no trap before that is survived, so
/// one will do for all.
#[repr(C, align(16))]
struct EarlyStack([u8; 8192], *const PerCpu, usize);
static mut EARLY_STACK: EarlyStack = EarlyStack([0; 8192], core::ptr::null(), 0);

/// The interrupt stacks' tops, by CPU.
static INTERRUPT_STACKS: [[core::sync::atomic::AtomicUsize; 3]; MAX_CPUS] =
    [const { [const { core::sync::atomic::AtomicUsize::new(0) }; 3] }; MAX_CPUS];

/// Whether the scheduler runs, so that other CPUs may join it.
static SCHEDULER_RUNS: AtomicBool = AtomicBool::new(false);

unsafe extern "Rust" {
    /// The floors above, by [`entry!`](crate::entry!).
    safe fn causeway_start() -> !;
}

/// The boot CPU's first Rust code: on the boot stack, with the boot page tables, interrupts off.
/// `info` is the physical address of what the loader left.
#[unsafe(no_mangle)]
pub extern "C" fn nucleus_main(kind: u32, info: u32) -> ! {
    percpu::set_up(0);
    serial::CONSOLE.start();
    serial::LOG.start();
    let early = &raw mut EARLY_STACK;
    // SAFETY: only this CPU runs, and only this function uses the static.
    let top = unsafe {
        (*early).1 = percpu::of(0);
        (&raw mut (*early).1) as usize
    };
    gdt::load(percpu::of(0), [top; 3]);
    idt::build();
    idt::load();
    cpu::detect();
    let mut found = match loader::read_all(kind, info.into()) {
        Ok(found) => found,
        Err(problem) => bad_start(problem),
    };
    mitigations::choose(identify::facts(), found.command_line());
    patch::apply();
    idt::build();
    let tables = Tables::read(found.root_pointer);
    power::set(tables.power);
    let persistent: [_; 4] = core::array::from_fn(|i| {
        let &(start, bytes) = tables.persistent().get(i)?;
        let end = start.checked_add(bytes)? >> crate::PAGE_SHIFT;
        let reach = frame::records_reach(found.memory.managed(), end);
        reach.then(|| found.memory.add_persistent(start, bytes))?
    });
    let top = found.memory.ranges().last().map_or(0, |r| r.end) << crate::PAGE_SHIFT;
    let mode = DirectMap::read(found.command_line());
    frame::set_direct_map(mode);
    let mapped = Mapped {
        mode,
        guards: guard::is_asked_for(found.command_line()) && space::can_guard(top, mode),
        ways_in: entry::ways_in(),
        descriptors: [idt::place(), gdt::place()],
    };
    let early = space::early_frames(top, &mapped);
    if !found.memory.prepare_early(early) {
        bad_start("there is too little memory");
    }
    space::build(&mut found.memory, &mapped);
    let page = smp::find_page(&found.memory);
    // SAFETY: the map holds usable memory without overlap, the direct map reaches it, and what is
    // in use is marked: image, page tables, archive.
    if unsafe { frame::init(found.memory.managed()) }.is_err() {
        bad_start("there is too little memory");
    }
    guard::descriptor_frames().for_each(frame::set_descriptor);
    for frames in persistent.iter().flatten().cloned() {
        // SAFETY: it was added to the map above as persistent memory, which nothing else is given.
        unsafe { mem::persistent::found(frames) };
    }
    set(found.command_line(), found.archive);

    let are_safe = !mitigations::is_isolated() && !identify::facts().leaves_global();
    tags::choose(found.command_line(), are_safe);
    cpu::set_controls(!mitigations::is_isolated(), tags::tags() != 0);
    fpu::enable();
    fpu::detect();
    user::enable_syscall();
    if make_interrupt_stacks(0).is_err() {
        bad_start("there is too little memory");
    }
    set_stacks(0);
    mitigations::set_up_cpu();
    if !apic::start(&tables) {
        bad_start("the local interrupt controller can't be reached");
    }
    apic::enable();
    if !clock::start() {
        bad_start("there is no timer to measure the clock with");
    }
    time::init();
    random::init();
    vdso::start();
    time::publish();
    let ranges = found.memory.ranges();
    vtd::start(&tables.remapping, found.command_line(), |start, end| {
        let frames = start >> crate::PAGE_SHIFT..end.div_ceil(crate::PAGE_SIZE as u64);
        ranges
            .iter()
            .any(|it| it.start < frames.end && frames.start < it.end)
    });
    // SAFETY: this CPU is alone, there is no task yet, and the units were started.
    unsafe { mem::domain::start(Policy::read(found.command_line())) };
    match page {
        Some(page) => {
            smp::start(&tables, page);
            mem::frame::set_shares();
        }
        None => crate::log!("no memory below 1 MiB to start other CPUs with"),
    }
    if ephemeral::set_backend(Backend::Direct).is_err() {
        bad_start("there is too little memory");
    }
    report(&tables);
    for (&(start, bytes), _) in tables
        .persistent()
        .iter()
        .zip(&persistent)
        .filter(|(_, used)| used.is_none())
    {
        crate::log!(
            "persistent memory of {} MiB at {start:#x} is not used: there is too little memory to \
             manage it, or it overlaps",
            bytes >> 20
        );
    }
    let remap = |io_apic, to, is_level| vtd::legacy(io_apic, 4, vectors::CONSOLE, to, is_level);
    if apic::route_legacy(&tables, 4, vectors::CONSOLE, remap) {
        serial::CONSOLE.enable_interrupt();
    } else {
        crate::log!("no interrupt line for the console");
    }
    SCHEDULER_RUNS.store(true, Ordering::Release);
    task::run_boot_cpu(Box::new(|| {
        fault_injection::run_if_asked(boot::command_line());
        causeway_start()
    }))
}

fn report(tables: &Tables) {
    crate::log!(
        "{} of {} CPUs, {} MiB of memory, kernel {} KiB, {:?}",
        percpu::cpu_count(),
        tables.cpus_listed.max(1),
        frame::usage().total >> 8,
        (layout::image().end - layout::image().start) >> 10,
        cpu::features(),
    );
}

/// Makes the three interrupt stacks of a CPU, with its data at each one's top.
///
/// # Errors
/// [`OutOfMemory`].
pub fn make_interrupt_stacks(index: usize) -> Result<(), OutOfMemory> {
    for slot in &INTERRUPT_STACKS[index] {
        let top = KernelStack::alloc()?.leak() - 16;
        // SAFETY: the stack is ours for good.
        unsafe { *(top as *mut *const PerCpu) = percpu::of(index) };
        slot.store(top, Ordering::Relaxed);
    }
    Ok(())
}

fn interrupt_stacks(index: usize) -> [usize; 3] {
    INTERRUPT_STACKS[index]
        .each_ref()
        .map(|slot| slot.load(Ordering::Relaxed))
}

/// Gives a CPU its stacks for traps.
fn set_stacks(index: usize) {
    let (data, handlers) = (percpu::of(index), interrupt_stacks(index));
    if !mitigations::is_guarded() {
        return gdt::set_stacks(data, handlers);
    }
    for (stack, handler) in data.own_stacks.iter().zip(handlers) {
        stack
            .cpu
            .store(core::ptr::from_ref(data) as usize, Ordering::Relaxed);
        stack.handler.store(handler, Ordering::Relaxed);
        stack.root.store(space::kernel_root().0, Ordering::Relaxed);
    }
    gdt::set_stacks(data, data.own_stacks.each_ref().map(|stack| stack.top()));
    gdt::set_entry_stack(data);
}

/// Gives a CPU other than the first its data, tables and modes.
pub fn set_up_cpu(index: usize) {
    user::clear_selectors();
    percpu::set_up(index);
    gdt::load(percpu::of(index), interrupt_stacks(index));
    set_stacks(index);
    idt::load();
    cpu::set_controls(!mitigations::is_isolated(), tags::tags() != 0);
    mitigations::set_up_cpu();
    fpu::enable();
    user::enable_syscall();
}

/// Waits, on a CPU other than the first, until the scheduler can be joined.
pub fn wait_for_scheduler() {
    while !SCHEDULER_RUNS.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
}

/// Ends a start that makes no sense, with one line on the console.
fn bad_start(problem: &str) -> ! {
    struct Console;
    impl Write for Console {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            serial::CONSOLE.put(text.as_bytes());
            Ok(())
        }
    }
    // Writing to the port can't fail.
    let _ = write!(Console, "causeway: {problem}\r\n");
    stop(Stop::BadStart)
}
