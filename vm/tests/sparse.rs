//! What kernel memory large mappings cost of which programs touch a few pages here and there: counted by an allocator.

use nucleus::{
    Access, PAGE_SIZE, Prot, VirtAddr,
    sim::{self, Config, CountedHeap},
};
use vm::{AmapForm, Limits, Map, MapRequest, Place, set_amap_form};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

const HERE: VirtAddr = VirtAddr(0x10_0000_0000);
const TERABYTE: usize = 1 << 40;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Maps a terabyte, writes one page in each of `parts` parts of it, and returns the map and the bytes that this took.
fn touch(parts: usize) -> (std::sync::Arc<Map>, usize) {
    let map = Map::new(Limits::NONE, true).expect("a map");
    let before = HEAP.bytes();
    map.map(MapRequest {
        place: Place::Fixed(HERE),
        no_reserve: true,
        ..MapRequest::zero(TERABYTE, RW)
    })
    .expect("room");
    for i in 0..parts {
        let at = HERE + TERABYTE / parts * i + i % 100 * PAGE_SIZE;
        map.fault(at, Access::Write).expect("memory");
    }
    (map, HEAP.bytes() - before)
}

#[test]
fn a_terabyte_with_ten_pages_costs_little() {
    sim::check("sparse", 0..1, Config::default(), || {
        // Page tables are frames, not heap.
        let (map, bytes) = touch(10);
        assert!(bytes < 4096, "{bytes} bytes for ten pages in a terabyte");
        let before = HEAP.bytes();
        let child = map.fork().expect("a child");
        child.fault(HERE, Access::Write).expect("memory");
        let forked = HEAP.bytes() - before;
        assert!(forked < 5120, "{forked} bytes for a child's copy");
        drop((map, child));

        let (map, bytes) = touch(200);
        assert!(bytes < 200 * 100, "{bytes} bytes for 200 pages");
        drop(map);

        set_amap_form(AmapForm::Array);
        let (map, array) = touch(10);
        assert!(array > 8192, "{array} bytes: the comparison means nothing");
        drop(map);
        set_amap_form(AmapForm::Hybrid);
    });
}
