//! Threads: futexes, thread-local storage, their ends.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::{End, Outcome, child, errno, pause_ms, shared_map, spawn, wait};
use crate::{Test, call, ensure};

pub const TESTS: &[Test] = &[
    ("threads: a mutex counts right", mutex),
    ("threads: thread-local storage", local),
    ("threads: many at once", many),
    ("threads: start and join over and over", storm),
    ("threads: condition variables", condition),
    ("threads: futex values and timeouts", futex),
    ("threads: futex between processes", shared_futex),
    ("threads: futex requeue", requeue),
    ("threads: exit_group ends all", exit_group),
    ("threads: exec ends the others", exec),
    ("threads: the main thread may leave first", main_leaves),
    ("threads: ids", ids),
    ("threads: all CPUs are used", cpus),
];

fn joined<T>(handle: std::thread::JoinHandle<T>) -> Result<T, String> {
    handle.join().map_err(|_| "a thread panicked".to_string())
}

fn mutex() -> Outcome {
    let count = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    *count.lock().unwrap() += 1;
                }
            })
        })
        .collect();
    for thread in threads {
        joined(thread)?;
    }
    let count = *count.lock().unwrap();
    ensure!(count == 160_000, "{count} in place of 160000");
    Ok(())
}

thread_local!(static LOCAL: Cell<usize> = const { Cell::new(0) });

fn local() -> Outcome {
    let threads: Vec<_> = (1..9)
        .map(|number| {
            std::thread::spawn(move || {
                for _ in 0..500 {
                    LOCAL.set(LOCAL.get() + number);
                    std::thread::yield_now();
                }
                LOCAL.get() == 500 * number
            })
        })
        .collect();
    for thread in threads {
        ensure!(joined(thread)?, "a thread saw another's storage");
    }
    ensure!(LOCAL.get() == 0, "the main thread's storage changed");
    // A child of fork keeps the storage of the thread that forked.
    LOCAL.set(42);
    child(|| {
        ensure!(LOCAL.get() == 42, "lost in the child");
        Ok(())
    })
}

fn many() -> Outcome {
    let count = 100;
    let barrier = Arc::new(Barrier::new(count + 1));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || _ = barrier.wait())
        })
        .collect();
    barrier.wait();
    threads.into_iter().try_for_each(joined)
}

fn storm() -> Outcome {
    let total = Arc::new(AtomicUsize::new(0));
    for _ in 0..150 {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let total = Arc::clone(&total);
                std::thread::spawn(move || total.fetch_add(1, Ordering::SeqCst))
            })
            .collect();
        for thread in threads {
            joined(thread)?;
        }
    }
    ensure!(total.load(Ordering::SeqCst) == 600, "not all threads ran");
    Ok(())
}

fn condition() -> Outcome {
    let shared = Arc::new((Mutex::new(0u32), Condvar::new()));
    let other = Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        let (number, changed) = &*other;
        for turn in 0..500 {
            let mut number = number.lock().unwrap();
            while *number != 2 * turn + 1 {
                number = changed.wait(number).unwrap();
            }
            *number += 1;
            changed.notify_all();
        }
    });
    let (number, changed) = &*shared;
    for turn in 0..500 {
        let mut number = number.lock().unwrap();
        *number += 1;
        changed.notify_all();
        while *number != 2 * turn + 2 {
            number = changed.wait(number).unwrap();
        }
    }
    joined(thread)
}

/// `futex(2)` with the operations that take a count or a value and a timeout.
fn futex_call(
    word: *const AtomicU32,
    operation: i32,
    value: u32,
    timeout: Option<Duration>,
) -> i64 {
    let time = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word and the time live across the call.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, value, time, 0, 0) }
}

fn futex() -> Outcome {
    let word = AtomicU32::new(5);
    let wait_for = |value, time| futex_call(&word, libc::FUTEX_WAIT, value, time);
    ensure!(
        wait_for(6, None) == -1 && errno() == libc::EAGAIN,
        "a wrong value waited"
    );
    let start = Instant::now();
    let result = wait_for(5, Some(Duration::from_millis(30)));
    ensure!(
        result == -1 && errno() == libc::ETIMEDOUT,
        "no timeout: {result} {}",
        errno()
    );
    ensure!(
        start.elapsed() >= Duration::from_millis(30),
        "too early: {:?}",
        start.elapsed()
    );
    ensure!(
        futex_call(&word, libc::FUTEX_WAKE, 9, None) == 0,
        "nobody waits, but one was woken"
    );
    let odd = (&raw const word).cast::<u8>().wrapping_add(1).cast();
    ensure!(
        futex_call(odd, libc::FUTEX_WAIT, 5, None) == -1 && errno() == libc::EINVAL,
        "an unaligned word waited"
    );
    let bad = 0x1000 as *const AtomicU32;
    ensure!(
        futex_call(bad, libc::FUTEX_WAIT, 5, None) == -1 && errno() == libc::EFAULT,
        "an unmapped word waited"
    );
    Ok(())
}

fn shared_futex() -> Outcome {
    let word = shared_map(4096)?.cast::<AtomicU32>();
    // SAFETY: the map lives as long as this process and its children.
    let value = unsafe { &*word };
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                while value.load(Ordering::SeqCst) == 0 {
                    futex_call(word, libc::FUTEX_WAIT, 0, None);
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    pause_ms(30);
    value.store(1, Ordering::SeqCst);
    futex_call(word, libc::FUTEX_WAKE, i32::MAX as u32, None);
    for child in children {
        ensure!(wait(child)? == End::Exit(0), "a waiter failed");
    }
    Ok(())
}

fn requeue() -> Outcome {
    static FROM: AtomicU32 = AtomicU32::new(0);
    static TO: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                futex_call(&FROM, libc::FUTEX_WAIT, 0, Some(Duration::from_secs(20)))
            })
        })
        .collect();
    pause_ms(100);
    let operation = libc::FUTEX_CMP_REQUEUE;
    // SAFETY: both words are static.
    let moved = unsafe { libc::syscall(libc::SYS_futex, &FROM, operation, 1, 3usize, &TO, 0) };
    ensure!(moved == 4, "woken and moved: {moved}, errno {}", errno());
    ensure!(
        futex_call(&FROM, libc::FUTEX_WAKE, 9, None) == 0,
        "some stayed"
    );
    let woken = futex_call(&TO, libc::FUTEX_WAKE, 9, None);
    ensure!(woken == 3, "{woken} of 3 were moved");
    for thread in threads {
        ensure!(joined(thread)? == 0, "a waiter timed out");
    }
    Ok(())
}

fn exit_group() -> Outcome {
    let child = spawn(|| {
        for _ in 0..6 {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        pause_ms(10);
        std::thread::spawn(|| crate::support::exit(17));
        loop {
            std::thread::park();
        }
    })?;
    let end = wait(child)?;
    ensure!(end == End::Exit(17), "ended with {end:?}");
    Ok(())
}

fn exec() -> Outcome {
    let child = spawn(|| {
        for _ in 0..4 {
            std::thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        pause_ms(5);
        // From a thread that is not the first.
        let thread = std::thread::spawn(|| {
            let words = [
                c"test".as_ptr(),
                c"--as".as_ptr(),
                c"exit".as_ptr(),
                c"23".as_ptr(),
                ptr::null(),
            ];
            // SAFETY: the words are static and end with a null pointer.
            unsafe { libc::execv(c"/proc/self/exe".as_ptr(), words.as_ptr()) }
        });
        let _ = thread.join();
        Err(format!("exec failed: errno {}", errno()))
    })?;
    let end = wait(child)?;
    ensure!(end == End::Exit(23), "ended with {end:?}");
    Ok(())
}

fn main_leaves() -> Outcome {
    let child = spawn(|| {
        std::thread::spawn(|| {
            pause_ms(30);
            crate::support::exit(5);
        });
        // SAFETY: ends this thread only; the other ends the process.
        unsafe { libc::syscall(libc::SYS_exit, 3) };
        Err("still here".into())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Exit(5), "ended with {end:?}");
    Ok(())
}

fn ids() -> Outcome {
    let (process, main) = (call!(getpid()), call!(gettid()));
    ensure!(
        process == main,
        "the first thread's id is not the process's"
    );
    // SAFETY: these calls only return numbers.
    let thread = std::thread::spawn(|| unsafe { (libc::getpid(), libc::gettid()) });
    let (same, other) = joined(thread)?;
    ensure!(
        same == process && other != main,
        "ids {same} and {other} in {process}"
    );
    Ok(())
}

fn cpus() -> Outcome {
    // SAFETY: returns a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let seen = Arc::new(AtomicU32::new(0));
    let start = Instant::now();
    let threads: Vec<_> = (0..2 * count)
        .map(|_| {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                while start.elapsed() < Duration::from_millis(500) {
                    // SAFETY: returns a number.
                    seen.fetch_or(1 << unsafe { libc::sched_getcpu() }, Ordering::SeqCst);
                }
            })
        })
        .collect();
    threads.into_iter().try_for_each(joined)?;
    let used = seen.load(Ordering::SeqCst).count_ones();
    ensure!(
        i64::from(used) == count,
        "{used} of {count} CPUs ran threads"
    );
    Ok(())
}
