//! Restartable sequences: the thread's CPU number, and aborts of interrupted sequences.

use std::arch::global_asm;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "sequences: the C library's area names the CPU",
        area_names_cpu,
    ),
    ("sequences: registering", registering),
    ("sequences: a signal disturbs one", signal_disturbs),
    (
        "sequences: other tasks and CPUs disturb one",
        others_disturb,
    ),
    (
        "sequences: a barrier disturbs those of other threads",
        barrier_disturbs,
    ),
    ("sequences: what is none is refused", nonsense),
];

/// Signature before abort handlers, as the C library registers it.
const SIGNATURE: u32 = 0x5305_3053;

unsafe extern "C" {
    // SAFETY: the C library's, set before `main`.
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

/// `struct rseq`.
#[repr(C, align(32))]
struct Area {
    cpu_start: AtomicU32,
    cpu: AtomicU32,
    section: AtomicU64,
    flags: AtomicU32,
    rest: [AtomicU32; 3],
}

/// `struct rseq_cs`.
#[repr(C, align(32))]
struct Section {
    head: u64,
    start: u64,
    len: u64,
    abort: u64,
}

// `sequence(&area.section, &section, count)` counts down; returns 1 if it was aborted, 0 if not.
// The second abort handler has a wrong signature.
global_asm!(
    ".text",
    ".globl sequence_test_run",
    ".hidden sequence_test_run",
    ".globl sequence_test_start",
    ".hidden sequence_test_start",
    ".globl sequence_test_end",
    ".hidden sequence_test_end",
    ".globl sequence_test_abort",
    ".hidden sequence_test_abort",
    ".globl sequence_test_bad",
    ".hidden sequence_test_bad",
    "sequence_test_run:",
    "mov [rdi], rsi",
    "sequence_test_start:",
    "2: dec rdx",
    "jnz 2b",
    "sequence_test_end:",
    "mov eax, 0",
    "ret",
    ".long 0x53053053",
    "sequence_test_abort:",
    "mov eax, 1",
    "ret",
    ".long 0x53053054",
    "sequence_test_bad:",
    "mov eax, 2",
    "ret",
);

unsafe extern "C" {
    // SAFETY: above.
    fn sequence_test_run(to: *const AtomicU64, section: *const Section, count: u64) -> u64;
    fn sequence_test_start();
    fn sequence_test_end();
    fn sequence_test_abort();
    fn sequence_test_bad();
}

fn address(code: unsafe extern "C" fn()) -> u64 {
    code as *const () as u64
}

fn section() -> Section {
    let start = address(sequence_test_start);
    Section {
        head: 0,
        start,
        len: address(sequence_test_end) - start,
        abort: address(sequence_test_abort),
    }
}

/// A count larger than any test reaches.
const FOR_EVER: u64 = 1 << 40;

fn area() -> Result<&'static Area> {
    let pointer: usize;
    // SAFETY: reads the thread pointer, which the C library's ABI keeps at its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) pointer);
        ensure!(__rseq_size >= 20, "the C library has registered none");
        Ok(&*(pointer.wrapping_add_signed(__rseq_offset) as *const Area))
    }
}

fn run(section: &Section, count: u64) -> Result<u64> {
    // SAFETY: the area is this thread's, and both live longer than the call.
    Ok(unsafe { sequence_test_run(&area()?.section, section, count) })
}

fn area_names_cpu() -> Outcome {
    for _ in 0..20 {
        for cpu in 0..cpus() {
            pin(cpu)?;
            let area = area()?;
            let seen = (area.cpu.load(SeqCst), area.cpu_start.load(SeqCst));
            ensure!(seen == (cpu as u32, cpu as u32), "on {cpu}: {seen:?}");
            let told = call!(sched_getcpu());
            ensure!(told == cpu as i32, "on {cpu}: sched_getcpu says {told}");
        }
    }
    // A thread and a child have areas of their own.
    let last = cpus() - 1;
    let other = thread::spawn(move || {
        pin(last)?;
        Ok(area()?.cpu.load(SeqCst))
    });
    pin(0)?;
    let other: Result<u32> = other.join()?;
    ensure!(other? == last as u32 && area()?.cpu.load(SeqCst) == 0);
    child(|| {
        pin(last)?;
        let seen = area()?.cpu.load(SeqCst);
        ensure!(seen == last as u32, "in a child on {last}: {seen}");
        Ok(())
    })
}

fn registering() -> Outcome {
    use libc::SYS_rseq;
    let old = ptr::from_ref(area()?);
    let page = shared_map(4096)?;
    let new = page.cast::<Area>();
    refused!(EINVAL, syscall(SYS_rseq, new, 32, 0, SIGNATURE));
    refused!(EBUSY, syscall(SYS_rseq, old, 32, 0, SIGNATURE));
    refused!(EPERM, syscall(SYS_rseq, old, 32, 0, 7));
    refused!(EPERM, syscall(SYS_rseq, old, 32, 1, 7));
    refused!(EINVAL, syscall(SYS_rseq, old, 32, 2, SIGNATURE));
    call!(syscall(SYS_rseq, old, 32, 1, SIGNATURE));
    // SAFETY: it is still there.
    let left = unsafe { &*old }.cpu.load(SeqCst);
    ensure!(left == u32::MAX, "a withdrawn area says {left}");
    refused! {
        syscall(SYS_rseq, old, 32, 1, SIGNATURE) => EINVAL;
        syscall(SYS_rseq, page.wrapping_add(16), 32, 0, SIGNATURE) => EINVAL;
        syscall(SYS_rseq, new, 31, 0, SIGNATURE) => EINVAL;
        syscall(SYS_rseq, 1usize << 47, 32, 0, SIGNATURE) => EFAULT;
    }
    // SAFETY: the mapping is never removed.
    let area = unsafe { &*new };
    area.cpu.store(99, SeqCst);
    pin(cpus() - 1)?;
    call!(syscall(SYS_rseq, new, 32, 0, SIGNATURE));
    let seen = area.cpu.load(SeqCst);
    ensure!(seen == cpus() as u32 - 1, "a new area says {seen}");
    pin(0)?;
    equal!(area.cpu.load(SeqCst), 0);
    // An area that cannot be written raises a signal.
    let end = wait(spawn(|| {
        // Rust's own handler would take the first signal, expecting the instruction to fault again.
        // SAFETY: the default action replaces a handler.
        unsafe { libc::signal(SIGSEGV, SIG_DFL) };
        call!(mprotect(page.cast(), 4096, PROT_READ));
        pin(cpus() - 1)?;
        // On one CPU, another process has to run for a switch.
        wait(spawn(|| Ok(()))?)?;
        Ok(())
    })?)?;
    ensure!(end == End::Signal(SIGSEGV), "a bad area: {end:?}");
    Ok(())
}

static PLACE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note_place(_: i32, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid context.
    let registers = unsafe { (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
    PLACE.store(registers[REG_RIP as usize] as usize, SeqCst);
}

fn signal_disturbs() -> Outcome {
    handle(SIGALRM, note_place, 0)?;
    let soon = timer_val(3000, 0);
    let section = section();
    call!(setitimer(ITIMER_REAL, &soon, null_mut()));
    // On an idle machine only the signal interrupts; preemption by another task would do as well.
    while PLACE.load(SeqCst) == 0 {
        let disturbed = run(&section, FOR_EVER)?;
        ensure!(disturbed == 1, "the sequence gave {disturbed}");
    }
    let place = PLACE.load(SeqCst) as u64;
    let inside = (section.start..section.start + section.len).contains(&place);
    ensure!(!inside, place);
    ensure!(area()?.section.load(SeqCst) == 0, "it is left registered");
    // A sequence that has ended is not aborted.
    let disturbed = (0..100).filter(|_| run(&section, 10) == Ok(1)).count();
    ensure!(disturbed < 50, disturbed);
    Ok(())
}

fn others_disturb() -> Outcome {
    let cpus = cpus();
    pin(0)?;
    let other = spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    })?;
    let disturbed = run(&section(), FOR_EVER)?;
    kill_child(other)?;
    ensure!(disturbed == 1, "preempted: {disturbed}");
    if cpus > 1 {
        let own = call!(gettid());
        let mover = thread::spawn(move || {
            pin(1)?;
            pause_ms(5);
            let mask = 2u64;
            call!(syscall(libc::SYS_sched_setaffinity, own, 8, &mask));
            Ok(())
        });
        let disturbed = run(&section(), FOR_EVER)?;
        let moved: Outcome = mover.join()?;
        moved?;
        ensure!(disturbed == 1, "moved: {disturbed}");
    }
    Ok(())
}

fn barrier_disturbs() -> Outcome {
    const PRIVATE_RSEQ: i32 = 1 << 7;
    const REGISTER_PRIVATE_RSEQ: i32 = 1 << 8;
    let known = call!(syscall(libc::SYS_membarrier, 0, 0));
    ensure!(known & 0x180 == 0x180, "membarrier knows {known:#x}");
    refused!(EPERM, syscall(libc::SYS_membarrier, PRIVATE_RSEQ, 0, 0));
    refused!(EINVAL, syscall(libc::SYS_membarrier, PRIVATE_RSEQ, 2, 0));
    call!(syscall(libc::SYS_membarrier, REGISTER_PRIVATE_RSEQ, 0, 0));
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let other = thread::spawn(|| {
        RUNS.store(1, SeqCst);
        run(&section(), FOR_EVER)
    });
    while RUNS.load(SeqCst) == 0 {
        thread::yield_now();
    }
    pause_ms(5);
    call!(syscall(libc::SYS_membarrier, PRIVATE_RSEQ, 0, 0));
    let disturbed = other.join()??;
    ensure!(disturbed == 1, "{disturbed}");
    Ok(())
}

/// Runs a sequence that a signal handler interrupts.
fn ends(section: Section) -> Result<End> {
    wait(spawn(move || {
        handle(SIGALRM, note_place, 0)?;
        call!(alarm(1));
        pin(0)?;
        let other = spawn(|| {
            pause_ms(20);
            Ok(())
        })?;
        let _ = other;
        let seen = run(&section, FOR_EVER)?;
        Err(format!("it went on: {seen}, {}", errno()).into())
    })?)
}

fn nonsense() -> Outcome {
    let good = section();
    for (what, bad) in [
        (
            "a wrong signature",
            Section {
                abort: address(sequence_test_bad),
                ..section()
            },
        ),
        (
            "going on inside",
            Section {
                abort: good.start,
                ..section()
            },
        ),
        (
            "a version",
            Section {
                head: 1,
                ..section()
            },
        ),
        (
            "the kernel's memory",
            Section {
                start: 1 << 63,
                ..section()
            },
        ),
        (
            "no end",
            Section {
                len: u64::MAX,
                ..section()
            },
        ),
    ] {
        let end = ends(bad)?;
        ensure!(end == End::Signal(SIGSEGV), "{what}: {end:?}");
    }
    Ok(())
}
