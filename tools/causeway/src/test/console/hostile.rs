//! A host that sends what it likes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rustix::io::Errno;
use session::{Part, Start, Stream, Terminal, ToGuest, ToHost, Window};

use crate::guest::Ending;
use crate::random::Random;
use crate::sessions::Ports;
use crate::test::boot::Bench;

/// The sessions of a guest.
const SESSIONS: u8 = 4;
/// How long the first program of a guest runs.
const LINE: &[u8] = b"sh\0-c\0sleep 5; exit 7\0";
/// How long the guest may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the host sends nonsense.
const LONG: Duration = Duration::from_secs(8);

/// The kernel with assertions, its console device connected to a host that sends messages at
/// random: programs for numbers that are taken or do not exist, ends before beginnings, sizes,
/// signals, counts, input without a session, messages that are none. The guest's first program goes
/// on to its end.
pub fn nonsense(bench: &Bench) -> Result<()> {
    for (seed, cpus) in [(1, 1), (2, 2), (3, 4)] {
        let (ports, ends) = Ports::new(SESSIONS)?;
        let option = format!("sessions={SESSIONS}");
        let plan = bench.guest(&[]).cpus(cpus).option(&option);
        let plan = plan.words(ends.qemu());
        ends.inherit()?;
        let host = thread::spawn(move || play(ports, seed));
        let finished = plan.run();
        drop(ends);
        // It ends with the machine.
        let sent = host.join().unwrap_or(0);
        let finished = finished?;
        ensure!(
            finished.ending == Ending::Status(7) && sent > 100,
            "seed {seed}, {sent} messages: {}",
            finished.why()
        );
    }
    Ok(())
}

/// A start that makes no sense, for the number of a session that runs: that one goes on, and only
/// the end of a session, or a refusal of a free number, says that the number is free.
pub fn busy(bench: &Bench) -> Result<()> {
    let (ports, ends) = Ports::new(SESSIONS)?;
    let option = format!("sessions={SESSIONS}");
    let plan = bench.guest(&[]).cpus(2).option(&option);
    let plan = plan.words(ends.qemu());
    ends.inherit()?;
    let host = thread::spawn(move || talk(&ports));
    let finished = plan.run();
    drop(ends);
    let talked = host.join().map_err(|_| anyhow!("the host panicked"))?;
    let finished = finished?;
    talked?;
    ensure!(finished.ending == Ending::Status(7), finished.why());
    Ok(())
}

fn talk(ports: &Ports) -> Result<()> {
    let control = &ports.control;
    let [data, _] = &ports.streams[1];
    for end in [control, data, &ports.streams[0][0]] {
        end.set_nonblocking(false)?;
        end.set_read_timeout(Some(PATIENCE))?;
    }
    let start = |session: u8, arguments| {
        framed(&ToGuest::Start(Start {
            session,
            terminal: None,
            arguments,
            environment: b"PATH=/bin\0",
            directory: b"",
            user: b"",
            is_first: session == 0,
            is_init: false,
        }))
    };
    // The kind and the number of a start, and what is none.
    let nonsense = |session: u8| [&3_u32.to_le_bytes()[..], &[0, session, 0xff]].concat();
    let said = |wanted: &[ToHost]| -> Result<()> {
        for wanted in wanted {
            let heard = hear(control)?;
            ensure!(heard == *wanted, "{heard:?} instead of {wanted:?}");
        }
        Ok(())
    };
    let failed = |session, error: Errno| ToHost::Failed {
        session,
        part: Part::Session,
        error: error.raw_os_error(),
    };
    (&mut &*control).write_all(&start(0, b"sh\0-c\0read line; exit $line\0"))?;
    while !matches!(hear(control)?, ToHost::Started { session: 0, .. }) {}
    (&mut &*control).write_all(&start(1, b"cat\0"))?;
    while !matches!(hear(control)?, ToHost::Started { session: 1, .. }) {}

    (&mut &*control).write_all(&nonsense(1))?;
    said(&[failed(1, Errno::BUSY)])?;
    (&mut &*control).write_all(&nonsense(2))?;
    said(&[failed(2, Errno::INVAL), ToHost::Free { session: 2 }])?;
    (&mut &*control).write_all(&nonsense(SESSIONS))?;
    said(&[failed(SESSIONS, Errno::BUSY)])?;
    // The one that runs still has its streams.
    (&mut &*data).write_all(b"still here")?;
    let mut echo = [0; 10];
    (&mut &*data).read_exact(&mut echo)?;
    ensure!(echo == *b"still here", "{echo:?} came back");
    (&mut &ports.streams[0][0]).write_all(b"7\n")?;
    Ok(())
}

/// Waits for the guest's next message.
fn hear(mut control: &UnixStream) -> Result<ToHost> {
    let mut frame = [0; session::FRAME];
    control.read_exact(&mut frame)?;
    let len = session::length(frame).map_err(|_| anyhow!("a message that is too long"))?;
    let mut message = vec![0; len];
    control.read_exact(&mut message)?;
    session::parse(&message).map_err(|_| anyhow!("what the guest says is no message"))
}

/// Starts the first program and sends nonsense; returns how many messages the guest took.
fn play(ports: Ports, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let Ports { control, streams } = ports;
    let first = Start {
        session: 0,
        terminal: None,
        arguments: LINE,
        environment: b"PATH=/bin\0",
        directory: b"",
        user: b"",
        is_first: true,
        is_init: false,
    };
    for end in streams.iter().flatten().chain([&control]) {
        // Writers below wait for a moment only, and count what they have sent.
        let _ = end.set_nonblocking(true);
    }
    send(&control, &framed(&ToGuest::Start(first)));
    let (start, mut sent) = (Instant::now(), 0);
    let mut buffer = [0; 1 << 16];
    while start.elapsed() < LONG {
        let message = message(&mut random);
        if !send(&control, &message) {
            break;
        }
        sent += 1;
        let [data, error] = &streams[random.below(SESSIONS.into())];
        let junk = [random.below(256) as u8; 3000];
        // Not to the first session: it is to end by itself.
        if !std::ptr::eq(data, &streams[0][0]) {
            let len = random.below(3000);
            let _ = (&mut &*data).write(&junk[..len]);
            let _ = (&mut &*error).write(&junk[..len / 7]);
        }
        // Most output is taken, but never at once.
        for end in [data, error, &control] {
            if random.below(3) > 0 {
                let _ = (&mut &*end).read(&mut buffer);
            }
        }
    }
    // The guest hears no more after this.
    send(&control, &u32::MAX.to_le_bytes());
    send(&control, &[0xff; 4096]);
    sent
}

/// Sends a message as a whole, unless the guest takes none for a while.
fn send(control: &UnixStream, message: &[u8]) -> bool {
    let (start, mut done) = (Instant::now(), 0);
    while done < message.len() && start.elapsed() < LONG {
        match (&mut &*control).write(&message[done..]) {
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return false,
        }
        // The guest may wait for a place for its own messages.
        let _ = (&mut &*control).read(&mut [0; 4096]);
    }
    done == message.len()
}

fn framed(message: &ToGuest<'_>) -> Vec<u8> {
    let mut buffer = vec![0; session::MAX_MESSAGE + session::FRAME];
    session::frame(message, &mut buffer)
        .map(|framed| framed.to_vec())
        .unwrap_or_default()
}

/// A message, or what is none.
fn message(random: &mut Random) -> Vec<u8> {
    let session = random.of(&[1, 1, 2, 2, 3, 4, 15, 255]);
    let count = random.of(&[0, 1, 4096, 1 << 40, u64::MAX]);
    let stream = random.of(&[Stream::Output, Stream::Error]);
    let window = Window {
        rows: random.of(&[0, 1, 24, 10_000, u16::MAX]),
        columns: random.of(&[0, 1, 80, 10_000, u16::MAX]),
    };
    let message = match random.below(9) {
        0..=2 => {
            let terminal = Terminal {
                window,
                streams: [(); 3].map(|()| random.below(2) == 0),
                newlines: random.below(2) == 0,
            };
            let long = vec![b'a'; random.of(&[0, 10, 5000, 200_000])];
            let start = Start {
                session,
                terminal: random.of(&[None, Some(terminal)]),
                arguments: random.of(&[
                    b"true\0",
                    b"cat\0",
                    b"sh\0-c\0yes\0",
                    b"sh\0-c\0tty; cat >&2\0",
                    b"",
                    b"no end",
                    b"\0\0",
                    &long,
                ]),
                environment: random.of(&[b"", b"A=b\0", b"=\0", b"no end", &long]),
                directory: random.of(&[b"", b"/", b"relative", b"/bin/sh", b"/new/x", &long]),
                user: random.of(&[
                    b"",
                    b"root",
                    b"1000:5",
                    b"4294967295",
                    b"::",
                    b"none",
                    &long,
                ]),
                is_first: random.below(8) == 0,
                is_init: random.below(8) == 0,
            };
            return framed(&ToGuest::Start(start));
        }
        3 => ToGuest::EndOfInput {
            session,
            after: count,
        },
        4 => ToGuest::CloseOutput { session, stream },
        5 => ToGuest::Window { session, window },
        6 => ToGuest::Signal {
            session,
            signal: random.below(256) as u8,
        },
        7 => ToGuest::HangUp { session },
        _ => {
            let len = random.below(40);
            let mut bytes = (len as u32).to_le_bytes().to_vec();
            bytes.extend((0..len).map(|_| random.below(256) as u8));
            return bytes;
        }
    };
    framed(&message)
}
