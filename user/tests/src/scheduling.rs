//! Scheduling policies, real-time levels, nice values: permissions and precedence.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("scheduling: policies and levels are kept", policies),
    ("scheduling: attributes", attributes),
    ("scheduling: refusals", refusals),
    ("scheduling: what a user may set", limits),
    ("scheduling: what children inherit", inherited),
    ("scheduling: higher levels run first", order),
    ("scheduling: a level's tasks in turns or in order", turns),
    ("scheduling: others are not starved", not_starved),
    ("scheduling: a lock's owner inherits a level", lock_owner),
    ("scheduling: I/O priorities", io_priority),
    ("scheduling: switches are counted", switches),
];

const USER: u32 = 1000;

/// `struct sched_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    deadline: [u64; 3],
    utilization: [u32; 2],
    beyond: u64,
}

fn set(policy: c_int, priority: c_int) -> i64 {
    let parameter = sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameter lives across the call. The raw call: not every C library makes it.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &parameter) }
}

fn get() -> Result<(i64, c_int)> {
    let policy = call!(syscall(libc::SYS_sched_getscheduler, 0));
    let mut priority: c_int = -1;
    call!(syscall(libc::SYS_sched_getparam, 0, &mut priority));
    Ok((policy, priority))
}

/// Sets policy and level of this thread, and binds it to the first CPU.
fn pin(policy: c_int, priority: c_int) -> Outcome {
    let mask = 1u64;
    call!(syscall(libc::SYS_sched_setaffinity, 0, 8, &mask));
    ensure!(set(policy, priority) == 0, "policy {policy}, {priority}");
    Ok(())
}

fn policies() -> Outcome {
    for (policy, priority) in [
        (SCHED_FIFO, 1),
        (SCHED_RR, 99),
        (SCHED_BATCH, 0),
        (SCHED_IDLE, 0),
        (SCHED_OTHER, 0),
    ] {
        ensure!(set(policy, priority) == 0, "policy {policy} is refused");
        let found = get()?;
        ensure!(found == (i64::from(policy), priority), "{found:?}");
        // SAFETY: zeros are a time.
        let mut interval: timespec = unsafe { zeroed() };
        call!(syscall(libc::SYS_sched_rr_get_interval, 0, &mut interval));
        let expected = match policy {
            SCHED_FIFO => Some(0),
            SCHED_RR => Some(100_000_000),
            _ => None,
        };
        ensure!(
            expected.is_none_or(|ns| interval.tv_nsec == ns) && interval.tv_sec == 0,
            "policy {policy}: interval {}",
            interval.tv_nsec
        );
        let stat = fs::read_to_string("/proc/self/stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
        let shown = [fields[16], fields[38], fields[39]];
        let own = if priority == 0 { 20 } else { -1 - priority };
        let expected = [own, priority, policy].map(|n| n.to_string());
        equal!(shown, expected);
    }
    set(SCHED_RR, 7);
    let other: c_int = 8;
    call!(syscall(libc::SYS_sched_setparam, 0, &other));
    let found = get()?;
    ensure!(found == (i64::from(SCHED_RR), 8), "{found:?}");
    Ok(())
}

fn attributes() -> Outcome {
    let mut seen = Attributes {
        beyond: 77,
        ..Attributes::default()
    };
    call!(setpriority(PRIO_PROCESS, 0, 3));
    call!(syscall(libc::SYS_sched_getattr, 0, &mut seen, 64, 0));
    let found = (
        seen.size,
        seen.policy,
        seen.nice,
        seen.priority,
        seen.beyond,
    );
    ensure!(found == (56, 0, 3, 0, 77), "{seen:?}");
    call!(syscall(libc::SYS_sched_getattr, 0, &mut seen, 48, 0));
    ensure!(seen.size == 48, "{seen:?}");

    let mut wanted = Attributes {
        size: 48,
        policy: SCHED_FIFO as u32,
        flags: 1,
        priority: 12,
        ..Attributes::default()
    };
    call!(syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    let found = get()?;
    let reset = i64::from(SCHED_FIFO | SCHED_RESET_ON_FORK);
    ensure!(found == (reset, 12), "{found:?}");
    call!(syscall(libc::SYS_sched_getattr, 0, &mut seen, 56, 0));
    equal!((seen.flags, seen.priority, seen.nice), (1, 12, 0), seen);

    // First the policy is kept, then its parameters.
    (wanted.flags, wanted.policy, wanted.priority) = (8, 0, 13);
    call!(syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    ensure!(get()? == (reset, 13), "{:?}", get()?);
    (wanted.flags, wanted.policy, wanted.priority) = (16, SCHED_RR as u32, 0);
    call!(syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    let found = get()?;
    ensure!(found == (i64::from(SCHED_RR), 13), "{found:?}");
    // The nice value was kept, and is set with a policy that uses one.
    (wanted.flags, wanted.policy, wanted.nice) = (0, 0, -5);
    call!(syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    call!(syscall(libc::SYS_sched_getattr, 0, &mut seen, 56, 0));
    ensure!(seen.nice == -5, "{seen:?}");

    wanted.flags = 1 << 40;
    refused!(EINVAL, syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    wanted.flags = 0;
    refused! {
        syscall(libc::SYS_sched_setattr, 0, &wanted, 1) => EINVAL;
        syscall(libc::SYS_sched_getattr, 0, &mut seen, 47, 0) => EINVAL;
        syscall(libc::SYS_sched_getattr, 0, &mut seen, 8192, 0) => EINVAL;
    }
    (wanted.size, wanted.beyond) = (64, 1);
    refused!(E2BIG, syscall(libc::SYS_sched_setattr, 0, &mut wanted, 0));
    ensure!(wanted.size == 56, "the known size is {}", wanted.size);
    (wanted.size, wanted.beyond) = (64, 0);
    call!(syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    wanted.size = 40;
    refused!(E2BIG, syscall(libc::SYS_sched_setattr, 0, &wanted, 0));
    Ok(())
}

fn refusals() -> Outcome {
    use libc::{SYS_sched_getscheduler, SYS_sched_setparam, SYS_sched_setscheduler};
    let number = |n: c_int| n;
    for (policy, priority) in [
        (SCHED_FIFO, 0),
        (SCHED_FIFO, 100),
        (SCHED_RR, -1),
        (SCHED_OTHER, 1),
        (SCHED_IDLE, 1),
        (6, 0),
        (77, 0),
        (-1, 0),
    ] {
        refused! { syscall(SYS_sched_setscheduler, 0, policy, &number(priority)) => EINVAL; }
    }
    refused! {
        syscall(SYS_sched_setscheduler, 4_000_000, 0, &number(0)) => ESRCH;
        syscall(SYS_sched_getscheduler, 4_000_000) => ESRCH;
        syscall(SYS_sched_getscheduler, -1) => EINVAL;
        syscall(SYS_sched_setparam, 0, null::<c_int>()) => EINVAL;
        syscall(SYS_sched_setparam, 0, 8) => EFAULT;
        sched_get_priority_max(42) => EINVAL;
        getpriority(3, 0) => EINVAL;
        getpriority(PRIO_PROCESS, 4_000_000) => ESRCH;
    }
    Ok(())
}

fn become_user() -> Outcome {
    call!(setgid(USER));
    call!(setuid(USER));
    Ok(())
}

fn limits() -> Outcome {
    use libc::{SYS_sched_setparam, SYS_sched_setscheduler};
    let number = |n: c_int| n;
    child(|| {
        become_user()?;
        refused! {
            syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &number(1)) => EPERM;
            syscall(SYS_sched_setscheduler, 1, SCHED_OTHER, &number(0)) => EPERM;
            setpriority(PRIO_PROCESS, 1, 5) => EPERM;
        }
        ensure!(set(SCHED_BATCH, 0) == 0, "a user may be a batch");
        call!(setpriority(PRIO_PROCESS, 0, 5));
        refused!(EACCES, setpriority(PRIO_PROCESS, 0, 4));
        ensure!(set(SCHED_IDLE, 0) == 0, "a user may idle");
        // Going back would improve the nice value.
        refused! { syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &number(0)) => EPERM; }
        Ok(())
    })?;
    child(|| {
        call!(setrlimit(RLIMIT_RTPRIO, &limit_of(20)));
        call!(setrlimit(RLIMIT_NICE, &limit_of(22)));
        become_user()?;
        ensure!(set(SCHED_FIFO, 20) == 0, "the limit lets 20");
        let reset = SCHED_FIFO | SCHED_RESET_ON_FORK;
        refused!(EPERM, syscall(SYS_sched_setparam, 0, &number(21)));
        ensure!(set(reset, 19) == 0, "less is no problem");
        refused! { syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &number(1)) => EPERM; }
        call!(setrlimit(RLIMIT_RTPRIO, &limit_of(0)));
        ensure!(set(reset, 18) == 0, "still less without a limit");
        refused!(
            EPERM,
            syscall(
                SYS_sched_setscheduler,
                0,
                SCHED_RR | 0x4000_0000,
                &number(18)
            )
        );
        call!(setpriority(PRIO_PROCESS, 0, -2));
        refused!(EACCES, setpriority(PRIO_PROCESS, 0, -3));
        Ok(())
    })
}

fn inherited() -> Outcome {
    call!(setpriority(PRIO_PROCESS, 0, -4));
    ensure!(set(SCHED_RR, 33) == 0, "no level");
    child(|| {
        ensure!(get()? == (2, 33), "{:?}", get()?);
        Ok(())
    })?;
    let in_thread = thread::spawn(get).join()??;
    ensure!(in_thread == (2, 33), "{in_thread:?}");
    set(SCHED_RR | SCHED_RESET_ON_FORK, 33);
    child(|| {
        ensure!(get()? == (0, 0), "{:?}", get()?);
        let nice = call!(getpriority(PRIO_PROCESS, 0));
        ensure!(nice == 0, "nice {nice}");
        Ok(())
    })?;
    set(SCHED_OTHER | SCHED_RESET_ON_FORK, 0);
    child(|| {
        let nice = call!(getpriority(PRIO_PROCESS, 0));
        ensure!(nice == 0, "nice {nice}");
        Ok(())
    })
}

/// Memory shared by the processes of a test.
struct Common {
    gate: AtomicU32,
    ready: AtomicU32,
    next: AtomicU32,
    order: [AtomicI32; 8],
    ran: [AtomicU64; 4],
}

fn common() -> Result<&'static Common> {
    let page = shared_map(4096)?;
    // SAFETY: zeros are valid, and the mapping is never removed.
    Ok(unsafe { &*page.cast::<Common>() })
}

fn order() -> Outcome {
    let common = common()?;
    pin(SCHED_FIFO, 90)?;
    let levels = [0, 10, 40, 20];
    let mut children = Vec::new();
    for level in levels {
        children.push(spawn(|| {
            let policy = if level == 0 { SCHED_OTHER } else { SCHED_FIFO };
            pin(policy, level)?;
            common.ready.fetch_add(1, SeqCst);
            while common.gate.load(SeqCst) == 0 {
                futex_wait(&common.gate, 0);
            }
            let place = common.next.fetch_add(1, SeqCst);
            common.order[place as usize].store(level, SeqCst);
            Ok(())
        })?);
    }
    while common.ready.load(SeqCst) < 4 {
        pause_ms(1);
    }
    pause_ms(20);
    common.gate.store(1, SeqCst);
    futex_wake(&common.gate);
    for child in children {
        wait(child)?;
    }
    let order: Vec<i32> = common.order[..4].iter().map(|o| o.load(SeqCst)).collect();
    ensure!(order == [40, 20, 10, 0], "they ran in the order {order:?}");
    Ok(())
}

/// Runs children with these policies and levels on one CPU; returns how far each counted.
fn race(runners: &[(c_int, c_int)], time: Duration) -> Result<Vec<u64>> {
    let common = common()?;
    pin(SCHED_FIFO, 90)?;
    let mut children = Vec::new();
    for (at, (policy, level)) in runners.iter().copied().enumerate() {
        children.push(spawn(|| {
            pin(policy, level)?;
            while common.gate.load(SeqCst) == 0 {
                common.ran[at].fetch_add(1, SeqCst);
            }
            Ok(())
        })?);
    }
    thread::sleep(time);
    common.gate.store(1, SeqCst);
    for child in children {
        wait(child)?;
    }
    let ran = common.ran.iter().map(|ran| ran.load(SeqCst));
    Ok(ran.take(runners.len()).collect())
}

fn turns() -> Outcome {
    let ran = race(
        &[(SCHED_RR, 5), (SCHED_RR, 5), (SCHED_RR, 4)],
        Duration::from_millis(350),
    )?;
    let fair = ran[0] > 0 && ran[1] > 0 && ran[0] / 5 < ran[1] && ran[1] / 5 < ran[0];
    ensure!(fair && ran[2] < 1000, "in turns: {ran:?}");
    let mut ran = race(
        &[(SCHED_FIFO, 5), (SCHED_FIFO, 5)],
        Duration::from_millis(250),
    )?;
    ran.sort();
    ensure!(ran[0] < ran[1] / 100, "in order: {ran:?}");
    Ok(())
}

fn not_starved() -> Outcome {
    let common = common()?;
    pin(SCHED_FIFO, 99)?;
    // The hog uses up its share from its first moment on.
    let begin = Instant::now();
    let hog = spawn(|| {
        set(SCHED_FIFO, 98);
        loop {
            std::hint::spin_loop();
        }
    })?;
    let ordinary = spawn(|| {
        pin(SCHED_OTHER, 0)?;
        common.gate.store(1, SeqCst);
        Ok(())
    })?;
    wait(ordinary)?;
    let time = begin.elapsed();
    kill_child(hog)?;
    ensure!(common.gate.load(SeqCst) == 1, "it did not run");
    ensure!(time < Duration::from_secs(3), "it took {time:?}");
    ensure!(time > Duration::from_millis(300), time);
    Ok(())
}

fn pi(word: &AtomicU32, operation: c_int) -> Outcome {
    call!(syscall(libc::SYS_futex, word, operation, 0, 0));
    Ok(())
}

fn lock_owner() -> Outcome {
    let common = common()?;
    let lock = &common.next;
    pin(SCHED_FIFO, 90)?;
    let owner = spawn(|| {
        pi(lock, FUTEX_LOCK_PI)?;
        pin(SCHED_OTHER, 0)?;
        common.ready.store(1, SeqCst);
        while common.gate.load(SeqCst) < 2 {
            std::hint::spin_loop();
        }
        pi(lock, FUTEX_UNLOCK_PI)
    })?;
    while common.ready.load(SeqCst) == 0 {
        pause_ms(1);
    }
    let middle = spawn(|| {
        pin(SCHED_FIFO, 10)?;
        common.gate.store(1, SeqCst);
        while common.ready.load(SeqCst) < 2 {
            std::hint::spin_loop();
        }
        Ok(())
    })?;
    while common.gate.load(SeqCst) == 0 {
        pause_ms(1);
    }
    let begin = Instant::now();
    let high = spawn(|| {
        pin(SCHED_FIFO, 20)?;
        common.gate.store(2, SeqCst);
        pi(lock, FUTEX_LOCK_PI)?;
        common.ready.store(2, SeqCst);
        pi(lock, FUTEX_UNLOCK_PI)
    })?;
    for child in [high, owner, middle] {
        wait_ok(child)?;
    }
    // Without inheritance the owner runs only when the middle thread is throttled.
    let time = begin.elapsed();
    ensure!(common.ready.load(SeqCst) == 2, "the lock was not had");
    ensure!(time < Duration::from_millis(300), "it took {time:?}");
    Ok(())
}

fn io_priority() -> Outcome {
    use libc::{SYS_ioprio_get, SYS_ioprio_set};
    const PROCESS: c_int = 1;
    const GROUP: c_int = 2;
    let own = call!(syscall(SYS_ioprio_get, PROCESS, 0));
    ensure!(own == 0, "at first {own:#x}");
    let effective = call!(syscall(SYS_ioprio_get, GROUP, 0));
    ensure!(effective == 2 << 13 | 4, "in effect {effective:#x}");
    call!(syscall(SYS_ioprio_set, PROCESS, 0, 2 << 13 | 6));
    child(|| {
        let own = call!(syscall(SYS_ioprio_get, PROCESS, 0));
        ensure!(own == 2 << 13 | 6, "a child has {own:#x}");
        call!(syscall(SYS_ioprio_set, PROCESS, 0, 1 << 13 | 2));
        refused!(EINVAL, syscall(SYS_ioprio_set, PROCESS, 0, 1 << 13 | 8));
        refused!(EINVAL, syscall(SYS_ioprio_set, PROCESS, 0, 5 << 13));
        refused!(EINVAL, syscall(SYS_ioprio_set, PROCESS, 0, 3));
        refused!(EINVAL, syscall(SYS_ioprio_set, 4, 0, 0));
        refused!(EINVAL, syscall(SYS_ioprio_get, 0, 0));
        refused!(ESRCH, syscall(SYS_ioprio_get, PROCESS, 4_000_000));
        become_user()?;
        refused!(EPERM, syscall(SYS_ioprio_set, PROCESS, 0, 1 << 13 | 2));
        refused!(EPERM, syscall(SYS_ioprio_set, PROCESS, 1, 3 << 13));
        call!(syscall(SYS_ioprio_set, PROCESS, 0, 3 << 13));
        Ok(())
    })
}

fn switches() -> Outcome {
    fn counts() -> Result<(i64, i64)> {
        // SAFETY: all zeros is a valid usage.
        let mut usage: rusage = unsafe { zeroed() };
        call!(getrusage(RUSAGE_SELF, &mut usage));
        Ok((usage.ru_nvcsw, usage.ru_nivcsw))
    }
    child(|| {
        let mask = 1u64;
        call!(syscall(libc::SYS_sched_setaffinity, 0, 8, &mask));
        let before = counts()?;
        // The timeout may expire before the sleep begins: that is no voluntary switch.
        let begin = Instant::now();
        let mut after = before;
        while after.0 < before.0 + 20 {
            pause_ms(1);
            after = counts()?;
            let in_time = begin.elapsed() < Duration::from_secs(5);
            ensure!(in_time, "waits: {before:?} {after:?}");
        }
        let other = spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        })?;
        let begin = Instant::now();
        while counts()?.1 < after.1 + 2 {
            ensure!(begin.elapsed() < Duration::from_secs(5), "never displaced");
        }
        kill_child(other)?;
        let status = fs::read_to_string("/proc/self/status")?;
        for (name, least) in [
            ("voluntary_ctxt_switches:\t", after.0),
            ("nonvoluntary_ctxt_switches:\t", after.1 + 2),
        ] {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let shown = line.and_then(|n| n.parse::<i64>().ok()).unwrap_or(-1);
            ensure!(shown >= least, "{name}{shown}");
        }
        Ok(())
    })
}
