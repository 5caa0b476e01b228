//! A card that writes packets into fbufs of the kernel.

use fbuf::{
    Slice,
    region::{Part, Pool},
};

use super::*;

/// What becomes of packets, in fbufs and elsewhere.
#[derive(Default)]
struct InFbufs {
    told: Told,
    pool: Mutex<Option<Arc<Pool>>>,
    /// Packets that were given, and those that were not.
    passed: AtomicUsize,
    others: AtomicUsize,
    /// Slices that stay.
    queue: SpinLockSlices,
}

struct SpinLockSlices(SpinLock<Vec<(Slice, Vec<u8>)>>);

impl Default for SpinLockSlices {
    fn default() -> SpinLockSlices {
        SpinLockSlices(SpinLock::new(Rank::Leaf, Vec::new()))
    }
}

impl Above for InFbufs {
    fn receive(&self, data: Aggregate, checksum: Checksum) {
        let pool = self.pool();
        let parts: Vec<&Slice> = data.slices().collect();
        let parts = parts.iter().map(|it| (it.frame(), it.offset, it.len));
        let is_given = pool.is_some_and(|it| it.give(parts));
        let count = match is_given {
            true => &self.passed,
            false => &self.others,
        };
        count.fetch_add(1, SeqCst);
        if is_given {
            let pages = data.slices().filter(|slice| slice.is_page());
            assert_eq!(pages.count(), 0, "a page of fbufs may become another's");
        }
        if below(3) == 0
            && let Some(slice) = data.slices().next()
        {
            let mut bytes = vec![0; slice.len];
            ephemeral::map(slice.frame()).read(slice.offset, &mut bytes);
            self.queue.0.lock().push((slice.clone(), bytes));
        }
        self.told.receive(data, checksum);
    }

    fn note_dropped(&self) {
        self.told.note_dropped();
    }

    fn note_carrier(&self) {}

    fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.lock().unwrap().clone()
    }
}

impl InFbufs {
    /// Frees what was given; what slices show has stayed as it was.
    fn free(&self) {
        let none = Part {
            page: 0,
            offset: 0,
            len: 0,
            has_more: false,
        };
        let Some(pool) = self.pool() else { return };
        let mut given = Vec::new();
        while pool.take_parts(&mut [none; 32], |at, _, _| given.push(at.0 as u64)) > 0 {}
        for at in given {
            pool.free(at).unwrap();
        }
        let queue = core::mem::take(&mut *self.queue.0.lock());
        for (slice, wanted) in &queue {
            let mut bytes = vec![0; slice.len];
            ephemeral::map(slice.frame()).read(slice.offset, &mut bytes);
            assert!(bytes == *wanted, "a slice changed");
        }
    }
}

#[test]
fn packets_arrive_in_fbufs() {
    on_machines_with("card fills fbufs", 1..=2, 4096, 3, || {
        let (card, above, script) = card_of::<InFbufs>(Feature::all(), [MTU, PAGES_MTU][below(2)]);
        let mut side = script.side(0);
        let (mut held, mut sent) = (Vec::new(), 0);
        let mut send = |count: usize, is_free: bool| {
            for _ in 0..count {
                let len = [14, 60, 256, 1514, 4084, 4085, 30_000][below(7)];
                let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + sent) as u8).collect();
                until(|| hand_over(&mut side, &mut held, &bytes));
                sent += 1;
                until(|| above.told.packets.0.lock().len() == sent);
                let got = above.told.packets.0.lock()[sent - 1].0.clone();
                assert!(got == bytes, "{} bytes, {} arrived", bytes.len(), got.len());
                if is_free {
                    above.free();
                }
            }
        };
        send(10, true);
        assert_eq!(above.passed.load(SeqCst), 0);
        let (pool, path) = Pool::new(1).unwrap();
        *above.pool.lock().unwrap() = Some(pool.clone());
        // The device has ordinary frames until then, and uses them first.
        send(150, true);
        let others = above.others.swap(0, SeqCst);
        assert!(
            above.passed.load(SeqCst) > 0 && others < 160,
            "{others} in frames"
        );
        send(30, true);
        assert_eq!(above.others.load(SeqCst), 0, "not in fbufs");
        // A hoarder gets as much as there is; then packets come in frames.
        send(300, false);
        assert!(above.others.load(SeqCst) > 0, "more fbufs than there are");
        above.free();
        let before = above.passed.load(SeqCst);
        send(100, true);
        assert!(above.passed.load(SeqCst) > before, "no fbufs any more");
        // The end: what the device has is no page of fbufs any more.
        *above.pool.lock().unwrap() = None;
        pool.end();
        send(30, true);
        end(&script, &mut side, &card);
        path.close();
        drop((pool, path));
    });
}
