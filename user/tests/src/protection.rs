//! Bad memory accesses: the right signal, code and address.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("protection: no map", unmapped),
    ("protection: read-only", read_only),
    ("protection: none", none),
    ("protection: no execution", no_execution),
    ("protection: upper half", upper_half),
    ("protection: beyond a file's end", beyond_the_end),
    ("protection: a truncated file", truncated),
    ("protection: copies to and from the kernel", kernel_copies),
    ("protection: the stack grows", stack_growth),
    ("protection: the stack overflows", stack_overflow),
    ("protection: RLIMIT_STACK", stack_limit),
    ("protection: no access after munmap", after_unmap),
    ("protection: no write after mprotect", after_protect),
    ("protection: an unhandled fault kills", unhandled),
];

fn unmapped() -> Outcome {
    let memory = map(3 * PAGE)?;
    let hole = memory.wrapping_add(PAGE + 123);
    // The child unmaps the page, so that nothing can be mapped into the hole before the access.
    // SAFETY: nothing uses the page.
    let unmap = || unsafe { libc::munmap(memory.wrapping_add(PAGE).cast(), PAGE) };
    let write = || {
        unmap();
        poke(hole, 1);
    };
    faults(SIGSEGV, SEGV_MAPERR, hole as usize, write)?;
    let read = || {
        unmap();
        peek(hole);
    };
    faults(SIGSEGV, SEGV_MAPERR, hole as usize, read)?;
    faults(SIGSEGV, SEGV_MAPERR, 16, || _ = peek(16 as *const u8))
}

fn read_only() -> Outcome {
    let memory = map(2 * PAGE)?;
    poke(memory, 1);
    call!(mprotect(memory.cast(), 2 * PAGE, PROT_READ));
    ensure!(peek(memory) == 1 && peek(memory.wrapping_add(PAGE)) == 0);
    let address = memory as usize + 7;
    faults(SIGSEGV, SEGV_ACCERR, address, || {
        poke(address as *mut u8, 1);
    })?;
    let address = address + PAGE;
    faults(SIGSEGV, SEGV_ACCERR, address, || {
        poke(address as *mut u8, 1);
    })?;
    call!(mprotect(memory.cast(), 2 * PAGE, PROT_READ | PROT_WRITE));
    poke(memory, 2);
    ensure!(peek(memory) == 2, "the page cannot be written again");
    Ok(())
}

fn none() -> Outcome {
    let memory = map(PAGE)?;
    poke(memory, 3);
    call!(mprotect(memory.cast(), PAGE, PROT_NONE));
    faults(SIGSEGV, SEGV_ACCERR, memory as usize, || _ = peek(memory))?;
    call!(mprotect(memory.cast(), PAGE, PROT_READ));
    ensure!(peek(memory) == 3, "the byte did not survive PROT_NONE");
    Ok(())
}

fn no_execution() -> Outcome {
    const RET: u8 = 0xc3;
    let memory = map(PAGE)?;
    poke(memory, RET);
    // SAFETY: the code there is one `ret`, or the call faults, which is the test.
    let run = move || unsafe { mem::transmute::<*mut u8, extern "C" fn()>(memory)() };
    faults(SIGSEGV, SEGV_ACCERR, memory as usize, run)?;
    call!(mprotect(memory.cast(), PAGE, PROT_READ | PROT_EXEC));
    let fault = fault_of(run)?;
    ensure!(fault.is_none(), "executable memory faulted: {fault:x?}");
    Ok(())
}

fn upper_half() -> Outcome {
    for address in [
        0xffff_8000_0000_0000u64,
        0xffff_ffff_8000_0000,
        0xffff_ffff_ffff_f000,
    ] {
        let fault = fault_of(|| _ = peek(address as *const u8))?;
        ensure!(
            fault.is_some_and(|fault| fault.signal == SIGSEGV && fault.address == address as usize),
            "{address:#x} gave {fault:x?}"
        );
        let fault = fault_of(|| poke(address as *mut u8, 1))?;
        ensure!(fault.is_some_and(|fault| fault.signal == SIGSEGV), address);
    }
    // Addresses that are not canonical raise another exception.
    let fault = fault_of(|| _ = peek(0x1234_5678_0000_0000u64 as *const u8))?;
    ensure!(fault.is_some_and(|fault| fault.signal == SIGSEGV), fault);
    Ok(())
}

fn beyond_the_end() -> Outcome {
    let (_, open) = file("beyond", &[1; 100])?;
    for flags in [MAP_PRIVATE, MAP_SHARED] {
        let memory = map_with(3 * PAGE, PROT_READ | PROT_WRITE, flags, open)?;
        equal!(peek(memory.wrapping_add(PAGE - 1)), 0);
        let beyond = memory.wrapping_add(PAGE + 5);
        faults(SIGBUS, BUS_ADRERR, beyond as usize, || _ = peek(beyond))?;
        faults(SIGBUS, BUS_ADRERR, beyond as usize, || poke(beyond, 1))?;
    }
    Ok(())
}

fn truncated() -> Outcome {
    let (_, open) = file("truncated", &[1; 3 * PAGE])?;
    let memory = map_with(3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, open)?;
    (0..3).for_each(|page| poke(memory.wrapping_add(page * PAGE), 2));
    call!(ftruncate(open, PAGE as i64 + 10));
    equal!(peek(memory.wrapping_add(PAGE)), 2);
    equal!(peek(memory.wrapping_add(PAGE + 11)), 0);
    let gone = memory.wrapping_add(2 * PAGE);
    faults(SIGBUS, BUS_ADRERR, gone as usize, || _ = peek(gone))?;
    call!(ftruncate(open, 3 * PAGE as i64));
    ensure!(peek(gone) == 0, "what grew back is not zero");
    Ok(())
}

fn kernel_copies() -> Outcome {
    let (_, open) = file("copies", &[9; 3 * PAGE])?;
    let memory = map(3 * PAGE)?;
    call!(munmap(memory.wrapping_add(2 * PAGE).cast(), PAGE));
    call!(mprotect(memory.wrapping_add(PAGE).cast(), PAGE, PROT_READ));
    refused! {
        pread(open, memory.wrapping_add(PAGE).cast(), 10, 0) => EFAULT;
        pread(open, memory.wrapping_add(2 * PAGE).cast(), 10, 0) => EFAULT;
        pwrite(open, memory.wrapping_add(2 * PAGE).cast(), 10, 0) => EFAULT;
    }
    // A short count is allowed, but nothing may be written beyond.
    // SAFETY: the kernel must stop at the read-only page.
    let count = unsafe { libc::pread(open, memory.cast(), 2 * PAGE, 0) };
    ensure!(count == -1 || count <= PAGE as isize, count);
    equal!(peek(memory.wrapping_add(PAGE)), 0);
    call!(pwrite(open, memory.wrapping_add(PAGE).cast(), 10, 0));
    Ok(())
}

/// Uses at least `bytes` of the stack.
#[inline(never)]
fn descend(bytes: usize) -> u8 {
    let mut frame = [1u8; 2000];
    // SAFETY: writes an element of a live array, in a way that is not left out.
    unsafe { frame.as_mut_ptr().add(bytes % 2000).write_volatile(2) };
    if bytes < 2000 {
        frame[0]
    } else {
        descend(bytes - 2000).wrapping_add(frame[1])
    }
}

fn stack_growth() -> Outcome {
    let fault = fault_of(|| _ = descend(4 << 20))?;
    ensure!(fault.is_none(), fault);
    Ok(())
}

fn stack_overflow() -> Outcome {
    let here = 0u8;
    let start = Place::near(&here);
    let fault = fault_of(|| _ = descend(64 << 20))?;
    let Some(fault) = fault else {
        return Err("64 MiB of stack were given".into());
    };
    ensure!(fault.signal == SIGSEGV, "signal {}", fault.signal);
    let used = start.0.wrapping_sub(fault.address);
    ensure!((7 << 20..9 << 20).contains(&used), used);
    Ok(())
}

/// An address on the stack.
struct Place(usize);

impl Place {
    fn near(place: &u8) -> Self {
        Self(ptr::from_ref(place) as usize)
    }
}

fn stack_limit() -> Outcome {
    let here = 0u8;
    let start = Place::near(&here);
    call!(setrlimit(RLIMIT_STACK, &limit_of(1 << 20)));
    let fault = fault_of(|| _ = descend(3 << 20))?;
    let used = fault.map(|fault| start.0.wrapping_sub(fault.address));
    ensure!(used.is_some_and(|used| used < (2 << 20)), used);
    Ok(())
}

/// Other threads of this process must fault on a page once `munmap` has returned.
fn after_unmap() -> Outcome {
    revoked(|page| {
        // SAFETY: nothing but the test's threads uses the page, and they are meant to fault.
        unsafe { libc::munmap(page.cast(), PAGE) == 0 }
    })
}

/// Other threads of this process must not write a page once `mprotect` has returned.
fn after_protect() -> Outcome {
    revoked(|page| {
        // SAFETY: as above.
        unsafe { libc::mprotect(page.cast(), PAGE, PROT_READ) == 0 }
    })
}

static STOPPED: AtomicUsize = AtomicUsize::new(0);
static REVOKED: AtomicBool = AtomicBool::new(false);
static LATE: AtomicUsize = AtomicUsize::new(0);

/// Keeps a writer that faulted waiting for ever.
extern "C" fn stop_here(_: i32, _: *mut siginfo_t, _: *mut c_void) {
    STOPPED.fetch_add(1, SeqCst);
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

fn revoked(revoke: fn(*mut u8) -> bool) -> Outcome {
    const WRITERS: usize = 3;
    for round in 0..20 {
        let child = spawn(|| {
            handle(SIGSEGV, stop_here, 0)?;
            let page = map(PAGE)? as usize;
            for _ in 0..WRITERS {
                thread::spawn(move || {
                    loop {
                        let was_revoked = REVOKED.load(SeqCst);
                        poke(page as *mut u8, 1);
                        if was_revoked {
                            LATE.fetch_add(1, SeqCst);
                        }
                    }
                });
            }
            pause_ms(3);
            ensure!(revoke(page as *mut u8), "the page could not be revoked");
            REVOKED.store(true, SeqCst);
            for _ in 0..2000 {
                if STOPPED.load(SeqCst) == WRITERS {
                    break;
                }
                pause_ms(1);
            }
            let late = LATE.load(SeqCst);
            ensure!(late == 0, "{late} writes came through after it was revoked");
            let stopped = STOPPED.load(SeqCst);
            equal!(stopped, WRITERS);
            Ok(())
        })?;
        equal!(wait(child)?, End::Exit(0), round);
    }
    Ok(())
}

fn unhandled() -> Outcome {
    for (signal, crash) in [
        (SIGSEGV, (|| _ = peek(8 as *const u8)) as fn()),
        (SIGABRT, || std::process::abort()),
    ] {
        let child = spawn(|| {
            // SAFETY: gives the signal its default action back (Rust's runtime handles SIGSEGV).
            unsafe { libc::signal(signal, SIG_DFL) };
            crash();
            Ok(())
        })?;
        let end = wait(child)?;
        equal!(end, End::Signal(signal), signal);
    }
    Ok(())
}
