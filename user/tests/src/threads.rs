//! Threads: futexes, thread-local storage, exit.

use std::cell::Cell;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("threads: a mutex counts right", mutex),
    ("threads: thread-local storage", local),
    ("threads: many at once", many),
    ("threads: start and join over and over", storm),
    ("threads: condition variables", condition),
    ("threads: futex values and timeouts", futex_words),
    ("threads: futex between processes", shared_futex),
    ("threads: futex requeue", requeue),
    ("threads: exit_group ends all", exit_group),
    ("threads: exec ends the others", exec),
    ("threads: the main thread may leave first", main_leaves),
    ("threads: ids", ids),
    ("threads: all CPUs are used", cpus),
];

fn mutex() -> Outcome {
    let count = Arc::new(Mutex::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let count = Arc::clone(&count);
            thread::spawn(move || {
                for _ in 0..20_000 {
                    *count.lock().unwrap() += 1;
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join()?;
    }
    let count = *count.lock().unwrap();
    ensure!(count == 160_000, "{count} in place of 160000");
    Ok(())
}

thread_local!(static LOCAL: Cell<usize> = const { Cell::new(0) });

fn local() -> Outcome {
    let threads: Vec<_> = (1..9)
        .map(|number| {
            thread::spawn(move || {
                for _ in 0..500 {
                    LOCAL.set(LOCAL.get() + number);
                    thread::yield_now();
                }
                LOCAL.get() == 500 * number
            })
        })
        .collect();
    for thread in threads {
        ensure!(thread.join()?, "a thread saw another's storage");
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
            thread::spawn(move || _ = barrier.wait())
        })
        .collect();
    barrier.wait();
    for thread in threads {
        thread.join()?;
    }
    Ok(())
}

fn storm() -> Outcome {
    let total = Arc::new(AtomicUsize::new(0));
    for _ in 0..150 {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let total = Arc::clone(&total);
                thread::spawn(move || total.fetch_add(1, SeqCst))
            })
            .collect();
        for thread in threads {
            thread.join()?;
        }
    }
    ensure!(total.load(SeqCst) == 600, "not all threads ran");
    Ok(())
}

fn condition() -> Outcome {
    let shared = Arc::new((Mutex::new(0u32), Condvar::new()));
    let other = Arc::clone(&shared);
    let thread = thread::spawn(move || {
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
    Ok(thread.join()?)
}

fn futex_words() -> Outcome {
    let word = AtomicU32::new(5);
    let wait_for = |value, time: Option<&timespec>| futex(&word, FUTEX_WAIT, value, time);
    ensure!(wait_for(6, None) == -1 && errno() == EAGAIN);
    let start = Instant::now();
    let result = wait_for(5, Some(&timespec_of(30)));
    ensure!(result == -1 && errno() == ETIMEDOUT, result, errno());
    ensure!(
        start.elapsed() >= Duration::from_millis(30),
        "too early: {:?}",
        start.elapsed()
    );
    equal!(futex(&word, FUTEX_WAKE, 9, None), 0);
    let odd = (&raw const word).cast::<u8>().wrapping_add(1).cast();
    ensure!(
        futex(odd, FUTEX_WAIT, 5, None) == -1 && errno() == EINVAL,
        "an unaligned word waited"
    );
    let bad = 0x1000 as *const AtomicU32;
    ensure!(
        futex(bad, FUTEX_WAIT, 5, None) == -1 && errno() == EFAULT,
        "an unmapped word waited"
    );
    Ok(())
}

fn shared_futex() -> Outcome {
    let word = shared_value(AtomicU32::new(0))?;
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                while word.load(SeqCst) == 0 {
                    futex(word, FUTEX_WAIT, 0, None);
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    pause_ms(30);
    word.store(1, SeqCst);
    futex(word, FUTEX_WAKE, i32::MAX as u32, None);
    wait_all(children)?;
    Ok(())
}

fn requeue() -> Outcome {
    static FROM: AtomicU32 = AtomicU32::new(0);
    static TO: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..4)
        .map(|_| thread::spawn(|| futex(&FROM, FUTEX_WAIT, 0, Some(&timespec_of(20_000)))))
        .collect();
    pause_ms(100);
    let operation = FUTEX_CMP_REQUEUE;
    // SAFETY: both words are static.
    let moved = unsafe { libc::syscall(libc::SYS_futex, &FROM, operation, 1, 3usize, &TO, 0) };
    ensure!(moved == 4, "woken and moved: {moved}, errno {}", errno());
    equal!(futex(&FROM, FUTEX_WAKE, 9, None), 0);
    let woken = futex(&TO, FUTEX_WAKE, 9, None);
    ensure!(woken == 3, "{woken} of 3 were moved");
    for thread in threads {
        ensure!(thread.join()? == 0, "a waiter timed out");
    }
    Ok(())
}

fn exit_group() -> Outcome {
    let child = spawn(|| {
        for _ in 0..6 {
            thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
            thread::spawn(|| {
                loop {
                    thread::park();
                }
            });
        }
        pause_ms(10);
        thread::spawn(|| exit(17));
        loop {
            thread::park();
        }
    })?;
    let end = wait(child)?;
    ensure!(end == End::Exit(17), "ended with {end:?}");
    Ok(())
}

fn exec() -> Outcome {
    let child = spawn(|| {
        for _ in 0..4 {
            thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        pause_ms(5);
        // From a thread that is not the first.
        let thread = thread::spawn(|| {
            let words = [
                c"test".as_ptr(),
                c"--as".as_ptr(),
                c"exit".as_ptr(),
                c"23".as_ptr(),
                null(),
            ];
            // SAFETY: the words are static and end with a null pointer.
            unsafe { libc::execv(c"/proc/self/exe".as_ptr(), words.as_ptr()) }
        });
        let _ = thread.join();
        Err(format!("exec failed: errno {}", errno()).into())
    })?;
    let end = wait(child)?;
    ensure!(end == End::Exit(23), "ended with {end:?}");
    Ok(())
}

fn main_leaves() -> Outcome {
    let child = spawn(|| {
        thread::spawn(|| {
            pause_ms(30);
            exit(5);
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
    equal!(process, main);
    // SAFETY: these calls only return numbers.
    let thread = thread::spawn(|| unsafe { (libc::getpid(), libc::gettid()) });
    let (same, other) = thread.join()?;
    ensure!(same == process && other != main, same, other, process);
    Ok(())
}

fn cpus() -> Outcome {
    let count = support::cpus::cpus() as i64;
    let seen = Arc::new(AtomicU32::new(0));
    let start = Instant::now();
    let threads: Vec<_> = (0..2 * count)
        .map(|_| {
            let seen = Arc::clone(&seen);
            thread::spawn(move || {
                while start.elapsed() < Duration::from_millis(500) {
                    // SAFETY: returns a number.
                    seen.fetch_or(1 << unsafe { libc::sched_getcpu() }, SeqCst);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join()?;
    }
    let used = seen.load(SeqCst).count_ones();
    equal!(i64::from(used), count, used);
    Ok(())
}
