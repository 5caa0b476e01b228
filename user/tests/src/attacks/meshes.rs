//! Work without end behind one event: epolls that watch epolls, timers at one instant, crowds of
//! waiters and observers. Each program builds more of it than any sane one, and every CPU goes on
//! to answer.

use crate::{beside, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: five levels of epolls above a timer", levels),
    (
        "attacks: five levels of epolls above a pipe",
        levels_of_pipe,
    ),
    ("attacks: meshes of epolls built by many", builders),
    ("attacks: cycles of epolls built by many", cycles),
    (
        "attacks: a crowd that waits to nest epolls",
        waiting_builders,
    ),
    ("attacks: thousands of watches of one timer", watched_timer),
    (
        "attacks: thousands of watches of one counter",
        watched_counter,
    ),
    ("attacks: thousands of timers at one instant", one_instant),
    ("attacks: thousands of sleepers until one instant", sleepers),
    ("attacks: a thousand readers of one counter", readers),
    ("attacks: a thousand waiters for one word", futex_waiters),
    (
        "attacks: a chain of owners, each of which waits for the next",
        owners,
    ),
    (
        "attacks: a thousand waiters for a word each beside two others",
        waiters_for_many,
    ),
    (
        "attacks: a thousand waiters for one word beside two others",
        waiters_for_one,
    ),
    ("attacks: signals for files of a crowd", asynchronous),
    ("attacks: one folder watched by all", watched_folder),
    ("attacks: thousands of files polled by many", polled),
    (
        "attacks: files closed while they are watched",
        closed_while_watched,
    ),
    (
        "attacks: a child continues a parent whose timer stops it",
        continued,
    ),
    ("attacks: parents of many that end", many_children),
    (
        "attacks: a watched process ends, and ends again",
        watched_children,
    ),
];

/// Each of many processes has an epoll with very many watches looked through, one after the other:
/// those that wait for it end when they are killed.
fn waiting_builders() -> Outcome {
    const CROWD: u64 = 64;
    beside(|| {
        many_files()?;
        let inner = make()?;
        let add = || {
            let outer = make()?;
            let start = Instant::now();
            // Mostly refused: too many paths begin at each file.
            try_add(outer, inner, EPOLLIN);
            call!(close(outer));
            Ok::<_, Failure>(start.elapsed())
        };
        // The watches last as long as the files, which have one descriptor that stays.
        for _ in 0..40 {
            let file = call!(eventfd(0, 0));
            for fd in 200..4000 {
                call!(dup2(file, fd));
                if !try_add(inner, fd, EPOLLIN) {
                    break;
                }
            }
            let time = add()?.min(add()?).min(add()?);
            if time > Duration::from_millis(40) {
                break;
            }
        }
        let looks = || counter("epoll_path_looks");
        let before = looks()?;
        add()?;
        let of_one = looks()? - before;
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            crowd.push(spawn(|| {
                loop {
                    add()?;
                }
            })?);
        }
        while_attacking(|| {
            pause_ms(50);
            Ok(())
        })?;
        let before = looks()?;
        for &child in &crowd {
            call!(kill(child, SIGKILL));
        }
        for child in crowd {
            equal!(wait(child)?, End::Signal(SIGKILL));
        }
        let all = looks()? - before;
        println!("  {of_one} watches are looked at for one, {all} while {CROWD} ended");
        ensure!(of_one > 100 && all < of_one * CROWD / 2, of_one, all);
        Ok(())
    })
}

/// Epolls of one level of a mesh.
const WIDTH: usize = 32;
const LEVELS: usize = 5;

fn many_files() -> Outcome {
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    call!(getrlimit(RLIMIT_NOFILE, &mut limit));
    limit.rlim_cur = limit.rlim_max;
    call!(setrlimit(RLIMIT_NOFILE, &limit));
    Ok(())
}

fn make() -> Result<c_int> {
    Ok(call!(epoll_create1(EPOLL_CLOEXEC)))
}

/// Watches a file unless a limit forbids it; returns whether it does.
fn add(epoll: c_int, file: c_int, events: c_int) -> Result<bool> {
    let is_watched = try_add(epoll, file, events);
    if !is_watched {
        // Too many paths, too long a chain or a cycle, too many watches, too little memory.
        let limits = [EINVAL, ELOOP, ENOSPC, ENOMEM];
        ensure!(limits.contains(&errno()), errno());
    }
    Ok(is_watched)
}

/// Watches a file if the kernel lets it.
fn try_add(epoll: c_int, file: c_int, events: c_int) -> bool {
    let mut event = epoll_entry(events, 0);
    // SAFETY: reads a local.
    unsafe { epoll_ctl(epoll, EPOLL_CTL_ADD, file, &mut event) == 0 }
}

fn drop_all(files: impl IntoIterator<Item = c_int>) {
    for file in files {
        // SAFETY: closes a descriptor of this attack.
        unsafe { close(file) };
    }
}

/// A timer that first expires after so many microseconds.
fn timer(microseconds: i64) -> Result<c_int> {
    let timer = call!(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    start(timer, microseconds)?;
    Ok(timer)
}

fn start(timer: c_int, microseconds: i64) -> Outcome {
    let setting = itimerspec {
        it_interval: time_spec(0, 0),
        it_value: time_spec(0, microseconds * 1000),
    };
    call!(timerfd_settime(timer, 0, &setting, null_mut()));
    Ok(())
}

/// Levels of epolls, each of which watches all of the level below it as far as the kernel allows;
/// the lowest ones watch `file`. All of these do, some of each other level, and not all of all.
fn mesh(file: c_int) -> Result<Vec<c_int>> {
    let mut all = Vec::new();
    let mut below = vec![file];
    for number in 0..LEVELS {
        let (mut level, mut watches) = (Vec::new(), 0);
        for _ in 0..WIDTH {
            let epoll = make()?;
            for &inner in &below {
                watches += usize::from(add(epoll, inner, EPOLLIN | EPOLLET)?);
            }
            level.push(epoll);
        }
        match number {
            0 => equal!(watches, WIDTH),
            _ => ensure!((1..WIDTH * WIDTH).contains(&watches), number, watches),
        }
        all.extend(&level);
        below = level;
    }
    Ok(all)
}

/// Each wake-up of the timer would walk all paths to the top of the mesh.
fn levels() -> Outcome {
    beside(|| {
        let timer = timer(200)?;
        let mesh = mesh(timer)?;
        while_attacking(|| {
            start(timer, 200)?;
            pause_ms(1);
            Ok(())
        })?;
        drop_all(mesh);
        drop_all([timer]);
        Ok(())
    })
}

/// As [`levels`], by the writes of another process.
fn levels_of_pipe() -> Outcome {
    beside(|| {
        let (reader, writer) = pipe(O_NONBLOCK)?;
        let mesh = mesh(reader)?;
        let innocent = spawn(|| {
            loop {
                write_bytes(&writer, b"x")?;
                read_bytes(&reader, 1)?;
            }
        })?;
        let mut event = epoll_entry(0, 0);
        while_attacking(|| {
            // SAFETY: asks the top epoll, into a local.
            unsafe { epoll_wait(mesh[mesh.len() - 1], &mut event, 1, 1) };
            Ok(())
        })?;
        kill_child(innocent)?;
        drop_all(mesh);
        Ok(())
    })
}

/// Building a mesh takes a time that does not grow with its paths, and no lock that others need.
fn builders() -> Outcome {
    beside(|| {
        let mut builders = Vec::new();
        for _ in 0..4 {
            builders.push(spawn(|| {
                let file = call!(eventfd(0, EFD_NONBLOCK));
                while_attacking(|| {
                    drop_all(mesh(file)?);
                    Ok(())
                })
            })?);
        }
        wait_all(builders)
    })
}

/// However many try at once, no cycle comes about.
fn cycles() -> Outcome {
    const EPOLLS: usize = 6;
    beside(|| {
        let epolls: Vec<_> = (0..EPOLLS).map(|_| make()).collect::<Result<_>>()?;
        let (mut seed, mut watches) = (0, 0);
        while_attacking(|| {
            let mut builders = Vec::new();
            for _ in 0..3 {
                seed += 1;
                let mut random = Numbers::new(seed);
                let mut any = || epolls[random.below(EPOLLS as u64) as usize];
                builders.push(spawn(|| {
                    let mut event = epoll_entry(EPOLLIN, 0);
                    for _ in 0..200 {
                        let (outer, inner) = (any(), any());
                        if !try_add(outer, inner, EPOLLIN) {
                            // Watched already, or itself, or it would be a cycle.
                            ensure!([EEXIST, EINVAL, ELOOP].contains(&errno()), errno());
                        }
                        let (outer, inner) = (any(), any());
                        // SAFETY: one may watch the other or not; the calls fill a local.
                        unsafe {
                            epoll_ctl(outer, EPOLL_CTL_DEL, inner, &mut event);
                            epoll_wait(inner, &mut event, 1, 0);
                        }
                    }
                    Ok(())
                })?);
            }
            wait_all(builders)?;
            watches += count_without_cycle(&epolls)?;
            Ok(())
        })?;
        ensure!(watches > 0);
        Ok(())
    })
}

/// Returns how many of these epolls watch each other; there must be an order in which none watches
/// an earlier one.
fn count_without_cycle(epolls: &[c_int]) -> Result<usize> {
    let mut event = epoll_entry(EPOLLIN, 0);
    let mut watches = Vec::new();
    for &outer in epolls {
        for &inner in epolls {
            // SAFETY: a watch that is there stays as it is; the call reads a local.
            if unsafe { epoll_ctl(outer, EPOLL_CTL_MOD, inner, &mut event) } == 0 {
                watches.push((outer, inner));
            }
        }
    }
    let mut left = epolls.to_vec();
    while !left.is_empty() {
        let is_watching = |it: &c_int| watches.iter().any(|(a, b)| a == it && left.contains(b));
        let rest: Vec<_> = left.iter().copied().filter(is_watching).collect();
        ensure!(rest.len() < left.len(), watches);
        left = rest;
    }
    Ok(watches.len())
}

/// Epolls that watch one file under many descriptors: as many observers of its queue.
fn crowd_of(file: c_int) -> Result<Vec<c_int>> {
    let mut all = Vec::new();
    for _ in 0..1000 {
        all.push(call!(dup(file)));
    }
    let fds = all.clone();
    for _ in 0..20 {
        let epoll = make()?;
        for &fd in &fds {
            if !try_add(epoll, fd, EPOLLIN | EPOLLET) {
                ensure!([ENOSPC, ENOMEM].contains(&errno()), errno());
            }
        }
        all.push(epoll);
    }
    Ok(all)
}

fn watched_timer() -> Outcome {
    beside(|| {
        many_files()?;
        let timer = timer(200)?;
        let crowd = crowd_of(timer)?;
        while_attacking(|| {
            start(timer, 200)?;
            pause_ms(1);
            Ok(())
        })?;
        drop_all(crowd);
        Ok(())
    })
}

fn watched_counter() -> Outcome {
    beside(|| {
        many_files()?;
        let counter = call!(eventfd(0, EFD_NONBLOCK));
        let crowd = crowd_of(counter)?;
        while_attacking(|| {
            write_bytes(&counter, &1u64.to_ne_bytes())?;
            read_bytes(&counter, 8)?;
            Ok(())
        })?;
        drop_all(crowd);
        Ok(())
    })
}

fn one_instant() -> Outcome {
    beside(|| {
        many_files()?;
        let epoll = make()?;
        let mut timers = Vec::new();
        for _ in 0..3000 {
            let timer = call!(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
            try_add(epoll, timer, EPOLLIN | EPOLLET);
            timers.push(timer);
        }
        while_attacking(|| {
            let setting = itimerspec {
                it_interval: time_spec(0, 0),
                it_value: after(CLOCK_MONOTONIC, 30)?,
            };
            for &timer in &timers {
                call!(timerfd_settime(
                    timer,
                    TFD_TIMER_ABSTIME,
                    &setting,
                    null_mut()
                ));
            }
            pause_ms(35);
            Ok(())
        })?;
        drop_all(timers);
        Ok(())
    })
}

/// Runs `body` in so many threads of small stacks, until it gives false.
fn crowd(count: usize, body: impl Fn() -> bool + Send + Sync) -> usize {
    thread::scope(|scope| {
        let body = &body;
        let start = |_| {
            let builder = thread::Builder::new().stack_size(16 << 10);
            builder.spawn_scoped(scope, move || while body() {}).ok()
        };
        (0..count).map_while(start).count()
    })
}

fn sleepers() -> Outcome {
    beside(|| {
        let begin = Instant::now();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    pause_ms(20);
                    Ok(())
                });
                over.store(true, SeqCst);
                ended
            });
            crowd(1000, || {
                // All wake at the same multiple of 20 ms.
                let now = begin.elapsed().as_nanos() as u64;
                let next = Duration::from_nanos(now.next_multiple_of(20_000_000));
                thread::sleep(next.saturating_sub(begin.elapsed()));
                !over.load(SeqCst)
            });
        });
        Ok(())
    })
}

fn readers() -> Outcome {
    beside(|| {
        let counter = call!(eventfd(0, 0));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    write_bytes(&counter, &1u64.to_ne_bytes())?;
                    pause_ms(1);
                    Ok(())
                });
                over.store(true, SeqCst);
                let _ = write_bytes(&counter, &1_000_000u64.to_ne_bytes());
                ended
            });
            crowd(1000, || {
                let mut number = 0u64;
                // SAFETY: reads into a local.
                unsafe { read(counter, (&raw mut number).cast(), 8) };
                if over.load(SeqCst) {
                    let _ = write_bytes(&counter, &1u64.to_ne_bytes());
                    return false;
                }
                true
            });
        });
        Ok(())
    })
}

fn futex_waiters() -> Outcome {
    beside(|| {
        let word = AtomicU32::new(0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    word.fetch_add(1, SeqCst);
                    futex(&word, FUTEX_WAKE, i32::MAX as u32, None);
                    pause_ms(1);
                    Ok(())
                });
                over.store(true, SeqCst);
                word.fetch_add(1, SeqCst);
                futex(&word, FUTEX_WAKE, i32::MAX as u32, None);
                ended
            });
            crowd(1000, || {
                let now = word.load(SeqCst);
                if over.load(SeqCst) {
                    return false;
                }
                futex_wait(&word, now);
                true
            });
        });
        Ok(())
    })
}

/// Takes a word, after a sleep if it has an owner.
fn lock(word: &AtomicU32) {
    // SAFETY: asks for a number.
    let own = unsafe { gettid() } as u32;
    if word.compare_exchange(0, own, SeqCst, SeqCst).is_err() {
        futex(word, FUTEX_LOCK_PI, 0, None);
    }
}

fn unlock(word: &AtomicU32) {
    // SAFETY: asks for a number.
    let own = unsafe { gettid() } as u32;
    if word.compare_exchange(own, 0, SeqCst, SeqCst).is_err() {
        futex(word, FUTEX_UNLOCK_PI, 0, None);
    }
}

/// Hands a word to the thread that waits for it [`ROUNDS`] times. Returns how many waiters and
/// owners the kernel looked at for each time.
fn hand_over(word: &AtomicU32) -> Result<u64> {
    let turn = AtomicU32::new(0);
    let before = counter("futex_pi_looks")?;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while turn.load(SeqCst) != round {
                    thread::yield_now();
                }
                lock(word);
                unlock(word);
                turn.store(0, SeqCst);
            }
        });
        for round in 1..=ROUNDS {
            lock(word);
            turn.store(round, SeqCst);
            while word.load(SeqCst) & FUTEX_WAITERS == 0 {
                thread::yield_now();
            }
            unlock(word);
            while turn.load(SeqCst) != 0 {
                thread::yield_now();
            }
        }
    });
    Ok((counter("futex_pi_looks")? - before) / u64::from(ROUNDS))
}

/// How often a word is handed over for a count.
const ROUNDS: u32 = 100;
/// How many waiters and owners the kernel may look at to hand a word over. Those of other words
/// are few of a thousand, unless one that has many waiters shares the place of this one.
const LOOKS: u64 = 50;

/// A word is handed over while a thousand threads wait for those of `owned`, a word each or all
/// for one. They cost the two threads nothing.
fn beside_waiters(owned: usize) -> Outcome {
    beside(|| {
        let own: [AtomicU32; 4] = Default::default();
        let words: Vec<_> = (0..owned).map(|_| AtomicU32::new(0)).collect();
        words.iter().for_each(lock);
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (words, next) = (&words, &next);
            let wait = move || {
                let word = &words[next.fetch_add(1, SeqCst) % words.len()];
                lock(word);
                unlock(word);
            };
            let start = |_| {
                let builder = thread::Builder::new().stack_size(16 << 10);
                builder.spawn_scoped(scope, wait).ok()
            };
            let count = (0..1000).map_while(start).count();
            while next.load(SeqCst) < count {
                thread::yield_now();
            }
            pause_ms(50);
            let mut looks = u64::MAX;
            let attacked = while_attacking(|| {
                for word in &own {
                    looks = looks.min(hand_over(word)?);
                }
                Ok(())
            });
            words.iter().for_each(unlock);
            println!("  {looks} looks to hand a word over beside {count} waiters");
            attacked?;
            ensure!(count > 100 && looks < LOOKS, count, looks);
            Ok(())
        })
    })
}

fn waiters_for_many() -> Outcome {
    beside_waiters(1000)
}

fn waiters_for_one() -> Outcome {
    beside_waiters(1)
}

/// Threads that own a word each and wait for that of the next one: priorities are inherited along
/// the chain.
fn owners() -> Outcome {
    const OWNERS: usize = 800;
    beside(|| {
        while_attacking(|| {
            let words: Vec<_> = (0..=OWNERS).map(|_| AtomicU32::new(0)).collect();
            let owned = AtomicU32::new(0);
            lock(&words[0]);
            thread::scope(|scope| {
                for place in 1..=OWNERS {
                    let (words, owned) = (&words, &owned);
                    let thread = thread::Builder::new().stack_size(16 << 10);
                    let wait = move || {
                        lock(&words[place]);
                        owned.fetch_add(1, SeqCst);
                        lock(&words[place - 1]);
                        unlock(&words[place - 1]);
                        unlock(&words[place]);
                    };
                    if thread.spawn_scoped(scope, wait).is_err() {
                        break;
                    }
                    while (owned.load(SeqCst) as usize) < place {
                        thread::yield_now();
                    }
                }
                unlock(&words[0]);
            });
            Ok(())
        })
    })
}

/// Hundreds of pipes, each with the whole group as its owner.
fn asynchronous() -> Outcome {
    beside(|| {
        call!(setpgid(0, 0));
        // SAFETY: ignores a signal.
        unsafe { signal(SIGIO, SIG_IGN) };
        let mut members = Vec::new();
        for _ in 0..30 {
            members.push(spawn_sleeper()?);
        }
        let mut all = Vec::new();
        for _ in 0..300 {
            let (reader, writer) = pipe(O_NONBLOCK)?;
            call!(fcntl(reader, F_SETOWN, -getpgrp()));
            call!(fcntl(reader, F_SETFL, O_ASYNC | O_NONBLOCK));
            all.push((reader, writer));
        }
        while_attacking(|| {
            for (reader, writer) in &all {
                write_bytes(writer, b"x")?;
                read_bytes(reader, 1)?;
            }
            Ok(())
        })?;
        drop_all(
            all.into_iter()
                .flat_map(|(reader, writer)| [reader, writer]),
        );
        for member in members {
            kill_child(member)?;
        }
        Ok(())
    })
}

fn watched_folder() -> Outcome {
    beside(|| {
        let folder = folder("watched_folder")?;
        let path = c(&folder);
        let mut all = Vec::new();
        loop {
            // SAFETY: a new descriptor, or an error at the user's limit.
            let watcher = unsafe { inotify_init1(IN_NONBLOCK) };
            if watcher < 0 {
                break;
            }
            all.push(watcher);
            // SAFETY: the path lives across the call.
            if unsafe { inotify_add_watch(watcher, path.as_ptr(), IN_ALL_EVENTS) } < 0 {
                break;
            }
            let epoll = make()?;
            try_add(epoll, watcher, EPOLLIN);
            all.push(epoll);
        }
        let name = format!("{folder}/file");
        while_attacking(|| {
            fs::write(&name, b"text")?;
            fs::remove_file(&name)?;
            Ok(())
        })?;
        drop_all(all);
        fs::remove_dir(&folder)?;
        Ok(())
    })
}

fn polled() -> Outcome {
    const FILES: usize = 2000;
    beside(|| {
        many_files()?;
        let counter = call!(eventfd(0, EFD_NONBLOCK));
        let mut all = vec![counter];
        for _ in 0..FILES {
            all.push(call!(dup(counter)));
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let ended = while_attacking(|| {
                    write_bytes(&counter, &1u64.to_ne_bytes())?;
                    read_bytes(&counter, 8)?;
                    pause_ms(1);
                    Ok(())
                });
                over.store(true, SeqCst);
                ended
            });
            for _ in 0..4 {
                scope.spawn(|| {
                    let entry = |&fd: &c_int| pollfd {
                        fd,
                        events: POLLIN,
                        revents: 0,
                    };
                    let mut entries: Vec<_> = all.iter().map(entry).collect();
                    while !over.load(SeqCst) {
                        // SAFETY: the entries live across the call.
                        unsafe { poll(entries.as_mut_ptr(), entries.len() as nfds_t, 20) };
                    }
                });
            }
        });
        drop_all(all);
        Ok(())
    })
}

/// Descriptions that go away while epolls begin and end to watch them.
fn closed_while_watched() -> Outcome {
    beside(|| {
        let (inner, outer) = (make()?, make()?);
        try_add(outer, inner, EPOLLIN);
        let file = AtomicI32::new(-1);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut event = epoll_entry(EPOLLIN, 0);
                    while !over.load(SeqCst) {
                        let file = file.load(SeqCst);
                        try_add(inner, file, EPOLLIN | EPOLLOUT);
                        try_add(outer, file, EPOLLIN | EPOLLEXCLUSIVE);
                        // SAFETY: one may be watched or closed; the calls fill a local.
                        unsafe {
                            epoll_wait(outer, &mut event, 1, 0);
                            epoll_ctl(inner, EPOLL_CTL_DEL, file, &mut event);
                            epoll_ctl(outer, EPOLL_CTL_MOD, inner, &mut event);
                        }
                    }
                });
            }
            let ended = while_attacking(|| {
                let counter = call!(eventfd(1, EFD_NONBLOCK));
                let nested = make()?;
                try_add(nested, counter, EPOLLIN);
                for fd in [counter, nested] {
                    file.store(fd, SeqCst);
                    thread::yield_now();
                }
                drop_all([counter, nested]);
                Ok(())
            });
            over.store(true, SeqCst);
            ended
        })
    })
}

/// The exit of a child is told under the table of processes. Its signal undoes a stop that a timer
/// sent, and the timer is looked for by its process.
fn continued() -> Outcome {
    const STACK: usize = 64 << 10;
    beside(|| {
        block(&[SIGTSTP, SIGCONT])?;
        // SAFETY: all zeros is a valid event; the calls fill and read locals.
        let mut event: sigevent = unsafe { zeroed() };
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGTSTP;
        let mut timer = null_mut();
        call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
        let setting = itimerspec {
            it_interval: time_spec(0, 100_000),
            it_value: time_spec(0, 100_000),
        };
        call!(timer_settime(timer, 0, &setting, null_mut()));
        let stack = map(STACK)?;
        extern "C" fn end(_: *mut c_void) -> c_int {
            0
        }
        while_attacking(|| {
            pause_ms(1);
            // SAFETY: the child runs on a stack of its own and ends at once.
            let child = unsafe { clone(end, stack.add(STACK).cast(), SIGCONT, null_mut()) };
            ensure!(child > 0, errno());
            let mut status = 0;
            call!(waitpid(child, &mut status, __WALL));
            Ok(())
        })
    })
}

fn many_children() -> Outcome {
    beside(|| {
        while_attacking(|| {
            child(|| {
                for _ in 0..300 {
                    // SAFETY: a child that ends by a signal soon, or with its parent.
                    if unsafe { fork() } == 0 {
                        pause_ms(50);
                        exit(0);
                    }
                }
                Ok(())
            })?;
            pause_ms(60);
            Ok(())
        })
    })
}

/// A process whose children's signals are watched by thousands: each end of a child is told.
fn watched_children() -> Outcome {
    beside(|| {
        many_files()?;
        let set = set_of(&[SIGCHLD]);
        block(&[SIGCHLD])?;
        let file = call!(signalfd(-1, &set, SFD_NONBLOCK));
        let crowd = crowd_of(file)?;
        while_attacking(|| child(|| Ok(())))?;
        drop_all(crowd);
        Ok(())
    })
}
