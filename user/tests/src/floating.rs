//! Each thread has its own floating-point and vector registers.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("floating: SSE registers of many threads", sse),
    ("floating: AVX registers of many threads", avx),
    ("floating: x87 and control words", control),
    ("floating: across system calls and fork", across_calls),
    ("floating: a signal handler has its own", in_handlers),
    ("floating: a new program begins clean", clean),
];

/// Runs `body` in more threads than there are CPUs, for a while.
fn in_threads(body: fn(u64) -> Outcome) -> Outcome {
    let end = Instant::now() + Duration::from_millis(600);
    let threads: Vec<_> = (1..=10u64)
        .map(|number| {
            thread::spawn(move || {
                while Instant::now() < end {
                    body(number)?;
                }
                Ok(())
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join()?)
}

fn sse() -> Outcome {
    in_threads(|number| {
        let value = number.wrapping_mul(0x0101_0101_0101_0101);
        let (low, high): (u64, u64);
        // SAFETY: touches only the registers named; the call takes and changes no memory.
        unsafe {
            asm!(
                "movq xmm7, {value}", "movq xmm15, {value}",
                "mov {count}, 3000",
                "2:", "pause", "dec {count}", "jnz 2b",
                "mov eax, 24", "syscall", // sched_yield
                "movq {low}, xmm7", "movq {high}, xmm15",
                value = in(reg) value, count = out(reg) _, low = out(reg) low, high = out(reg) high,
                out("rax") _, out("rcx") _, out("r11") _, out("xmm7") _, out("xmm15") _,
            );
        }
        ensure!(low == value && high == value, number, low, high);
        Ok(())
    })
}

fn avx() -> Outcome {
    if !is_x86_feature_detected!("avx") {
        return Err(skip("this CPU has no AVX"));
    }
    in_threads(|number| {
        let pattern = [number, number << 8, number << 16, number << 24];
        let mut back = [0u64; 4];
        // SAFETY: reads and writes the two arrays; the CPU has AVX.
        unsafe {
            asm!(
                "vmovdqu ymm9, [{from}]",
                "mov {count}, 3000",
                "2:", "pause", "dec {count}", "jnz 2b",
                "mov eax, 24", "syscall", // sched_yield
                "vmovdqu [{to}], ymm9",
                from = in(reg) pattern.as_ptr(), to = in(reg) back.as_mut_ptr(),
                count = out(reg) _,
                out("rax") _, out("rcx") _, out("r11") _, out("ymm9") _,
            );
        }
        ensure!(back == pattern, "thread {number}: {back:x?}");
        Ok(())
    })
}

fn control() -> Outcome {
    in_threads(|number| {
        let mxcsr = 0x1f80u32 | ((number as u32 % 4) << 13);
        let word = 0x037fu16 | ((number as u16 % 4) << 10);
        let (mut mxcsr_back, mut word_back, mut sum) = (0u32, 0u16, 0f64);
        let part = number as f64;
        // SAFETY: reads and writes the variables named, and resets the control words.
        unsafe {
            asm!(
                "ldmxcsr [{m}]", "fldcw [{w}]", "fld qword ptr [{p}]",
                "mov {count}, 3000",
                "2:", "pause", "dec {count}", "jnz 2b",
                "mov eax, 24", "syscall", // sched_yield
                "fadd st(0), st(0)", "fstp qword ptr [{s}]",
                "stmxcsr [{mb}]", "fnstcw [{wb}]", "fninit", "ldmxcsr [{d}]",
                m = in(reg) &mxcsr, w = in(reg) &word, p = in(reg) &part, s = in(reg) &mut sum,
                mb = in(reg) &mut mxcsr_back, wb = in(reg) &mut word_back, d = in(reg) &0x1f80u32,
                count = out(reg) _, out("rax") _, out("rcx") _, out("r11") _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            );
        }
        equal!(mxcsr_back & 0x6000, mxcsr & 0x6000, mxcsr_back, mxcsr);
        equal!(word_back, word);
        ensure!(sum == 2.0 * part, "x87: {sum}");
        Ok(())
    })
}

fn across_calls() -> Outcome {
    let value = 0x1234_5678_9abc_def0u64;
    let (parent, back): (i64, u64);
    // SAFETY: a fork of a process with one thread; both sides go on below.
    unsafe {
        asm!(
            "movq xmm3, {value}", "mov eax, 57", "syscall", "movq {back}, xmm3", // fork
            value = in(reg) value, back = lateout(reg) back, out("rax") parent,
            out("rcx") _, out("r11") _, out("xmm3") _,
        );
    }
    if parent == 0 {
        exit(i32::from(back == value));
    }
    ensure!(parent > 0, "fork: {parent}");
    ensure!(back == value, "the parent's register changed to {back:#x}");
    let end = wait(parent as i32)?;
    equal!(end, End::Exit(1));
    Ok(())
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn destroy(_: i32, _: *mut siginfo_t, _: *mut c_void) {
    HANDLED.fetch_add(1, SeqCst);
    // SAFETY: changes registers that are restored when the handler returns.
    unsafe {
        asm!("pcmpeqd xmm6, xmm6", "pcmpeqd xmm12, xmm12", out("xmm6") _, out("xmm12") _);
        if is_x86_feature_detected!("avx") {
            asm!("vpxor xmm6, xmm6, xmm6", "vxorps ymm12, ymm12, ymm12",
                out("ymm6") _, out("ymm12") _);
        }
    }
}

fn in_handlers() -> Outcome {
    handle(SIGALRM, destroy, SA_RESTART)?;
    call!(setitimer(ITIMER_REAL, &timer_val(3000, 3000), null_mut()));
    let start = Instant::now();
    let pattern = [1u64, 2, 3, 4];
    while HANDLED.load(SeqCst) < 20 && start.elapsed() < Duration::from_secs(20) {
        let mut back = [0u64; 4];
        if is_x86_feature_detected!("avx") {
            // SAFETY: reads and writes the two arrays; the CPU has AVX.
            unsafe {
                asm!(
                    "vmovdqu ymm12, [{from}]",
                    "mov {count}, 20000", "2:", "dec {count}", "jnz 2b",
                    "vmovdqu [{to}], ymm12",
                    from = in(reg) pattern.as_ptr(), to = in(reg) back.as_mut_ptr(),
                    count = out(reg) _, out("ymm12") _,
                );
            }
        } else {
            // SAFETY: reads and writes the two arrays.
            unsafe {
                asm!(
                    "movdqu xmm6, [{from}]", "movdqu xmm12, [{from} + 16]",
                    "mov {count}, 20000", "2:", "dec {count}", "jnz 2b",
                    "movdqu [{to}], xmm6", "movdqu [{to} + 16], xmm12",
                    from = in(reg) pattern.as_ptr(), to = in(reg) back.as_mut_ptr(),
                    count = out(reg) _, out("xmm6") _, out("xmm12") _,
                );
            }
        }
        ensure!(back == pattern, "the handler's registers stayed: {back:x?}");
    }
    let handled = HANDLED.load(SeqCst);
    ensure!(handled >= 20, "only {handled} signals in 20 s");
    Ok(())
}

fn clean() -> Outcome {
    let secret = 0x5ec2_e75e_c2e7_5ec2u64;
    child(|| {
        // SAFETY: sets registers only.
        unsafe {
            asm!("movq xmm10, {0}", "movq xmm14, {0}", in(reg) secret,
                out("xmm10") _, out("xmm14") _);
        };
        let thread = thread::spawn(move || {
            let (first, second): (u64, u64);
            // SAFETY: reads registers only.
            unsafe { asm!("movq {0}, xmm10", "movq {1}, xmm14", out(reg) first, out(reg) second) };
            // A thread of the same process may inherit them; the default control word it must have.
            let mut mxcsr = 0u32;
            // SAFETY: writes the variable.
            unsafe { asm!("stmxcsr [{0}]", in(reg) &mut mxcsr) };
            let _ = (first, second);
            mxcsr & 0xffc0 == 0x1f80
        });
        ensure!(thread.join().unwrap_or(false));
        Ok(())
    })
}
