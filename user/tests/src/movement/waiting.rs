//! Readers that wait have their bytes put into their memory by the writer: once, by the rules of
//! the stream, and up to a kill or a signal.

use super::{Buffer, Message, SWITCH, WAYS, connection};
use crate::large::Switched;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("movement: a reader that waits gets its bytes once", once),
    (
        "movement: TCP keeps its rules for a reader that waits",
        tcp_rules,
    ),
    ("movement: readers that wait are killed", killed),
    ("movement: readers that wait are interrupted", interrupted),
];

/// A reader that waits has its bytes in its memory once the writer is done, copied once.
fn once() -> Outcome {
    let (reader, writer) = pipe(0)?;
    once_over(reader, writer)?;
    let [reader, writer] = socket_pair(SOCK_STREAM)?;
    once_over(reader.as_raw_fd(), writer.as_raw_fd())?;
    let (reader, writer) = connection()?;
    once_over(reader, writer)
}

fn once_over(reader: c_int, writer: c_int) -> Outcome {
    let _way = Switched::to(SWITCH, "once")?;
    let buffer = Buffer::new()?;
    // A socket's first bytes come with their sender.
    call!(write(writer, buffer.0.cast(), 1));
    call!(read(reader, buffer.0.cast(), 1));
    let message = Message {
        number: 3,
        pages: 32,
        starts: [24, 48],
    };
    let put = counter("bytes_put")?;
    let child = spawn(|| {
        // Pages that are not there yet take nothing past the queue.
        buffer.stamp(48, &message);
        (0..=message.pages).for_each(|page| buffer.set(page * PAGE, 0));
        let count = call!(read(
            reader,
            buffer.0.wrapping_add(48).cast(),
            message.pages * PAGE
        ));
        // More than a pipe holds, in one piece.
        equal!(count as usize, message.pages * PAGE, count);
        buffer.check(48, &message)
    })?;
    let from = Buffer::new()?;
    from.stamp(24, &message);
    await_sleep(child)?;
    let at = from.0.wrapping_add(24);
    let count = call!(write(writer, at.cast(), message.pages * PAGE));
    equal!(count as usize, message.pages * PAGE, count);
    wait_ok(child)?;
    let put = counter("bytes_put")? - put;
    equal!(put, (message.pages * PAGE) as u64);
    // A buffer that is gone takes nothing, and no byte is lost.
    let bad = map(2 * PAGE)?;
    unmap(bad.wrapping_add(PAGE), PAGE)?;
    let child = spawn(|| {
        // SAFETY: its first page is there.
        unsafe { bad.write(0) };
        let count = call!(read(reader, bad.cast(), 16 * PAGE));
        equal!(count as usize, PAGE, count);
        // The others come as the writer goes on.
        let mut rest = 15 * PAGE;
        while rest > 0 {
            rest -= call!(read(reader, buffer.0.cast(), rest)) as usize;
        }
        Ok(())
    })?;
    await_sleep(child)?;
    call!(write(writer, at.cast(), 16 * PAGE));
    wait_ok(child)
}

/// What a TCP socket promises holds as well where bytes go straight to a reader that waits.
fn tcp_rules() -> Outcome {
    const LEN: usize = 24 * PAGE;
    let from = Buffer::new()?;
    let message = Message {
        number: 4,
        pages: 24,
        starts: [24, 48],
    };
    from.stamp(24, &message);
    let at = from.0.wrapping_add(24);
    let unnamed = std::ptr::null_mut();
    let send_part = |writer: c_int, from: usize, len: usize, flags: c_int| -> Outcome {
        let at = at.wrapping_add(from).cast();
        let sent = call!(sendto(writer, at, len, flags, unnamed, 0));
        equal!(sent as usize, len);
        Ok(())
    };
    let send_all = |writer, len, flags| send_part(writer, 0, len, flags);
    for way in WAYS {
        let _way = Switched::to(SWITCH, way)?;
        let (reader, writer) = connection()?;
        let to = Buffer::new()?;
        let place = to.0.wrapping_add(48);
        let receive_at = |done: usize, len: usize, flags: c_int| -> Result<usize> {
            let place = place.wrapping_add(done).cast();
            let none = std::ptr::null_mut();
            Ok(call!(recvfrom(reader, place, len, flags, unnamed, none)) as usize)
        };
        let receive = |len, flags| receive_at(0, len, flags);
        let while_waiting = |act: &dyn Fn() -> Outcome, reads: &dyn Fn() -> Outcome| -> Outcome {
            let child = spawn(reads)?;
            await_sleep(child)?;
            act()?;
            wait_ok(child)
        };
        // A look takes nothing away.
        while_waiting(&|| send_all(writer, LEN, 0), &|| {
            let seen = receive(LEN, MSG_PEEK)?;
            ensure!(seen > 0);
            equal!(receive(LEN, MSG_WAITALL)?, LEN);
            to.check(48, &message)
        })?;
        // Bytes that are dropped are not stored.
        while_waiting(&|| send_all(writer, LEN, 0), &|| {
            to.set(48, 5);
            let mut left = LEN;
            while left > 0 {
                left -= receive(left, MSG_TRUNC)?;
            }
            equal!(to.get(48), 5);
            Ok(())
        })?;
        // All that a call insists on comes in several writes.
        let halves = || {
            send_part(writer, 0, LEN / 2, 0)?;
            send_part(writer, LEN / 2, LEN / 2, 0)
        };
        while_waiting(&halves, &|| {
            equal!(receive(LEN, MSG_WAITALL)?, LEN);
            to.check(48, &message)
        })?;
        // Likewise a program that is told of so many bytes only.
        let least: c_int = LEN as c_int;
        let option = |value: &c_int| -> Outcome {
            let len = size_of::<c_int>() as socklen_t;
            let value = std::ptr::from_ref(value).cast();
            call!(setsockopt(reader, SOL_SOCKET, SO_RCVLOWAT, value, len));
            Ok(())
        };
        option(&least)?;
        while_waiting(&halves, &|| {
            equal!(receive(LEN, 0)?, LEN);
            to.check(48, &message)
        })?;
        option(&1)?;
        // A read ends before the urgent byte, which is read apart from the others.
        while_waiting(&|| send_all(writer, LEN + 1, MSG_OOB), &|| {
            let mut done = 0;
            while done < LEN {
                done += receive_at(done, LEN + PAGE - done, 0)?;
            }
            equal!(done, LEN);
            to.check(48, &message)?;
            let mut urgent = pollfd {
                fd: reader,
                events: POLLPRI,
                revents: 0,
            };
            call!(poll(&mut urgent, 1, -1));
            equal!(receive(1, MSG_OOB)?, 1);
            equal!(to.get(48) as u8, from.get(24 + LEN) as u8);
            Ok(())
        })?;
        // The positions go on behind it.
        while_waiting(&|| send_all(writer, LEN, 0), &|| {
            equal!(receive(LEN, MSG_WAITALL)?, LEN);
            to.check(48, &message)
        })?;
        // A reader that waits learns of the end.
        while_waiting(
            &|| {
                call!(shutdown(writer, SHUT_WR));
                Ok(())
            },
            &|| {
                equal!(receive(LEN, 0)?, 0);
                Ok(())
            },
        )?;
        call!(close(reader));
        call!(close(writer));
        unmap(to.0, Buffer::SIZE)?;
    }
    Ok(())
}

/// A reader that is killed in its wait leaves the pipe as it was for the next one.
fn killed() -> Outcome {
    killed_over(pipe(0)?)?;
    killed_over(connection()?)
}

fn killed_over((reader, writer): (c_int, c_int)) -> Outcome {
    for way in ["once", "auto"] {
        let _way = Switched::to(SWITCH, way)?;
        let buffer = Buffer::new()?;
        for round in 0..50 {
            let child = spawn(|| {
                call!(read(reader, buffer.0.cast(), 32 * PAGE));
                Ok(())
            })?;
            if round % 2 == 0 {
                await_sleep(child)?;
                call!(kill(child, SIGKILL));
                wait(child)?;
            }
            let message = Message {
                number: round,
                pages: 8,
                starts: [8; 2],
            };
            buffer.stamp(8, &message);
            call!(write(writer, buffer.0.wrapping_add(8).cast(), 8 * PAGE));
            if round % 2 == 0 {
                let to = Buffer::new()?;
                call!(read(reader, to.0.wrapping_add(8).cast(), 8 * PAGE));
                to.check(8, &message)?;
                unmap(to.0, Buffer::SIZE)?;
            } else {
                wait_ok(child)?;
            }
        }
    }
    Ok(())
}

/// A reader that is interrupted in the middle of a large write has the bytes that it was told of,
/// in order, and goes on with another buffer.
fn interrupted() -> Outcome {
    const WORDS: usize = 1 << 17;
    extern "C" fn nothing(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}
    for way in ["once", "auto"] {
        let _way = Switched::to(SWITCH, way)?;
        let (reader, writer) = pipe(0)?;
        let child = spawn(|| {
            call!(close(reader));
            let mut words = vec![0u64; WORDS];
            for round in 0..24 {
                for (i, word) in words.iter_mut().enumerate() {
                    *word = (round * WORDS + i) as u64;
                }
                let (mut done, len) = (0, WORDS * 8);
                while done < len {
                    let at = words.as_ptr().cast::<u8>().wrapping_add(done);
                    done += call!(write(writer, at.cast(), len - done)) as usize;
                }
            }
            Ok(())
        })?;
        call!(close(writer));
        handle(SIGALRM, nothing, 0)?;
        let tick = |microseconds| -> Outcome {
            let timer = timer_val(microseconds, microseconds);
            call!(setitimer(ITIMER_REAL, &timer, null_mut()));
            Ok(())
        };
        tick(700)?;
        let mut next = 0;
        let mut buffers = [vec![0u64; WORDS], vec![0u64; WORDS]];
        let outcome = (|| loop {
            buffers.swap(0, 1);
            let buffer = &mut buffers[0];
            buffer.fill(!0);
            // SAFETY: reads into a live buffer.
            let count = unsafe { libc::read(reader, buffer.as_mut_ptr().cast(), WORDS * 8) };
            if count < 0 {
                equal!(errno(), EINTR);
                continue;
            }
            if count == 0 {
                return Ok(());
            }
            // Pieces are whole words: pages, and what a word-aligned buffer leaves of them.
            ensure!(count % 8 == 0, "{count} bytes");
            for &word in &buffer[..count as usize / 8] {
                equal!(word, next);
                next += 1;
            }
        })();
        tick(0)?;
        call!(close(reader));
        let outcome: Outcome = outcome;
        outcome.and(wait_ok(child))?;
        equal!(next, 24 * WORDS as u64);
    }
    Ok(())
}
