//! What each CPU has for itself, found through its GS base: single instructions reach it, so a
//! preemption between "which CPU is this" and the access is impossible.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::cpu::{self, msr, write_msr};
use super::gdt::Tss;
use crate::hw::{Window, handlers};

/// CPUs that the kernel can run.
pub const MAX_CPUS: usize = 64;
/// Counters that each CPU has room for.
pub const MAX_COUNTERS: usize = 224;

/// Words that the guarded ways push at most on a stack of their own: a trap's frame of 21.
const GUARDED_WORDS: usize = 32;

/// A stack for a double fault, an NMI or a machine check where the guarded ways are taken.
#[repr(C, align(16))]
pub struct OwnStack {
    words: [AtomicU64; GUARDED_WORDS],
    /// The CPU's [`PerCpu`].
    pub cpu: AtomicUsize,
    /// The top of the stack for the handler.
    pub handler: AtomicUsize,
    /// The kernel's own root.
    pub root: AtomicU64,
}

/// The stack that traps from programs find where the guarded ways are taken.
#[repr(C, align(16))]
struct EntryStack([AtomicU64; GUARDED_WORDS]);

/// One CPU's own data. Other CPUs read the counters and nothing else.
///
/// Its first page is mapped under programs' roots, too, where those are not the kernel's: nothing
/// there may be worth reading.
#[repr(C, align(4096))]
pub struct PerCpu {
    /// This structure's address, for Rust code that wants a reference.
    this: AtomicUsize,
    /// Holds a program's stack pointer, or its `rdi`, for an instant on the way in and out.
    pub scratch: AtomicUsize,
    /// The guarded ways: the root of the kernel for the program that runs, and the program's own.
    pub kernel_root: AtomicU64,
    pub user_root: AtomicU64,
    /// The guarded ways: the address just past the `ss` field of the program's registers.
    pub context_end: AtomicUsize,
    /// `SPEC_CTRL` while the kernel runs, and while the program runs.
    pub kernel_controls: AtomicU32,
    pub program_controls: AtomicU32,
    /// Puts the stack pointer in the task state at a multiple of 8.
    padding: AtomicU32,
    pub tss: UnsafeCell<Tss>,
    pub own_stacks: [OwnStack; 3],
    entry_stack: EntryStack,
    private: Private,
    /// The current task, as `task` sees fit.
    task: AtomicUsize,
    /// Preemption is allowed at 0. Wide enough for guards that are forgotten, however many.
    preempt_count: AtomicU64,
    /// 0 for the boot CPU, then in the order of the firmware's table.
    index: AtomicU32,
    /// Not 0: the scheduler wants to run on this CPU.
    reschedule: AtomicU32,
    /// The kernel stack pointer while a program runs.
    pub kernel_sp: AtomicUsize,
    /// The `UserState` that is in this CPU's registers now, or 0; with [`SEGMENTED`] and [`MOVED`].
    pub live: AtomicUsize,
    /// The [`Window`] of the program whose address space is loaded.
    window_base: AtomicUsize,
    window_end: AtomicUsize,
    /// Its end if its base is 0, else 0.
    linear_end: AtomicUsize,
    /// The base of the window for which the descriptor table and the selectors were loaded.
    segments_base: AtomicUsize,
    /// The stamp of the local segments in this CPU's table, and how many these are.
    pub local_stamp: AtomicU64,
    pub local_used: AtomicUsize,
    /// The tables are those of 64-bit programs, and the window is no region: such a program can be
    /// entered without a look at them.
    pub is_flat: AtomicBool,
    /// How often the CPU has dropped all translations that are not global.
    flushes: AtomicU64,
    counters: [AtomicU64; MAX_COUNTERS],
}

/// What follows stands in a page of its own.
#[repr(align(4096))]
struct Private;

const _: () = {
    assert!(offset_of!(PerCpu, private) == crate::PAGE_SIZE);
    assert!(offset_of!(OwnStack, cpu).is_multiple_of(16));
};

// SAFETY: all but the task state is atomic, and that is changed only by its own CPU.
unsafe impl Sync for PerCpu {}

/// Offset of the slot that the CPU loads its stack pointer from when it leaves a program.
pub const ENTRY_SP: usize = offset_of!(PerCpu, tss) + Tss::RSP0;
const _: () = assert!(ENTRY_SP.is_multiple_of(8));

/// Reads a field of this CPU's data by a register of its size (`"{}"` or `"{:e}"`).
macro_rules! load {
    ($field:ident, $register:literal) => {{
        let value;
        // SAFETY: one instruction that reads. Not `pure`: a preemption may change the answer.
        unsafe {
            asm!(concat!("mov ", $register, ", gs:[{}]"), out(reg) value,
                const offset_of!(PerCpu, $field), options(readonly, nostack, preserves_flags));
        }
        value
    }};
}

impl OwnStack {
    const fn new() -> OwnStack {
        OwnStack {
            words: [const { AtomicU64::new(0) }; GUARDED_WORDS],
            cpu: AtomicUsize::new(0),
            handler: AtomicUsize::new(0),
            root: AtomicU64::new(0),
        }
    }

    /// The stack pointer that the CPU loads: what it needs to know stands there and above.
    pub fn top(&self) -> usize {
        (&raw const self.cpu) as usize
    }
}

impl PerCpu {
    /// All zeros, so that the image has no bytes of it.
    const fn new() -> PerCpu {
        PerCpu {
            this: AtomicUsize::new(0),
            scratch: AtomicUsize::new(0),
            kernel_root: AtomicU64::new(0),
            user_root: AtomicU64::new(0),
            context_end: AtomicUsize::new(0),
            kernel_controls: AtomicU32::new(0),
            program_controls: AtomicU32::new(0),
            padding: AtomicU32::new(0),
            tss: UnsafeCell::new(Tss::new()),
            own_stacks: [const { OwnStack::new() }; 3],
            entry_stack: EntryStack([const { AtomicU64::new(0) }; GUARDED_WORDS]),
            private: Private,
            task: AtomicUsize::new(0),
            preempt_count: AtomicU64::new(0),
            index: AtomicU32::new(0),
            reschedule: AtomicU32::new(0),
            kernel_sp: AtomicUsize::new(0),
            live: AtomicUsize::new(0),
            window_base: AtomicUsize::new(0),
            window_end: AtomicUsize::new(0),
            linear_end: AtomicUsize::new(0),
            segments_base: AtomicUsize::new(0),
            local_stamp: AtomicU64::new(0),
            local_used: AtomicUsize::new(0),
            is_flat: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            counters: [const { AtomicU64::new(0) }; MAX_COUNTERS],
        }
    }

    /// The top of the stack that traps from programs find where the guarded ways are taken.
    pub fn entry_stack(&self) -> usize {
        (&raw const self.entry_stack) as usize + size_of::<EntryStack>()
    }

    /// Number of the CPU that it belongs to.
    pub fn number(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }
}

static CPUS: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];
/// CPUs that run.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// CPU number `index`'s data.
pub fn of(index: usize) -> &'static PerCpu {
    &CPUS[index]
}

/// This CPU's data; stale as soon as the caller can be preempted.
#[inline]
pub fn this() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: GS base points to a `PerCpu`, whose first word is its address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) this, options(pure, readonly, nostack, preserves_flags));
        &*this
    }
}

/// Makes this CPU number `index`.
pub fn set_up(index: usize) {
    let data = of(index);
    let address = core::ptr::from_ref(data) as usize;
    data.this.store(address, Ordering::Relaxed);
    data.index.store(index as u32, Ordering::Relaxed);
    data.window_base.store(Window::ALL.base, Ordering::Relaxed);
    data.window_end.store(Window::ALL.end, Ordering::Relaxed);
    data.linear_end.store(Window::ALL.end, Ordering::Relaxed);
    // SAFETY: the data lives as long as the kernel; programs' bases start at 0.
    unsafe {
        write_msr(msr::GS_BASE, address as u64);
        write_msr(msr::KERNEL_GS_BASE, 0);
        write_msr(msr::FS_BASE, 0);
    }
}

/// The CPU this runs on.
#[inline]
pub fn cpu() -> usize {
    let index: u32 = load!(index, "{:e}");
    index as usize
}

/// CPUs that run, 1 to [`MAX_CPUS`].
#[inline]
pub fn cpu_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// One more CPU runs.
pub fn set_cpu_count(count: usize) {
    COUNT.store(count, Ordering::Release);
}

/// In [`PerCpu::live`]: its segments are those of where its program was before.
pub const MOVED: usize = 1;
/// In [`PerCpu::live`]: its segments are not those that 64-bit programs have.
pub const SEGMENTED: usize = 2;
/// All that may stand in [`PerCpu::live`] beside the state.
pub const MARKS: usize = MOVED | SEGMENTED;

/// Where the current task's program is. Its base, and the end that is read after it, may be those
/// before and after a promotion: the sum is still in no other program's region, since this CPU has
/// loaded another root in between.
#[inline]
pub fn window() -> Window {
    Window {
        base: load!(window_base, "{}"),
        end: load!(window_end, "{}"),
    }
}

/// The end of the addresses of the current task's program if they are the linear ones, as they are
/// but in a region; else 0.
#[inline]
pub fn linear_end() -> usize {
    load!(linear_end, "{}")
}

/// Sets where the program is whose address space this CPU has just loaded. Interrupts are off.
#[inline]
pub fn set_window(window: Window) {
    let this = this();
    this.window_base.store(window.base, Ordering::Relaxed);
    this.window_end.store(window.end, Ordering::Relaxed);
    this.linear_end
        .store(window.linear_end(), Ordering::Relaxed);
    if window.is_small() {
        this.is_flat.store(false, Ordering::Relaxed);
    }
    if window.base != this.segments_base.load(Ordering::Relaxed) {
        let live = this.live.load(Ordering::Relaxed);
        if live != 0 {
            this.live.store(live | MOVED, Ordering::Relaxed);
        }
    }
}

/// The base for which this CPU's segments were loaded. Interrupts are off.
#[inline]
pub fn segments_base() -> usize {
    load!(segments_base, "{}")
}

/// The segments are loaded for this base. Interrupts are off.
#[inline]
pub fn set_segments_base(base: usize) {
    this().segments_base.store(base, Ordering::Relaxed);
}

/// The word kept for the scheduler.
#[inline]
pub fn task_pointer() -> usize {
    load!(task, "{}")
}

/// Sets the word kept for the scheduler.
#[inline]
pub fn set_task_pointer(task: usize) {
    // SAFETY: writes this CPU's slot, which only `task_pointer` reads.
    unsafe {
        asm!("mov gs:[{}], {}", const offset_of!(PerCpu, task), in(reg) task,
            options(nostack, preserves_flags));
    }
}

/// Forbids preemption on this CPU until [`preempt_enable`]; they nest.
#[inline]
pub fn preempt_disable() {
    // SAFETY: adds to this CPU's count; no memory access moves across.
    unsafe {
        asm!("inc qword ptr gs:[{}]", const offset_of!(PerCpu, preempt_count), options(nostack));
    }
}

/// Undoes one [`preempt_disable`]; returns whether preemption is now allowed, is wanted, and
/// interrupts are on.
#[inline]
pub fn preempt_enable() -> bool {
    let allowed: u8;
    // SAFETY: subtracts from this CPU's count; no memory access moves across.
    unsafe {
        asm!("dec qword ptr gs:[{}]", "setz {}", const offset_of!(PerCpu, preempt_count),
            out(reg_byte) allowed, options(nostack));
    }
    allowed != 0 && reschedule_wanted() && cpu::irqs_enabled()
}

/// Runs another task if one is wanted, unless preemption is disabled. Restores the interrupt flag.
#[inline]
pub fn preempt() {
    if reschedule_wanted() {
        handlers::reschedule(false);
    }
}

/// As [`preempt`], where the current task runs its program or is about to.
#[inline]
pub fn preempt_program() {
    if reschedule_wanted() {
        handlers::reschedule(true);
    }
}

/// Counts that this CPU has dropped all translations that are not global. Interrupts are off since
/// before it did: what a handler maps between the two would count as dropped, too.
#[inline]
pub fn note_flush() {
    debug_assert!(!super::cpu::irqs_enabled(), "a flush with interrupts on");
    // SAFETY: adds to this CPU's count; no memory access moves across.
    unsafe {
        asm!("inc qword ptr gs:[{}]", const offset_of!(PerCpu, flushes), options(nostack));
    }
}

/// How often this CPU has dropped all translations that are not global: at least so often.
#[inline]
pub fn flushes() -> u64 {
    load!(flushes, "{}")
}

/// How often preemption is forbidden now.
#[inline]
pub fn preempt_count() -> u64 {
    load!(preempt_count, "{}")
}

/// Notes whether the scheduler wants to run on this CPU.
#[inline]
pub fn set_reschedule(wanted: bool) {
    // SAFETY: writes this CPU's flag.
    unsafe {
        asm!("mov dword ptr gs:[{}], {:e}", const offset_of!(PerCpu, reschedule),
            in(reg) u32::from(wanted), options(nostack, preserves_flags));
    }
}

/// Whether the scheduler wants to run on this CPU.
#[inline]
pub fn reschedule_wanted() -> bool {
    let wanted: u32 = load!(reschedule, "{:e}");
    wanted != 0
}

/// Adds to a counter of this CPU. `index` is below [`MAX_COUNTERS`].
#[inline]
pub fn counter_add(index: usize, n: u64) {
    assert!(index < MAX_COUNTERS);
    // SAFETY: in range, and only this CPU adds: one instruction, which no interrupt splits.
    unsafe {
        asm!("add qword ptr gs:[{} + {} * 8], {}", const offset_of!(PerCpu, counters),
            in(reg) index, in(reg) n, options(nostack));
    }
}

/// Reads a counter of any CPU.
pub fn counter_read(cpu: usize, index: usize) -> u64 {
    of(cpu).counters[index].load(Ordering::Relaxed)
}
