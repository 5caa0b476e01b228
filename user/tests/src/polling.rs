//! poll and select.

use std::ptr;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, c_int, pollfd};

use crate::support::{Outcome, file, handle, pause_ms, pipe, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("polling: what a pipe says", pipes),
    ("polling: files and bad descriptors", files),
    ("polling: timeouts", timeouts),
    ("polling: woken by another process", woken),
    ("polling: select", select),
    ("polling: ppoll changes the mask", mask),
    ("polling: many descriptors", many),
];

fn ask(descriptor: c_int, events: i16, timeout: i32) -> Result<i16, String> {
    let mut poll = pollfd {
        fd: descriptor,
        events,
        revents: -1,
    };
    let count = call!(poll(&mut poll, 1, timeout));
    ensure!(
        count == i32::from(poll.revents != 0),
        "poll gave {count} for {:#x}",
        poll.revents
    );
    Ok(poll.revents)
}

fn pipes() -> Outcome {
    let (reader, writer) = pipe(libc::O_NONBLOCK)?;
    ensure!(ask(reader, POLLIN, 0)? == 0, "an empty pipe is readable");
    ensure!(
        ask(writer, POLLOUT, 0)? == POLLOUT,
        "an empty pipe is not writable"
    );
    call!(write(writer, b"x".as_ptr().cast(), 1));
    ensure!(
        ask(reader, POLLIN, -1)? == POLLIN,
        "a full pipe is not readable"
    );
    let bytes = [0u8; 65536];
    // SAFETY: writes from a live buffer.
    while unsafe { libc::write(writer, bytes.as_ptr().cast(), bytes.len()) } > 0 {}
    ensure!(
        ask(writer, POLLOUT, 0)? == 0,
        "a pipe without room is writable"
    );
    call!(close(writer));
    ensure!(
        ask(reader, POLLIN, 0)? == POLLIN | POLLHUP,
        "no hang-up beside the data"
    );
    let mut buffer = [0u8; 65536];
    // SAFETY: reads into a live buffer.
    while unsafe { libc::read(reader, buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
    ensure!(ask(reader, POLLIN, 0)? == POLLHUP, "no hang-up");
    let (reader, writer) = pipe(0)?;
    call!(close(reader));
    ensure!(
        ask(writer, POLLOUT, 0)? & POLLERR != 0,
        "no error without a reader"
    );
    Ok(())
}

fn files() -> Outcome {
    let (_, open) = file("poll", b"text")?;
    ensure!(
        ask(open, POLLIN | POLLOUT, 0)? == POLLIN | POLLOUT,
        "a file is not always ready"
    );
    ensure!(ask(999, POLLIN, 0)? == POLLNVAL, "no POLLNVAL");
    ensure!(
        ask(-1, POLLIN, 0)? == 0,
        "a negative descriptor is not ignored"
    );
    let null = call!(open(c"/dev/null".as_ptr(), libc::O_RDWR));
    ensure!(
        ask(null, POLLIN | POLLOUT, 0)? == POLLIN | POLLOUT,
        "/dev/null is not ready"
    );
    Ok(())
}

fn timeouts() -> Outcome {
    let (reader, _writer) = pipe(0)?;
    for milliseconds in [1, 20, 60] {
        let start = Instant::now();
        ensure!(ask(reader, POLLIN, milliseconds)? == 0, "ready");
        let time = start.elapsed();
        ensure!(
            time >= Duration::from_millis(milliseconds as u64),
            "{milliseconds} ms: {time:?}"
        );
    }
    let start = Instant::now();
    call!(poll(ptr::null_mut(), 0, 30));
    ensure!(
        start.elapsed() >= Duration::from_millis(30),
        "poll of nothing returned early"
    );
    Ok(())
}

fn woken() -> Outcome {
    for _ in 0..30 {
        let (reader, writer) = pipe(0)?;
        let child = spawn(|| {
            pause_ms(3);
            call!(write(writer, b"x".as_ptr().cast(), 1));
            Ok(())
        })?;
        let start = Instant::now();
        ensure!(ask(reader, POLLIN, 10_000)? == POLLIN, "not woken");
        ensure!(start.elapsed() < Duration::from_secs(5), "woken late");
        wait(child)?;
        call!(close(reader));
        call!(close(writer));
    }
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        pause_ms(10);
        Ok(())
    })?;
    call!(close(writer));
    ensure!(
        ask(reader, POLLIN, 10_000)? & POLLHUP != 0,
        "not woken by the hang-up"
    );
    wait(child)?;
    Ok(())
}

fn select() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let ask =
        |readers: &[c_int], writers: &[c_int], time: i64| -> Result<(c_int, Vec<bool>), String> {
            // SAFETY: all zeros is an empty set; the descriptors are below its size.
            let (mut read, mut write): (libc::fd_set, libc::fd_set) = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            unsafe {
                readers.iter().for_each(|&fd| libc::FD_SET(fd, &mut read));
                writers.iter().for_each(|&fd| libc::FD_SET(fd, &mut write));
            }
            let mut time = libc::timeval {
                tv_sec: 0,
                tv_usec: time,
            };
            let count = call!(select(
                64,
                &mut read,
                &mut write,
                ptr::null_mut(),
                &mut time
            ));
            // SAFETY: as above.
            let set = unsafe {
                readers
                    .iter()
                    .map(|&fd| libc::FD_ISSET(fd, &read))
                    .chain(writers.iter().map(|&fd| libc::FD_ISSET(fd, &write)))
                    .collect()
            };
            Ok((count, set))
        };
    let start = Instant::now();
    let (count, set) = ask(&[reader], &[], 20_000)?;
    ensure!(count == 0 && set == [false], "ready: {count} {set:?}");
    ensure!(start.elapsed() >= Duration::from_millis(20), "early");
    let (count, set) = ask(&[reader], &[writer], 0)?;
    ensure!(count == 1 && set == [false, true], "{count} {set:?}");
    call!(write(writer, b"x".as_ptr().cast(), 1));
    let (count, set) = ask(&[reader], &[writer], 0)?;
    ensure!(count == 2 && set == [true, true], "{count} {set:?}");
    // SAFETY: all zeros is an empty set; the descriptor is below its size.
    let mut bad: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::FD_SET(60, &mut bad) };
    refused!(
        EBADF,
        select(
            64,
            &mut bad,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut()
        )
    );
    refused!(
        EINVAL,
        select(
            -1,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut()
        )
    );
    Ok(())
}

fn mask() -> Outcome {
    extern "C" fn nothing(_: c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    handle(libc::SIGUSR1, nothing, 0)?;
    // SAFETY: all zeros is an empty set, then one signal is added.
    let (empty, mut blocked): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::sigaddset(&mut blocked, libc::SIGUSR1) };
    call!(sigprocmask(libc::SIG_BLOCK, &blocked, ptr::null_mut()));
    call!(raise(libc::SIGUSR1));
    refused!(EINTR, ppoll(ptr::null_mut(), 0, ptr::null(), &empty));
    let mut now = empty;
    call!(sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut now));
    // SAFETY: a valid set.
    ensure!(
        unsafe { libc::sigismember(&now, libc::SIGUSR1) } == 1,
        "the mask did not come back"
    );
    Ok(())
}

fn many() -> Outcome {
    let pipes: Vec<_> = (0..100).map(|_| pipe(0)).collect::<Result<_, _>>()?;
    let mut polls: Vec<_> = pipes
        .iter()
        .map(|&(fd, _)| pollfd {
            fd,
            events: POLLIN,
            revents: 0,
        })
        .collect();
    for &chosen in &[0, 57, 99] {
        call!(write(pipes[chosen].1, b"x".as_ptr().cast(), 1));
        let count = call!(poll(polls.as_mut_ptr(), 100, 1000));
        ensure!(count == 1, "{count} are ready");
        let ready = polls.iter().position(|poll| poll.revents != 0);
        ensure!(ready == Some(chosen), "{ready:?} is ready, not {chosen}");
        let mut byte = 0u8;
        call!(read(pipes[chosen].0, (&raw mut byte).cast(), 1));
    }
    Ok(())
}
