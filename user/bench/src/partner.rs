//! Work beside a row's own thread: children, programs, threads, and the memory and gates that
//! synchronise them.

use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io::Read, io::Write, mem, ptr};

use crate::{Failure, call, cpus};

/// A started program, which is killed when this is dropped.
#[derive(Debug)]
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A value in a page that a process shares with the children that it forks afterwards.
#[derive(Debug)]
pub struct Shared<T: Sync> {
    at: *mut T,
}

// SAFETY: it hands out `&T` only, and `T` is `Sync`.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T: Sync> Shared<T> {
    /// Puts the value into shared memory, which lives as long as the process.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(value: T) -> Result<Self, Failure> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = call!(mmap(
            ptr::null_mut(),
            mem::size_of::<T>().max(1),
            protection,
            flags,
            -1,
            0
        ))?;
        let at = at.cast::<T>();
        // SAFETY: a fresh mapping, page-aligned, large enough.
        unsafe { at.write(value) };
        Ok(Self { at })
    }
}

impl<T: Sync> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written when it was made, and never unmapped.
        unsafe { &*self.at }
    }
}

/// A reusable barrier for threads or processes.
#[derive(Debug)]
pub struct Gate {
    parties: u32,
    state: Shared<(AtomicU32, AtomicU32)>,
}

impl Gate {
    /// Makes a barrier for so many parties; they may be processes forked afterwards.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(parties: u32) -> Result<Self, Failure> {
        let state = Shared::new((AtomicU32::new(0), AtomicU32::new(0)))?;
        Ok(Self { parties, state })
    }

    /// Waits until all parties have arrived.
    ///
    /// # Errors
    /// When the kernel has no futexes.
    pub fn wait(&self) -> Result<(), Failure> {
        let (arrived, round) = &*self.state;
        let now = round.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.parties {
            arrived.store(0, Ordering::Release);
            round.store(now.wrapping_add(1), Ordering::Release);
            return futex_wake(round, i32::MAX).map(drop);
        }
        while round.load(Ordering::Acquire) == now {
            futex_wait(round, now)?;
        }
        Ok(())
    }
}

/// Sleeps while the word, which may be shared between processes, has this value. May wake
/// spuriously.
///
/// # Errors
/// When the kernel has no futexes.
pub fn futex_wait(word: &AtomicU32, value: u32) -> Result<(), Failure> {
    let forever = ptr::null::<libc::timespec>();
    match call!(syscall(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAIT,
        value,
        forever
    )) {
        Err(failure @ Failure::Missing(_)) => Err(failure),
        _ => Ok(()),
    }
}

/// Wakes at most so many waiters of the word; returns how many.
///
/// # Errors
/// When the kernel has no futexes.
pub fn futex_wake(word: &AtomicU32, most: i32) -> Result<u32, Failure> {
    let woken = call!(syscall(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE,
        most
    ))?;
    Ok(u32::try_from(woken).unwrap_or(0))
}

/// A child process of the row, killed on drop.
#[derive(Debug)]
pub struct Partner {
    pid: libc::pid_t,
    /// The pipe that carries its failure.
    report: Option<OwnedFd>,
}

impl Partner {
    /// Forks a child that runs `body` on this CPU, and returns once it runs there.
    ///
    /// # Errors
    /// When there is no such CPU, or no memory for a process.
    pub fn start(cpu: usize, body: impl FnOnce() -> Result<(), Failure>) -> Result<Self, Failure> {
        let mut ends = [0; 2];
        call!(pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        // SAFETY: the kernel has just made these descriptors, and nothing else owns them.
        let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let runs = Gate::new(2)?;
        let pid = call!(fork())?;
        if pid == 0 {
            drop(reader);
            let work = || {
                let pinned = cpus::pin(cpu);
                runs.wait()?;
                pinned.and_then(|()| body())
            };
            let outcome = panic::catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|_| Err("it panicked".into()));
            if let Err(failure) = &outcome {
                let _ = fs::File::from(writer).write_all(failure.to_string().as_bytes());
            }
            // SAFETY: ends the process without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(outcome.is_err())) };
        }
        runs.wait()?;
        Ok(Self {
            pid,
            report: Some(reader),
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it failed; the text says why.
    pub fn wait(mut self) -> Result<(), Failure> {
        let mut status = 0;
        call!(waitpid(self.pid, &mut status, 0))?;
        self.pid = 0;
        let mut why = String::new();
        if let Some(report) = self.report.take().filter(|_| status != 0) {
            fs::File::from(report).read_to_string(&mut why)?;
        }
        match status {
            0 => Ok(()),
            _ if why == "ENOSYS" => Err(Failure::Missing(why)),
            _ if why.is_empty() => Err(format!("the partner ended with status {status:#x}").into()),
            _ => Err(format!("the partner: {why}").into()),
        }
    }

    /// Kills it.
    pub fn kill(self) {}
}

impl Drop for Partner {
    fn drop(&mut self) {
        if self.pid > 0 {
            // SAFETY: this value owns the child, which has not been waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, ptr::null_mut(), 0);
            }
        }
    }
}

/// Threads on other CPUs that work beside the row until this is dropped.
#[derive(Debug)]
pub struct Threads {
    stop: Arc<AtomicBool>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts one on each of these CPUs and returns once all run. Each calls `body` repeatedly.
    ///
    /// # Errors
    /// When there is no such CPU, or no memory for a thread.
    pub fn start(
        cpus: &[usize],
        body: impl Fn() + Clone + Send + 'static,
    ) -> Result<Self, Failure> {
        let gate = Arc::new(Gate::new(cpus.len() as u32 + 1)?);
        let mut threads = Self {
            stop: Arc::default(),
            handles: Vec::new(),
        };
        for &cpu in cpus {
            cpus::check(cpu)?;
            let (gate, stop, body) = (gate.clone(), threads.stop.clone(), body.clone());
            let handle = thread::Builder::new().spawn(move || {
                let ready = cpus::pin(cpu).and_then(|()| gate.wait());
                while ready.is_ok() && !stop.load(Ordering::Relaxed) {
                    body();
                }
            })?;
            threads.handles.push(handle);
        }
        gate.wait()?;
        Ok(threads)
    }

    /// Starts threads that spin.
    ///
    /// # Errors
    /// As for [`Threads::start`].
    pub fn spin(cpus: &[usize]) -> Result<Self, Failure> {
        Self::start(cpus, std::hint::spin_loop)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// Runs `body` at once in a thread on each of these CPUs, which gets its index in the list; returns
/// the time from the first start to the last end.
///
/// # Errors
/// The first one of a thread.
pub fn together(
    cpus: &[usize],
    body: impl Fn(usize) -> Result<(), Failure> + Sync,
) -> Result<Duration, Failure> {
    let gate = Gate::new(cpus.len() as u32)?;
    for &cpu in cpus {
        cpus::check(cpu)?;
    }
    let one = |index: usize, cpu: usize| {
        cpus::pin(cpu)?;
        gate.wait()?;
        let start = Instant::now();
        body(index)?;
        Ok((start, Instant::now()))
    };
    let spans = thread::scope(|scope| {
        let start =
            |(index, &cpu)| thread::Builder::new().spawn_scoped(scope, move || one(index, cpu));
        let mut handles = Vec::new();
        for handle in cpus.iter().enumerate().map(start) {
            handles.push(handle?);
        }
        handles
            .into_iter()
            .map(|handle| {
                handle
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
            })
            .collect::<Result<Vec<(Instant, Instant)>, Failure>>()
    })?;
    let first = spans.iter().map(|span| span.0).min();
    let last = spans.iter().map(|span| span.1).max();
    match (first, last) {
        (Some(first), Some(last)) => Ok(last - first),
        _ => Err("no CPU was named".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_keep_in_step_and_tell_why_they_fail() {
        let gate = Gate::new(2).expect("memory");
        let count = Shared::new(AtomicU32::new(0)).expect("memory");
        let partner = Partner::start(0, || {
            for _ in 0..100 {
                gate.wait()?;
                count.fetch_add(1, Ordering::Relaxed);
                gate.wait()?;
            }
            Err("enough".into())
        })
        .expect("a partner");
        for expected in 1..=100 {
            gate.wait().expect("a gate");
            gate.wait().expect("a gate");
            assert_eq!(count.load(Ordering::Relaxed), expected);
        }
        let outcome = partner.wait();
        assert_eq!(outcome, Err(Failure::Error("the partner: enough".into())));
    }

    #[test]
    fn a_partner_without_a_cpu_fails() {
        let partner = Partner::start(1000, || Ok(())).expect("a partner");
        assert!(partner.wait().is_err());
    }

    #[test]
    fn a_dropped_partner_is_gone() {
        let partner = Partner::start(0, || {
            loop {
                // SAFETY: sleeps.
                unsafe { libc::pause() };
            }
        })
        .expect("a partner");
        let pid = partner.pid();
        partner.kill();
        // SAFETY: asks whether the process is there.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }

    #[test]
    fn threads_work_until_they_are_dropped_and_together() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let threads = Threads::start(&[0], move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        while count.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        drop(threads);
        let after = count.load(Ordering::Relaxed);
        let seen = AtomicU32::new(0);
        let time = together(&[0, 0, 0], |index| {
            seen.fetch_add(1 << (8 * index), Ordering::Relaxed);
            thread::sleep(Duration::from_millis(2));
            Ok(())
        })
        .expect("threads");
        assert!(time >= Duration::from_millis(2));
        assert_eq!(seen.load(Ordering::Relaxed), 0x1_0101);
        assert_eq!(count.load(Ordering::Relaxed), after);
        assert!(together(&[0], |_| Err("no".into())).is_err());
        assert!(Threads::spin(&[1000]).is_err());
        assert!(together(&[0, 1000], |_| Ok(())).is_err());
    }
}
