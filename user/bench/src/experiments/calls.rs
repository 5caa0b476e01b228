//! What a system call costs by itself.

use crate::{Bench, Experiment, Failure, call};

/// See its help.
pub const EXPERIMENT: Experiment = Experiment {
    name: "calls",
    title: "System calls that do next to nothing",
    help: "Each row makes one call again and again.

calls/null      a number that no call has: the way in and out, and the look into the table
calls/getppid   a call that looks at another process
calls/getpid    a call that looks at its own",
    run,
};

/// A number that no kernel gives to a call.
const NO_CALL: i64 = 4000;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench.row("calls/null").batch(2000).measure(|n| {
        for _ in 0..n {
            // It fails as it should: with ENOSYS.
            let _ = call!(syscall(NO_CALL));
        }
        Ok(())
    })?;
    bench.row("calls/getppid").batch(2000).measure(|n| {
        for _ in 0..n {
            call!(syscall(libc::SYS_getppid))?;
        }
        Ok(())
    })?;
    bench.row("calls/getpid").batch(2000).measure(|n| {
        for _ in 0..n {
            call!(syscall(libc::SYS_getpid))?;
        }
        Ok(())
    })
}
