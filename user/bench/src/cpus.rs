//! CPUs: their count, and binding the calling thread.

use std::mem;

pub use support::cpus::cpus as count;

use crate::{Failure, call};

/// Binds the calling thread, and threads and children that it starts later, to one CPU.
///
/// # Errors
/// When there is no such CPU.
pub fn pin(cpu: usize) -> Result<(), Failure> {
    allow(&[cpu])
}

/// Binds the calling thread to some CPUs, between which the kernel chooses.
///
/// # Errors
/// When there is none of them.
pub fn allow(cpus: &[usize]) -> Result<(), Failure> {
    // SAFETY: a set of CPUs is plain bits, all zero for none.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the set lives, and the function checks the number against its size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    call!(sched_setaffinity(0, mem::size_of_val(&set), &set))?;
    Ok(())
}

/// Checks that there is such a CPU.
///
/// # Errors
/// When there is not.
pub fn check(cpu: usize) -> Result<(), Failure> {
    if cpu < count() {
        Ok(())
    } else {
        Err(format!("there is no CPU {cpu}").into())
    }
}

/// Returns the CPU that runs the calling thread now.
pub fn current() -> usize {
    // SAFETY: a question without memory.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pinned_thread_runs_where_it_was_told() {
        let last = super::count() - 1;
        let found = std::thread::spawn(move || super::pin(last).map(|()| super::current()));
        assert_eq!(found.join().expect("the thread ends"), Ok(last));
        assert!(super::pin(1000).is_err());
    }
}
