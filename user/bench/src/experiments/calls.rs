//! The bare cost of system calls, through every entry into the kernel.

use std::arch::asm;
use std::{mem, ptr};

use crate::{Bench, Experiment, Failure, call};

mod narrow;

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "calls",
    title: "System calls that do next to nothing, through every way into the kernel",
    help: "Each row makes one call again and again, and tells what one takes.

calls/null                 a number that no call has: the way in and out, and a look into the table
calls/getppid              a call that looks at another process
calls/getpid-syscall       getpid by the instruction `syscall`
calls/getpid-int80         getpid by `int 0x80` from 64-bit code
calls/getpid-int80-32bit   getpid by `int 0x80` from 32-bit code
calls/clock-syscall        clock_gettime as a system call
calls/clock-vdso           clock_gettime as the C library calls it: by the vDSO, if that can tell
                           the time
calls/getcpu-vdso          getcpu likewise
calls/read-zero            a byte read from /dev/zero
calls/write-null           a byte written to /dev/null
calls/stat                 a look at /dev/null, by its path
calls/open-close           /dev/null opened and closed
calls/poll-64              poll of 64 pipes of which none is ready
calls/install-handler      sigaction",
    run,
};

/// A number without a call.
const NO_CALL: i64 = 4000;

/// The 32-bit number of getpid.
const GETPID_32: u32 = 20;

unsafe extern "C" {
    /// `getcpu(3)`, which the bindings leave out.
    fn getcpu(cpu: *mut u32, node: *mut u32) -> i32;
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench.row("calls/null").batch(2000).measure(|n| {
        for _ in 0..n {
            // It must fail with ENOSYS.
            let _ = call!(syscall(NO_CALL));
        }
        Ok(())
    })?;
    for (row, number) in [
        ("calls/getppid", libc::SYS_getppid),
        ("calls/getpid-syscall", libc::SYS_getpid),
    ] {
        bench.row(row).batch(2000).measure(|n| {
            for _ in 0..n {
                call!(syscall(number))?;
            }
            Ok(())
        })?;
    }
    bench.row("calls/getpid-int80").batch(2000).measure(|n| {
        // SAFETY: asks nothing but the process's number.
        let own = unsafe { libc::getpid() };
        for _ in 0..n {
            if int80(GETPID_32) != own {
                return Err(Failure::Missing("int 0x80 does not answer".into()));
            }
        }
        Ok(())
    })?;
    bench
        .row("calls/getpid-int80-32bit")
        .batch(2000)
        .run(|meter| {
            let caller = narrow::Caller::new(GETPID_32)?;
            // SAFETY: asks nothing but the process's number.
            let own = unsafe { libc::getpid() };
            meter.measure(|n| match caller.call(n as u32) {
                found if found == own => Ok(()),
                found => Err(format!("getpid gave {found}").into()),
            })
        })?;
    clocks(bench)?;
    files(bench)?;
    bench.row("calls/install-handler").batch(1000).measure(|n| {
        // SAFETY: an action of zeroes is the default one.
        let action: libc::sigaction = unsafe { mem::zeroed() };
        for _ in 0..n {
            call!(sigaction(libc::SIGUSR1, &action, ptr::null_mut()))?;
        }
        Ok(())
    })
}

/// Calls that the vDSO may answer without the kernel.
fn clocks(bench: &mut Bench) -> Result<(), Failure> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    bench.row("calls/clock-syscall").batch(2000).measure(|n| {
        for _ in 0..n {
            call!(syscall(
                libc::SYS_clock_gettime,
                libc::CLOCK_MONOTONIC,
                &raw mut time
            ))?;
        }
        Ok(())
    })?;
    bench.row("calls/clock-vdso").batch(5000).measure(|n| {
        for _ in 0..n {
            call!(clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time))?;
        }
        Ok(())
    })?;
    bench.row("calls/getcpu-vdso").batch(5000).measure(|n| {
        let (mut cpu, mut node) = (0, 0);
        for _ in 0..n {
            // SAFETY: both numbers live across the call.
            if unsafe { getcpu(&raw mut cpu, &raw mut node) } != 0 {
                return Err(Failure::last("getcpu"));
            }
        }
        Ok(())
    })
}

/// The shortest calls on files.
fn files(bench: &mut Bench) -> Result<(), Failure> {
    let mut byte = [0u8];
    bench.row("calls/read-zero").batch(1000).run(|meter| {
        let file = call!(open(c"/dev/zero".as_ptr(), libc::O_RDONLY))?;
        meter.measure(|n| {
            for _ in 0..n {
                call!(read(file, byte.as_mut_ptr().cast(), 1))?;
            }
            Ok(())
        })
    })?;
    bench.row("calls/write-null").batch(1000).run(|meter| {
        let file = call!(open(c"/dev/null".as_ptr(), libc::O_WRONLY))?;
        meter.measure(|n| {
            for _ in 0..n {
                call!(write(file, byte.as_ptr().cast(), 1))?;
            }
            Ok(())
        })
    })?;
    bench.row("calls/stat").batch(500).measure(|n| {
        // SAFETY: plain numbers, which the call overwrites.
        let mut status: libc::stat = unsafe { mem::zeroed() };
        for _ in 0..n {
            call!(stat(c"/dev/null".as_ptr(), &mut status))?;
        }
        Ok(())
    })?;
    bench.row("calls/open-close").batch(500).measure(|n| {
        for _ in 0..n {
            let file = call!(open(c"/dev/null".as_ptr(), libc::O_RDONLY))?;
            call!(close(file))?;
        }
        Ok(())
    })?;
    bench.row("calls/poll-64").batch(100).run(|meter| {
        let mut watched = Vec::new();
        for _ in 0..64 {
            let mut ends = [0; 2];
            call!(pipe(ends.as_mut_ptr()))?;
            watched.push(libc::pollfd {
                fd: ends[0],
                events: libc::POLLIN,
                revents: 0,
            });
        }
        meter.measure(|n| {
            for _ in 0..n {
                call!(poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, 0))?;
            }
            Ok(())
        })
    })
}

/// Makes a 32-bit call without arguments from 64-bit code.
fn int80(number: u32) -> i32 {
    let result: u64;
    // SAFETY: the number is one of a call without arguments; the gate may change r8 to r11.
    unsafe {
        asm!(
            "int 0x80",
            inlateout("rax") u64::from(number) => result,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result as i32
}
