//! Stacks and registers of handlers, and exceptions.

use super::{LAST, count, last, note};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("signals: the signal stack", stack),
    ("signals: registers survive a handler", registers),
    ("signals: exceptions", exceptions),
    ("signals: a stack segment of its own", stack_segment),
];

fn stack() -> Outcome {
    static PLACE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn place(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        let here = 0u8;
        PLACE.store(&raw const here as usize, SeqCst);
        let mut now = stack_t {
            ss_sp: null_mut(),
            ss_flags: 0,
            ss_size: 0,
        };
        // SAFETY: writes the structure given.
        unsafe { libc::sigaltstack(null(), &mut now) };
        LAST[0].store(now.ss_flags, SeqCst);
    }
    signal_stack()?;
    let mut stack = stack_t {
        ss_sp: null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    call!(sigaltstack(null(), &mut stack));
    let range = stack.ss_sp as usize..stack.ss_sp as usize + stack.ss_size;
    handle(SIGUSR1, place, SA_ONSTACK)?;
    call!(raise(SIGUSR1));
    ensure!(range.contains(&PLACE.load(SeqCst)));
    equal!(last(0), SS_ONSTACK);
    handle(SIGUSR1, place, 0)?;
    call!(raise(SIGUSR1));
    ensure!(!range.contains(&PLACE.load(SeqCst)));
    let tiny = stack_t {
        ss_sp: stack.ss_sp,
        ss_flags: 0,
        ss_size: 100,
    };
    refused!(ENOMEM, sigaltstack(&tiny, null_mut()));
    Ok(())
}

fn registers() -> Outcome {
    handle(SIGALRM, note, SA_RESTART)?;
    call!(setitimer(ITIMER_REAL, &timer_val(2000, 2000), null_mut()));
    let start = Instant::now();
    while count() < 50 && start.elapsed() < Duration::from_secs(20) {
        let (mut sum, mut other): (u64, u64);
        // SAFETY: touches only the registers named.
        unsafe {
            std::arch::asm!(
                "mov {i}, 20000", "mov {a}, 0", "mov {b}, 7", "mov r12, 1", "mov r13, 2",
                "2:", "add {a}, r12", "add {b}, r13", "push {b}", "pop {b}", "dec {i}", "jnz 2b",
                i = out(reg) _, a = out(reg) sum, b = out(reg) other,
                out("r12") _, out("r13") _,
            );
        }
        ensure!(sum == 20_000 && other == 40_007, sum, other);
        std::hint::black_box((&mut sum, &mut other));
    }
    ensure!(count() >= 50, "only {} timer signals in 20 s", count());
    Ok(())
}

fn exceptions() -> Outcome {
    let fault = fault_of(|| {
        // SAFETY: the instruction faults, and the fault is caught.
        unsafe { std::arch::asm!("ud2") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == SIGILL && fault.code == code::ILL_ILLOPN),
        "ud2 gave {fault:?}"
    );
    let fault = fault_of(|| {
        // SAFETY: the division faults, and the fault is caught.
        unsafe {
            asm!("xor edx, edx", "xor ecx, ecx", "mov eax, 1", "div ecx",
                out("eax") _, out("ecx") _, out("edx") _);
        };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == SIGFPE && fault.code == code::FPE_INTDIV),
        "a division by zero gave {fault:?}"
    );
    let fault = fault_of(|| {
        // SAFETY: the breakpoint traps, and the signal is caught.
        unsafe { std::arch::asm!("int3") };
    })?;
    ensure!(fault.is_some_and(|fault| fault.signal == SIGTRAP), fault);
    let fault = fault_of(|| {
        // SAFETY: the instruction is privileged: it faults.
        unsafe { std::arch::asm!("hlt") };
    })?;
    ensure!(fault.is_some_and(|fault| fault.signal == SIGSEGV), fault);
    Ok(())
}

/// A frame may name another stack segment, also where all else is as `sysret` leaves it.
fn stack_segment() -> Outcome {
    const SET_THREAD_AREA: u32 = 243;
    /// 32-bit data of all addresses, counted in pages.
    const FLAGS: u32 = 1 | 16;
    const STRICT_RESTORE_SS: u64 = 4;
    static SELECTOR: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn name_it(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives handlers their context.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        context.uc_flags |= STRICT_RESTORE_SS;
        let regs = &mut context.uc_mcontext.gregs;
        regs[libc::REG_RCX as usize] = regs[libc::REG_RIP as usize];
        regs[libc::REG_R11 as usize] = regs[libc::REG_EFL as usize];
        let segments = &mut regs[libc::REG_CSGSFS as usize];
        *segments = *segments & 0xffff_ffff_ffff | (SELECTOR.load(SeqCst) as i64) << 48;
    }
    let memory = low_map(PAGE)?.cast::<[u32; 4]>();
    // SAFETY: the map is longer.
    unsafe { memory.write([u32::MAX, 0, 0xf_ffff, FLAGS]) };
    equal!(
        support::legacy::int80(SET_THREAD_AREA, [memory as usize as u32]),
        0
    );
    // SAFETY: as above; the kernel has written the number.
    let selector = (unsafe { memory.cast::<u32>().read() } as usize * 8) | 3;
    SELECTOR.store(selector, SeqCst);
    handle(SIGUSR1, name_it, 0)?;
    let pid = call!(getpid());
    let found: u32;
    // SAFETY: a call that changes no memory of the test's, and whose handler is above.
    unsafe {
        std::arch::asm!(
            "syscall", "mov {found:e}, ss",
            found = out(reg) found,
            inlateout("rax") libc::SYS_kill => _,
            in("rdi") pid, in("rsi") SIGUSR1, out("rcx") _, out("r11") _,
        );
    }
    equal!(found as usize, selector);
    Ok(())
}
