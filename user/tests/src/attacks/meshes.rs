//! Work without end behind one event: epolls that watch epolls, and files that very many of them
//! watch. Each program builds more of it than any sane one, and every CPU goes on to answer.

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
    ("attacks: thousands of files polled by many", polled),
    (
        "attacks: files closed while they are watched",
        closed_while_watched,
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

pub fn many_files() -> Outcome {
    let mut limit = rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    call!(getrlimit(RLIMIT_NOFILE, &mut limit));
    limit.rlim_cur = limit.rlim_max;
    call!(setrlimit(RLIMIT_NOFILE, &limit));
    Ok(())
}

pub fn make() -> Result<c_int> {
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
pub fn try_add(epoll: c_int, file: c_int, events: c_int) -> bool {
    let mut event = epoll_entry(events, 0);
    // SAFETY: reads a local.
    unsafe { epoll_ctl(epoll, EPOLL_CTL_ADD, file, &mut event) == 0 }
}

pub fn drop_all(files: impl IntoIterator<Item = c_int>) {
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
pub fn crowd_of(file: c_int) -> Result<Vec<c_int>> {
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
