//! Looking at many files of which none is ready: `select`, `poll`, `ppoll`.

use std::{mem, ptr};

use crate::limits::allow_files;
use crate::{Bench, Experiment, Failure, call};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "polling",
    title: "select, poll and ppoll of many pipes and sockets",
    help: "Each row asks again and again, without waiting, whether one of many files can be read;
none can. The rows are polling/CALL-FILES-KIND: CALL is select, poll or ppoll, FILES is 10, 100 or
1000, KIND is pipes or sockets (connected stream sockets of the Unix family).

polling/select-100-pipes   and so on",
    run,
};

/// Beyond the last descriptor that `select` can be asked about.
const ELSEWHERE: i32 = 1100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pipes,
    Sockets,
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (kind, name) in [(Kind::Pipes, "pipes"), (Kind::Sockets, "sockets")] {
        for files in [10, 100, 1000] {
            let batch = 20_000 / files as u64;
            let row = |call: &str| format!("polling/{call}-{files}-{name}");
            bench.row(row("select")).batch(batch).run(|meter| {
                let open = open(kind, files)?;
                // SAFETY: an empty set is all zeros.
                let mut all: libc::fd_set = unsafe { mem::zeroed() };
                for &fd in &open {
                    // SAFETY: `open` gives descriptors that a set has room for.
                    unsafe { libc::FD_SET(fd, &mut all) };
                }
                let mut now = libc::timeval {
                    tv_sec: 0,
                    tv_usec: 0,
                };
                let most = open.iter().max().map_or(0, |most| most + 1);
                meter.measure(|n| {
                    for _ in 0..n {
                        let mut set = all;
                        let none = ptr::null_mut();
                        none_is(call!(select(most, &mut set, none, none, &mut now))?)?;
                    }
                    Ok(())
                })
            })?;
            bench.row(row("poll")).batch(batch).run(|meter| {
                let mut asked = asked(kind, files)?;
                let count = asked.len() as libc::nfds_t;
                meter.measure(|n| {
                    for _ in 0..n {
                        none_is(call!(poll(asked.as_mut_ptr(), count, 0))?)?;
                    }
                    Ok(())
                })
            })?;
            bench.row(row("ppoll")).batch(batch).run(|meter| {
                let mut asked = asked(kind, files)?;
                let count = asked.len() as libc::nfds_t;
                let now = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                // SAFETY: a mask of no signals is all zeros.
                let mask: libc::sigset_t = unsafe { mem::zeroed() };
                meter.measure(|n| {
                    for _ in 0..n {
                        none_is(call!(ppoll(asked.as_mut_ptr(), count, &now, &mask))?)?;
                    }
                    Ok(())
                })
            })?;
        }
    }
    Ok(())
}

fn none_is(ready: i32) -> Result<(), Failure> {
    match ready {
        0 => Ok(()),
        _ => Err(format!("{ready} files are ready").into()),
    }
}

/// Opens so many files that can be read later, and their other ends where `select` does not look.
fn open(kind: Kind, files: usize) -> Result<Vec<i32>, Failure> {
    allow_files(4096)?;
    let mut all = Vec::new();
    for _ in 0..files {
        let mut ends = [0; 2];
        match kind {
            Kind::Pipes => call!(pipe(ends.as_mut_ptr()))?,
            Kind::Sockets => {
                let kind = libc::SOCK_STREAM;
                call!(socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?
            }
        };
        call!(fcntl(ends[1], libc::F_DUPFD, ELSEWHERE))?;
        call!(close(ends[1]))?;
        all.push(ends[0]);
    }
    Ok(all)
}

fn asked(kind: Kind, files: usize) -> Result<Vec<libc::pollfd>, Failure> {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    Ok(open(kind, files)?.into_iter().map(entry).collect())
}
