//! Bytes of all streams, in both directions.

use super::*;

/// Writes in pieces of random sizes, with a pause now and then.
fn scatter(mut to: impl Write, bytes: &[u8], seed: u64) {
    let mut random = Random::new(seed);
    let mut rest = bytes;
    let most = [1, 100, 5000, 70_000, 400_000][random.below(5)];
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(1 + random.below(most)));
        to.write_all(piece).unwrap();
        rest = behind;
        if random.below(50) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn bytes_go_through_in_any_pieces() {
    for seed in 1..=12 {
        let (mut bench, fake) = bench(1);
        let mut user = bench.first();
        let mut random = Random::new(seed);
        let sizes = [(); 3].map(|()| [0, 1, 5000, 300_000][random.below(4)] + random.below(700));
        let [input, output, errors] = sizes.map(|size| bytes(size, seed + size as u64));
        let (read, failed) = (collect(user.output), collect(user.errors));
        let (sent_output, sent_errors) = (output.clone(), errors.clone());
        let guest = thread::spawn(move || {
            fake.ready();
            let session = fake.start();
            let (data, error) = (fake.data(session), fake.error(session));
            let got = thread::scope(|scope| {
                let ends = scope.spawn(|| {
                    // Numbers may come before, between and after the bytes.
                    if seed % 2 == 0 {
                        fake.end(session, sizes_of(&sent_output, &sent_errors), 3 << 8);
                    }
                    match fake.hear() {
                        Heard::EndOfInput { after, .. } => after,
                        other => panic!("{other:?}"),
                    }
                });
                scope.spawn(|| scatter(error, &sent_errors, seed * 5));
                if seed % 2 == 0 {
                    // The program has ended: its input is dropped.
                    scatter(data, &sent_output, seed * 3);
                    ends.join().unwrap();
                    return None;
                }
                let writer = scope.spawn(|| scatter(data, &sent_output, seed * 3));
                let after = ends.join().unwrap();
                let mut got = vec![0; after as usize];
                let mut data = data;
                // It fits into the socket, or is read while it comes.
                data.read_exact(&mut got).unwrap();
                writer.join().unwrap();
                Some(got)
            });
            if seed % 2 != 0 {
                fake.end(session, sizes_of(&sent_output, &sent_errors), 3 << 8);
            }
            (fake, got)
        });
        // A guest whose program has ended takes nothing more.
        let _ = user.input.write_all(&input[..input.len().min(1000)]);
        drop(user.input);
        assert_eq!(bench.event(), Event::Started);
        assert_eq!(bench.event(), Event::Ended(3 << 8), "seed {seed}");
        let (fake, got) = guest.join().unwrap();
        if let Some(got) = got {
            assert_eq!(got, input[..input.len().min(1000)], "seed {seed}");
        }
        drop(fake);
        bench.join();
        assert_eq!(read.join().unwrap(), output, "seed {seed}");
        assert_eq!(failed.join().unwrap(), errors, "seed {seed}");
    }
}

fn sizes_of(output: &[u8], errors: &[u8]) -> [u64; 2] {
    [output.len() as u64, errors.len() as u64]
}

#[test]
fn much_input_arrives_as_it_is() {
    for seed in [1, 2, 3] {
        let (mut bench, fake) = bench(1);
        let user = bench.first();
        let input = bytes(600_000, seed);
        let sent = input.clone();
        let writer = thread::spawn(move || scatter(user.input, &sent, seed));
        fake.ready();
        let session = fake.start();
        let mut got = vec![0; input.len()];
        let mut random = Random::new(seed);
        let mut rest = &mut got[..];
        while !rest.is_empty() {
            let most = rest.len().min(1 + random.below(100_000));
            let count = fake.data(session).read(&mut rest[..most]).unwrap();
            rest = &mut rest[count..];
        }
        writer.join().unwrap();
        let session_end = Heard::EndOfInput {
            session,
            after: input.len() as u64,
        };
        assert_eq!(fake.hear(), session_end);
        assert!(got == input);
        fake.end(session, [0, 0], 0);
        assert_eq!(bench.event(), Event::Started);
        assert_eq!(bench.event(), Event::Ended(0));
        drop(fake);
        bench.join();
    }
}

#[test]
fn a_stream_that_nobody_reads_holds_up_only_itself() {
    let (mut bench, fake) = bench(2);
    let mut user = bench.first();
    fake.ready();
    let first = fake.start();
    let flood = bytes(4_000_000, 1);
    let (sent, port) = (flood.clone(), fake.data(first).try_clone().unwrap());
    let flooding = thread::spawn(move || (&port).write_all(&sent).unwrap());
    thread::sleep(Duration::from_millis(50));
    assert!(!flooding.is_finished(), "4 MB are kept somewhere");
    // Its errors, its input, and another session go on.
    fake.error(first).write_all(b"trouble").unwrap();
    let mut seven = [0; 7];
    user.errors.read_exact(&mut seven).unwrap();
    assert_eq!(&seven, b"trouble");
    user.input.write_all(b"input").unwrap();
    let mut five = [0; 5];
    fake.data(first).read_exact(&mut five).unwrap();
    assert_eq!(&five, b"input");
    let (mut other, streams) = pipes();
    let (observer, events) = observer();
    bench.handle.open(program("second"), streams, observer);
    let second = fake.start();
    assert_eq!(second, 1);
    fake.data(second).write_all(b"hello").unwrap();
    fake.end(second, [5, 0], 0);
    other.output.read_exact(&mut five).unwrap();
    assert_eq!(&five, b"hello");
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Started);
    assert_eq!(events.recv_timeout(SOON).unwrap(), Event::Ended(0));
    // Nothing is lost when the machine ends while the reader waits.
    fake.end(first, [flood.len() as u64, 7], 9 << 8);
    let reading = thread::spawn(move || {
        let mut got = vec![0; 4_000_000];
        user.output.read_exact(&mut got).unwrap();
        got
    });
    flooding.join().unwrap();
    drop(fake);
    assert!(reading.join().unwrap() == flood);
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(bench.event(), Event::Ended(9 << 8));
    bench.join();
}

#[test]
fn closed_ends_are_passed_on_in_both_directions() {
    let (mut bench, fake) = bench(1);
    let mut user = bench.first();
    fake.ready();
    let session = fake.start();
    // An idle reader that goes away is noticed, and what is written then is dropped.
    drop(user.output);
    let Heard::Other(closed) = fake.hear() else {
        panic!("nothing is said of the closed output");
    };
    assert!(
        closed.starts_with("CloseOutput") && closed.contains("Output }"),
        "{closed}"
    );
    fake.data(session).write_all(&[0; 500_000]).unwrap();
    // A program that closes its input: the host stops reading.
    user.input.write_all(b"abc").unwrap();
    fake.data(session).read_exact(&mut [0; 3]).unwrap();
    fake.say(&ToHost::InputClosed { session });
    assert_eq!(fake.hear(), Heard::EndOfInput { session, after: 3 });
    let start = Instant::now();
    while user.input.write_all(&[0; 4096]).is_ok() {
        assert!(start.elapsed() < SOON, "the host goes on to read");
    }
    // A program that closes its output: the user sees the end before the program's.
    fake.say(&ToHost::EndOfOutput {
        session,
        stream: Stream::Error,
        after: 0,
    });
    fake.say(&ToHost::EndOfOutput {
        session,
        stream: Stream::Output,
        after: 500_000,
    });
    assert_eq!(user.errors.read(&mut [0; 1]).unwrap(), 0);
    fake.say(&ToHost::Ended { session, status: 0 });
    assert_eq!(bench.event(), Event::Started);
    assert_eq!(bench.event(), Event::Ended(0));
    drop(fake);
    bench.join();
}
