//! The switch against a guest that a thread plays.

mod clients;
mod floods;
mod guests;
mod programs;
mod streams;

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use session::{Stream, ToHost, Window};

use super::fake::{Fake, Heard, framed};
use super::*;
use crate::random::Random;

/// The time for what is to happen at once.
const SOON: Duration = Duration::from_secs(20);

/// A switch that runs, and the other sides of everything.
struct Bench {
    handle: Handle,
    events: Receiver<Event>,
    observer: Option<Observer>,
    faults: Receiver<String>,
    thread: JoinHandle<()>,
}

/// The user's ends of a session's pipes.
struct User {
    input: PipeWriter,
    output: PipeReader,
    errors: PipeReader,
}

fn observer() -> (Observer, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    (Box::new(move |event| drop(sender.send(event))), events)
}

fn bench(sessions: u8) -> (Bench, Fake) {
    let (ports, ends) = Ports::new(sessions).unwrap();
    let fake = Fake::new(ends, sessions);
    let (switch, handle) = Switch::new(ports).unwrap();
    let (fault, faults) = mpsc::channel();
    let thread = thread::spawn(move || switch.run(|why| drop(fault.send(why.into()))));
    let (observer, events) = observer();
    let bench = Bench {
        handle,
        events,
        observer: Some(observer),
        faults,
        thread,
    };
    (bench, fake)
}

fn pipes() -> (User, Streams) {
    let (input_end, input) = io::pipe().unwrap();
    let (output, output_end) = io::pipe().unwrap();
    let (errors, errors_end) = io::pipe().unwrap();
    let streams = Streams {
        input: Some(Descriptor::source(input_end.into())),
        keys: None,
        outputs: [output_end, errors_end].map(|end| Some(Descriptor::sink(end.into()))),
        recorder: None,
    };
    let user = User {
        input,
        output,
        errors,
    };
    (user, streams)
}

fn program(name: &str) -> Program {
    Program::new(&[OsString::from(name)])
}

impl Bench {
    /// Opens the first session.
    fn first(&mut self) -> User {
        let (user, streams) = pipes();
        let observer = self.observer.take().unwrap();
        self.handle.open_first(program("first"), streams, observer);
        user
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(SOON).unwrap()
    }

    /// Waits for the end of the switch.
    fn join(self) {
        let start = Instant::now();
        while !self.thread.is_finished() {
            assert!(start.elapsed() < SOON, "the switch goes on");
            thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap();
    }
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// Reads to the end of the file.
fn collect(mut from: PipeReader) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}
