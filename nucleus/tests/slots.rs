//! What a list with numbers does under its owner's lock.

use nucleus::{Slots, sim::CountedHeap};

#[global_allocator]
static HEAP: CountedHeap = CountedHeap::new();

#[test]
fn nothing_is_allocated_or_freed_under_the_lock() {
    let mut slots = Slots::new();
    // Enough for several rows of chunks, and a larger table of rows.
    for number in 0..100_000 {
        let added = Slots::add_with(number, |number, spare| {
            let before = HEAP.calls();
            let added = slots.add(number, spare);
            assert_eq!(HEAP.calls(), before, "element {number}");
            added
        });
        assert_eq!(added, Ok(number));
    }
    for number in 0..100_000 {
        assert_eq!(slots.remove(number), Some(number));
    }
    assert!(slots.is_empty());
}
