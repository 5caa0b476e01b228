//! poll and select.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("polling: what a pipe says", pipes),
    ("polling: files and bad descriptors", files),
    ("polling: timeouts", timeouts),
    ("polling: woken by another process", woken),
    ("polling: select", select),
    ("polling: ppoll changes the mask", mask),
    ("polling: many descriptors", many),
];

fn pipes() -> Outcome {
    let (reader, writer) = pipe(O_NONBLOCK)?;
    ensure!(
        poll_for(&reader, POLLIN, 0)? == 0,
        "an empty pipe is readable"
    );
    equal!(poll_for(&writer, POLLOUT, 0)?, POLLOUT);
    call!(write(writer, b"x".as_ptr().cast(), 1));
    equal!(poll_for(&reader, POLLIN, -1)?, POLLIN);
    let bytes = [0u8; 65536];
    // SAFETY: writes from a live buffer.
    while unsafe { libc::write(writer, bytes.as_ptr().cast(), bytes.len()) } > 0 {}
    equal!(poll_for(&writer, POLLOUT, 0)?, 0);
    call!(close(writer));
    equal!(poll_for(&reader, POLLIN, 0)?, POLLIN | POLLHUP);
    let mut buffer = [0u8; 65536];
    // SAFETY: reads into a live buffer.
    while unsafe { libc::read(reader, buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
    ensure!(poll_for(&reader, POLLIN, 0)? == POLLHUP, "no hang-up");
    let (reader, writer) = pipe(0)?;
    call!(close(reader));
    ensure!(poll_for(&writer, POLLOUT, 0)? & POLLERR != 0);
    Ok(())
}

fn files() -> Outcome {
    let (_, open) = file("poll", b"text")?;
    equal!(poll_for(&open, POLLIN | POLLOUT, 0)?, POLLIN | POLLOUT);
    ensure!(poll_for(&999, POLLIN, 0)? == POLLNVAL, "no POLLNVAL");
    equal!(poll_for(&-1, POLLIN, 0)?, 0);
    let null = call!(open(c"/dev/null".as_ptr(), O_RDWR));
    equal!(poll_for(&null, POLLIN | POLLOUT, 0)?, POLLIN | POLLOUT);
    Ok(())
}

fn timeouts() -> Outcome {
    let (reader, _writer) = pipe(0)?;
    for milliseconds in [1, 20, 60] {
        let start = Instant::now();
        ensure!(poll_for(&reader, POLLIN, milliseconds)? == 0, "ready");
        let time = start.elapsed();
        ensure!(
            time >= Duration::from_millis(milliseconds as u64),
            "{milliseconds} ms: {time:?}"
        );
    }
    let start = Instant::now();
    call!(poll(null_mut(), 0, 30));
    ensure!(start.elapsed() >= Duration::from_millis(30));
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
        ensure!(poll_for(&reader, POLLIN, 10_000)? == POLLIN, "not woken");
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
    ensure!(poll_for(&reader, POLLIN, 10_000)? & POLLHUP != 0);
    wait(child)?;
    Ok(())
}

fn select() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let ask = |readers: &[c_int], writers: &[c_int], time: i64| -> Result<(c_int, Vec<bool>)> {
        // SAFETY: all zeros is an empty set; the descriptors are below its size.
        let (mut read, mut write): (fd_set, fd_set) = unsafe { zeroed() };
        // SAFETY: as above.
        unsafe {
            readers.iter().for_each(|&fd| libc::FD_SET(fd, &mut read));
            writers.iter().for_each(|&fd| libc::FD_SET(fd, &mut write));
        }
        let mut time = time_val(time);
        let count = call!(select(64, &mut read, &mut write, null_mut(), &mut time));
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
    let mut bad: fd_set = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { libc::FD_SET(60, &mut bad) };
    refused! {
        select(64, &mut bad, null_mut(), null_mut(), null_mut()) => EBADF;
        select(-1, null_mut(), null_mut(), null_mut(), null_mut()) => EINVAL;
    }
    Ok(())
}

fn mask() -> Outcome {
    handle(SIGUSR1, ignore_signal, 0)?;
    let empty = set_of(&[]);
    block(&[SIGUSR1])?;
    call!(raise(SIGUSR1));
    refused!(EINTR, ppoll(null_mut(), 0, null(), &empty));
    let mut now = empty;
    call!(sigprocmask(SIG_BLOCK, null(), &mut now));
    // SAFETY: a valid set.
    equal!(unsafe { libc::sigismember(&now, SIGUSR1) }, 1);
    Ok(())
}

fn many() -> Outcome {
    let pipes: Vec<_> = (0..100).map(|_| pipe(0)).collect::<Result<_, _>>()?;
    let mut polls: Vec<_> = pipes
        .iter()
        .map(|&(fd, _)| poll_entry(fd, POLLIN))
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
