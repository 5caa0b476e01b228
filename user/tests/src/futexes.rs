//! Futexes: times, bits, several at once, priority inheritance, locks of the dead.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use libc::c_int;

use crate::support::{End, Outcome, child, errno, exit, pause_ms, shared_map, spawn, wait};
use crate::{Test, call, ensure};

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
];

const REALTIME: i32 = libc::FUTEX_CLOCK_REALTIME;
const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;
const LOCK_PI2: i32 = 13;

fn now(clock: c_int) -> Result<Duration, String> {
    // SAFETY: all zeros is a valid time.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    call!(clock_gettime(clock, &mut now));
    Ok(span(&now))
}

fn span(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn time(clock: c_int, ahead: Duration) -> Result<libc::timespec, String> {
    let then = now(clock)? + ahead;
    Ok(libc::timespec {
        tv_sec: then.as_secs() as i64,
        tv_nsec: i64::from(then.subsec_nanos()),
    })
}

/// Whether a wait until `end` was none that ended before: by the clock that it was for, as a busy host may let any time pass between a look at that
/// clock and the call.
fn ended_in_time(clock: c_int, end: &libc::timespec) -> Outcome {
    let (now, end) = (now(clock)?, span(end));
    let (early, late) = (end.saturating_sub(now), now.saturating_sub(end));
    ensure!(early.is_zero(), "clock {clock}: {early:?} early");
    ensure!(
        late < Duration::from_secs(5),
        "clock {clock}: {late:?} late"
    );
    Ok(())
}

/// `futex` with all six arguments.
fn futex(
    word: *const AtomicU32,
    operation: i32,
    value: u32,
    fourth: *const libc::timespec,
    second: *const AtomicU32,
    third: u32,
) -> i64 {
    // SAFETY: the words and the time live across the call, or the kernel refuses them.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            operation,
            value,
            fourth,
            second,
            third,
        )
    }
}

fn simple(word: &AtomicU32, operation: i32, value: u32) -> i64 {
    futex(word, operation, value, ptr::null(), ptr::null(), u32::MAX)
}

/// A count in the place of a time.
fn number(n: usize) -> *const libc::timespec {
    n as *const libc::timespec
}

fn joined<T>(handle: std::thread::JoinHandle<T>) -> Result<T, String> {
    handle.join().map_err(|_| "a thread panicked".to_string())
}

fn absolute_times() -> Outcome {
    let word = AtomicU32::new(1);
    for (clock, flag) in [(libc::CLOCK_MONOTONIC, 0), (libc::CLOCK_REALTIME, REALTIME)] {
        let end = time(clock, Duration::from_millis(25))?;
        let result = futex(
            &word,
            libc::FUTEX_WAIT_BITSET | flag,
            1,
            &end,
            ptr::null(),
            u32::MAX,
        );
        ensure!(
            result == -1 && errno() == libc::ETIMEDOUT,
            "clock {clock}: {result}"
        );
        ended_in_time(clock, &end)?;
        let past = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        };
        let result = futex(
            &word,
            libc::FUTEX_WAIT_BITSET | flag,
            1,
            &past,
            ptr::null(),
            1,
        );
        ensure!(
            result == -1 && errno() == libc::ETIMEDOUT,
            "the past: {result}"
        );
    }
    let bad = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000_000,
    };
    let result = futex(&word, libc::FUTEX_WAIT, 1, &bad, ptr::null(), 0);
    ensure!(
        result == -1 && errno() == libc::EINVAL,
        "a bad time: {result}"
    );
    let result = simple(&word, libc::FUTEX_WAKE | REALTIME, 1);
    ensure!(
        result == -1 && errno() == libc::ENOSYS,
        "a clock for a wake-up: {result}"
    );
    let result = simple(&word, 77, 1);
    ensure!(
        result == -1 && errno() == libc::ENOSYS,
        "no such operation: {result}"
    );
    Ok(())
}

fn bits() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static WOKEN: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..4)
        .map(|bit| {
            std::thread::spawn(move || {
                let result = futex(
                    &WORD,
                    libc::FUTEX_WAIT_BITSET | PRIVATE,
                    0,
                    ptr::null(),
                    ptr::null(),
                    1 << bit,
                );
                WOKEN.fetch_or(1 << bit, Ordering::SeqCst);
                result
            })
        })
        .collect();
    pause_ms(60);
    let wake = |bits: u32| {
        futex(
            &WORD,
            libc::FUTEX_WAKE_BITSET | PRIVATE,
            9,
            ptr::null(),
            ptr::null(),
            bits,
        )
    };
    ensure!(wake(0) == -1 && errno() == libc::EINVAL, "no bits");
    ensure!(wake(1 << 9) == 0, "nobody's bit woke somebody");
    ensure!(wake(0b1010) == 2, "two of four");
    pause_ms(20);
    let woken = WOKEN.load(Ordering::SeqCst);
    ensure!(woken == 0b1010, "woken: {woken:#b}");
    ensure!(wake(u32::MAX) == 2, "the others");
    for thread in threads {
        ensure!(joined(thread)? == 0, "a waiter failed");
    }
    Ok(())
}

fn wake_op() -> Outcome {
    let (one, two) = (AtomicU32::new(0), AtomicU32::new(5));
    let operation = |op: u32, compare: u32, argument: u32, to: u32| {
        op << 28 | compare << 24 | argument << 12 | to
    };
    let call = |operation: u32| futex(&one, libc::FUTEX_WAKE_OP, 1, number(1), &two, operation);
    // Add 3 if it is 5 now, then the other kinds; the value after each.
    for (op, argument, after) in [(1, 3, 8), (0, 6, 6), (2, 9, 15), (3, 6, 9), (4, 12, 5)] {
        ensure!(call(operation(op, 0, argument, 5)) == 0, "nobody waits");
        let value = two.load(Ordering::SeqCst);
        ensure!(value == after, "operation {op}: {value}");
    }
    let unknown = call(operation(7, 0, 0, 0));
    ensure!(
        unknown == -1 && errno() == libc::ENOSYS,
        "an unknown operation: {unknown}"
    );
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

fn waitv(words: &[Waited], flags: u32, end: Option<&libc::timespec>, clock: c_int) -> i64 {
    let end = end.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the array and the time live across the call.
    unsafe { libc::syscall(449, words.as_ptr(), words.len(), flags, end, clock) }
}

fn several() -> Outcome {
    static WORDS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
    let waited: Vec<Waited> = WORDS.iter().map(|word| Waited::new(word, 0)).collect();
    for chosen in [3, 0, 4] {
        let waited = waited.clone();
        let thread = std::thread::spawn(move || waitv(&waited, 0, None, 0));
        while simple(&WORDS[chosen], libc::FUTEX_WAKE | PRIVATE, 1) == 0 {
            pause_ms(1);
        }
        let place = joined(thread)?;
        ensure!(place == chosen as i64, "word {place} in place of {chosen}");
    }
    // No entry stayed behind.
    for word in &WORDS {
        ensure!(
            simple(word, libc::FUTEX_WAKE | PRIVATE, 9) == 0,
            "somebody waits still"
        );
    }
    let end = time(libc::CLOCK_REALTIME, Duration::from_millis(20))?;
    let result = waitv(&waited, 0, Some(&end), libc::CLOCK_REALTIME);
    ensure!(
        result == -1 && errno() == libc::ETIMEDOUT,
        "a time: {result}"
    );
    ended_in_time(libc::CLOCK_REALTIME, &end)
}

fn several_refused() -> Outcome {
    let word = AtomicU32::new(1);
    let good = Waited::new(&word, 1);
    let fails = |words: &[Waited], flags: u32, error: c_int, what: &str| -> Outcome {
        let result = waitv(words, flags, None, 0);
        ensure!(
            result == -1 && errno() == error,
            "{what}: {result}, errno {}",
            errno()
        );
        Ok(())
    };
    fails(
        &[good, Waited::new(&word, 2)],
        0,
        libc::EAGAIN,
        "another value",
    )?;
    fails(&[], 0, libc::EINVAL, "no words")?;
    fails(&[good; 129], 0, libc::EINVAL, "too many")?;
    fails(&[good], 1, libc::EINVAL, "flags")?;
    fails(&[Waited { flags: 0, ..good }], 0, libc::EINVAL, "no size")?;
    fails(
        &[Waited {
            flags: 2 | 64,
            ..good
        }],
        0,
        libc::EINVAL,
        "unknown flags",
    )?;
    fails(
        &[Waited {
            reserved: 1,
            ..good
        }],
        0,
        libc::EINVAL,
        "the reserved word",
    )?;
    fails(
        &[Waited {
            address: 4096,
            ..good
        }],
        0,
        libc::EFAULT,
        "a bad address",
    )?;
    fails(
        &[Waited {
            address: good.address + 1,
            ..good
        }],
        0,
        libc::EINVAL,
        "an odd address",
    )?;
    let end = time(libc::CLOCK_MONOTONIC, Duration::from_millis(5))?;
    let result = waitv(&[good], 0, Some(&end), 7);
    ensure!(
        result == -1 && errno() == libc::EINVAL,
        "another clock: {result}"
    );
    Ok(())
}

/// A lock as the C library makes it of an inheriting word.
fn pi_take(word: &AtomicU32) -> Outcome {
    let own = call!(gettid()) as u32;
    if word
        .compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        let result = simple(word, libc::FUTEX_LOCK_PI, 0);
        ensure!(result == 0, "lock: {result}, errno {}", errno());
        let owner = word.load(Ordering::SeqCst) & libc::FUTEX_TID_MASK;
        ensure!(owner == own, "locked, but the owner is {owner}");
    }
    Ok(())
}

fn pi_give(word: &AtomicU32) -> Outcome {
    let own = call!(gettid()) as u32;
    if word
        .compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        let result = simple(word, libc::FUTEX_UNLOCK_PI, 0);
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
            std::thread::spawn(move || -> Outcome {
                call!(setpriority(libc::PRIO_PROCESS, 0, number));
                for turn in 0..150 {
                    pi_take(&LOCK)?;
                    let others = INSIDE.fetch_add(1, Ordering::SeqCst);
                    if turn % 16 == 0 {
                        std::thread::yield_now();
                    }
                    TURNS.store(TURNS.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
                    INSIDE.fetch_sub(1, Ordering::SeqCst);
                    pi_give(&LOCK)?;
                    ensure!(others == 0, "{others} others inside");
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        joined(thread)??;
    }
    ensure!(TURNS.load(Ordering::SeqCst) == 900, "turns were lost");
    ensure!(LOCK.load(Ordering::SeqCst) == 0, "the lock is not free");
    Ok(())
}

fn pi_refusals() -> Outcome {
    static LOCK: AtomicU32 = AtomicU32::new(0);
    let fails = |operation: i32, error: c_int| -> Outcome {
        let result = simple(&LOCK, operation, 0);
        ensure!(
            result == -1 && errno() == error,
            "{operation}: {result}, errno {}",
            errno()
        );
        Ok(())
    };
    fails(libc::FUTEX_UNLOCK_PI, libc::EPERM)?;
    ensure!(simple(&LOCK, libc::FUTEX_TRYLOCK_PI, 0) == 0, "a free lock");
    fails(libc::FUTEX_TRYLOCK_PI, libc::EDEADLK)?;
    fails(libc::FUTEX_LOCK_PI, libc::EDEADLK)?;
    let owner = call!(gettid()) as u32;
    let thread = std::thread::spawn(move || -> Outcome {
        fails(libc::FUTEX_TRYLOCK_PI, libc::EAGAIN)?;
        fails(libc::FUTEX_UNLOCK_PI, libc::EPERM)?;
        for (operation, clock) in [
            (libc::FUTEX_LOCK_PI, libc::CLOCK_REALTIME),
            (LOCK_PI2, libc::CLOCK_MONOTONIC),
            (LOCK_PI2 | REALTIME, libc::CLOCK_REALTIME),
        ] {
            let end = time(clock, Duration::from_millis(15))?;
            let result = futex(&LOCK, operation, 0, &end, ptr::null(), 0);
            ensure!(
                result == -1 && errno() == libc::ETIMEDOUT,
                "{operation}: {result}"
            );
            ended_in_time(clock, &end)?;
        }
        Ok(())
    });
    joined(thread)??;
    let value = LOCK.load(Ordering::SeqCst);
    ensure!(
        value & libc::FUTEX_TID_MASK == owner,
        "the lock is {value:#x}"
    );
    ensure!(simple(&LOCK, libc::FUTEX_UNLOCK_PI, 0) == 0, "unlock");
    // The id of nobody.
    LOCK.store(32_766, Ordering::SeqCst);
    fails(libc::FUTEX_LOCK_PI, libc::ESRCH)?;
    // An ordinary wake-up where threads wait to own the word.
    LOCK.store(owner, Ordering::SeqCst);
    let thread = std::thread::spawn(|| -> Outcome {
        pi_take(&LOCK)?;
        pi_give(&LOCK)
    });
    while LOCK.load(Ordering::SeqCst) & libc::FUTEX_WAITERS == 0 {
        pause_ms(1);
    }
    pause_ms(10);
    fails(libc::FUTEX_WAKE, libc::EINVAL)?;
    ensure!(simple(&LOCK, libc::FUTEX_UNLOCK_PI, 0) == 0, "unlock");
    joined(thread)?
}

fn pi_shared() -> Outcome {
    let page = shared_map(4096)?.cast::<AtomicU32>();
    // SAFETY: the map is as large, and zero is a valid value.
    let words = unsafe { std::slice::from_raw_parts(page, 2) };
    let children: Vec<_> = (0..3)
        .map(|_| {
            spawn(|| {
                for _ in 0..60 {
                    pi_take(&words[0])?;
                    let old = words[1].load(Ordering::SeqCst);
                    std::thread::yield_now();
                    words[1].store(old + 1, Ordering::SeqCst);
                    pi_give(&words[0])?;
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    for child in children {
        ensure!(wait(child)? == End::Exit(0), "a child failed");
    }
    let count = words[1].load(Ordering::SeqCst);
    ensure!(count == 180, "{count} turns");
    Ok(())
}

fn pi_requeue() -> Outcome {
    static CONDITION: AtomicU32 = AtomicU32::new(0);
    static LOCK: AtomicU32 = AtomicU32::new(0);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| -> Outcome {
                let end = time(libc::CLOCK_MONOTONIC, Duration::from_secs(20))?;
                let result = futex(&CONDITION, libc::FUTEX_WAIT_REQUEUE_PI, 0, &end, &LOCK, 0);
                ensure!(result == 0, "a waiter: {result}, errno {}", errno());
                let owner = LOCK.load(Ordering::SeqCst) & libc::FUTEX_TID_MASK;
                ensure!(owner == call!(gettid()) as u32, "the lock is {owner}'s");
                pi_give(&LOCK)
            })
        })
        .collect();
    pause_ms(60);
    let requeue = |wakes: u32, expected: u32| {
        futex(
            &CONDITION,
            libc::FUTEX_CMP_REQUEUE_PI,
            wakes,
            number(9),
            &LOCK,
            expected,
        )
    };
    ensure!(
        requeue(2, 0) == -1 && errno() == libc::EINVAL,
        "two at once"
    );
    ensure!(
        requeue(1, 1) == -1 && errno() == libc::EAGAIN,
        "another value"
    );
    let plain = futex(&CONDITION, libc::FUTEX_CMP_REQUEUE, 1, number(9), &LOCK, 0);
    ensure!(
        plain == -1 && errno() == libc::EINVAL,
        "an ordinary move: {plain}"
    );
    pi_take(&LOCK)?;
    let moved = requeue(1, 0);
    ensure!(moved == 3, "moved: {moved}, errno {}", errno());
    pi_give(&LOCK)?;
    for thread in threads {
        joined(thread)??;
    }
    // A time that passes before anybody moves it.
    let end = time(libc::CLOCK_MONOTONIC, Duration::from_millis(10))?;
    let result = futex(&CONDITION, libc::FUTEX_WAIT_REQUEUE_PI, 0, &end, &LOCK, 0);
    ensure!(
        result == -1 && errno() == libc::ETIMEDOUT,
        "no time: {result}"
    );
    ensure!(LOCK.load(Ordering::SeqCst) == 0, "the lock is not free");
    Ok(())
}

/// A robust mutex of the C library in shared memory, inheriting or not.
fn robust_mutex(protocol: c_int) -> Result<*mut libc::pthread_mutex_t, String> {
    let mutex = shared_map(4096)?.cast::<libc::pthread_mutex_t>();
    // SAFETY: the attributes live until they are used; the mutex has a page.
    unsafe {
        let mut how: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut how);
        libc::pthread_mutexattr_setrobust(&mut how, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutexattr_setpshared(&mut how, libc::PTHREAD_PROCESS_SHARED);
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
            held.store(1, Ordering::SeqCst);
            if waits {
                pause_ms(60);
            }
            // Without giving it up.
            exit(0)
        })?;
        while held.load(Ordering::SeqCst) == 0 {
            pause_ms(1);
        }
        if !waits {
            wait(holder)?;
        }
        let result = take();
        ensure!(result == libc::EOWNERDEAD, "waits {waits}: {result}");
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
    robust_with(libc::PTHREAD_PRIO_NONE)
}

fn robust_pi() -> Outcome {
    robust_with(libc::PTHREAD_PRIO_INHERIT)
}

/// A lock that is in no robust list: who waits gets it with the mark of the dead owner.
fn pi_owner_dies() -> Outcome {
    let page = shared_map(4096)?.cast::<AtomicU32>();
    // SAFETY: a page of its own.
    let lock = unsafe { &*page };
    let holder = spawn(|| {
        pi_take(lock)?;
        while lock.load(Ordering::SeqCst) & libc::FUTEX_WAITERS == 0 {
            pause_ms(1);
        }
        pause_ms(20);
        exit(0)
    })?;
    while lock.load(Ordering::SeqCst) == 0 {
        pause_ms(1);
    }
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            spawn(|| {
                let result = simple(lock, libc::FUTEX_LOCK_PI, 0);
                ensure!(result == 0, "a waiter: {result}, errno {}", errno());
                let value = lock.load(Ordering::SeqCst);
                let own = call!(gettid()) as u32;
                ensure!(
                    value & libc::FUTEX_TID_MASK == own,
                    "the word is {value:#x}"
                );
                let died = value & libc::FUTEX_OWNER_DIED != 0;
                let result = simple(lock, libc::FUTEX_UNLOCK_PI, 0);
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
            end => return Err(format!("a waiter ended with {end:?}")),
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
    ensure!(
        result == 0 && head != 0 && len == 24,
        "one's own: {result} {head:#x} {len}"
    );
    let stop = Arc::new(AtomicU32::new(0));
    let other = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        // SAFETY: a number.
        other.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
        while other.load(Ordering::SeqCst) != 0 {
            pause_ms(1);
        }
    });
    while stop.load(Ordering::SeqCst) == 0 {
        pause_ms(1);
    }
    let (result, theirs, _) = list(stop.load(Ordering::SeqCst) as c_int);
    ensure!(
        result == 0 && theirs != head,
        "a sibling's: {result} {theirs:#x}"
    );
    stop.store(0, Ordering::SeqCst);
    joined(thread)?;
    let (result, ..) = list(32_765);
    ensure!(result == -1 && errno() == libc::ESRCH, "nobody's: {result}");
    let root = call!(getpid());
    child(|| {
        call!(setuid(1000));
        let (result, ..) = list(root);
        ensure!(
            result == -1 && errno() == libc::EPERM,
            "root's as a user: {result}"
        );
        Ok(())
    })
}
