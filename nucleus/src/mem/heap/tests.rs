//! The kernel heap on the simulated machine.

use std::sync::Arc;

use super::*;
use crate::frame::usage;
use crate::sim::{Together, below, on_machines_with, random_u64};

struct Object {
    at: *mut u8,
    layout: Layout,
    tag: u8,
}

// SAFETY: a block of the heap belongs to its owner.
unsafe impl Send for Object {}

impl Object {
    fn new() -> Option<Object> {
        let size = match below(12) {
            0 => 1 + below(60_000),
            1 => 1 + below(4_000),
            _ => 1 + below(300),
        };
        let align = 1 << [3, 3, 3, 4, 6, 12][below(6)];
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not zero.
        let at = unsafe { Heap.alloc(layout) };
        if at.is_null() {
            return None;
        }
        assert!((at as usize).is_multiple_of(align));
        let tag = random_u64() as u8;
        // SAFETY: the block is ours.
        unsafe { at.write_bytes(tag, size) };
        Some(Object { at, layout, tag })
    }

    fn check(&self) {
        // SAFETY: the block is ours and was filled.
        let bytes = unsafe { core::slice::from_raw_parts(self.at, self.layout.size()) };
        assert!(
            bytes.iter().all(|&byte| byte == self.tag),
            "two own a block"
        );
    }

    fn resize(&mut self) {
        let size = 1 + below(2 * self.layout.size());
        // SAFETY: the block is ours and has this layout.
        let at = unsafe { Heap.realloc(self.at, self.layout, size) };
        if at.is_null() {
            return;
        }
        self.at = at;
        let kept = size.min(self.layout.size());
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        // SAFETY: the block is ours, and its first `kept` bytes were filled.
        unsafe {
            let bytes = core::slice::from_raw_parts(at, kept);
            assert!(
                bytes.iter().all(|&byte| byte == self.tag),
                "a move lost bytes"
            );
            at.write_bytes(self.tag, size);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the block is ours and has this layout.
        unsafe { Heap.dealloc(self.at, self.layout) };
    }
}

#[test]
fn blocks_are_owned_by_one() {
    on_machines_with("blocks are owned by one", [1, 3], 2048, 20, || {
        // SAFETY: the first task of a fresh machine, and only this test uses this heap.
        unsafe { start() };
        let before = usage();
        let together = Arc::new(Together::default());
        for _ in 0..3 {
            together.spawn(move || {
                let mut held: Vec<Object> = Vec::new();
                for _ in 0..400 {
                    match below(10) {
                        0..6 => held.extend(Object::new()),
                        6 if !held.is_empty() => {
                            let n = below(held.len());
                            held[n].resize();
                        }
                        _ if !held.is_empty() => {
                            held.swap_remove(below(held.len()));
                        }
                        _ => {}
                    }
                }
            });
        }
        together.join();
        for class in classes() {
            assert_eq!(class.in_use, 0, "{class:?}");
            let room = class.slabs * (PAGE_SIZE / class.size);
            assert!(class.kept <= room, "{class:?}");
            assert!(class.slabs <= class.kept + 1, "{class:?}");
        }
        let slabs: usize = classes().map(|class| class.slabs).sum();
        // What CPUs keep, and a slab for each class.
        let kept = usage().heap - before.heap;
        assert_eq!(slabs, kept);
        assert!(
            kept <= machine::cpu_count() * CLASSES.len() * 8,
            "{kept} frames are kept"
        );
        assert_eq!(usage().data, before.data);
    });
}

#[test]
fn every_size_has_a_class_that_holds_it() {
    for size in 1..=LARGEST {
        for align in [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
            let layout = Layout::from_size_align(size, align).unwrap();
            if let Some(class) = class_of(layout) {
                assert!(CLASSES[class] >= size && CLASSES[class].is_multiple_of(align));
            } else {
                assert!(align > 16);
            }
        }
    }
}
