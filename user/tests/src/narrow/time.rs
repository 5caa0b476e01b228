//! Clocks, timers and waiting.

use super::{Low, pair, words};
use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("narrow: clocks and sleeps", clocks),
    ("narrow: timers", timers),
    ("narrow: waiting for files", waiting),
];

fn clocks() -> Outcome {
    let mut low = Low::new()?;
    let to = low.room(64);
    let now = |clock| -> Result<u64> {
        // SAFETY: all zeros is a valid one.
        let mut time: timespec = unsafe { zeroed() };
        call!(clock_gettime(clock, &mut time));
        Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    for (number, wide) in [(265, false), (403, true)] {
        let before = now(CLOCK_REALTIME)?;
        call80!(number, CLOCK_REALTIME, to);
        let w: [u32; 4] = words(to);
        let got = match wide {
            true => pair(w[0], w[1]) * 1_000_000_000 + pair(w[2], w[3]),
            false => u64::from(w[0]) * 1_000_000_000 + u64::from(w[1]),
        };
        let after = now(CLOCK_REALTIME)?;
        ensure!((before..=after).contains(&got), number, before, got, after);
    }
    call80!(78, to, 0);
    let [seconds, microseconds] = words(to);
    ensure!(
        now(CLOCK_REALTIME)? / 1_000_000_000 - u64::from(seconds) < 2 && microseconds < 1_000_000,
        "gettimeofday"
    );
    ensure!((call80!(13, to) as u32).abs_diff(seconds) < 2, "time");
    // Sleeps; the upper half of nanoseconds counts for nothing.
    for (number, time) in [
        (162, low.words(&[0, 20_000_000])),
        (267, low.words(&[0, 20_000_000])),
        (407, low.words(&[0, 0, 20_000_000, 7])),
    ] {
        let before = now(CLOCK_MONOTONIC)?;
        match number {
            162 => call80!(162, time, 0),
            _ => call80!(number, CLOCK_MONOTONIC, 0, time, 0),
        };
        let slept = now(CLOCK_MONOTONIC)? - before;
        ensure!((19_000_000..1_000_000_000).contains(&slept), number, slept);
    }
    refused80!(EINVAL, 162, low.words(&[0, 1_000_000_000]), 0);
    // The rest of a sleep that a signal ends.
    handle(SIGALRM, ignore_signal, 0)?;
    let timer = low.words(&[0, 0, 0, 20_000]);
    call80!(104, ITIMER_REAL, timer, 0);
    let (long, rest) = (low.words(&[5, 0]), low.words(&[9, 9, 9]));
    refused80!(EINTR, 162, long, rest);
    let [seconds, _, guard] = words(rest);
    ensure!((seconds, guard) == (4, 9), "{seconds} s are left, {guard}");
    // Times of files.
    let (path, fd) = file("narrow-clocks", b"")?;
    let times = low.words(&[1000, 0, 5, 1, 2000, 1, 6, 1]);
    call80!(412, AT_FDCWD, low.text(&path), times, 0);
    // SAFETY: all zeros is a valid one.
    let mut found: stat = unsafe { zeroed() };
    call!(fstat(fd, &mut found));
    ensure!(
        (
            found.st_atime,
            found.st_atime_nsec,
            found.st_mtime,
            found.st_mtime_nsec
        ) == (1000, 5, 2000 + (1 << 32), 6),
        "{} {}",
        found.st_atime,
        found.st_mtime
    );
    call80!(320, AT_FDCWD, low.text(&path), low.words(&[7, 8, 9, 10]), 0);
    call!(fstat(fd, &mut found));
    ensure!(
        (found.st_atime, found.st_mtime, found.st_mtime_nsec) == (7, 9, 10),
        "utimensat"
    );
    Ok(())
}

fn timers() -> Outcome {
    let mut low = Low::new()?;
    let fd = call!(timerfd_create(CLOCK_MONOTONIC, 0));
    let (set, old) = (low.words(&[1, 5, 100, 0]), low.room(64));
    call80!(325, fd, 0, set, 0);
    let set = low.words(&[2, 0, 6, 3, 50, 0, 0, 0]);
    call80!(411, fd, 0, set, old);
    let w: [u32; 8] = words(old);
    ensure!((w[0], w[2], w[4]) == (1, 5, 99) || w[4] == 100, "{w:?}");
    call80!(326, fd, old);
    let w: [u32; 5] = words(old);
    ensure!((w[0], w[1]) == (2, 6) && w[2] >= 49, "{w:?}");
    // A POSIX timer with a value, and its signal's siginfo.
    let event = low.words(&[0x77, SIGUSR2 as u32, SIGEV_SIGNAL as u32]);
    block(&[SIGUSR2])?;
    let id = low.words(&[99]);
    call80!(259, CLOCK_MONOTONIC, event, id);
    let [timer] = words(id);
    call80!(260, timer, 0, low.words(&[0, 0, 0, 1_000_000]), 0);
    let set = low.words(&[1 << (SIGUSR2 - 1), 0]);
    let info = low.room(128);
    equal!(call80!(177, set, info, low.words(&[5, 0]), 8), SIGUSR2);
    let w: [u32; 6] = words(info);
    ensure!(
        (w[0], w[2] as i32, w[3], w[5]) == (SIGUSR2 as u32, SI_TIMER, timer, 0x77),
        "{w:?}"
    );
    call80!(263, timer);
    Ok(())
}

fn waiting() -> Outcome {
    let mut low = Low::new()?;
    let (reader, writer) = pipe(0)?;
    call!(dup2(reader, 40));
    call!(write(writer, c"x".as_ptr().cast(), 1));
    // Sets of 41 files have two words here and one there.
    let set = low.words(&[0, 1 << 8, 0xdead]);
    equal!(call80!(142, 41, set, 0, 0, low.words(&[1, 0])), 1);
    ensure!(words(set) == [0, 1 << 8, 0xdead], "{:x?}", words::<3>(set));
    let mask = low.words(&[0, 0]);
    let sixth = low.words(&[mask, 8]);
    equal!(call80!(308, 41, set, 0, 0, low.words(&[0, 0]), sixth), 1);
    ensure!(
        call80!(413, 41, set, 0, 0, low.words(&[0, 0, 0, 0]), sixth) == 1,
        "pselect6_time64"
    );
    let old = low.words(&[41, set, 0, 0, 0]);
    ensure!(call80!(82, old) == 1, "old select");
    read_bytes(&reader, 1)?;
    let files = low.words(&[40, POLLIN as u32]);
    equal!(call80!(309, files, 1, low.words(&[0, 1000]), mask, 8), 0);
    ensure!(
        call80!(414, files, 1, low.words(&[0, 0, 1000, 5]), mask, 8) == 0,
        "ppoll_time64"
    );
    let word = low.words(&[7]);
    refused80!(
        ETIMEDOUT,
        240,
        word,
        FUTEX_WAIT,
        7,
        low.words(&[0, 1_000_000])
    );
    refused80!(
        ETIMEDOUT,
        422,
        word,
        FUTEX_WAIT,
        7,
        low.words(&[0, 0, 1_000_000, 0])
    );
    refused80!(EAGAIN, 240, word, FUTEX_WAIT, 8, 0);
    // A child's end.
    let child = spawn(|| exit(5))?;
    let (info, usage) = (low.room(128), low.room(80));
    call80!(284, P_PID, child, info, WEXITED | WNOWAIT, usage);
    let w: [u32; 6] = words(info);
    ensure!(
        (w[0], w[2], w[3], w[5]) == (SIGCHLD as u32, CLD_EXITED as u32, child as u32, 5),
        "{w:?}"
    );
    let status = low.room(4);
    ensure!(
        call80!(114, child, status, 0, usage) == child && words(status) == [5 << 8],
        "wait4"
    );
    Ok(())
}
