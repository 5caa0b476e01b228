//! What the calls that move bytes between descriptors refuse, as on Linux.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("movement: positions near the end of all files", positions),
    ("movement: files without positions", without_positions),
    ("movement: vmsplice does not heed O_NONBLOCK", nonblocking),
    (
        "movement: a splice without memory takes nothing",
        without_memory,
    ),
];

/// What a call has returned, or the negative error.
fn outcome(n: ssize_t) -> i64 {
    match n {
        -1 => -i64::from(errno()),
        n => n as i64,
    }
}

fn sent(to: c_int, from: c_int, mut at: i64, len: usize) -> i64 {
    // SAFETY: `at` lives.
    outcome(unsafe { sendfile(to, from, &mut at, len) })
}

fn spliced(from: c_int, at: Option<i64>, to: c_int, to_at: Option<i64>) -> i64 {
    let place = |at: &Option<i64>| at.as_ref().map_or(null(), ptr::from_ref).cast_mut();
    let flags = SPLICE_F_NONBLOCK;
    // SAFETY: the positions live.
    outcome(unsafe { splice(from, place(&at), to, place(&to_at), 10, flags) })
}

fn copied(from: c_int, mut at: i64, to: c_int, mut to_at: i64) -> i64 {
    // SAFETY: the positions live.
    outcome(unsafe { copy_file_range(from, &mut at, to, &mut to_at, 10, 0) })
}

fn positions() -> Outcome {
    let [one, other] = [c"one", c"other"].map(|name| {
        // SAFETY: the name lives.
        unsafe { memfd_create(name.as_ptr(), 0) }
    });
    for file in [one, other] {
        call!(ftruncate(file, 3 * PAGE as off_t));
    }
    let (reader, writer) = pipe(O_NONBLOCK)?;
    call!(write(writer, [7u8; 64].as_ptr().cast(), 64));
    // By position: from and to a file by `copy_file_range`, by `sendfile`, from a file to a pipe,
    // from a pipe to a file.
    const OVER: i64 = -(EOVERFLOW as i64);
    const BAD: i64 = -(EINVAL as i64);
    const BIG: i64 = -(EFBIG as i64);
    let cases = [
        (-1, [OVER, OVER, BAD, BAD, BAD]),
        (-10, [OVER, OVER, BAD, BAD, BAD]),
        (-11, [BAD; 5]),
        (i64::MIN, [BAD; 5]),
        (i64::MAX, [0, BIG, BAD, BAD, BAD]),
    ];
    for (at, expected) in cases {
        let found = [
            copied(one, at, other, 0),
            copied(one, 0, other, at),
            sent(writer, one, at, 10),
            spliced(one, Some(at), writer, None),
            spliced(reader, None, one, Some(at)),
        ];
        equal!(found, expected, at);
    }
    let found = [
        sent(writer, one, i64::MAX - 9, 10),
        spliced(one, Some(i64::MAX - 9), writer, None),
        spliced(reader, None, one, Some(i64::MAX - 9)),
        sent(writer, one, 1 << 62, 10),
        spliced(one, Some(1 << 62), writer, None),
    ];
    equal!(found, [BAD, BAD, BAD, 0, 0]);
    for fd in [one, other, reader, writer] {
        call!(close(fd));
    }
    Ok(())
}

fn without_positions() -> Outcome {
    const BAD: i64 = -(EINVAL as i64);
    let [one, other] = socket_pair(SOCK_STREAM)?;
    let (reader, writer) = pipe(O_NONBLOCK)?;
    write_bytes(&other, &[1; 20])?;
    let one = one.as_raw_fd();
    equal!(spliced(one, Some(0), writer, None), BAD);
    equal!(spliced(one, None, writer, None), 10);
    equal!(spliced(reader, None, one, Some(0)), BAD);
    equal!(spliced(reader, None, one, None), 10);
    let pipe_error = -i64::from(ESPIPE);
    equal!(spliced(one, None, writer, Some(0)), pipe_error);
    equal!(spliced(reader, Some(0), one, None), pipe_error);
    let file = call!(memfd_create(c"file".as_ptr(), 0));
    equal!(sent(file, one, 0, 10), pipe_error);
    let null_file = call!(open(c"/dev/null".as_ptr(), O_RDWR));
    equal!(spliced(null_file, None, writer, None), BAD);
    equal!(spliced(null_file, Some(0), writer, None), BAD);
    call!(write(writer, [7u8; 20].as_ptr().cast(), 20));
    equal!(spliced(reader, None, null_file, None), 10);
    equal!(spliced(reader, None, null_file, Some(5)), 10);
    for fd in [reader, writer, file, null_file] {
        call!(close(fd));
    }
    Ok(())
}

/// Only the call's own flag lets it not wait.
fn nonblocking() -> Outcome {
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let memory = map(PAGE)?;
    let part = vector(memory, PAGE);
    while spliced_in(writer, &part, SPLICE_F_NONBLOCK) > 0 {}
    equal!(errno(), EAGAIN);
    let child = spawn(|| {
        equal!(spliced_in(writer, &part, 0), PAGE as i64);
        Ok(())
    })?;
    await_sleep(child)?;
    while outcome(
        // SAFETY: reads into the mapping.
        unsafe { read(reader, memory.cast(), PAGE) },
    ) > 0
    {}
    wait_ok(child)?;
    while spliced_in(reader, &part, SPLICE_F_NONBLOCK) > 0 {}
    equal!(errno(), EAGAIN);
    let child = spawn(|| {
        equal!(spliced_in(reader, &part, 0), PAGE as i64);
        Ok(())
    })?;
    await_sleep(child)?;
    equal!(spliced_in(writer, &part, 0), PAGE as i64);
    wait_ok(child)?;
    call!(close(reader));
    call!(close(writer));
    unmap(memory, PAGE)
}

fn spliced_in(pipe: c_int, part: &iovec, flags: c_uint) -> i64 {
    // SAFETY: the memory lives.
    outcome(unsafe { vmsplice(pipe, part, 1, flags) })
}

/// The bytes of a stream that come when others have filled the pipe go there all the same, or stay
/// in the stream if there is no memory for them.
fn without_memory() -> Outcome {
    const LEN: usize = 4 * PAGE;
    // Its chain of slices takes more than a page.
    const FULL: usize = 256 * PAGE;
    let from = map(FULL)?;
    touch(from, FULL, 1);
    let unread = |fd: c_int| -> Result<usize> {
        let mut count: c_int = 0;
        call!(ioctl(fd, FIONREAD, &mut count));
        Ok(count as usize)
    };
    let switch = File::options()
        .write(true)
        .open("/proc/causeway/failalloc")?;
    let fail_each = |n: u64| while switch.write_at(n.to_string().as_bytes(), 0).is_err() {};
    for each in 3..40 {
        let [one, other] = socket_pair(SOCK_STREAM)?;
        let (reader, writer) = pipe(0)?;
        call!(fcntl(writer, F_SETPIPE_SZ, FULL));
        let child = spawn(|| {
            let n = unsafe {
                // SAFETY: there are no positions.
                splice(one.as_raw_fd(), null_mut(), writer, null_mut(), LEN, 0)
            };
            ensure!(n > 0 || errno() == ENOMEM, "splice: {}", errno());
            Ok(())
        })?;
        await_sleep(child)?;
        call!(write(writer, from.cast(), FULL));
        fail_each(each);
        let mut sent = -1;
        while sent < 0 {
            // SAFETY: reads the mapping.
            sent = unsafe { write(other.as_raw_fd(), from.cast(), LEN) };
        }
        let end = wait(child);
        fail_each(0);
        equal!(end?, End::Exit(0), each);
        let left = unread(one.as_raw_fd())? + unread(reader)?;
        equal!(left, sent as usize + FULL, each);
        call!(close(reader));
        call!(close(writer));
    }
    unmap(from, FULL)
}
