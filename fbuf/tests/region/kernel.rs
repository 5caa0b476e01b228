//! Paths of the kernel: packets that a card writes into their pages, read by receivers that pass
//! them on and die, against plain bytes.

use std::{collections::VecDeque, sync::Arc};

use abi::Errno;
use fbuf::{
    Slice,
    region::{Part, Path, Pool, statuses},
};
use nucleus::{Frame, PAGE_SIZE, VirtAddr, ephemeral, frame};

use super::{
    model::Space,
    process::Process,
    support::{Numbers, Worker},
};

const NO_PART: Part = Part {
    page: 0,
    offset: 0,
    len: 0,
    has_more: false,
};

/// A byte of a packet's part.
fn byte_of(packet: usize, part: usize) -> u8 {
    (packet * 31 + part * 7 + 1) as u8
}

/// A part that a receiver has.
struct Held {
    at: VirtAddr,
    len: usize,
    byte: u8,
}

/// A message with parts, which another receiver has.
struct Sent {
    id: u64,
    parts: Vec<(VirtAddr, usize, u8)>,
}

struct Card {
    pool: Arc<Pool>,
    path: Option<Arc<Path>>,
    numbers: Numbers,
    packets: usize,
    /// Frames that the device has.
    buffers: Vec<Frame>,
    /// Slices in queues of the kernel, and their bytes.
    slices: Vec<(Slice, u8)>,
    /// Given, and not taken yet.
    given: VecDeque<(usize, u8)>,
    held: Vec<Held>,
    sent: Vec<Sent>,
    has_ended: bool,
}

impl Card {
    fn new(seed: u64) -> Card {
        let (pool, path) = Pool::new(1).expect("memory");
        Card {
            pool,
            path: Some(path),
            numbers: Numbers::new(seed),
            packets: 0,
            buffers: Vec::new(),
            slices: Vec::new(),
            given: VecDeque::new(),
            held: Vec::new(),
            sent: Vec::new(),
            has_ended: false,
        }
    }

    /// Gives the device buffers.
    fn refill(&mut self) {
        for _ in 0..self.numbers.below(100) {
            match self.pool.take() {
                Some(frame) => self.buffers.push(frame),
                None => return,
            }
        }
    }

    /// The device writes a packet.
    fn arrive(&mut self) {
        let count = 1 + self.numbers.below(3);
        if self.buffers.len() < count {
            return;
        }
        self.packets += 1;
        let mut parts = Vec::new();
        for part in 0..count {
            let at = self.numbers.below(self.buffers.len());
            let frame = self.buffers.swap_remove(at);
            let offset = self.numbers.below(100);
            let len = 1 + self.numbers.below(PAGE_SIZE - offset);
            let byte = byte_of(self.packets, part);
            // The device writes where it likes to.
            ephemeral::map(&frame).fill(0, PAGE_SIZE, !byte);
            ephemeral::map(&frame).fill(offset, len, byte);
            parts.push((Slice::part(&frame, offset, len), byte));
        }
        if self.numbers.chance(80) {
            let views = parts.iter().map(|(it, _)| (it.frame(), it.offset, it.len));
            let is_given = self.pool.give(views);
            assert_eq!(is_given, !self.has_ended);
            if is_given {
                self.given
                    .extend(parts.iter().map(|(it, byte)| (it.len, *byte)));
                let again = parts.iter().map(|(it, _)| (it.frame(), it.offset, it.len));
                assert!(!self.pool.give(again), "a page was given twice");
            }
        }
        for part in parts {
            if self.numbers.chance(30) {
                self.slices.push(part);
            }
        }
    }

    /// A packet that lies elsewhere is copied.
    fn copy(&mut self) {
        self.packets += 1;
        let len = 1 + self.numbers.below(3 * PAGE_SIZE);
        let packet = self.packets;
        let mut lens = Vec::new();
        let is_given = self.pool.give_copy(len, |frame, at, len| {
            lens.push(len);
            ephemeral::map(frame).fill(0, len, byte_of(packet, at / PAGE_SIZE));
        });
        if is_given {
            let parts = lens.into_iter().enumerate();
            self.given
                .extend(parts.map(|(at, len)| (len, byte_of(packet, at))));
        }
    }

    fn take(&mut self) {
        let mut room = [NO_PART; 10];
        let mut taken = Vec::new();
        let room = &mut room[..self.numbers.below(11)];
        let most = room.len();
        self.pool
            .take_parts(room, |at, len, has_more| taken.push((at, len, has_more)));
        assert!(taken.len() <= most && taken.last().is_none_or(|it| !it.2));
        for (at, len, _) in taken {
            let (wanted, byte) = self.given.pop_front().expect("it was given");
            assert_eq!(len, wanted);
            self.held.push(Held { at, len, byte });
        }
    }

    fn free(&mut self) {
        if !self.held.is_empty() {
            let held = self.held.swap_remove(self.numbers.below(self.held.len()));
            assert_eq!(self.pool.free(held.at.0 as u64), Ok(()));
            assert_eq!(self.pool.free(held.at.0 as u64), Err(Errno::EINVAL));
        }
    }

    /// A receiver sends parts on, by messages of its own path.
    fn send(&mut self, sender: &Process, own: &Path, start: VirtAddr) {
        if self.held.len() < 2 {
            return;
        }
        let picked: Vec<_> = (0..2)
            .map(|_| self.numbers.pick(&self.held))
            .map(|it| (it.at, it.len, it.byte))
            .collect();
        let nodes = start + self.numbers.below(50) * PAGE_SIZE;
        let at = |i: usize| (nodes + 32 * i).0 as u64;
        assert!(sender.set_node(nodes, [2, 0, at(1), at(2)]));
        for (i, (data, len, _)) in picked.iter().enumerate() {
            sender.set_leaf(nodes + 32 * (i + 1), *data, *len);
        }
        match own.send(&sender.domain, None, nodes.0 as u64) {
            Ok((id, _)) => self.sent.push(Sent { id, parts: picked }),
            Err(error) => assert!([Errno::EAGAIN, Errno::EPIPE].contains(&error), "{error:?}"),
        }
    }

    fn forget(&mut self, other: &Space, own: &Path) {
        while let Ok(Some(_)) = own.receive(&other.domain) {}
        if !self.sent.is_empty() {
            let sent = self.sent.swap_remove(self.numbers.below(self.sent.len()));
            assert_eq!(own.free(&other.domain, sent.id), Ok(()));
        }
    }

    /// Whatever was given or is shown by a slice has the bytes that it had.
    fn check(&mut self, readers: &[Worker], other: Option<&Space>) {
        for (slice, byte) in &self.slices {
            let mut bytes = vec![0; slice.len];
            ephemeral::map(slice.frame()).read(slice.offset, &mut bytes);
            assert!(bytes.iter().all(|it| it == byte), "a slice changed");
        }
        for held in &self.held {
            let reader = self.numbers.pick(readers);
            let bytes = reader.read(held.at, held.len).expect("readable");
            assert!(bytes.iter().all(|it| *it == held.byte), "a part changed");
            assert!(!reader.write(held.at, vec![0]), "a receiver wrote");
        }
        if let Some(other) = other {
            for (at, len, byte) in self.sent.iter().flat_map(|it| &it.parts) {
                let reader = self.numbers.pick(&other.workers);
                let bytes = reader.read(*at, *len).expect("readable");
                assert!(bytes.iter().all(|it| it == byte), "a message changed");
            }
        }
    }

    fn end(&mut self) {
        self.pool.end();
        self.has_ended = true;
        self.given.clear();
        assert!(self.pool.take().is_none());
        for frame in &self.buffers {
            assert_eq!(frame.mappings(), 0, "a device may write what is mapped");
        }
    }
}

/// Random packets, receivers and deaths.
pub fn random(seed: u64, cpus: usize) {
    let mut card = Card::new(seed);
    let path = card.path.clone().expect("a path");
    let reader = Process::new();
    path.attach(&reader.domain).expect("room");
    let readers = Worker::on_each(&reader.map, cpus);
    let mut other = Some(Space::new(cpus));
    let (own, start) = reader.path(super::process::CACHED);
    if let Some(other) = &other {
        path.attach(&other.domain).expect("room");
        own.attach(&other.domain).expect("room");
    }
    for _ in 0..400 {
        match card.numbers.below(100) {
            0..10 => card.refill(),
            10..40 => card.arrive(),
            40..45 => card.copy(),
            45..60 => card.take(),
            60..75 => card.free(),
            75..82 => card.send(&reader, &own, start),
            82..90 => {
                if let Some(other) = &other {
                    card.forget(other, &own);
                }
            }
            90..94 => {
                let few = card.slices.len().min(5);
                card.slices.drain(..few);
            }
            94..96 => {
                let few = card.buffers.len().min(20);
                card.buffers.drain(..few);
            }
            96 if card.numbers.chance(10) => {
                if let Some(it) = other.take() {
                    card.sent.clear();
                    it.end(card.numbers.chance(50));
                }
            }
            97 if card.numbers.chance(10) && !card.has_ended => card.end(),
            _ => card.check(&readers, other.as_ref()),
        }
    }
    card.check(&readers, other.as_ref());
    if !card.has_ended {
        card.end();
    }
    card.check(&readers, other.as_ref());
    readers.into_iter().for_each(Worker::end);
    reader.leave();
    if let Some(it) = other.take() {
        it.end(card.numbers.chance(50));
    }
    own.close();
    path.close();
    drop((own, path, card));
    let left = statuses().expect("memory");
    assert!(left.is_empty(), "{left:?}");
}

/// A domain that is no member is not given pages of the kernel: the rest of a page is others'.
pub fn strangers_get_nothing() {
    let mut card = Card::new(1);
    let path = card.path.clone().expect("a path");
    let (reader, stranger) = (Process::new(), Process::new());
    path.attach(&reader.domain).expect("room");
    let (own, start) = reader.path(super::process::UNCACHED);
    own.attach(&stranger.domain).expect("room");
    card.copy();
    let mut room = [NO_PART; 3];
    let mut first = None;
    card.pool.take_parts(&mut room, |at, len, _| {
        first.get_or_insert((at, len));
    });
    let (at, len) = first.expect("a part");
    reader.set_leaf(start, at, len);
    let root = start.0 as u64;
    assert_eq!(own.send(&reader.domain, None, root), Err(Errno::EPERM));
    path.attach(&stranger.domain).expect("room");
    let (id, _) = own.send(&reader.domain, None, root).expect("a member");
    // Held by the message alone, it is not written.
    card.pool.free(at.0 as u64).expect("it has it");
    let before: Vec<Frame> = core::iter::from_fn(|| card.pool.take()).collect();
    own.receive(&stranger.domain).expect("a message");
    own.free(&stranger.domain, id).expect("it has it");
    let after = core::iter::from_fn(|| card.pool.take()).count();
    assert_eq!((after, before.len() + after <= 512), (1, true));
    // A page that nobody has cannot be sent: its bytes change.
    assert_eq!(own.send(&reader.domain, None, root), Err(Errno::EFAULT));
    drop(before);
    card.end();
    assert_eq!(path.attach(&Process::new().domain), Err(Errno::EPIPE));
    reader.leave();
    stranger.leave();
    own.close();
    path.close();
}

/// Once a receiver has read all pages, packets change no page table and are not copied.
pub fn warm(counter: impl Fn() -> Vec<u64>) {
    let (pool, path) = Pool::new(1).expect("memory");
    let reader = Process::new();
    path.attach(&reader.domain).expect("room");
    let worker = Worker::new(&reader.map, 0);
    let mut known = None;
    for round in 0..3u8 {
        for _ in 0..512 {
            let frame = pool.take().expect("one is free");
            ephemeral::map(&frame).fill(0, 100, round);
            let slice = Slice::part(&frame, 10, 50);
            drop(frame);
            assert!(pool.give([(slice.frame(), 10, 50)].into_iter()));
            drop(slice);
        }
        assert!(pool.take().is_none(), "a hoarder has its own only");
        let mut taken = Vec::new();
        loop {
            let mut room = [NO_PART; 64];
            if pool.take_parts(&mut room, |at, _, _| taken.push(at)) == 0 {
                break;
            }
        }
        for at in taken {
            assert_eq!(worker.read(at, 50), Some(vec![round; 50]));
            pool.free(at.0 as u64).expect("it has it");
        }
        let now = counter();
        if round > 0 {
            assert_eq!(known, Some(now.clone()), "something was done for a packet");
        }
        known = Some(now);
    }
    worker.end();
    reader.leave();
    path.close();
}

/// A path that has ended keeps the pages that its receiver has, and no others.
pub fn ended() {
    const PAGES: usize = 512;
    let before = frame::usage().data;
    let (pool, path) = Pool::new(1).expect("memory");
    let reader = Process::new();
    path.attach(&reader.domain).expect("room");
    let page = pool.take().expect("one is free");
    assert!(pool.give([(&page, 0, 8)].into_iter()));
    assert!(pool.give_copy(8, |frame, _, len| ephemeral::map(frame).fill(0, len, 1)));
    drop(page);
    let mut room = [NO_PART; 1];
    let mut first = None;
    assert_eq!(pool.take_parts(&mut room, |at, _, _| first = Some(at)), 1);
    assert_eq!(frame::usage().data, before + PAGES);
    pool.end();
    assert_eq!(frame::usage().data, before + 1, "what nobody has stays");
    pool.free(first.expect("a part").0 as u64)
        .expect("it has it");
    reader.leave();
    path.close();
    drop((path, pool));
    assert_eq!(frame::usage().data, before);
}
