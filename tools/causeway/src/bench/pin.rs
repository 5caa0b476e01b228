//! Each CPU of a guest keeps to one processor of the host.
//!
//! Two CPUs that wake one another run side by side or one behind the other, as the host's scheduler
//! puts them; it decides that anew for each boot, and a message from one to the other takes twice
//! the time in one case. Pinned they are always side by side.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The options that make QEMU name its threads.
pub const FLAGS: [&str; 2] = ["-name", "debug-threads=on"];

/// The host's processors that this program may run on.
pub fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|number| allowed.is_set(*number))
        .collect()
}

/// Pins the CPUs of this QEMU, which runs with [`FLAGS`], if each can have a processor of its own.
/// Returns how many were pinned.
pub fn pin(qemu: Pid) -> usize {
    let cpus = cpus(qemu);
    let processors = processors();
    if cpus.len() > processors.len() {
        return 0;
    }
    let pinned = cpus.iter().filter(|(number, thread)| {
        let mut one = CpuSet::new();
        processors
            .get(*number)
            .inspect(|processor| one.set(**processor))
            .is_some_and(|_| sched_setaffinity(Some(*thread), &one).is_ok())
    });
    pinned.count()
}

/// The guest's CPUs and the threads that run them.
fn cpus(qemu: Pid) -> Vec<(usize, Pid)> {
    let folder = format!("/proc/{}/task", qemu.as_raw_nonzero());
    let Ok(threads) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let cpu = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let thread = thread.file_name().to_str()?.parse().ok()?;
        Some((cpu_of(&name)?, Pid::from_raw(thread)?))
    };
    threads.flatten().filter_map(cpu).collect()
}

/// The number of the CPU that a thread of this name runs.
fn cpu_of(thread: &str) -> Option<usize> {
    let (number, _) = thread.strip_prefix("CPU ")?.split_once('/')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_cpus_are_known_by_their_names() {
        assert_eq!(cpu_of("CPU 0/TCG\n"), Some(0));
        assert_eq!(cpu_of("CPU 12/KVM\n"), Some(12));
        for other in ["qemu-system-x86", "ALL CPUs/TCG", "CPU /TCG", "worker"] {
            assert_eq!(cpu_of(other), None);
        }
    }

    #[test]
    fn a_thread_named_as_a_cpu_is_pinned() {
        let (to_end, end) = std::sync::mpsc::channel::<()>();
        let (named, is_named) = std::sync::mpsc::channel();
        let cpu = std::thread::Builder::new().name("CPU 0/TCG".into());
        let cpu = cpu
            .spawn(move || {
                named.send(()).expect("somebody waits");
                let _ = end.recv();
                sched_getaffinity(None).map(|set| set.count())
            })
            .expect("a thread");
        is_named.recv().expect("it runs");
        assert_eq!(pin(rustix::process::getpid()), 1);
        drop(to_end);
        assert_eq!(cpu.join().expect("no panic"), Ok(1));
        // The other threads are not pinned.
        assert_eq!(cpus(rustix::process::getpid()), []);
    }
}
