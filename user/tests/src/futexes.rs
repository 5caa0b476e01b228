//! Futexes: timeouts, bit sets, vectors, priority inheritance, robust locks.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("futexes: absolute times on both clocks", absolute_times),
    ("futexes: bits choose who wakes", bits),
    ("futexes: wake and change", wake_op),
    ("futexes: waiting for several words", several),
    (
        "futexes: several words are refused cleanly",
        several_refused,
    ),
    ("futexes: an inheriting lock keeps all but one out", pi_lock),
    ("futexes: an inheriting lock's refusals", pi_refusals),
    ("futexes: an inheriting lock between processes", pi_shared),
    ("futexes: waiters move to an inheriting lock", pi_requeue),
    ("futexes: the best waiters move first", pi_requeue_best),
    ("futexes: robust locks of a dead thread", robust),
    (
        "futexes: robust inheriting locks of a dead thread",
        robust_pi,
    ),
    (
        "futexes: an inheriting lock of a dead process",
        pi_owner_dies,
    ),
    ("futexes: the robust list of others", robust_list_of),
    ("futexes: a shared word must be there to be woken", absent),
];

const REALTIME: i32 = FUTEX_CLOCK_REALTIME;
const PRIVATE: i32 = FUTEX_PRIVATE_FLAG;
const LOCK_PI2: i32 = 13;

fn now(clock: c_int) -> Result<Duration> {
    Ok(span(&support::time::clock(clock)?))
}

fn span(time: &timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn time(id: c_int, ahead: Duration) -> Result<timespec> {
    after(id, ahead.as_millis() as i64)
}

/// Checks that a wait did not end before `end`, by the clock that it used: on a busy host any time
/// may pass between reading that clock and the call.
fn ended_in_time(clock: c_int, end: &timespec) -> Outcome {
    let (now, end) = (now(clock)?, span(end));
    let (early, late) = (end.saturating_sub(now), now.saturating_sub(end));
    ensure!(early.is_zero(), "clock {clock}: {early:?} early");
    ensure!(late < Duration::from_secs(5), clock, late);
    Ok(())
}

/// A count in the place of a time.
fn number(n: usize) -> *const timespec {
    n as *const timespec
}

fn absolute_times() -> Outcome {
    let word = AtomicU32::new(1);
    for (clock, flag) in [(CLOCK_MONOTONIC, 0), (CLOCK_REALTIME, REALTIME)] {
        let end = time(clock, Duration::from_millis(25))?;
        let result = futex_with(&word, FUTEX_WAIT_BITSET | flag, 1, &end, null(), u32::MAX);
        ensure!(result == -1 && errno() == ETIMEDOUT, clock, result);
        ended_in_time(clock, &end)?;
        let past = time_spec(0, 1);
        let result = futex_with(&word, FUTEX_WAIT_BITSET | flag, 1, &past, null(), 1);
        ensure!(result == -1 && errno() == ETIMEDOUT, result);
    }
    let bad = time_spec(0, 1_000_000_000);
    let result = futex_with(&word, FUTEX_WAIT, 1, &bad, null(), 0);
    ensure!(result == -1 && errno() == EINVAL, result);
    let result = futex(&word, FUTEX_WAKE | REALTIME, 1, None);
    ensure!(result == -1 && errno() == ENOSYS, result);
    let result = futex(&word, 77, 1, None);
    ensure!(result == -1 && errno() == ENOSYS, result);
    Ok(())
}

fn bits() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..4)
        .map(|bit| {
            thread::spawn(move || {
                let result = futex_with(
                    &WORD,
                    FUTEX_WAIT_BITSET | PRIVATE,
                    0,
                    null(),
                    null(),
                    1 << bit,
                );
                WOKEN.fetch_or(1 << bit, SeqCst);
                result
            })
        })
        .collect();
    pause_ms(60);
    let wake = |bits: u32| futex_with(&WORD, FUTEX_WAKE_BITSET | PRIVATE, 9, null(), null(), bits);
    ensure!(wake(0) == -1 && errno() == EINVAL, "no bits");
    ensure!(wake(1 << 9) == 0, "nobody's bit woke somebody");
    ensure!(wake(0b1010) == 2, "two of four");
    pause_ms(20);
    let woken = WOKEN.load(SeqCst);
    ensure!(woken == 0b1010, "woken: {woken:#b}");
    ensure!(wake(u32::MAX) == 2, "the others");
    for thread in threads {
        ensure!(thread.join()? == 0, "a waiter failed");
    }
    Ok(())
}

fn wake_op() -> Outcome {
    let (one, two) = (AtomicU32::new(0), AtomicU32::new(5));
    let operation = |op: u32, compare: u32, argument: u32, to: u32| {
        op << 28 | compare << 24 | argument << 12 | to
    };
    let call = |operation: u32| futex_with(&one, FUTEX_WAKE_OP, 1, number(1), &two, operation);
    // Add 3 if it is 5 now, then the other kinds; the value after each.
    for (op, argument, after) in [(1, 3, 8), (0, 6, 6), (2, 9, 15), (3, 6, 9), (4, 12, 5)] {
        ensure!(call(operation(op, 0, argument, 5)) == 0, "nobody waits");
        let value = two.load(SeqCst);
        ensure!(value == after, "operation {op}: {value}");
    }
    let unknown = call(operation(7, 0, 0, 0));
    ensure!(unknown == -1 && errno() == ENOSYS, unknown);
    Ok(())
}

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Waited {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Waited {
    fn new(word: &AtomicU32, value: u32) -> Waited {
        Waited {
            value: value.into(),
            address: ptr::from_ref(word) as u64,
            flags: 2 | PRIVATE as u32,
            reserved: 0,
        }
    }
}

fn waitv(words: &[Waited], flags: u32, end: Option<&timespec>, clock: c_int) -> i64 {
    let end = end.map_or(null(), ptr::from_ref);
    // SAFETY: the array and the time live across the call.
    unsafe { libc::syscall(449, words.as_ptr(), words.len(), flags, end, clock) }
}

fn several() -> Outcome {
    static WORDS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
    let waited: Vec<Waited> = WORDS.iter().map(|word| Waited::new(word, 0)).collect();
    for chosen in [3, 0, 4] {
        let waited = waited.clone();
        let thread = thread::spawn(move || waitv(&waited, 0, None, 0));
        while futex(&WORDS[chosen], FUTEX_WAKE | PRIVATE, 1, None) == 0 {
            pause_ms(1);
        }
        let place = thread.join()?;
        ensure!(place == chosen as i64, "word {place} in place of {chosen}");
    }
    // No waiter stayed queued.
    for word in &WORDS {
        equal!(futex(word, FUTEX_WAKE | PRIVATE, 9, None), 0);
    }
    let end = time(CLOCK_REALTIME, Duration::from_millis(20))?;
    let result = waitv(&waited, 0, Some(&end), CLOCK_REALTIME);
    ensure!(result == -1 && errno() == ETIMEDOUT, result);
    ended_in_time(CLOCK_REALTIME, &end)
}

fn several_refused() -> Outcome {
    let word = AtomicU32::new(1);
    let good = Waited::new(&word, 1);
    let fails = |words: &[Waited], flags: u32, error: c_int, what: &str| -> Outcome {
        let result = waitv(words, flags, None, 0);
        ensure!(result == -1 && errno() == error, what, result, errno());
        Ok(())
    };
    fails(&[good, Waited::new(&word, 2)], 0, EAGAIN, "another value")?;
    fails(&[], 0, EINVAL, "no words")?;
    fails(&[good; 129], 0, EINVAL, "too many")?;
    fails(&[good], 1, EINVAL, "flags")?;
    fails(&[Waited { flags: 0, ..good }], 0, EINVAL, "no size")?;
    fails(
        &[Waited {
            flags: 2 | 64,
            ..good
        }],
        0,
        EINVAL,
        "unknown flags",
    )?;
    fails(
        &[Waited {
            reserved: 1,
            ..good
        }],
        0,
        EINVAL,
        "the reserved word",
    )?;
    fails(
        &[Waited {
            address: 4096,
            ..good
        }],
        0,
        EFAULT,
        "a bad address",
    )?;
    fails(
        &[Waited {
            address: good.address + 1,
            ..good
        }],
        0,
        EINVAL,
        "an odd address",
    )?;
    let end = time(CLOCK_MONOTONIC, Duration::from_millis(5))?;
    let result = waitv(&[good], 0, Some(&end), 7);
    ensure!(result == -1 && errno() == EINVAL, result);
    Ok(())
}

/// A lock as the C library makes it of an inheriting word.
fn pi_take(word: &AtomicU32) -> Outcome {
    let own = call!(gettid()) as u32;
    if word.compare_exchange(0, own, SeqCst, SeqCst).is_err() {
        let result = futex(word, FUTEX_LOCK_PI, 0, None);
        ensure!(result == 0, "lock: {result}, errno {}", errno());
        let owner = word.load(SeqCst) & FUTEX_TID_MASK;
        ensure!(owner == own, "locked, but the owner is {owner}");
    }
    Ok(())
}

fn pi_give(word: &AtomicU32) -> Outcome {
    let own = call!(gettid()) as u32;
    if word.compare_exchange(own, 0, SeqCst, SeqCst).is_err() {
        let result = futex(word, FUTEX_UNLOCK_PI, 0, None);
        ensure!(result == 0, "unlock: {result}, errno {}", errno());
    }
    Ok(())
}

fn pi_lock() -> Outcome {
    static LOCK: AtomicU32 = AtomicU32::new(0);
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    static TURNS: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..6)
        .map(|number| {
            thread::spawn(move || -> Outcome {
                call!(setpriority(PRIO_PROCESS, 0, number));
                for turn in 0..150 {
                    pi_take(&LOCK)?;
                    let others = INSIDE.fetch_add(1, SeqCst);
                    if turn % 16 == 0 {
                        thread::yield_now();
                    }
                    TURNS.store(TURNS.load(SeqCst) + 1, SeqCst);
                    INSIDE.fetch_sub(1, SeqCst);
                    pi_give(&LOCK)?;
                    ensure!(others == 0, "{others} others inside");
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join()??;
    }
    ensure!(TURNS.load(SeqCst) == 900, "turns were lost");
    ensure!(LOCK.load(SeqCst) == 0, "the lock is not free");
    Ok(())
}

fn pi_refusals() -> Outcome {
    static LOCK: AtomicU32 = AtomicU32::new(0);
    let fails = |operation: i32, error: c_int| -> Outcome {
        let result = futex(&LOCK, operation, 0, None);
        ensure!(result == -1 && errno() == error, operation, result, errno());
        Ok(())
    };
    fails(FUTEX_UNLOCK_PI, EPERM)?;
    ensure!(futex(&LOCK, FUTEX_TRYLOCK_PI, 0, None) == 0, "a free lock");
    fails(FUTEX_TRYLOCK_PI, EDEADLK)?;
    fails(FUTEX_LOCK_PI, EDEADLK)?;
    let owner = call!(gettid()) as u32;
    let thread = thread::spawn(move || -> Outcome {
        fails(FUTEX_TRYLOCK_PI, EAGAIN)?;
        fails(FUTEX_UNLOCK_PI, EPERM)?;
        for (operation, clock) in [
            (FUTEX_LOCK_PI, CLOCK_REALTIME),
            (LOCK_PI2, CLOCK_MONOTONIC),
            (LOCK_PI2 | REALTIME, CLOCK_REALTIME),
        ] {
            let end = time(clock, Duration::from_millis(15))?;
            let result = futex_with(&LOCK, operation, 0, &end, null(), 0);
            ensure!(result == -1 && errno() == ETIMEDOUT, operation, result);
            ended_in_time(clock, &end)?;
        }
        Ok(())
    });
    thread.join()??;
    let value = LOCK.load(SeqCst);
    equal!(value & FUTEX_TID_MASK, owner, value);
    ensure!(futex(&LOCK, FUTEX_UNLOCK_PI, 0, None) == 0, "unlock");
    // An id without a thread.
    LOCK.store(32_766, SeqCst);
    fails(FUTEX_LOCK_PI, ESRCH)?;
    // An ordinary wake-up where threads wait to own the word.
    LOCK.store(owner, SeqCst);
    let thread = thread::spawn(|| -> Outcome {
        pi_take(&LOCK)?;
        pi_give(&LOCK)
    });
    while LOCK.load(SeqCst) & FUTEX_WAITERS == 0 {
        pause_ms(1);
    }
    pause_ms(10);
    fails(FUTEX_WAKE, EINVAL)?;
    ensure!(futex(&LOCK, FUTEX_UNLOCK_PI, 0, None) == 0, "unlock");
    thread.join()?
}

fn pi_shared() -> Outcome {
    let words = shared_value([const { AtomicU32::new(0) }; 2])?;
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                for _ in 0..60 {
                    pi_take(&words[0])?;
                    let old = words[1].load(SeqCst);
                    thread::yield_now();
                    words[1].store(old + 1, SeqCst);
                    pi_give(&words[0])?;
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    wait_all(children)?;
    let count = words[1].load(SeqCst);
    ensure!(count == 180, "{count} turns");
    Ok(())
}

fn pi_requeue() -> Outcome {
    static CONDITION: AtomicU32 = AtomicU32::new(0);
    static LOCK: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(|| -> Outcome {
                let end = time(CLOCK_MONOTONIC, Duration::from_secs(20))?;
                let result = futex_with(&CONDITION, FUTEX_WAIT_REQUEUE_PI, 0, &end, &LOCK, 0);
                ensure!(result == 0, "a waiter: {result}, errno {}", errno());
                let owner = LOCK.load(SeqCst) & FUTEX_TID_MASK;
                ensure!(owner == call!(gettid()) as u32, "the lock is {owner}'s");
                pi_give(&LOCK)
            })
        })
        .collect();
    pause_ms(60);
    let requeue = |wakes: u32, expected: u32| {
        futex_with(
            &CONDITION,
            FUTEX_CMP_REQUEUE_PI,
            wakes,
            number(9),
            &LOCK,
            expected,
        )
    };
    ensure!(requeue(2, 0) == -1 && errno() == EINVAL);
    ensure!(requeue(1, 1) == -1 && errno() == EAGAIN);
    let plain = futex_with(&CONDITION, FUTEX_CMP_REQUEUE, 1, number(9), &LOCK, 0);
    ensure!(plain == -1 && errno() == EINVAL, plain);
    pi_take(&LOCK)?;
    let moved = requeue(1, 0);
    ensure!(moved == 3, "moved: {moved}, errno {}", errno());
    pi_give(&LOCK)?;
    for thread in threads {
        thread.join()??;
    }
    // A timeout that expires before the waiter is moved.
    let end = time(CLOCK_MONOTONIC, Duration::from_millis(10))?;
    let result = futex_with(&CONDITION, FUTEX_WAIT_REQUEUE_PI, 0, &end, &LOCK, 0);
    ensure!(result == -1 && errno() == ETIMEDOUT, result);
    ensure!(LOCK.load(SeqCst) == 0, "the lock is not free");
    Ok(())
}

/// Waiters of different priorities move in two turns: the best becomes the owner, and the others
/// follow by their priorities.
fn pi_requeue_best() -> Outcome {
    const WAITERS: usize = 8;
    static CONDITION: AtomicU32 = AtomicU32::new(0);
    static LOCK: AtomicU32 = AtomicU32::new(0);
    static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut threads = Vec::new();
    for number in 0..WAITERS {
        threads.push(thread::spawn(move || -> Outcome {
            // Neither ascending nor descending, and two of each priority.
            let sched_priority = 1 + (number * 3 % WAITERS / 2) as c_int;
            call!(sched_setscheduler(
                0,
                SCHED_FIFO,
                &sched_param { sched_priority }
            ));
            let end = time(CLOCK_MONOTONIC, Duration::from_secs(20))?;
            let result = futex_with(&CONDITION, FUTEX_WAIT_REQUEUE_PI, 0, &end, &LOCK, 0);
            ensure!(result == 0, "a waiter: {result}, errno {}", errno());
            ORDER.lock().map_err(|_| "poisoned")?.push(number);
            pi_give(&LOCK)
        }));
        pause_ms(20);
    }
    let order = || ORDER.lock().map_or(Vec::new(), |order| order.clone());
    let requeue = |moves| {
        let operation = FUTEX_CMP_REQUEUE_PI;
        futex_with(&CONDITION, operation, 1, number(moves), &LOCK, 0)
    };
    equal!(requeue(2), 3);
    for _ in 0..1000 {
        if order().len() == 3 {
            break;
        }
        pause_ms(5);
    }
    equal!(order(), [2, 5, 4]);
    pi_take(&LOCK)?;
    equal!(requeue(WAITERS), WAITERS as i64 - 3);
    pi_give(&LOCK)?;
    for thread in threads {
        thread.join()??;
    }
    equal!(order(), [2, 5, 4, 7, 1, 6, 0, 3]);
    equal!(LOCK.load(SeqCst), 0);
    Ok(())
}

/// A robust mutex of the C library in shared memory, inheriting or not.
fn robust_mutex(protocol: c_int) -> Result<*mut pthread_mutex_t> {
    let mutex = shared_map(4096)?.cast::<pthread_mutex_t>();
    // SAFETY: the attributes live until they are used; the mutex has a page.
    unsafe {
        let mut how: pthread_mutexattr_t = zeroed();
        libc::pthread_mutexattr_init(&mut how);
        libc::pthread_mutexattr_setrobust(&mut how, PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutexattr_setpshared(&mut how, PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setprotocol(&mut how, protocol);
        let result = libc::pthread_mutex_init(mutex, &how);
        ensure!(result == 0, "pthread_mutex_init: {result}");
    }
    Ok(mutex)
}

fn robust_with(protocol: c_int) -> Outcome {
    for waits in [false, true] {
        let mutex = robust_mutex(protocol)?;
        let held = shared_map(4096)?.cast::<AtomicI32>();
        // SAFETY: a shared page; the mutex was initialised.
        let (held, take) = unsafe { (&*held, || libc::pthread_mutex_lock(mutex)) };
        let holder = spawn(|| {
            ensure!(take() == 0, "the first lock");
            held.store(1, SeqCst);
            if waits {
                pause_ms(60);
            }
            // Exits without unlocking.
            exit(0)
        })?;
        while held.load(SeqCst) == 0 {
            pause_ms(1);
        }
        if !waits {
            wait(holder)?;
        }
        let result = take();
        ensure!(result == EOWNERDEAD, "waits {waits}: {result}");
        // SAFETY: this thread holds it.
        unsafe {
            ensure!(libc::pthread_mutex_consistent(mutex) == 0, "consistent");
            ensure!(libc::pthread_mutex_unlock(mutex) == 0, "unlock");
            ensure!(libc::pthread_mutex_lock(mutex) == 0, "lock again");
            ensure!(libc::pthread_mutex_unlock(mutex) == 0, "unlock again");
        }
        if waits {
            wait(holder)?;
        }
    }
    Ok(())
}

fn robust() -> Outcome {
    robust_with(PTHREAD_PRIO_NONE)
}

fn robust_pi() -> Outcome {
    robust_with(PTHREAD_PRIO_INHERIT)
}

/// A lock on no robust list: its waiter gets it with the mark of the dead owner.
fn pi_owner_dies() -> Outcome {
    let lock = shared_value(AtomicU32::new(0))?;
    let holder = spawn(|| {
        pi_take(lock)?;
        while lock.load(SeqCst) & FUTEX_WAITERS == 0 {
            pause_ms(1);
        }
        pause_ms(20);
        exit(0)
    })?;
    while lock.load(SeqCst) == 0 {
        pause_ms(1);
    }
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            spawn(|| {
                let result = futex(lock, FUTEX_LOCK_PI, 0, None);
                ensure!(result == 0, "a waiter: {result}, errno {}", errno());
                let value = lock.load(SeqCst);
                let own = call!(gettid()) as u32;
                equal!(value & FUTEX_TID_MASK, own, value);
                let died = value & FUTEX_OWNER_DIED != 0;
                let result = futex(lock, FUTEX_UNLOCK_PI, 0, None);
                ensure!(result == 0, "unlock: {result}");
                exit(if died { 1 } else { 0 })
            })
        })
        .collect::<Result<_, _>>()?;
    wait(holder)?;
    let mut died = 0;
    for waiter in waiters {
        match wait(waiter)? {
            End::Exit(0) => {}
            End::Exit(1) => died += 1,
            end => return Err(format!("a waiter ended with {end:?}").into()),
        }
    }
    ensure!(died == 1, "{died} heard of the death");
    Ok(())
}

fn robust_list_of() -> Outcome {
    let list = |tid: c_int| {
        let (mut head, mut len) = (0usize, 0usize);
        // SAFETY: both places live across the call.
        let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &mut head, &mut len) };
        (result, head, len)
    };
    let (result, head, len) = list(0);
    ensure!(result == 0 && head != 0 && len == 24, result, head, len);
    let stop = Arc::new(AtomicU32::new(0));
    let other = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        // SAFETY: a number.
        other.store(unsafe { libc::gettid() } as u32, SeqCst);
        while other.load(SeqCst) != 0 {
            pause_ms(1);
        }
    });
    while stop.load(SeqCst) == 0 {
        pause_ms(1);
    }
    let (result, theirs, _) = list(stop.load(SeqCst) as c_int);
    ensure!(result == 0 && theirs != head, result, theirs);
    stop.store(0, SeqCst);
    thread.join()?;
    let (result, ..) = list(32_765);
    ensure!(result == -1 && errno() == ESRCH, "nobody's: {result}");
    let root = call!(getpid());
    child(|| {
        call!(setuid(1000));
        let (result, ..) = list(root);
        ensure!(result == -1 && errno() == EPERM, result);
        Ok(())
    })
}

/// A private word is only a name; a shared one must be readable.
fn absent() -> Outcome {
    let memory = map(PAGE)?;
    unmap(memory, PAGE)?;
    let wake = |operation: c_int| {
        // SAFETY: a wake of a word that is not there.
        let woken = unsafe { libc::syscall(libc::SYS_futex, memory, operation, 1) };
        if woken == -1 { -errno() } else { woken as i32 }
    };
    equal!(wake(FUTEX_WAKE), -EFAULT);
    equal!(wake(FUTEX_WAKE | FUTEX_PRIVATE_FLAG), 0);
    Ok(())
}
