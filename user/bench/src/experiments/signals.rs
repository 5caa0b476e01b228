//! Signals: sending, delivery, return.

use std::arch::asm;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::{mem, ptr};

use crate::{Bench, Experiment, Failure, Partner, call, cpus};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "signals",
    title: "Signals: to oneself, to another process, by a fault; and the way back",
    help: "Each row sends a signal again and again; its handler does nothing.

signals/self             kill of the own process: sent, delivered to a handler, returned
signals/ignored          kill of the own process with a signal that it ignores
signals/blocked          the same with one that is blocked and stays pending
signals/return           rt_sigreturn alone
signals/fault            a write to a protected page, whose SIGSEGV a handler steps over
signals/process-same     a signal to another process on the same CPU, and one back: a round trip
signals/process-other    the same with a process on another CPU
signals/thread-same      a round trip between two threads on the same CPU
signals/thread-other     the same with a thread on another CPU
signals/mask             sigprocmask",
    run,
};

const SIGNAL: i32 = libc::SIGUSR1;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench.row("signals/self").batch(500).run(|meter| {
        handle(SIGNAL, nothing)?;
        // SAFETY: asks for a number.
        let own = unsafe { libc::getpid() };
        meter.measure(|n| kill_often(own, n))
    })?;
    bench.row("signals/ignored").batch(1000).run(|meter| {
        call!(signal(SIGNAL, libc::SIG_IGN)).map(drop)?;
        // SAFETY: asks for a number.
        let own = unsafe { libc::getpid() };
        meter.measure(|n| kill_often(own, n))
    })?;
    bench.row("signals/blocked").batch(1000).run(|meter| {
        block(SIGNAL)?;
        // SAFETY: asks for a number.
        let own = unsafe { libc::getpid() };
        meter.measure(|n| kill_often(own, n))
    })?;
    bench.row("signals/return").batch(1000).run(|meter| {
        handle(SIGNAL, return_often)?;
        // SAFETY: asks for a number.
        let own = unsafe { libc::getpid() };
        meter.measure(|n| {
            RETURNS.store(n, Ordering::Relaxed);
            kill_often(own, 1)
        })
    })?;
    bench.row("signals/fault").batch(500).run(|meter| {
        handle(libc::SIGSEGV, step_over)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = call!(mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0))?;
        meter.measure(|n| {
            for _ in 0..n {
                // SAFETY: the page is not writable, and the handler steps over this instruction of
                // two bytes.
                unsafe { asm!("mov byte ptr [rax], cl", in("rax") page, in("cl") 1u8) };
            }
            Ok(())
        })
    })?;
    bench.row("signals/mask").batch(1000).measure(|n| {
        let set = set_of(SIGNAL);
        for _ in 0..n {
            call!(sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()))?;
        }
        Ok(())
    })?;
    for (cpu, where_) in [(0, "same"), (1, "other")] {
        let row = format!("signals/process-{where_}");
        bench.row(row).cpus(cpu + 1).batch(100).run(|meter| {
            block(SIGNAL)?;
            // SAFETY: asks for a number.
            let first = unsafe { libc::getpid() };
            let partner = Partner::start(cpu, || {
                loop {
                    wait_for(SIGNAL)?;
                    call!(kill(first, SIGNAL))?;
                }
            })?;
            meter.measure(|n| {
                for _ in 0..n {
                    call!(kill(partner.pid(), SIGNAL))?;
                    wait_for(SIGNAL)?;
                }
                Ok(())
            })
        })?;
        let row = format!("signals/thread-{where_}");
        bench.row(row).cpus(cpu + 1).batch(100).run(|meter| {
            block(SIGNAL)?;
            let own = call!(syscall(libc::SYS_gettid))? as libc::pid_t;
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::Builder::new().spawn(move || -> Result<(), Failure> {
                cpus::pin(cpu)?;
                let _ = tell.send(call!(syscall(libc::SYS_gettid))? as libc::pid_t);
                loop {
                    wait_for(SIGNAL)?;
                    send_to_thread(own)?;
                }
            })?;
            let other = told.recv().map_err(|_| "the thread could not be pinned")?;
            meter.measure(|n| {
                for _ in 0..n {
                    send_to_thread(other)?;
                    wait_for(SIGNAL)?;
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Sends the signal to a process, so many times.
fn kill_often(process: libc::pid_t, n: u64) -> Result<(), Failure> {
    for _ in 0..n {
        call!(kill(process, SIGNAL))?;
    }
    Ok(())
}

fn send_to_thread(thread: libc::pid_t) -> Result<(), Failure> {
    // SAFETY: asks for a number.
    let own = unsafe { libc::getpid() };
    call!(syscall(libc::SYS_tgkill, own, thread, SIGNAL)).map(drop)
}

fn set_of(signal: i32) -> libc::sigset_t {
    // SAFETY: a set of signals is plain bits, and the call checks the number.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigaddset(&mut set, signal);
        set
    }
}

fn block(signal: i32) -> Result<(), Failure> {
    call!(sigprocmask(
        libc::SIG_BLOCK,
        &set_of(signal),
        ptr::null_mut()
    ))
    .map(drop)
}

/// Takes a blocked signal, or waits for it.
fn wait_for(signal: i32) -> Result<(), Failure> {
    let set = set_of(signal);
    call!(sigwaitinfo(&set, ptr::null_mut())).map(drop)
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

fn handle(signal: i32, handler: Handler) -> Result<(), Failure> {
    // SAFETY: an action of zeroes has an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    call!(sigaction(signal, &action, ptr::null_mut())).map(drop)
}

extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {}

/// Continues behind the two-byte instruction that faulted.
extern "C" fn step_over(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives the handler the interrupted context.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2 };
}

/// Number of returns that [`return_often`] makes.
static RETURNS: AtomicU64 = AtomicU64::new(0);

/// Its stack pointer meanwhile.
static STACK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Returns from one signal many times: each time to just behind the call, and finally to the
/// interrupted code.
extern "C" fn return_often(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives the handler the interrupted context, whose frame on the stack stays
    // intact until the handler itself returns. Each call comes back behind it with the stack of the
    // interrupted code, so that this function's own is loaded from memory, and with that code's
    // other registers, which are all named here or restored.
    unsafe {
        let registers = (*context).uc_mcontext.gregs.as_mut_ptr();
        let place = registers.add(libc::REG_RIP as usize);
        let real = place.read();
        for _ in 0..RETURNS.load(Ordering::Relaxed) {
            asm!(
                "push rbx",
                "push rbp",
                "lea rax, [rip + 2f]",
                "mov [rcx], rax",
                "mov [rdx], rsp",
                "mov rsp, rsi",
                "mov eax, 15",
                "syscall",
                "2:",
                "mov rsp, [rip + {stack}]",
                "pop rbp",
                "pop rbx",
                stack = sym STACK,
                inlateout("rcx") place => _,
                inlateout("rdx") STACK.as_ptr() => _,
                inlateout("rsi") context => _,
                lateout("rax") _, lateout("rdi") _,
                lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
                lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
                lateout("xmm0") _, lateout("xmm1") _, lateout("xmm2") _, lateout("xmm3") _,
                lateout("xmm4") _, lateout("xmm5") _, lateout("xmm6") _, lateout("xmm7") _,
                lateout("xmm8") _, lateout("xmm9") _, lateout("xmm10") _, lateout("xmm11") _,
                lateout("xmm12") _, lateout("xmm13") _, lateout("xmm14") _, lateout("xmm15") _,
            );
        }
        place.write(real);
    }
}
