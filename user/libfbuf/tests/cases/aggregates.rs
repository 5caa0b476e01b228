//! Aggregates of one process against plain bytes.

use libfbuf::{Aggregate, Backend, CHUNK, Contents, Mode, PAGE, Path, lines, records};

use super::{Draws, error_of, start};

/// Checks an aggregate against its model.
fn check(aggregate: &Aggregate, model: &[u8], draws: &mut Draws) {
    assert_eq!(aggregate.len(), model.len() as u64);
    assert_eq!(aggregate.to_vec(model.len()).expect("bytes"), model);
    let fragments = aggregate.fragments().map(|it| it.len()).sum::<usize>();
    assert_eq!(fragments, model.len());
    let borrowed: Vec<u8> = aggregate
        .fragments()
        .flat_map(|it| it.bytes().expect("own bytes").to_vec())
        .collect();
    assert_eq!(borrowed, model);
    let most = 1 + model.len() / 100 + draws.below(100);
    let found: Vec<u8> = lines(aggregate, most).flat_map(|it| it.to_vec()).collect();
    assert_eq!(found, model);
    let all = lines(aggregate, usize::MAX).map(|it| it.to_vec());
    assert!(all.eq(model.split_inclusive(|it| *it == b'\n').map(<[u8]>::to_vec)));
    let size = 1 + model.len() / 100 + draws.below(300);
    let all = records(aggregate, size).map(|it| it.to_vec());
    assert!(all.eq(model.chunks(size).map(<[u8]>::to_vec)));
    let (at, mut part) = (draws.below(model.len() + 2), vec![0; draws.below(50)]);
    let count = aggregate.copy_at(at as u64, &mut part);
    let expected = model.get(at..).unwrap_or_default();
    assert_eq!(count, expected.len().min(part.len()));
    assert_eq!(part[..count], expected[..count]);
}

/// Returns an aggregate and its model, made of random operations on earlier ones.
pub fn step(path: &Path, pool: &[(Aggregate, Vec<u8>)], draws: &mut Draws) -> (Aggregate, Vec<u8>) {
    let one = |draws: &mut Draws| pool[draws.below(pool.len())].clone();
    let operation = if pool.is_empty() { 0 } else { draws.below(8) };
    let (a, model) = match operation {
        0 => (path.empty(), Vec::new()),
        _ => one(draws),
    };
    let len = model.len() as u64;
    let at = draws.below(model.len() + 1);
    let size = [0, 1, 40, 200, 4096, 4080, 9000][draws.below(7)];
    match operation {
        0 | 1 => {
            let bytes = draws.bytes(size);
            (path.copy(&bytes).expect("memory"), bytes)
        }
        2 | 3 => {
            let (b, more) = one(draws);
            (a.join(&b).expect("a join"), [model, more].concat())
        }
        4 => {
            let (front, back) = a.split(at as u64).expect("a split");
            match draws.below(2) {
                0 => (front, model[..at].to_vec()),
                _ => (back, model[at..].to_vec()),
            }
        }
        5 => match draws.below(2) {
            0 => (
                a.clip_front(at as u64).expect("a clip"),
                model[at..].to_vec(),
            ),
            _ => {
                let clipped = a.clip_back(len - at as u64).expect("a clip");
                (clipped, model[..at].to_vec())
            }
        },
        6 => {
            let end = at + draws.below(model.len() - at + 1);
            let slice = a.slice(at as u64..end as u64).expect("a slice");
            (slice, model[at..end].to_vec())
        }
        _ => {
            let size = 1 + draws.below(60);
            let bytes = draws.bytes(size);
            match draws.below(2) {
                0 => (a.prepend(&bytes).expect("memory"), [bytes, model].concat()),
                _ => (a.append(&bytes).expect("memory"), [model, bytes].concat()),
            }
        }
    }
}

/// Random joins, splits, clips, appends and generators.
pub fn model(backend: Backend) {
    let (_domain, path) = start(backend);
    let mut draws = Draws(7);
    let mut pool: Vec<(Aggregate, Vec<u8>)> = Vec::new();
    for _ in 0..600 {
        let (aggregate, model) = step(&path, &pool, &mut draws);
        check(&aggregate, &model, &mut draws);
        // Earlier ones have not changed.
        if !pool.is_empty() {
            let (aggregate, model) = &pool[draws.below(pool.len())];
            assert_eq!(aggregate.to_vec(model.len()).expect("bytes"), *model);
        }
        if pool.len() == 30 {
            pool.swap_remove(draws.below(30));
        }
        if model.len() < 20_000 {
            pool.push((aggregate, model));
        }
    }
}

/// Many appended parts: as many as a reader reads, cut, and dropped.
pub fn chain(backend: Backend) {
    let (_domain, path) = start(backend);
    let unit = path.copy(b"abc").expect("memory");
    let mut all = path.empty();
    let mut count = 0;
    let error = loop {
        match all.join(&unit) {
            Ok(longer) => all = longer,
            Err(why) => break why,
        }
        count += 1;
    };
    assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
    assert_eq!(count, libfbuf::MOST_NODES.div_ceil(2));
    assert_eq!(all.len(), u64::from(count) * 3);
    let middle = all.slice(3001..6001).expect("a slice");
    drop(all);
    let bytes = middle.to_vec(3000).expect("bytes");
    assert!(bytes.iter().zip(b"bca".iter().cycle()).all(|(a, b)| a == b));
}

/// A path's limit, and memory that comes back.
pub fn limits(backend: Backend) {
    let (domain, _) = start(backend);
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 2).expect("a path");
    let first = path.allocate(CHUNK).expect("a chunk");
    let mut second = path.allocate(CHUNK - PAGE).expect("a chunk");
    assert_eq!(second.len(), CHUNK - PAGE);
    second.fill(1);
    let page = path.allocate(1).expect("the last page");
    assert_eq!(error_of(path.allocate(1)), libc::ENOSPC);
    drop(page);
    let page = path.allocate(PAGE).expect("the last page again");
    drop((first, second, page));
    let whole = path.allocate(2 * CHUNK).expect("both chunks");
    drop(whole);
    path.trim();
    let many: Vec<_> = (0..2 * CHUNK / PAGE)
        .map(|_| path.allocate(PAGE).expect("a page"))
        .collect();
    assert_eq!(error_of(path.copy(b"x")), libc::ENOSPC);
    drop(many);
    assert_eq!(error_of(path.allocate(usize::MAX)), libc::ENOSPC);
}
