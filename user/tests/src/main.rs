//! Runs the tests, each in a process group of its own with a time limit, and prints a line each.
//!
//! usage: `guest-tests [--list] [--seconds N] [WORD...]`: runs the tests whose names contain a
//! WORD, or all.

mod accounts;
mod attributes;
mod bad_elf;
mod bad_pointers;
mod cached;
mod causeway;
mod clock;
mod disks;
mod entries;
mod epoll;
mod events;
mod exhaustion;
mod files;
mod floating;
mod futexes;
mod growth;
mod hw_cost;
mod inet;
mod inotify;
mod large;
mod large_shared;
mod leaks;
mod legacy;
mod locking;
mod memfds;
mod memory;
mod mounted;
mod mounts;
mod names;
mod narrow;
mod netlink;
mod other_memory;
mod pidfd;
mod pipes;
mod polling;
mod privileges;
mod proc;
mod processes;
mod protection;
mod ptys;
mod queues;
mod scheduling;
mod sequences;
mod shootdowns;
mod sigio;
mod signals;
mod swap;
mod sysv;
mod threads;
mod timers;
mod udp_lite;
mod unix_sockets;
mod vdso;

use support::prelude::*;

/// Joins the tests of modules, in the order in which they run.
macro_rules! tests_of {
    ($($($name:ident)::+),*) => { [$($($name)::+::TESTS),*].concat() };
}

fn main() {
    // Tests that need a fresh process run this program again.
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|word| word == "--as") {
        std::process::exit(processes::act(&arguments[2..]));
    }
    let mut seconds = 60;
    let mut words = Vec::new();
    let mut rest = arguments.iter().skip(1);
    let mut list = false;
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--list" => list = true,
            "--seconds" => seconds = rest.next().and_then(|n| n.parse().ok()).unwrap_or(seconds),
            _ => words.push(word.clone()),
        }
    }
    let tests: Vec<Test> = tests_of! {
        memory, growth, locking, large, large_shared, causeway, protection, shootdowns,
        threads, futexes, scheduling, sigio, sequences, timers, privileges, other_memory,
        signals::delivery, signals::calls, signals::frames, signals::defaults,
        processes::waiting, processes::forking, processes::executing, processes::groups,
        memfds, attributes, accounts, mounts, ptys, pidfd, pipes, polling, udp_lite,
        netlink, inet::connections, inet::reading, inet::ports, inet::accepting,
        inet::datagrams, inet::raw, inet::options, unix_sockets::streams,
        unix_sockets::looking, unix_sockets::names, unix_sockets::packets,
        unix_sockets::rights, unix_sockets::options, epoll, events, inotify, disks, entries,
        cached, mounted, swap, files, names, clock, vdso, proc, queues, sysv::segments,
        sysv::semaphores, sysv::messages, sysv::objects, floating, hw_cost, legacy,
        narrow::files, narrow::time, narrow::sockets, narrow::objects, narrow::processes,
        bad_pointers, bad_elf, leaks, exhaustion
    };
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        if list {
            println!("{name}");
            continue;
        }
        let start = Instant::now();
        let outcome = run(test, start + Duration::from_secs(seconds));
        let time = start.elapsed().as_millis();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("ok {name} ({time} ms)");
            }
            Err(why) => match why.skipped() {
                Some(why) => println!("skip: {name}: {why}"),
                None => {
                    failed += 1;
                    println!("FAIL {name}: {why}");
                }
            },
        }
    }
    if !list {
        println!("guest tests: {passed} passed, {failed} failed");
    }
    std::process::exit(i32::from(failed != 0));
}

/// Runs one test in a process group of its own, which is killed afterwards.
fn run(test: fn() -> Outcome, deadline: Instant) -> Outcome {
    let (reader, writer) = pipe(O_CLOEXEC)?;
    let child = call!(fork());
    if child == 0 {
        let outcome = (|| {
            call!(setpgid(0, 0));
            call!(close(reader));
            test()
        })();
        if let Err(why) = &outcome {
            let why = why.to_string();
            let _ = write_bytes(&writer, &why.as_bytes()[..why.len().min(4000)]);
        }
        exit(i32::from(outcome.is_err()));
    }
    // SAFETY: both sides set the group, so that it exists before either goes on.
    unsafe { libc::setpgid(child, child) };
    call!(close(writer));
    let end = loop {
        let mut status = 0;
        if call!(waitpid(child, &mut status, WNOHANG)) == child {
            break Some(End::of(status));
        }
        if Instant::now() > deadline {
            break None;
        }
        pause_ms(1);
    };
    // SAFETY: the group is this test's own.
    unsafe { libc::kill(-child, SIGKILL) };
    let outcome = match end {
        Some(End::Exit(0)) => Ok(()),
        Some(End::Exit(1)) => Err(String::from_utf8_lossy(&read_bytes(&reader, 4096)?)
            .into_owned()
            .into()),
        Some(end) => Err(format!("ended with {end:?}").into()),
        None => {
            wait(child)?;
            Err("did not end in time".into())
        }
    };
    call!(close(reader));
    outcome
}
