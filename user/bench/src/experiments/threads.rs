//! Threads: creation and joining.

use std::{mem, ptr};

use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "threads",
    title: "Threads: made, run, joined",
    help:
        "threads/create-join         a thread of the C library that ends at once, on its maker's CPU
threads/create-join-free    the same where the kernel chooses the CPU
threads/create-join-8       eight at once, then all joined: one of them",
    run,
};

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let one = |n| (0..n).try_for_each(|_| join(create()?));
    bench.row("threads/create-join").batch(50).measure(one)?;
    let row = bench.row("threads/create-join-free").cpus(2).pinned(None);
    row.batch(50).measure(one)?;
    bench.row("threads/create-join-8").batch(80).measure(|n| {
        for _ in 0..n / 8 {
            let mut threads = Vec::with_capacity(8);
            for _ in 0..8 {
                threads.push(create()?);
            }
            threads.into_iter().try_for_each(join)?;
        }
        Ok(())
    })
}

extern "C" fn nothing(argument: *mut libc::c_void) -> *mut libc::c_void {
    argument
}

fn create() -> Result<libc::pthread_t, Failure> {
    // SAFETY: the handle is plain data that the call overwrites; the function touches nothing.
    unsafe {
        let mut thread = mem::zeroed();
        match libc::pthread_create(&mut thread, ptr::null(), nothing, ptr::null_mut()) {
            0 => Ok(thread),
            error => Err(Failure::of(
                "pthread_create",
                &std::io::Error::from_raw_os_error(error),
            )),
        }
    }
}

fn join(thread: libc::pthread_t) -> Result<(), Failure> {
    // SAFETY: each thread is joined once.
    match unsafe { libc::pthread_join(thread, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(Failure::of(
            "pthread_join",
            &std::io::Error::from_raw_os_error(error),
        )),
    }
}
