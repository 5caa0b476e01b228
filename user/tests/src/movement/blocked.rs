//! Writers that wait for room have their bytes taken out of their memory by the reader: in order,
//! once, up to a kill or a signal.

use super::{SWITCH, WAYS, connection};
use crate::large::Switched;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "movement: a writer is done though another fills the stream",
        filled_by_another,
    ),
    ("movement: a vmsplice that waits for room", spliced),
    (
        "movement: readers and writers killed at work",
        killed_at_work,
    ),
    (
        "movement: a reader goes on with what a writer waits to write",
        taken,
    ),
    ("movement: writers that wait are interrupted", interrupted),
    ("movement: writers that wait are killed", killed),
    ("movement: writers that wait beside others", beside_others),
    ("movement: a writer's memory that goes while it waits", gone),
    ("movement: nothing comes behind the end of a stream", ended),
];

/// More bytes than any stream holds.
const LEN: usize = 2 << 20;
const WORDS: usize = LEN / 8;

/// So many bytes that a call which moves them is interrupted before its end.
const ENDLESS: usize = 32 * LEN;

/// Memory of [`LEN`] bytes that counts from `first` on.
fn counting(first: usize) -> Result<*mut u8> {
    let memory = map(LEN)?;
    count_from(memory, first);
    Ok(memory)
}

fn count_from(memory: *mut u8, first: usize) {
    for word in 0..WORDS {
        // SAFETY: inside the mapping, which is aligned.
        unsafe { memory.cast::<u64>().add(word).write((first + word) as u64) };
    }
}

/// Checks that `len` bytes count from `next` on; returns with what they would go on.
fn checked(memory: *const u8, len: usize, mut next: u64) -> Result<u64> {
    ensure!(len % 8 == 0, "{len} bytes");
    for word in 0..len / 8 {
        // SAFETY: inside the mapping, which is aligned.
        equal!(unsafe { memory.cast::<u64>().add(word).read() }, next);
        next += 1;
    }
    Ok(next)
}

/// A reader and a writer of each kind of stream.
fn streams() -> Result<[(c_int, c_int); 3]> {
    let [reader, writer] = socket_pair(SOCK_STREAM)?.map(IntoRawFd::into_raw_fd);
    Ok([pipe(0)?, (reader, writer), connection()?])
}

fn write_all(writer: c_int, memory: *const u8, len: usize) -> Outcome {
    let mut done = 0;
    while done < len {
        let at = memory.wrapping_add(done).cast();
        done += call!(write(writer, at, len - done)) as usize;
    }
    Ok(())
}

/// One read takes what is in the stream and what its writer waits with, by one copy or none. What
/// the writer writes later is not seen, and a writer all of whose bytes were taken has written
/// them, even if the reader is gone by then.
fn taken() -> Outcome {
    for (reader, writer) in streams()? {
        for way in WAYS {
            let _way = Switched::to(SWITCH, way)?;
            let to = map(LEN)?;
            touch(to, LEN, 0);
            let child = spawn(|| {
                let from = counting(0)?;
                let n = call!(write(writer, from.cast(), LEN));
                equal!(n as usize, LEN);
                count_from(from, 7);
                Ok(())
            })?;
            await_sleep(child)?;
            let past = || Ok::<u64, Failure>(counter("bytes_put")? + counter("bytes_passed")?);
            let before = past()?;
            let mut done = 0;
            while done < LEN {
                let at = to.wrapping_add(done).cast();
                done += call!(read(reader, at, LEN - done)) as usize;
            }
            wait_ok(child)?;
            checked(to, LEN, 0)?;
            // Where there are others the writer may go on by itself.
            if way == "once" && cpus() == 1 {
                let past = past()? - before;
                ensure!(
                    past as usize >= LEN / 2,
                    "{past} bytes went past the stream"
                );
            }
            unmap(to, LEN)?;
        }
        let child = spawn(|| {
            call!(close(reader));
            let from = counting(0)?;
            let n = call!(write(writer, from.cast(), LEN));
            equal!(n as usize, LEN);
            Ok(())
        })?;
        let to = map(LEN)?;
        let mut next = 0;
        while (next as usize) < WORDS {
            let n = call!(read(reader, to.cast(), LEN));
            next = checked(to, n as usize, next)?;
        }
        call!(close(reader));
        wait_ok(child)?;
        call!(close(writer));
        unmap(to, LEN)?;
    }
    Ok(())
}

/// A writer that is interrupted goes on behind the bytes that it was told of.
fn interrupted() -> Outcome {
    extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
    for way in ["once", "loan", "auto"] {
        let _way = Switched::to(SWITCH, way)?;
        for (reader, writer) in streams()? {
            let child = spawn(|| {
                call!(close(reader));
                handle(SIGALRM, nothing, 0)?;
                let timer = timer_val(500, 500);
                call!(setitimer(ITIMER_REAL, &timer, null_mut()));
                let from = map(LEN)?;
                for round in 0..6 {
                    count_from(from, round * WORDS);
                    let mut done = 0;
                    while done < LEN {
                        let at = from.wrapping_add(done).cast();
                        // SAFETY: writes from the mapping.
                        match unsafe { write(writer, at, LEN - done) } {
                            n @ 0.. => done += n as usize,
                            _ => equal!(errno(), EINTR),
                        }
                    }
                }
                Ok(())
            })?;
            call!(close(writer));
            let to = map(LEN)?;
            touch(to, LEN, 0);
            let (mut next, mut numbers) = (0, Numbers::new(5));
            while (next as usize) < 6 * WORDS {
                let most = 8 * (1 + numbers.below(WORDS as u64) as usize);
                let n = call!(read(reader, to.cast(), most));
                ensure!(n > 0, "the stream ends at word {next}");
                next = checked(to, n as usize, next)?;
            }
            equal!(call!(read(reader, to.cast(), LEN)), 0);
            wait_ok(child)?;
            call!(close(reader));
            unmap(to, LEN)?;
        }
    }
    Ok(())
}

/// The reader of a writer that is killed in its wait has the first of its bytes, whole words of
/// them, and then those of the next writer.
fn killed() -> Outcome {
    for (reader, writer) in streams()? {
        let to = map(LEN)?;
        let mut numbers = Numbers::new(11);
        for round in 0..24 {
            let child = spawn(|| {
                let from = counting(round * WORDS)?;
                write_all(writer, from, LEN)
            })?;
            await_sleep(child)?;
            let killer = spawn(|| {
                call!(kill(child, SIGKILL));
                Ok(())
            })?;
            let mut next = (round * WORDS) as u64;
            let most = 8 * (1 + numbers.below(WORDS as u64 / 2) as usize);
            let n = call!(read(reader, to.cast(), most));
            next = checked(to, n as usize, next)?;
            wait_ok(killer)?;
            equal!(wait(child)?, End::Signal(SIGKILL));
            // What is left of it, and a word that ends it.
            let last = spawn(|| {
                let end = [u64::MAX; 1];
                call!(write(writer, end.as_ptr().cast(), 8));
                Ok(())
            })?;
            loop {
                let n = call!(read(reader, to.cast(), LEN)) as usize;
                // SAFETY: inside the mapping, which is aligned.
                let last = unsafe { to.cast::<u64>().add(n / 8 - 1).read() };
                let is_end = last == u64::MAX;
                next = checked(to, n - 8 * usize::from(is_end), next)?;
                if is_end {
                    break;
                }
            }
            wait_ok(last)?;
        }
        unmap(to, LEN)?;
        call!(close(reader));
        call!(close(writer));
    }
    Ok(())
}

/// Several writers of a pipe: the bytes of each come in order, and those of a small write together.
fn beside_others() -> Outcome {
    const SMALL: usize = 64;
    let (reader, writer) = pipe(0)?;
    let large = |number: u64| {
        spawn(move || {
            let from = map(LEN)?;
            for word in 0..WORDS as u64 {
                let value = number << 32 | word;
                // SAFETY: inside the mapping, which is aligned.
                unsafe { from.cast::<u64>().add(word as usize).write(value) };
            }
            write_all(writer, from, LEN)
        })
    };
    let small = spawn(|| {
        for message in 0..2000u64 {
            let words = [3 << 32 | message; SMALL];
            call!(write(writer, words.as_ptr().cast(), size_of_val(&words)));
        }
        Ok(())
    })?;
    let children = [large(0)?, large(1)?, large(2)?, small];
    call!(close(writer));
    let to = map(LEN)?;
    let (mut next, mut run) = ([0u64; 4], 0);
    loop {
        let n = call!(read(reader, to.cast(), LEN)) as usize;
        if n == 0 {
            break;
        }
        for word in 0..n / 8 {
            // SAFETY: inside the mapping, which is aligned.
            let value = unsafe { to.cast::<u64>().add(word).read() };
            let (of, count) = ((value >> 32) as usize, value & 0xffff_ffff);
            ensure!(of < 4, "{value:#x}");
            ensure!(of == 3 || run == 0, "a small write was parted");
            equal!(count, next[of]);
            if of == 3 {
                run = (run + 1) % SMALL;
            }
            if of < 3 || run == 0 {
                next[of] += 1;
            }
        }
    }
    equal!(next, [WORDS as u64, WORDS as u64, WORDS as u64, 2000]);
    children.into_iter().try_for_each(wait_ok)?;
    call!(close(reader));
    unmap(to, LEN)
}

/// A writer all of whose bytes were taken has written them, also if another one that waited longer
/// has filled the stream by then.
fn filled_by_another() -> Outcome {
    const PART: usize = 64 * PAGE;
    // On one CPU a reader goes on with the bytes of a writer, of any stream.
    pin(0)?;
    for (reader, writer) in streams()? {
        let filler = spawn(|| {
            let zeros = [0u8; PAGE];
            loop {
                call!(write(writer, zeros.as_ptr().cast(), PAGE));
            }
        })?;
        await_sleep(filler)?;
        let child = spawn(|| {
            let from = map(PART)?;
            // SAFETY: inside the mapping.
            unsafe { from.write_bytes(1, PART) };
            let n = call!(write(writer, from.cast(), PART));
            equal!(n as usize, PART);
            Ok(())
        })?;
        await_sleep(child)?;
        let to = map(LEN)?;
        touch(to, LEN, 0);
        let mut taken = 0;
        while taken < PART {
            let n = call!(read(reader, to.cast(), LEN)) as usize;
            // SAFETY: inside the mapping.
            let bytes = unsafe { std::slice::from_raw_parts(to, n) };
            taken += bytes.iter().filter(|&&byte| byte == 1).count();
        }
        wait_ok(child)?;
        kill_child(filler)?;
        call!(close(reader));
        call!(close(writer));
        unmap(to, LEN)?;
    }
    Ok(())
}

/// The bytes of a `vmsplice` that waits for room are taken as those of a write are.
fn spliced() -> Outcome {
    const FULL: usize = 16 * PAGE;
    for way in WAYS {
        let _way = Switched::to(SWITCH, way)?;
        let (reader, writer) = pipe(0)?;
        let zeros = map(FULL)?;
        let child = spawn(|| {
            let from = counting(0)?;
            write_all(writer, zeros, FULL)?;
            let mut done = 0;
            while done < LEN {
                let rest = iovec {
                    iov_base: from.wrapping_add(done).cast(),
                    iov_len: LEN - done,
                };
                done += call!(vmsplice(writer, &rest, 1, 0)) as usize;
            }
            equal!(done, LEN);
            count_from(from, 7);
            Ok(())
        })?;
        await_sleep(child)?;
        let to = map(LEN)?;
        touch(to, LEN, 0);
        let past = || Ok::<u64, Failure>(counter("bytes_put")? + counter("bytes_passed")?);
        let before = past()?;
        let mut next = 0;
        // What follows the zeros goes past the pipe.
        let n = call!(read(reader, to.cast(), LEN)) as usize;
        ensure!(n >= FULL, "{n} bytes");
        next = checked(to.wrapping_add(FULL), n - FULL, next)?;
        if way == "once" {
            let past = past()? - before;
            ensure!(past as usize >= LEN / 2, "{past} bytes went past the pipe");
        }
        while (next as usize) < WORDS {
            let n = call!(read(reader, to.cast(), LEN)) as usize;
            next = checked(to, n, next)?;
        }
        wait_ok(child)?;
        call!(close(reader));
        call!(close(writer));
        unmap(to, LEN)?;
        unmap(zeros, FULL)?;
    }
    Ok(())
}

/// Sets how this thread is scheduled.
fn priority(policy: c_int, sched_priority: c_int) -> Outcome {
    let parameter = sched_param { sched_priority };
    call!(sched_setscheduler(0, policy, &parameter));
    Ok(())
}

/// Memory that takes long to copy: a file's, again and again, shared with children.
fn endless() -> Result<*mut u8> {
    let file = call!(memfd_create(c"endless".as_ptr(), 0));
    call!(ftruncate(file, LEN as off_t));
    let whole = map_with(ENDLESS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
    for at in (0..ENDLESS).step_by(LEN) {
        let at = whole.wrapping_add(at).cast();
        call!(mmap(at, LEN, READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
    }
    call!(close(file));
    Ok(whole)
}

/// A reader that is killed while it goes on with the bytes of a writer that waits does not take
/// them all, nor does a writer that is killed while it fills the buffer of a reader give them all.
fn killed_at_work() -> Outcome {
    let _way = Switched::to(SWITCH, "once")?;
    // On one CPU, where this thread comes before the others as soon as its time is over.
    pin(0)?;
    let (from, to) = (endless()?, endless()?);
    let moved = shared_value(AtomicUsize::new(0))?;
    for stream in 0..6 {
        let (reader, writer) = streams()?[stream / 2];
        let begin = |gives: bool| {
            spawn(|| {
                let n = match gives {
                    true => {
                        touch(from, ENDLESS, 1);
                        call!(write(writer, from.cast(), ENDLESS))
                    }
                    false => {
                        touch(to, ENDLESS, 0);
                        call!(read(reader, to.cast(), ENDLESS))
                    }
                };
                moved.store(n as usize, SeqCst);
                loop {
                    pause_ms(1000);
                }
            })
        };
        moved.store(0, SeqCst);
        let gives_first = stream % 2 == 0;
        let waits = begin(gives_first)?;
        await_sleep(waits)?;
        touch(to, LEN, 0);
        let works = begin(!gives_first)?;
        priority(SCHED_FIFO, 1)?;
        while peek(to) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
        call!(kill(works, SIGKILL));
        priority(SCHED_OTHER, 0)?;
        equal!(wait(works)?, End::Signal(SIGKILL));
        await_sleep(waits)?;
        let moved = moved.load(SeqCst);
        ensure!(moved < ENDLESS, "stream {stream}: all bytes went");
        kill_child(waits)?;
    }
    unmap(from, ENDLESS)?;
    unmap(to, ENDLESS)
}

/// A writer whose memory is taken away while it waits has written what came before.
fn gone() -> Outcome {
    for (reader, writer) in streams()? {
        let child = spawn(|| {
            call!(close(reader));
            let from = counting(0)?;
            let hole = LEN / 2;
            unmap(from.wrapping_add(hole), LEN - hole)?;
            let n = call!(write(writer, from.cast(), LEN)) as usize;
            equal!(n, hole);
            Ok(())
        })?;
        call!(close(writer));
        let to = map(LEN)?;
        let mut next = 0;
        loop {
            let n = call!(read(reader, to.cast(), LEN));
            if n == 0 {
                break;
            }
            next = checked(to, n as usize, next)?;
        }
        equal!(next as usize, WORDS / 2);
        wait_ok(child)?;
        call!(close(reader));
        unmap(to, LEN)?;
    }
    Ok(())
}

/// What a sender waits to send when its side is shut down does not come any more, as after the end.
fn ended() -> Outcome {
    const SMALL: usize = PAGE / 2;
    // On one CPU, where the sender that was woken does not run before the reader sleeps.
    pin(0)?;
    let sent = shared_value(AtomicUsize::new(0))?;
    for (reader, writer) in &streams()?[1..] {
        let child = spawn(|| {
            handle(SIGPIPE, ignore_signal, 0)?;
            let from = counting(0)?;
            sent.store(call!(write(*writer, from.cast(), LEN)) as usize, SeqCst);
            Ok(())
        })?;
        await_sleep(child)?;
        let to = map(LEN)?;
        touch(to, LEN, 0);
        priority(SCHED_FIFO, 1)?;
        call!(shutdown(*writer, SHUT_WR));
        // A reader of little does not take what the sender waits with.
        let mut received = 0;
        loop {
            let n = call!(read(*reader, to.cast(), SMALL)) as usize;
            if n == 0 {
                break;
            }
            received += n;
        }
        let behind = call!(read(*reader, to.cast(), LEN));
        priority(SCHED_OTHER, 0)?;
        equal!(behind, 0);
        wait_ok(child)?;
        equal!(sent.load(SeqCst), received);
        unmap(to, LEN)?;
        call!(close(*reader));
        call!(close(*writer));
    }
    Ok(())
}
