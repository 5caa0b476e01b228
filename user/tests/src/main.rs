//! The tests of what programs see of the kernel.
//!
//! usage: `guest-tests [--list] [--seconds N] [--failing N] [WORD...]`: runs the tests whose names
//! contain a WORD, or all; each may take N seconds. With `--failing`, each Nth allocation of the
//! kernel fails meanwhile, and the tests need only end. `guest-tests --serve PORT` is the other
//! side of the tests of `network/zero_copy.rs`.

mod accounts;
mod attributes;
mod audit;
mod bad_elf;
mod bad_pointers;
mod bus;
mod cached;
mod causeway;
mod clock;
mod direct;
mod disks;
mod entries;
mod epoll;
mod events;
mod exhaustion;
mod fbuf_library;
mod fbufs;
mod files;
mod floating;
mod futexes;
mod growth;
mod hw_cost;
mod in_place;
mod inet;
mod inotify;
mod large;
mod large_shared;
mod leaks;
mod legacy;
mod locking;
mod mapped;
mod memfds;
mod memory;
mod modes;
mod mounted;
mod mounts;
mod movement;
mod names;
mod narrow;
mod netlink;
mod netserver_library;
mod network;
mod other_memory;
mod passing;
mod pidfd;
mod pipes;
mod polling;
mod privileges;
mod proc;
mod processes;
mod protection;
mod ptcache;
mod ptys;
mod queues;
mod rtc;
mod scheduling;
mod seccomp;
mod sequences;
mod shootdowns;
mod sigio;
mod signals;
mod swap;
mod sysv;
mod threads;
mod timers;
mod transfers;
mod udp_lite;
mod unix_sockets;
mod vdso;
mod walls;

use support::prelude::*;
use support::runner::{Part, Runner};

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
    if let [_, word, port] = &arguments[..]
        && word == "--serve"
    {
        let port = port.parse().expect("a port");
        let served = network::zero_copy::serve_port(port);
        std::process::exit(served.is_err().into());
    }
    let mut seconds = 60;
    let mut words = Vec::new();
    let mut rest = arguments.iter().skip(1);
    let (mut list, mut failing, mut part) = (false, 0, Part::WHOLE);
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--list" => list = true,
            "--seconds" => seconds = rest.next().and_then(|n| n.parse().ok()).unwrap_or(seconds),
            "--part" => part = Part::of_word(rest.next()),
            "--failing" => failing = rest.next().and_then(|n| n.parse().ok()).unwrap_or(failing),
            _ => words.push(word.clone()),
        }
    }
    let tests: Vec<Test> = tests_of! {
        memory, growth, locking, large, large_shared, causeway, protection, shootdowns,
        threads, futexes, scheduling, sigio, sequences, timers, privileges, seccomp, other_memory,
        signals::delivery, signals::calls, signals::frames, signals::defaults,
        processes::waiting, processes::forking, processes::executing, processes::groups,
        memfds, attributes, accounts::process, accounts::machine, accounts::log,
        accounts::charges, mounts, ptys, pidfd, pipes, movement,
        movement::blocked, movement::calls, movement::churned, movement::files,
        movement::refused, movement::waiting, passing,
        passing::chains, passing::places, fbufs::messages, fbufs::memory,
        fbufs::refused, fbufs::deaths, fbufs::hostile, fbufs::taken, fbufs::shown_pages, fbuf_library,
        netserver_library, polling, udp_lite,
        netlink, network::links, network::machines, network::routes, network::packets, network::frames,
        network::requests, network::zero_copy, network::shown, inet::connections, inet::reading,
        inet::ports, inet::accepting,
        inet::datagrams, inet::raw, inet::options, unix_sockets::streams,
        unix_sockets::looking, unix_sockets::names, unix_sockets::packets,
        unix_sockets::rights, unix_sockets::options, epoll, events, inotify, disks, bus, entries,
        cached, modes, mounted, direct, transfers, in_place, swap, files, names, clock, rtc, vdso, proc,
        queues, sysv::segments,
        sysv::semaphores, sysv::messages, sysv::objects, floating, hw_cost, legacy,
        narrow::files, narrow::time, narrow::sockets, narrow::objects, narrow::processes,
        narrow::small, walls,
        mapped, audit, ptcache, bad_pointers, bad_elf, leaks, exhaustion
    };
    let runner = Runner {
        words,
        part,
        list,
        limit: Duration::from_secs(seconds),
        afterwards: || Ok(()),
        after_group: audit::nothing_is_wrong,
        failing,
    };
    std::process::exit(runner.run("guest tests", &tests));
}
