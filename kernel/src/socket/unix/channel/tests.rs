//! The stream's queue against a model, on the simulated machine.

use alloc::{collections::VecDeque, sync::Arc, vec, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::Errno;
use fbuf::{BytesSink, BytesSource};
use fs::OpenFlags;
use nucleus::{
    PAGE_SIZE,
    sim::{Random, on_machines},
};

use super::{Attached, Channel, DataQueue, MARKS_PER_PAGE, Received, Rights, Sender};
use crate::{ipc::pipe, process::files::OpenFile};

/// A byte of the model.
#[derive(Clone, Copy)]
struct Byte {
    value: u8,
    sender: Option<Sender>,
    /// The number of the call that sent it, if files came with it.
    rights: Option<usize>,
    is_urgent: bool,
}

/// What a call gets: bytes, sender, files.
type Got = (Vec<u8>, Option<Option<Sender>>, Option<usize>);

#[derive(Default)]
struct Model {
    bytes: VecDeque<Byte>,
    closed: bool,
}

impl Channel {
    /// How many bytes the rights that were sent last came with.
    fn bytes_of_last_rights(&self) -> usize {
        let chain = self.queue.lock();
        let last = chain.state.marks.iter().rfind(|mark| mark.rights.is_some());
        last.map_or(0, |mark| (mark.end - mark.at) as usize)
    }
}

impl Model {
    fn send(&mut self, values: &[u8], sender: Option<Sender>, rights: Option<usize>, urgent: bool) {
        for value in values {
            self.bytes.push_back(Byte {
                value: *value,
                sender,
                rights,
                is_urgent: false,
            });
        }
        if urgent {
            self.bytes
                .iter_mut()
                .for_each(|byte| byte.is_urgent = false);
            let last = self.bytes.back_mut();
            last.into_iter().for_each(|last| last.is_urgent = true);
        }
    }

    /// What one call takes or sees that begins at `skip`.
    fn look(&self, skip: usize, max: usize, minds_sender: bool) -> Got {
        let mut got: Got = (Vec::new(), None, None);
        let left = || self.bytes.iter().skip(skip);
        if let Some(first) = left().next() {
            got.1 = Some(first.sender);
        }
        for byte in left().take(max) {
            let stops = minds_sender && got.1 != Some(byte.sender)
                || got.2.is_some() && byte.rights != got.2
                || byte.is_urgent && !got.0.is_empty();
            if stops {
                break;
            }
            got.0.push(byte.value);
            got.2 = got.2.or(byte.rights);
        }
        got
    }

    fn receive(&mut self, max: usize, minds_sender: bool, inline: bool) -> Got {
        if max > 0
            && let Some(first) = self.bytes.front_mut()
            && first.is_urgent
        {
            first.is_urgent = false;
            if !inline {
                self.bytes.pop_front();
            }
        }
        let got = self.look(0, max, minds_sender);
        self.bytes.drain(..got.0.len());
        // Files arrive once.
        if got.2.is_some() {
            let same = self.bytes.iter_mut().filter(|byte| byte.rights == got.2);
            same.for_each(|byte| byte.rights = None);
        }
        got
    }
}

/// The pipes that are sent as files, by the call that sent them.
struct Files(Vec<Arc<OpenFile>>);

impl Files {
    fn send(&mut self) -> (usize, Rights) {
        let (reader, _) = pipe::pair((0, 0)).unwrap();
        let file = OpenFile::new(reader, OpenFlags::default());
        self.0.push(file.clone());
        (self.0.len() - 1, Rights::unsent(vec![file]))
    }

    fn number(&self, files: &Option<Vec<Arc<OpenFile>>>) -> Option<usize> {
        let first = files.as_ref()?.first()?;
        self.0.iter().position(|file| Arc::ptr_eq(file, first))
    }
}

fn sender(random: &mut Random) -> Option<Sender> {
    let number = random.below(3) as u32;
    (number > 0).then_some(Sender {
        pid: number,
        uid: 0,
        gid: 0,
    })
}

/// Fails where a call got something else than it should have.
fn same(got: Got, expected: Got, step: usize, what: &str) {
    let lengths = (got.0.len(), expected.0.len());
    assert_eq!(
        (got.1, got.2),
        (expected.1, expected.2),
        "{step}: {what} {lengths:?}"
    );
    assert!(
        got.0 == expected.0,
        "{step}: {what} other bytes: {lengths:?}"
    );
}

fn check(seed: u64) {
    const LIMIT: usize = 40_000;
    let mut random = Random::new(seed);
    let channel = Channel::new();
    let mut model = Model::default();
    let mut files = Files(Vec::new());
    let mut next = 0u8;
    for step in 0..400 {
        let most = [1, 10, 3000, 20_000][random.below(4)];
        let len = 1 + random.below(most);
        let minds_sender = random.below(2) == 0;
        match random.below(10) {
            0..=3 => {
                let values: Vec<u8> = (0..len)
                    .map(|_| {
                        next = next.wrapping_add(1);
                        next
                    })
                    .collect();
                let mut attached = Attached {
                    sender: sender(&mut random),
                    is_urgent: random.below(6) == 0,
                    ..Attached::default()
                };
                let mut number = None;
                if random.below(4) == 0 {
                    let (sent, rights) = files.send();
                    (number, attached.rights) = (Some(sent), Some(rights));
                }
                let mut source = BytesSource { from: &values };
                let sent = channel.fill(&mut source, LIMIT, &mut attached, || {});
                if model.closed {
                    assert_eq!(sent, Err(Errno::EPIPE), "{step}: sent to a closed channel");
                    continue;
                }
                let n = sent.unwrap();
                assert!(
                    n <= len && n + model.bytes.len() <= LIMIT,
                    "{step}: {n} of {len}"
                );
                if n < len {
                    next = next.wrapping_sub((len - n) as u8);
                }
                // Files go with what is linked together first: at most eight slices.
                let with_files = number.map_or(0, |_| channel.bytes_of_last_rights());
                let urgent = attached.is_urgent && n == len;
                model.send(&values[..n], attached.sender, None, urgent);
                if number.is_some() && n > 0 {
                    let start = model.bytes.len() - n;
                    let bytes = model.bytes.iter_mut().skip(start).take(with_files);
                    bytes.for_each(|byte| byte.rights = number);
                }
            }
            4..=6 => {
                let inline = random.below(2) == 0;
                let expected = model.receive(len, minds_sender, inline);
                let mut buffer = vec![0; len];
                let mut sink = BytesSink::new(&mut buffer);
                let mut received = Received {
                    minds_sender,
                    inline_urgent: inline,
                    ..Received::default()
                };
                let n = channel
                    .drain(&mut sink, len, LIMIT, &mut received, || {})
                    .unwrap();
                buffer.truncate(n);
                let number = files.number(&received.rights);
                same(
                    (buffer, received.sender, number),
                    expected,
                    step,
                    "received",
                );
            }
            7 => {
                let skip = random.below(2) * random.below(2 * most);
                let expected = model.look(skip, len, minds_sender);
                let mut buffer = vec![0; len];
                let mut sink = BytesSink::new(&mut buffer);
                let mut received = Received {
                    minds_sender,
                    ..Received::default()
                };
                let n = channel.peek(&mut sink, skip, &mut received).unwrap();
                buffer.truncate(n);
                let number = files.number(&received.rights);
                same((buffer, received.sender, number), expected, step, "seen");
            }
            8 => {
                let peeks = random.below(2) == 0;
                let place = model.bytes.iter().position(|byte| byte.is_urgent);
                assert_eq!(channel.is_at_urgent(), place == Some(0), "{step}: the mark");
                let mut buffer = [0];
                let mut sink = BytesSink::new(&mut buffer);
                let got = channel.receive_urgent(&mut sink, peeks, 40_000, || {});
                match place {
                    None => assert_eq!(got, Err(Errno::EINVAL), "{step}: nothing urgent"),
                    Some(place) => {
                        assert_eq!(got, Ok(()), "{step}: the urgent byte");
                        assert_eq!(buffer[0], model.bytes[place].value, "{step}: its value");
                        if !peeks {
                            model.bytes.remove(place);
                        }
                    }
                }
            }
            _ if step > 300 && random.below(20) == 0 => {
                channel.close();
                model.closed = true;
            }
            _ => {
                let status = channel.status();
                assert_eq!(status.bytes, model.bytes.len(), "{step}: bytes");
                let closed = channel.queue.lock().state.closed;
                assert_eq!(closed, model.closed, "{step}: closed");
                let urgent = model.bytes.iter().any(|byte| byte.is_urgent);
                assert_eq!(status.urgent, urgent, "{step}: urgent");
            }
        }
    }
    channel.discard();
    assert_eq!(channel.status().bytes, 0);
}

/// Messages of one byte, each with another sender, fit as often as the marks do.
#[test]
fn marks_are_limited_and_make_room() {
    on_machines(1, |_| {
        let channel = Channel::new();
        let limit = 3 * PAGE_SIZE;
        let send = |pid| {
            let mut attached = Attached {
                sender: Some(Sender {
                    pid,
                    uid: 0,
                    gid: 0,
                }),
                is_urgent: pid == 3,
                ..Attached::default()
            };
            channel.fill(&mut BytesSource::new(b"x"), limit, &mut attached, || {})
        };
        let most = 3 * MARKS_PER_PAGE as u32;
        assert!((0..most).all(|pid| send(pid) == Ok(1)));
        assert_eq!(send(most), Ok(0));
        assert!(!channel.has_room(limit));
        // The urgent byte is a message of its own: its writer hears that it was read.
        let told = AtomicUsize::new(0);
        let mut byte = [0];
        let mut sink = BytesSink::new(&mut byte);
        let freed = || {
            told.fetch_add(1, Relaxed);
        };
        assert_eq!(
            channel.receive_urgent(&mut sink, false, limit, freed),
            Ok(())
        );
        assert_eq!((byte, told.load(Relaxed)), (*b"x", 1));
        assert_eq!((send(most), send(most + 1)), (Ok(1), Ok(0)));
        let mut received = Received {
            minds_sender: true,
            ..Received::default()
        };
        let mut buffer = [0; 9];
        let mut sink = BytesSink::new(&mut buffer);
        let n = channel.drain(&mut sink, 9, limit, &mut received, || {});
        assert_eq!((n, received.made_room), (Ok(1), true));
        assert_eq!(send(most + 1), Ok(1));
        channel.discard();
    });
}

#[test]
fn streams_are_as_the_model_says() {
    on_machines(24, check);
}
