//! Stacks and registers of handlers, and exceptions.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, siginfo_t};

use crate::support::{Outcome, code, handle, signal_stack};
use crate::{Test, call, ensure, refused};

use super::{LAST, count, last, note};

pub const TESTS: &[Test] = &[
    ("signals: the signal stack", stack),
    ("signals: registers survive a handler", registers),
    ("signals: exceptions", exceptions),
];

fn stack() -> Outcome {
    static PLACE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn place(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        let here = 0u8;
        PLACE.store(&raw const here as usize, Ordering::SeqCst);
        let mut now = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: 0,
            ss_size: 0,
        };
        // SAFETY: writes the structure given.
        unsafe { libc::sigaltstack(ptr::null(), &mut now) };
        LAST[0].store(now.ss_flags, Ordering::SeqCst);
    }
    signal_stack()?;
    let mut stack = libc::stack_t {
        ss_sp: ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    call!(sigaltstack(ptr::null(), &mut stack));
    let range = stack.ss_sp as usize..stack.ss_sp as usize + stack.ss_size;
    handle(libc::SIGUSR1, place, libc::SA_ONSTACK)?;
    call!(raise(libc::SIGUSR1));
    ensure!(
        range.contains(&PLACE.load(Ordering::SeqCst)),
        "the handler ran on the usual stack"
    );
    ensure!(
        last(0) == libc::SS_ONSTACK,
        "the flags in the handler were {}",
        last(0)
    );
    handle(libc::SIGUSR1, place, 0)?;
    call!(raise(libc::SIGUSR1));
    ensure!(
        !range.contains(&PLACE.load(Ordering::SeqCst)),
        "without SA_ONSTACK it ran there"
    );
    let tiny = libc::stack_t {
        ss_sp: stack.ss_sp,
        ss_flags: 0,
        ss_size: 100,
    };
    refused!(ENOMEM, sigaltstack(&tiny, ptr::null_mut()));
    Ok(())
}

fn registers() -> Outcome {
    handle(libc::SIGALRM, note, libc::SA_RESTART)?;
    let interval = libc::timeval {
        tv_sec: 0,
        tv_usec: 2000,
    };
    let timer = libc::itimerval {
        it_interval: interval,
        it_value: interval,
    };
    call!(setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()));
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
        ensure!(
            sum == 20_000 && other == 40_007,
            "registers changed: {sum} {other}"
        );
        std::hint::black_box((&mut sum, &mut other));
    }
    ensure!(count() >= 50, "only {} timer signals in 20 s", count());
    Ok(())
}

fn exceptions() -> Outcome {
    let fault = crate::support::fault_of(|| {
        // SAFETY: the instruction faults, and the fault is caught.
        unsafe { std::arch::asm!("ud2") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGILL && fault.code == code::ILL_ILLOPN),
        "ud2 gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the division faults, and the fault is caught.
        unsafe {
            std::arch::asm!("xor edx, edx", "xor ecx, ecx", "mov eax, 1", "div ecx", out("eax") _, out("ecx") _, out("edx") _)
        };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGFPE && fault.code == code::FPE_INTDIV),
        "a division by zero gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the breakpoint traps, and the signal is caught.
        unsafe { std::arch::asm!("int3") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGTRAP),
        "int3 gave {fault:?}"
    );
    let fault = crate::support::fault_of(|| {
        // SAFETY: the instruction is privileged: it faults.
        unsafe { std::arch::asm!("hlt") };
    })?;
    ensure!(
        fault.is_some_and(|fault| fault.signal == libc::SIGSEGV),
        "hlt gave {fault:?}"
    );
    Ok(())
}
