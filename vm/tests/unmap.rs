//! References that a change of a map removes are dropped with the map unlocked (`uvm.txt` 3.1).

mod support;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use nucleus::{Frame, PAGE_SIZE, Prot, VirtAddr, frame::Contents, sim::Config, sync::OnceBox};
use support::{HERE, RW, new_map, page, pages, pages_at};
use vm::{Advice, Backing, Inherit, Lookup, Map, MapRequest, Object, Pager, PagerError, Place};

const PAGES: usize = 12;
const ELSEWHERE: VirtAddr = VirtAddr(0x20_0000_0000);

/// A file whose owner uses the map whenever a reference to the file is dropped, as the last close
/// of a file may: it would wait for ever, or for itself, if the map were locked.
struct Closing {
    object: Object,
    map: OnceBox<Weak<Map>>,
    dropped: AtomicUsize,
}

impl Closing {
    fn new(map: &Arc<Map>) -> Arc<Closing> {
        let file = Closing {
            object: Object::new(),
            map: OnceBox::new(),
            dropped: AtomicUsize::new(0),
        };
        file.map.get_or_insert(|| Box::new(Arc::downgrade(map)));
        Arc::new(file)
    }
}

impl Pager for Closing {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        self.object
            .get_or_insert(index, || Ok(Frame::alloc(Contents::Zeroed)?))
    }

    fn detach(&self, _: bool) {
        self.dropped.fetch_add(1, SeqCst);
        if let Some(map) = self.map.get().and_then(Weak::upgrade) {
            // Takes the map's lock to change it.
            map.set_limits(|| vm::Limits::NONE);
        }
    }
}

/// Calls `change` with a map that maps the file, and expects that it drops references.
fn dropped_by(
    name: &'static str,
    change: impl Fn(&Arc<Map>, &Arc<Closing>) + Send + Sync + 'static,
) {
    support::check(name, 0..2, Config::default(), move || {
        let map = new_map();
        let file = Closing::new(&map);
        map.map(file_request(&file)).expect("room");
        for i in 0..PAGES {
            assert_eq!(map.write(page(i), &[1; 8]), 8);
        }
        let before = file.dropped.load(SeqCst);
        change(&map, &file);
        assert!(file.dropped.load(SeqCst) > before, "{name} dropped nothing");
        map.tear_down();
        assert_eq!(Arc::strong_count(&file), 1, "{name} left a reference");
    });
}

fn file_request(file: &Arc<Closing>) -> MapRequest {
    MapRequest {
        place: Place::Fixed(HERE),
        backing: Backing::Object {
            pager: file.clone(),
            offset: 0,
        },
        label: "file",
        ..MapRequest::zero(PAGES * PAGE_SIZE, RW)
    }
}

#[test]
fn unmap() {
    dropped_by("unmap", |map, _| map.unmap(pages(0, PAGES)).unwrap());
    dropped_by("unmap of parts", |map, _| {
        map.unmap(pages(2, 3)).unwrap();
        map.unmap(pages(0, PAGES)).unwrap();
    });
}

#[test]
fn mapping_over() {
    dropped_by("mapping over", |map, _| {
        support::map_zero(map, pages(0, PAGES), false);
    });
}

#[test]
fn protect_that_joins_entries() {
    dropped_by("protect", |map, _| {
        map.protect(pages(3, 4), Prot::READ).unwrap();
        map.protect(pages(3, 4), RW).unwrap();
    });
}

#[test]
fn remap_that_shrinks_and_moves() {
    dropped_by("shrinking", |map, _| {
        map.remap(pages(0, PAGES), 3 * PAGE_SIZE, true, Place::Any, false)
            .unwrap();
    });
    dropped_by("moving over", |map, file| {
        let other = MapRequest {
            place: Place::Fixed(ELSEWHERE),
            ..file_request(file)
        };
        map.map(other).unwrap();
        let to = Place::Fixed(ELSEWHERE);
        map.remap(pages(0, PAGES), PAGES * PAGE_SIZE, true, to, false)
            .unwrap();
        map.unmap(pages_at(ELSEWHERE, PAGES)).unwrap();
    });
}

#[test]
fn detaching_an_object() {
    dropped_by("detaching", |map, _| {
        map.unmap_object(HERE, "file").unwrap()
    });
}

#[test]
fn advice_and_inheritance_that_join_entries() {
    dropped_by("advice", |map, _| {
        map.advise(pages(3, 4), Advice::Random).unwrap();
        map.advise(pages(3, 4), Advice::Normal).unwrap();
    });
    dropped_by("inheritance", |map, _| {
        map.inherit(pages(3, 4), Inherit::None).unwrap();
        map.inherit(pages(3, 4), Inherit::Copy).unwrap();
    });
}

#[test]
fn the_end_of_a_map() {
    dropped_by("end", |map, _| map.tear_down());
    // A child drops its own references.
    dropped_by("child", |map, _| map.fork().unwrap().tear_down());
}
