//! Aggregates, compared with plain bytes under random operations.

use fbuf::{
    Aggregate, AggregateSink, AggregateSource, BytesSink, BytesSource, Sink, Slice, Source,
};
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    frame::Contents,
    sim::{Random, on_machines},
};

fn content(aggregate: &Aggregate) -> Vec<u8> {
    let mut bytes = vec![0; aggregate.len()];
    assert_eq!(aggregate.peek(0, &mut bytes), bytes.len());
    bytes
}

fn check(aggregate: &Aggregate, model: &[u8]) {
    assert_eq!(aggregate.len(), model.len());
    assert!(content(aggregate) == model);
    let sum: usize = aggregate.slices().map(|slice| slice.len).sum();
    assert_eq!(sum, model.len());
    for slice in aggregate.slices() {
        assert!(slice.len > 0 && slice.end() <= PAGE_SIZE);
    }
    let mut slices = aggregate.slices().peekable();
    while let (Some(a), Some(b)) = (slices.next(), slices.peek()) {
        let continues = a.frame() == b.frame() && a.end() == b.offset;
        assert!(!continues, "neighbours that are one slice");
    }
}

/// A part of a frame of random bytes.
fn slice(random: &mut Random) -> (Slice, Vec<u8>) {
    let bytes = random.bytes(PAGE_SIZE);
    let frame = Frame::alloc(Contents::Stale).unwrap();
    ephemeral::map(&frame).write(0, &bytes);
    let offset = random.below(PAGE_SIZE);
    let len = random.below(PAGE_SIZE - offset + 1);
    let slice = Slice::part(&frame, offset, len);
    (slice, bytes[offset..offset + len].to_vec())
}

fn step(random: &mut Random, aggregate: &mut Aggregate, model: &mut Vec<u8>) {
    let some = random.below(model.len() + 10);
    match random.below(11) {
        0 => {
            let (slice, bytes) = slice(random);
            aggregate.append(slice).unwrap();
            model.extend(bytes);
        }
        1 => {
            let byte = aggregate.take_byte(some).unwrap();
            assert_eq!(byte.is_some(), some < model.len());
            if let Some(byte) = byte {
                let mut value = [0];
                ephemeral::map(byte.frame()).read(byte.offset, &mut value);
                assert_eq!((byte.len, value[0]), (1, model.remove(some)));
            }
        }
        2 => {
            let len = random.below(9001);
            let bytes = random.bytes(len);
            let max = random.below(9000);
            let n = aggregate.fill_from(&mut BytesSource::new(&bytes), max);
            assert_eq!(n, Ok(bytes.len().min(max)));
            model.extend(&bytes[..bytes.len().min(max)]);
        }
        3 => {
            // Apart and together again: slices that were cut grow together.
            let mut front = Aggregate::new();
            let mut to = AggregateSink::new(&mut front, some);
            let n = aggregate.drain_into(&mut to, some).unwrap();
            check(&front, &model[..n]);
            let before = aggregate.slice_count() + front.slice_count();
            front.join(aggregate).unwrap();
            assert!(aggregate.is_empty() && front.slice_count() <= before);
            *aggregate = front;
        }
        4 | 5 => {
            let n = some / 3;
            aggregate.clip_front(n);
            model.drain(..n.min(model.len()));
        }
        6 => {
            let mut bytes = vec![0; random.below(9000)];
            let mut sink = BytesSink::new(&mut bytes);
            let n = aggregate.drain_into(&mut sink, some).unwrap();
            assert_eq!(n, some.min(model.len()).min(bytes.len()));
            assert!(bytes[..n] == model[..n]);
            model.drain(..n);
        }
        7 => {
            let mut other = Aggregate::new();
            let room = random.below(9000);
            let mut sink = AggregateSink::new(&mut other, room);
            let n = aggregate.drain_into(&mut sink, some).unwrap();
            let zeros = random.below(10000).min(sink.room());
            assert_eq!(sink.put_zeros(zeros), Ok(zeros));
            let mut bytes: Vec<u8> = model.drain(..n).collect();
            bytes.resize(n + zeros, 0);
            check(&other, &bytes);
            aggregate.join(&mut other).unwrap();
            model.extend(bytes);
        }
        8 => {
            let mut copy = aggregate.clone();
            let mut source = AggregateSource::new(&mut copy, some);
            let mut bytes = vec![0; random.below(5000)];
            let n = source.take_bytes(&mut bytes).unwrap();
            assert_eq!(n, bytes.len().min(some).min(model.len()));
            assert!(bytes[..n] == model[..n]);
            let frame = Frame::alloc(Contents::Zeroed).unwrap();
            let left = source.left();
            let m = source.take_into(&frame, 10, 3000).unwrap();
            assert_eq!(m, left.min(3000));
            let mut page = [0; PAGE_SIZE];
            ephemeral::map(&frame).read(0, &mut page);
            assert!(page[10..10 + m] == model[n..n + m] && page[10 + m..].iter().all(|&b| b == 0));
        }
        9 => {
            let mut copy = Aggregate::new();
            copy.reserve(random.below(8)).unwrap();
            let slices = random.below(8);
            // To an empty chain, or to one with bytes that these may continue.
            let before = aggregate.share_front(&mut copy, random.below(3) * 100, slices);
            let room = copy.capacity() - copy.slice_count();
            let shared = aggregate.share_front(&mut copy, some, slices);
            let first = aggregate.slices().take(slices.min(room));
            let n = first.map(|slice| slice.len).sum::<usize>().min(some);
            assert_eq!(shared, n);
            let bytes: Vec<u8> = [&model[..before], &model[..n]].concat();
            check(&copy, &bytes);
        }
        _ => {
            let mut bytes = [0; 500];
            let n = aggregate.peek(some, &mut bytes);
            let from = some.min(model.len());
            assert_eq!(n, (model.len() - from).min(500));
            assert!(bytes[..n] == model[from..from + n]);
        }
    }
}

#[test]
fn aggregates_are_chains_of_bytes() {
    on_machines(20, |seed| {
        let mut random = Random::new(seed);
        let (mut aggregate, mut model) = (Aggregate::new(), Vec::new());
        for _ in 0..800 {
            step(&mut random, &mut aggregate, &mut model);
            check(&aggregate, &model);
            if model.len() > 60000 {
                aggregate.clip_front(50000);
                model.drain(..50000);
            }
        }
    });
}
