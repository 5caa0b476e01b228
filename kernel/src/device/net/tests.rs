//! A card on the simulated machine, played by the test: one that keeps to the protocol, and one
//! that says whatever comes to its mind.

use std::{
    sync::{
        Arc, Mutex,
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
    Frame, PAGE_SIZE, ephemeral,
    frame::Contents,
    sim::{below, device_read, device_write, on_machines_with, random_u64},
    sync::{Rank, SpinLock},
    task::{self, Sleep},
    virtio::{
        MOST_STARTS,
        simulated::{self, Piece, Script, Side},
    },
};

mod fbufs;

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
    /// The packets themselves, if they are to stay.
    kept: Mutex<Option<Vec<Aggregate>>>,
}

struct SpinLockVec(SpinLock<Vec<(Vec<u8>, Checksum)>>);

impl Default for SpinLockVec {
    fn default() -> SpinLockVec {
        SpinLockVec(SpinLock::new(Rank::Leaf, Vec::new()))
    }
}

impl Above for Told {
    fn receive(&self, data: Aggregate, checksum: Checksum) {
        let mut bytes = vec![0; data.len()];
        assert_eq!(data.peek(0, &mut bytes), bytes.len());
        self.packets.0.lock().push((bytes, checksum));
        if let Some(kept) = &mut *self.kept.lock().unwrap() {
            kept.push(data);
        }
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

/// A buffer that the card has, and its pieces.
type Buffer = (u16, Vec<Piece>);

/// Fills buffers with a packet, behind a header that says how many they are. Returns false if there
/// are too few; those that were taken stay in `held`.
fn hand_over(side: &mut Side, held: &mut Vec<Buffer>, bytes: &[u8]) -> bool {
    hand_over_in(usize::MAX, side, held, bytes)
}

/// As [`hand_over`], with at most so many bytes in a buffer.
fn hand_over_in(most: usize, side: &mut Side, held: &mut Vec<Buffer>, bytes: &[u8]) -> bool {
    let room_of = |(_, pieces): &Buffer| -> usize {
        let room: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        room.min(most)
    };
    let room = |held: &[Buffer]| -> usize { held.iter().map(room_of).sum() };
    while room(held) < header::LEN + bytes.len() {
        let Some(number) = side.take() else {
            return false;
        };
        let pieces = side.pieces(number).unwrap();
        assert!(pieces.iter().all(|it| it.is_written));
        held.push((number, pieces));
    }
    let mut used = 1;
    while room(&held[..used]) < header::LEN + bytes.len() {
        used += 1;
    }
    let mut left = [&header_of(used)[..], bytes].concat();
    for buffer in held.drain(..used) {
        let (mut filled, most) = (0, room_of(&buffer));
        let (number, pieces) = buffer;
        for piece in pieces {
            let n = left.len().min(piece.len as usize).min(most - filled);
            assert!(n == 0 || device_write(PLACE, piece.address, &left[..n]));
            left.drain(..n);
            filled += n;
        }
        side.put_used(number.into(), filled as u32);
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
fn end(script: &Script, side: &mut Side, card: &Card) {
    script.be_gone();
    side.put_used(u32::MAX, 0);
    side.queue().look();
    side.interrupt();
    until(|| card.is_over());
    while nucleus::dma::policy() != nucleus::dma::Policy::Off && Arc::strong_count(side.queue()) > 9
    {
        pause();
    }
}

#[test]
fn packets_arrive_as_they_are() {
    on_machines_with("card receives", 1..=3, 2048, 20, || {
        let (card, told, script) = card_of::<Told>(Feature::all(), [MTU, PAGES_MTU][below(2)]);
        let mut side = script.side(0);
        let (mut sent, mut held) = (Vec::new(), Vec::new());
        for nth in 0..60usize {
            let len = [14, 60, 256, 257, 1514, 4084, 4085, 30_000, 65_549][below(9)];
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + nth) as u8).collect();
            until(|| hand_over(&mut side, &mut held, &bytes));
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
        end(&script, &mut side, &card);
    });
}

/// Where packets are long, the device gets buffers that hold the longest.
#[test]
fn a_long_packet_comes_to_take_one_buffer() {
    /// Long packets until then, at most.
    const MOST: usize = 100;
    on_machines_with("card receives long ones", 1..=3, 2048, 5, || {
        let (card, told, script) = card(Feature::all());
        let mut side = script.side(0);
        let mut held: Vec<Buffer> = Vec::new();
        let is_long = |(_, pieces): &Buffer| {
            let room: u32 = pieces.iter().map(|piece| piece.len).sum();
            room as usize >= header::LEN + header::MOST
        };
        let mut sent = 0;
        while !held.iter().any(is_long) {
            until(|| hand_over(&mut side, &mut held, &[7; 30_000]));
            sent += 1;
            assert!(sent < MOST, "each buffer is too short");
            until(|| told.packets.0.lock().len() == sent);
            while let Some(number) = side.take() {
                held.push((number, side.pieces(number).unwrap()));
            }
        }
        end(&script, &mut side, &card);
    });
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
    fn receive(&self, mut data: Aggregate, _: Checksum) {
        data.clip_front(self.headers.load(SeqCst));
        let pages = data.slices().filter(|slice| slice.is_page());
        self.pages.store(pages.count(), SeqCst);
        self.slices.store(data.slice_count(), SeqCst);
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

/// Behind headers of any length, once the card has seen such packets.
#[test]
fn payloads_of_long_packets_fill_whole_pages() {
    on_machines_with("header split", 1..=2, 2048, 10, || {
        let whole = 3;
        let (card, pages, script) = card_of::<Pages>(Feature::all(), PAGES_MTU);
        let mut side = script.side(0);
        let (mut count, mut held) = (0, Vec::new());
        for (version, options) in [(4, 12), (4, 0), (6, 12), (4, 40), (4, 12)] {
            let head = headers(version, options);
            pages.headers.store(head.len(), SeqCst);
            let mut bytes = head.clone();
            bytes.resize(head.len() + (whole + 1) * PAGE_SIZE - 40, 7);
            // The device has buffers of the old shape.
            for _ in 0..64 {
                until(|| hand_over(&mut side, &mut held, &bytes));
                count += 1;
                until(|| pages.packets.load(SeqCst) == count);
            }
            assert_eq!(pages.pages.load(SeqCst), whole, "IPv{version}, {options}");
            assert_eq!(
                pages.slices.load(SeqCst),
                whole + 1,
                "IPv{version}, {options}"
            );
        }
        end(&script, &mut side, &card);
    });
}

/// A device that says to have written what it has not hands over no bytes of others.
#[test]
fn bytes_that_no_device_has_written_are_zeros() {
    on_machines_with("card writes nothing", 1..=2, 2048, 10, || {
        let mut others = Vec::new();
        take_memory(&mut others);
        for frame in others.drain(..) {
            ephemeral::map(&frame).fill(0, PAGE_SIZE, 0xa5);
        }
        let (card, told, script) = card_of::<Told>(Feature::all(), [MTU, PAGES_MTU][below(2)]);
        let mut side = script.side(0);
        for nth in 1..=40 {
            until(|| side.available() > 0);
            let number = side.take().unwrap();
            let pieces = side.pieces(number).unwrap();
            assert!(device_write(PLACE, pieces[0].address, &header_of(1)));
            let room: u32 = pieces.iter().map(|piece| piece.len).sum();
            let most = room.min((header::LEN + header::MOST) as u32);
            side.put_used(number.into(), [60, 300, most][below(3)]);
            side.interrupt();
            until(|| told.packets.0.lock().len() == nth);
        }
        for (bytes, _) in &*told.packets.0.lock() {
            assert!(bytes.iter().all(|byte| *byte == 0), "{} bytes", bytes.len());
        }
        end(&script, &mut side, &card);
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
            if card.send(&mut packet) {
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
        end(&script, &mut receives, &card);
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
        // It is not started again.
        script.be_gone();
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
            let mut packet = Packet {
                data: Aggregate::new(),
                ..Packet::default()
            };
            card.send(&mut packet);
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
        end(&script, &mut receives, &card);
        assert!(
            !card.send(&mut Packet::default()),
            "it is not used any more"
        );
    });
}

/// Takes all memory that there is.
fn take_memory(taken: &mut Vec<Frame>) {
    while let Ok(frame) = Frame::alloc(Contents::Zeroed) {
        taken.push(frame);
    }
}

/// Without memory, each packet that the device has a buffer for arrives or is counted; when there
/// is memory again, the device gets buffers again.
#[test]
fn a_card_without_memory_goes_on_when_there_is_some() {
    on_machines_with("card without memory", 1..=3, 2048, 20, || {
        let (card, told, script) = card_of::<Told>(Feature::all(), [MTU, PAGES_MTU][below(2)]);
        let mut side = script.side(0);
        until(|| side.available() > 3);
        let mut held = Vec::new();
        *told.kept.lock().unwrap() = Some(Vec::new());
        let mut taken = Vec::new();
        let mut sent = 0;
        let lost = || told.dropped.load(SeqCst) as usize;
        loop {
            take_memory(&mut taken);
            // Of one buffer, or of several.
            let bytes = vec![sent as u8; 14 + below(8_000)];
            let most = [usize::MAX, 3000][below(2)];
            if side.available() == 0 || !hand_over_in(most, &mut side, &mut held, &bytes) {
                break;
            }
            sent += 1;
            until(|| told.packets.0.lock().len() + lost() == sent);
            assert!(sent < 10_000, "the device always has buffers");
            // The frames of these stay with their buffers.
            if lost() > 20 {
                break;
            }
        }
        assert!(sent > 0 && card.has_carrier());
        taken.clear();
        *told.kept.lock().unwrap() = None;
        until(|| side.available() > 0);
        let before = told.packets.0.lock().len();
        assert!(hand_over(&mut side, &mut held, &[7; 1000]));
        until(|| told.packets.0.lock().len() > before);
        end(&script, &mut side, &card);
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
        end(&script, &mut script.side(0), &card);
    });
}

/// A card that says what can't be works again afterwards, a few times.
#[test]
fn a_card_that_has_failed_is_started_again() {
    on_machines_with("card restarts", 1..=2, 8192, 10, || {
        let (card, told, script) = card(Feature::all());
        for nth in 1..=MOST_STARTS {
            let mut side = script.side(0);
            let mut held = Vec::new();
            let bytes: Vec<u8> = (0..300 + nth).map(|at| (at * 5) as u8).collect();
            until(|| hand_over(&mut side, &mut held, &bytes));
            until(|| told.packets.0.lock().len() == nth);
            assert_eq!(told.packets.0.lock()[nth - 1].0, bytes);
            // What waits to be sent is lost.
            for _ in 0..below(40) {
                card.send(&mut packet_of(&bytes));
            }
            let links = told.links.load(SeqCst);
            match nth {
                MOST_STARTS => end(&script, &mut side, &card),
                _ => {
                    side.put_used(u32::MAX, 0);
                    side.queue().look();
                    side.interrupt();
                    until(|| told.links.load(SeqCst) == links + 2 && card.has_carrier());
                }
            }
        }
        assert!(!card.has_carrier() && !card.send(&mut packet_of(&[0; 60])));
    });
}

fn packet_of(bytes: &[u8]) -> Packet {
    let mut data = Aggregate::new();
    let filled = data.fill_from(&mut BytesSource::new(bytes), bytes.len());
    assert_eq!(filled, Ok(bytes.len()));
    Packet {
        data,
        ..Packet::default()
    }
}
