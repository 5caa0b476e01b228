//! A card on the simulated machine, played by the test: one that keeps to the protocol, and one
//! that says whatever comes to its mind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
    vec::Vec,
};

use fbuf::{Aggregate, BytesSource};
use net::{
    link::Device as _,
    packet::{Checksum, Packet},
};
use nucleus::{
    PAGE_SIZE,
    sim::{below, device_read, device_write, on_machines_with, random_u64},
    sync::{Rank, SpinLock},
    task::{self, Sleep},
    virtio::simulated::{self, Script, Side},
};

use super::{
    Feature,
    card::{Above, Card},
    header,
};

const PLACE: u16 = 0x30;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// What the configuration says: address, link, pairs, MTU.
fn config(pairs: u8, mtu: u16) -> Vec<u8> {
    let mut bytes = MAC.to_vec();
    bytes.extend([1, 0, pairs, 0]);
    bytes.extend(mtu.to_le_bytes());
    bytes
}

/// The usual MTU, and one for four pages with the headers before them.
const MTU: u16 = 1500;
const PAGES_MTU: u16 = 4 * PAGE_SIZE as u16 + 52;

/// What the card has told.
#[derive(Default)]
struct Told {
    packets: SpinLockVec,
    links: AtomicUsize,
    dropped: AtomicU32,
}

struct SpinLockVec(SpinLock<Vec<(Vec<u8>, Checksum)>>);

impl Default for SpinLockVec {
    fn default() -> SpinLockVec {
        SpinLockVec(SpinLock::new(Rank::Leaf, Vec::new()))
    }
}

impl Above for Told {
    fn receive(&self, packet: Packet) {
        let mut bytes = vec![0; packet.len()];
        assert_eq!(packet.peek(0, &mut bytes), bytes.len());
        self.packets.0.lock().push((bytes, packet.checksum));
    }

    fn note_dropped(&self) {
        self.dropped.fetch_add(1, SeqCst);
    }

    fn note_carrier(&self) {
        self.links.fetch_add(1, SeqCst);
    }
}

fn pause() {
    task::sleep(Sleep::within(Duration::from_micros(random_u64() % 300)));
}

/// Waits until something is so.
fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is_so() {
            return;
        }
        pause();
    }
    panic!("it never is so");
}

fn card(features: Feature) -> (Arc<Card>, Arc<Told>, Arc<Script>) {
    card_of(features, MTU)
}

fn card_of<T: Above + Default + 'static>(
    features: Feature,
    mtu: u16,
) -> (Arc<Card>, Arc<T>, Arc<Script>) {
    // The control queue is not answered here.
    let features = features - Feature::RECEIVE_MODES - Feature::PAIRS;
    let (found, script) = simulated::device(PLACE, features.bits(), config(1, mtu));
    let card = Card::start(found).unwrap();
    let told = Arc::new(T::default());
    let above: Arc<dyn Above> = told.clone();
    card.serve(&above).unwrap();
    (card, told, script)
}

/// Fills buffers with a packet, behind its header; returns the bytes that each has.
fn hand_over(side: &mut Side, header: [u8; header::LEN], bytes: &[u8]) -> bool {
    let mut left = [&header[..], bytes].concat();
    let mut filled = Vec::new();
    while !left.is_empty() {
        let Some(number) = side.take() else {
            // As cards do: a packet without room is lost. Buffers that were taken stay away.
            return false;
        };
        let mut written = 0;
        for piece in side.pieces(number).unwrap() {
            assert!(piece.is_written);
            let n = left.len().min(piece.len as usize);
            assert!(n == 0 || device_write(PLACE, piece.address, &left[..n]));
            left.drain(..n);
            written += n as u32;
        }
        filled.push((number, written));
    }
    for (number, n) in filled {
        side.put_used(number.into(), n);
    }
    side.interrupt();
    true
}

fn header_of(buffers: usize) -> [u8; header::LEN] {
    let mut header = [0; header::LEN];
    header[10] = buffers as u8;
    header
}

/// Breaks the card, so that its tasks end.
fn end(side: &mut Side, card: &Card) {
    side.put_used(u32::MAX, 0);
    side.queue().look();
    side.interrupt();
    until(|| !card.has_carrier());
    while nucleus::dma::policy() != nucleus::dma::Policy::Off && Arc::strong_count(side.queue()) > 9
    {
        pause();
    }
}

#[test]
fn packets_arrive_as_they_are() {
    on_machines_with("card receives", 1..=3, 2048, 20, || {
        // Bytes of a buffer.
        let (mtu, buffer) = [(MTU, PAGE_SIZE), (PAGES_MTU, 78 + 4 * PAGE_SIZE)][below(2)];
        let (card, told, script) = card_of::<Told>(Feature::all(), mtu);
        let mut side = script.side(0);
        let mut sent = Vec::new();
        for nth in 0..60usize {
            let len = [14, 60, 256, 257, 1514, 4084, 4085, 30_000, 65_549][below(9)];
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + nth) as u8).collect();
            let buffers = (header::LEN + len).div_ceil(buffer);
            until(|| hand_over_if_room(&mut side, buffers, &bytes));
            sent.push(bytes);
            if below(4) == 0 {
                // The pair's task may sleep, and has to hear of the next packet.
                until(|| told.packets.0.lock().len() == sent.len());
                pause();
                side.interrupt_anyway();
                pause();
            }
        }
        until(|| told.packets.0.lock().len() == sent.len());
        let got = core::mem::take(&mut *told.packets.0.lock());
        for (sent, (got, checksum)) in sent.iter().zip(&got) {
            assert!(sent == got, "{} bytes, {} arrived", sent.len(), got.len());
            assert_eq!(*checksum, Checksum::Unknown);
        }
        end(&mut side, &card);
    });
}

fn hand_over_if_room(side: &mut Side, buffers: usize, bytes: &[u8]) -> bool {
    // The largest packet fits into the queue.
    let is_there = side.available() >= buffers;
    is_there && hand_over(side, header_of(buffers), bytes)
}

/// How many slices of each payload, and how many of these are whole pages.
#[derive(Default)]
struct Pages {
    headers: AtomicUsize,
    packets: AtomicUsize,
    /// Those of the last packet.
    slices: AtomicUsize,
    pages: AtomicUsize,
}

impl Above for Pages {
    fn receive(&self, mut packet: Packet) {
        packet.data.clip_front(self.headers.load(SeqCst));
        let pages = packet.data.slices().filter(|slice| slice.is_page());
        self.pages.store(pages.count(), SeqCst);
        self.slices.store(packet.data.slice_count(), SeqCst);
        self.packets.fetch_add(1, SeqCst);
    }

    fn note_dropped(&self) {}

    fn note_carrier(&self) {}
}

/// The headers of a segment, by the version of IP and the bytes of TCP's options.
fn headers(version: u8, options: u8) -> Vec<u8> {
    let (kind, at, ip) = match version {
        4 => ([8, 0], 9, vec![0x45; 20]),
        _ => ([0x86, 0xdd], 6, vec![0x60; 40]),
    };
    let mut bytes = [vec![2; 12], kind.to_vec(), ip].concat();
    bytes[header::ETHERNET + at] = 6;
    let mut tcp = vec![0; 20 + usize::from(options)];
    tcp[12] = (5 + options / 4) << 4;
    [bytes, tcp].concat()
}

/// Behind headers of any length, once the card has seen one such packet.
#[test]
fn payloads_of_large_packets_fill_whole_pages() {
    on_machines_with("header split", 1..=2, 2048, 10, || {
        let (card, pages, script) = card_of::<Pages>(Feature::all(), PAGES_MTU);
        let mut side = script.side(0);
        let mut count = 0;
        for (version, options) in [(4, 12), (4, 0), (6, 12), (4, 40), (4, 12)] {
            let head = headers(version, options);
            pages.headers.store(head.len(), SeqCst);
            let mut bytes = head.clone();
            bytes.resize(head.len() + 4 * PAGE_SIZE - 40, 7);
            // The device has buffers of the old shape.
            for _ in 0..64 {
                until(|| hand_over_if_room(&mut side, 1, &bytes));
                count += 1;
                until(|| pages.packets.load(SeqCst) == count);
            }
            assert_eq!(pages.pages.load(SeqCst), 3, "IPv{version}, {options}");
            assert_eq!(pages.slices.load(SeqCst), 4, "IPv{version}, {options}");
        }
        end(&mut side, &card);
    });
}

#[test]
fn what_comes_before_a_payload_is_measured_in_what_is_there() {
    for (version, options) in [(4, 0), (4, 40), (6, 12)] {
        let head = headers(version, options);
        assert_eq!(header::before_payload(&head), Some(head.len()));
        for len in 0..head.len() - usize::from(options) - 8 {
            assert_eq!(header::before_payload(&head[..len]), None);
        }
    }
    let mut other = headers(4, 0);
    other[header::ETHERNET + 9] = 17;
    assert_eq!(header::before_payload(&other), None, "UDP");
    assert_eq!(header::before_payload(&[0xff; 100]), None);
}

#[test]
fn packets_leave_as_they_are_whatever_the_device_takes_first() {
    on_machines_with("card sends", 1..=3, 4096, 20, || {
        let (card, _, script) = card(Feature::all());
        let mut side = script.side(1);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let mut held = Vec::new();
        for nth in 0..200usize {
            let mut data = Aggregate::new();
            let len = 1 + below(3000);
            let bytes: Vec<u8> = (0..len).map(|at| (at * 3 + nth) as u8).collect();
            // Many slices, sometimes more than a request takes.
            for part in bytes.chunks(1 + len / 40 + below(len)) {
                let mut piece = Aggregate::new();
                let filled = piece.fill_from(&mut BytesSource::new(part), part.len());
                assert_eq!(filled, Ok(part.len()));
                data.join(&mut piece).unwrap();
            }
            let mut packet = Packet {
                data,
                checksum: Checksum::Right,
                ..Packet::default()
            };
            packet.head.push(14).fill(nth as u8);
            if card.send(packet) {
                sent.push([vec![nth as u8; 14], bytes].concat());
            }
            while below(3) > 0 {
                let Some(number) = side.take() else { break };
                held.push(number);
            }
            if below(2) == 0 {
                finish(&mut side, &mut held, &mut got);
            }
        }
        until(|| {
            while let Some(number) = side.take() {
                held.push(number);
            }
            finish(&mut side, &mut held, &mut got);
            got.len() == sent.len()
        });
        got.sort();
        sent.sort();
        assert!(got == sent);
        let mut receives = script.side(0);
        end(&mut receives, &card);
    });
}

/// Reads the packets of the requests, and is done with them, in any order.
fn finish(side: &mut Side, held: &mut Vec<u16>, got: &mut Vec<Vec<u8>>) {
    while !held.is_empty() {
        let number = held.swap_remove(below(held.len()));
        let mut bytes = Vec::new();
        for piece in side.pieces(number).unwrap() {
            assert!(!piece.is_written);
            let mut part = vec![0; piece.len as usize];
            assert!(device_read(PLACE, piece.address, &mut part));
            bytes.extend(part);
        }
        got.push(bytes.split_off(header::LEN));
        side.put_used(number.into(), 0);
        side.interrupt();
    }
}

#[test]
fn sums_and_cuts_are_left_to_the_device_by_its_header() {
    let mut packet = Packet {
        checksum: Checksum::Wanted { from: 34, at: 50 },
        cut: 1448,
        ..Packet::default()
    };
    packet.head.push(66)[12..14].copy_from_slice(&[8, 0]);
    let wanted = [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
    assert_eq!(header::of(&packet), wanted);
    packet.head.as_mut_slice()[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_eq!(header::of(&packet)[1], 4);
}

#[test]
fn headers_are_checked() {
    let all = Feature::all();
    let header = |edit: &[(usize, u8)]| {
        let mut header = header_of(1);
        edit.iter().for_each(|&(at, byte)| header[at] = byte);
        header
    };
    let check = |edit: &[(usize, u8)], features| header::check(&header(edit), 100, features);
    assert_eq!(check(&[], all), Ok(Checksum::Unknown));
    assert_eq!(check(&[(0, 2)], all), Ok(Checksum::Right));
    assert_eq!(check(&[(0, 1), (6, 34), (8, 16)], all), Ok(Checksum::Right));
    assert!(check(&[(0, 1), (6, 90), (8, 9)], all).is_err());
    assert!(check(&[(0, 1), (7, 255), (9, 255)], all).is_err());
    assert!(check(&[(0, 1)], Feature::empty()).is_err());
    assert_eq!(check(&[(1, 0x81), (4, 1)], all), Ok(Checksum::Unknown));
    assert!(check(&[(1, 1)], all).is_err(), "segments of 0 bytes");
    assert!(check(&[(1, 3), (4, 1)], all).is_err(), "UDP");
    assert!(check(&[(1, 4), (4, 1)], Feature::RECEIVES_TCP_V4).is_err());
}

/// Whatever a device says, packets of its bytes arrive or it is reset; nothing else is touched, and
/// what it had comes back where a unit cuts it off.
#[test]
fn a_card_that_says_anything_is_survived() {
    on_machines_with("card lies", 1..=3, 2048, 30, || {
        let features = Feature::from_bits_truncate(random_u64());
        let (card, told, script) = card_of::<Told>(features, [MTU, PAGES_MTU, u16::MAX][below(3)]);
        let (mut receives, mut sends) = (script.side(0), script.side(1));
        let mut turns = 0;
        while card.has_carrier() && turns < 500 {
            turns += 1;
            let mut header = header_of(below(3));
            for _ in 0..below(3) {
                header[below(header::LEN)] = random_u64() as u8;
            }
            if let Some(number) = receives.take() {
                // A device that was cut off reaches nothing any more.
                let pieces = receives.pieces(number);
                // Mostly what can be, so that the card works for a while.
                let len = match below(200) {
                    0 => [0, 1, 11, 12, 4097, 70_000, u32::MAX][below(7)],
                    _ => [13, 80, 300, 4096][below(4)],
                };
                if let Some(pieces) = pieces {
                    device_write(PLACE, pieces[0].address, &header);
                }
                receives.put_used(number.into(), len);
            }
            let packet = Packet {
                data: Aggregate::new(),
                ..Packet::default()
            };
            card.send(packet);
            if let Some(number) = sends.take() {
                sends.put_used(number.into(), random_u64() as u32);
            }
            match below(300) {
                0 => receives.put_used(random_u64() as u32, random_u64() as u32),
                1 => sends.put_used(below(200) as u32, 0),
                2 => receives.move_used(random_u64() as u16),
                3 => script.set_config(6, below(2) as u8),
                _ => {}
            }
            receives.interrupt();
            sends.interrupt();
            if below(4) == 0 {
                pause();
            }
        }
        for (bytes, _) in &*told.packets.0.lock() {
            assert!(bytes.len() <= header::MOST);
        }
        script.set_config(6, 1);
        end(&mut receives, &card);
        assert!(!card.send(Packet::default()), "it is not used any more");
    });
}

#[test]
fn a_link_that_goes_and_comes_is_told_of() {
    on_machines_with("link", 1..=2, 1024, 10, || {
        let (card, told, script) = card(Feature::all());
        assert!(card.has_carrier());
        script.set_config(6, 0);
        until(|| !card.has_carrier() && told.links.load(SeqCst) == 1);
        script.set_config(6, 1);
        until(|| card.has_carrier() && told.links.load(SeqCst) == 2);
        end(&mut script.side(0), &card);
    });
}
