//! Receivers that watch pages of large uncached messages while these come and go, and change what
//! they have mapped meanwhile: none sees what was not sent.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::raw::{Path, *};
use super::{Line, Receiver};
use support::numbers::Numbers;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: pages that come and go under readers", watched),
    (
        "fbufs: pages that come and go while their mappings change",
        changed,
    ),
    ("fbufs: receivers killed amid large messages", killed),
    ("fbufs: large messages without memory", scarce),
    ("fbufs: an originator killed amid large messages", ended),
    ("fbufs: words of rings, wild", wild),
];

/// Pages of a message: two chunks hold it and its node.
const PAGES: usize = 1023;
const SECRET: u64 = 0xdead_5ec2_e700_0000;

fn word(base: usize, page: usize) -> *mut u64 {
    (base + page * PAGE) as *mut u64
}

fn peek(base: usize, page: usize) -> u64 {
    // SAFETY: the region can be read.
    unsafe { word(base, page).read_volatile() }
}

fn put(base: usize, page: usize, value: u64) {
    // SAFETY: an fbuf of this process.
    unsafe { word(base, page).write_volatile(value) }
}

fn is_secret(value: u64) -> bool {
    value & !0xff_ffff == SECRET
}

/// Receives, checks, frees; other threads peek, change mappings, fork. Tells `line` when they run:
/// the beginning of a thread needs memory.
fn receive_all(path: &Path, base: usize, wild: bool, line: &Line) -> Outcome {
    let begun = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let seen = AtomicU64::new(0);
    let outcome: Outcome = std::thread::scope(|scope| {
        let end = || done.load(SeqCst) != 0;
        let mut started = 0;
        for seed in 0..2 {
            let (seen, begun) = (&seen, &begun);
            let peeks = std::thread::Builder::new().spawn_scoped(scope, move || {
                begun.fetch_add(1, SeqCst);
                let mut numbers = Numbers::new(seed + 5);
                while !end() {
                    let page = 1 + numbers.below(PAGES as u64) as usize;
                    let value = peek(base, page);
                    if is_secret(value) {
                        seen.store(value, SeqCst);
                    }
                }
            });
            // Without memory there is none.
            started += u64::from(peeks.is_ok());
        }
        if wild {
            let seen = &seen;
            scope.spawn(move || {
                let mut numbers = Numbers::new(77);
                while !end() {
                    let page = numbers.below(PAGES as u64) as usize;
                    let len = PAGE * (1 + numbers.below(600) as usize);
                    let at = (base + page * PAGE) as *mut libc::c_void;
                    // SAFETY: changes mappings of the region, in which nothing of Rust lies.
                    unsafe {
                        match numbers.below(7) {
                            0 => drop(libc::mprotect(at, len, libc::PROT_READ)),
                            1 => drop(libc::madvise(at, len, libc::MADV_DONTNEED)),
                            2 => drop(libc::madvise(at, len, libc::MADV_REMOVE)),
                            3 => drop(libc::madvise(at, len, libc::MADV_PAGEOUT)),
                            4 if numbers.below(4) == 0 => drop(libc::munmap(at, PAGE)),
                            4 => drop(libc::madvise(at, len, libc::MADV_COLD)),
                            5 => drop(libc::mlock(at, len)),
                            _ => {
                                let child = libc::fork();
                                if child == 0 {
                                    for n in 0..300 {
                                        let value = peek(base, 1 + (n * 7) % PAGES);
                                        if is_secret(value) {
                                            libc::_exit(9);
                                        }
                                    }
                                    libc::_exit(0);
                                }
                                let mut status = 0;
                                libc::waitpid(child, &mut status, 0);
                                let code = libc::WEXITSTATUS(status);
                                if libc::WIFEXITED(status) && code == 9 {
                                    seen.store(9, SeqCst);
                                }
                            }
                        }
                    }
                }
            });
        }
        while begun.load(SeqCst) < started {
            std::thread::yield_now();
        }
        let outcome = (|| -> Outcome {
            line.tell()?;
            loop {
                let message = match path.receive() {
                    Err(EPIPE) => return Ok(()),
                    other => other?,
                };
                // The page of the node may be unmapped by the wild one.
                if !wild {
                    let number = peek(base, 1);
                    ensure!(!is_secret(number), "secret {number:#x}");
                    for page in 1..=PAGES {
                        equal!(peek(base, page), number, page);
                    }
                }
                path.free(message.id)?;
            }
        })();
        done.store(1, SeqCst);
        outcome
    });
    outcome?;
    equal!(seen.load(SeqCst), 0);
    Ok(())
}

fn fill_all(base: usize, value: u64) {
    for page in 1..=PAGES {
        put(base, page, value);
    }
}

/// Sends `rounds` messages to the first member only; a secret stands in the pages in between.
fn send_rounds(path: &Path, chunk: *mut u8, to: u64, rounds: u64) -> Outcome {
    let base = chunk as usize;
    set_leaf(chunk, chunk.wrapping_add(PAGE), PAGES * PAGE);
    for round in 1..=rounds {
        fill_all(base, round);
        match path.send_to(to, base) {
            Err(EPIPE) => return Ok(()),
            Err(ENOMEM) => {
                fill_all(base, SECRET | round);
                continue;
            }
            other => drop(other?),
        }
        let mut freed = 0;
        while freed <= PAGES {
            let pairs = path.notices()?;
            freed += pairs.iter().map(|[a, b]| (b - a) / PAGE).sum::<usize>();
            if pairs.is_empty() {
                std::thread::yield_now();
            }
        }
        fill_all(base, SECRET | round);
    }
    Ok(())
}

fn others_watch(path: &Path, base: usize) -> Outcome {
    // Never a receiver of anything: reads zeros.
    let mut numbers = Numbers::new(3);
    loop {
        let page = 1 + numbers.below(PAGES as u64) as usize;
        ensure!(peek(base, page) == 0, "it reads what it was not sent");
        if poll_for(path, 0, 0)? & POLLHUP != 0 {
            return Ok(());
        }
    }
}

/// Two threads of a receiver read at random while pages are shown and hidden.
fn watched() -> Outcome {
    storm(false)
}

/// The same while a third one changes what is mapped.
fn changed() -> Outcome {
    storm(true)
}

fn storm(wild: bool) -> Outcome {
    for mode in [UNCACHED, UNCACHED | SECURED] {
        let path = Path::new(mode)?;
        let chunk = path.grow(2)?;
        let base = chunk as usize;
        let first = Receiver::start(&path, |path, line| receive_all(path, base, wild, line))?;
        let other = Receiver::start(&path, |path, _| others_watch(path, base))?;
        send_rounds(&path, chunk, 1, 12)?;
        path.leave()?;
        drop(path);
        let end = wait(first.child)?;
        // What it has unmapped it cannot read.
        let is_good = end == End::Exit(0) || wild && end == End::Signal(SIGSEGV);
        ensure!(is_good, "{end:?}");
        other.end()?;
    }
    Ok(())
}

fn chunks() -> Result<u64> {
    field("/proc/causeway/fbuf", "chunks")
}

fn killed() -> Outcome {
    let before = chunks()?;
    for mode in [UNCACHED, UNCACHED | SECURED] {
        let path = Path::new(mode)?;
        let chunk = path.grow(2)?;
        let base = chunk as usize;
        for round in 0..12u64 {
            let first = Receiver::start(&path, |path, line| receive_all(path, base, true, line))?;
            let other = Receiver::start(&path, |path, _| others_watch(path, base))?;
            let (victim, member) = (first.child, 1 + 2 * round);
            let killer = std::thread::spawn(move || {
                pause_ms(1 + 7 * round);
                // SAFETY: kills a child.
                (unsafe { libc::kill(victim, SIGKILL) }) == 0
            });
            send_rounds(&path, chunk, member, 1000)?;
            ensure!(killer.join().is_ok_and(|done| done), "no kill");
            let end = wait(first.child)?;
            ensure!(matches!(end, End::Signal(SIGKILL | SIGSEGV)), "{end:?}");
            other.kill()?;
            while !path.notices()?.is_empty() {}
            fill_all(base, SECRET);
        }
        path.shrink(chunk)?;
    }
    equal!(chunks()?, before);
    Ok(())
}

fn scarce() -> Outcome {
    let before = chunks()?;
    for every in [2, 5, 17] {
        let path = Path::new(UNCACHED)?;
        let chunk = path.grow(2)?;
        fill_all(chunk as usize, 1);
        let base = chunk as usize;
        let first = Receiver::start(&path, |path, line| receive_all(path, base, false, line))?;
        let other = Receiver::start(&path, |path, _| others_watch(path, base))?;
        first.line.hear()?;
        fs::write("/proc/causeway/failalloc", format!("{every}"))?;
        let sent = send_rounds(&path, chunk, 1, 10);
        while fs::write("/proc/causeway/failalloc", "0").is_err() {}
        sent?;
        path.leave()?;
        drop(path);
        // They may have ended for memory.
        for receiver in [first, other] {
            match wait(receiver.child)? {
                End::Exit(0) | End::Signal(SIGBUS | SIGKILL) => {}
                end => ensure!(false, "{end:?}"),
            }
        }
    }
    equal!(chunks()?, before);
    Ok(())
}

fn ended() -> Outcome {
    let before = chunks()?;
    for mode in [UNCACHED, UNCACHED | SECURED] {
        for round in 0..12u32 {
            let (front, back) = socket_pair(SOCK_STREAM)?.into();
            let victim = spawn(|| {
                let path = Path::new(mode)?;
                let chunk = path.grow(2)?;
                super::send_path(&front, &path)?;
                while poll_for(&path, 0, 0).is_ok() {
                    match send_rounds(&path, chunk, 1, 1) {
                        Ok(()) => {}
                        Err(_) => std::thread::yield_now(),
                    }
                }
                Ok(())
            })?;
            let path = super::take_path(&back)?;
            let receiver = Receiver::start(&path, |path, _| {
                loop {
                    match path.receive() {
                        Err(EPIPE) => return Ok(()),
                        other => {
                            let message = other?;
                            for page in 0..=PAGES {
                                let _ = peek(message.root, page);
                            }
                            path.free(message.id)?;
                        }
                    }
                }
            })?;
            drop(path);
            pause_ms(3 * u64::from(round) + 1);
            equal!(kill_child(victim)?, End::Signal(SIGKILL));
            receiver.end()?;
        }
    }
    equal!(chunks()?, before);
    Ok(())
}

fn wild() -> Outcome {
    for seed in 0..6u64 {
        let path = Path::new(UNCACHED)?;
        let chunk = path.grow(1)?;
        let answers = Path::new(CACHED)?;
        let other = answers.grow(1)?;
        let mut children = Vec::new();
        for n in 0..4u64 {
            children.push(spawn(|| {
                path.join()?;
                let _ = answers.attach();
                let mut numbers = Numbers::new(seed * 10 + n);
                loop {
                    let mut at = || -> *const u8 {
                        match numbers.below(8) {
                            0 => std::ptr::null(),
                            1 => usize::MAX as *const u8,
                            2 => chunk.wrapping_add(1),
                            3 => (START + SIZE - 4) as *const u8,
                            4 => (START + SIZE) as *const u8,
                            5 => other,
                            _ => chunk.wrapping_add(4 * (numbers.next() as usize % 9)),
                        }
                    };
                    let (a, b) = (at(), at());
                    match numbers.below(6) {
                        0 => drop(path.ring(a)),
                        1 => drop(path.pass(&answers, a, b, 1)),
                        2 => drop(path.pass(&path, a, b, numbers.below(2) as u32)),
                        3 => drop(path.whose(a as usize)),
                        4 => drop(answers.pass(&path, a, b, 0)),
                        _ => drop(path.wait(a, 1)),
                    }
                }
            })?);
        }
        pause_ms(30);
        for _ in 0..200 {
            path.ring(chunk)?;
            answers.ring(other)?;
        }
        kill_child(children.pop().ok_or("none")?)?;
        path.leave()?;
        drop(path);
        answers.leave()?;
        drop(answers);
        for child in children {
            equal!(kill_child(child)?, End::Signal(SIGKILL));
        }
    }
    Ok(())
}
