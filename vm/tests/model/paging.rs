//! Pages that are written to files and to swap, and the end of a file.

use nucleus::{PAGE_SIZE, task};
use vm::swap;

use super::Model;

impl Model {
    /// Changes no byte.
    pub(super) fn page_out(&mut self) {
        for (file, _) in &self.files {
            file.page_out();
        }
    }

    /// Changes no byte.
    pub(super) fn swap_out(&mut self) {
        let (range, space) = (self.range(), self.space());
        let _ = self.spaces[space].map.page_out(range);
        if self.numbers.chance(50) {
            // Mostly until the writes have ended; else the next operations meet them.
            for _ in 0..40 {
                task::yield_now();
            }
            let _ = self.spaces[space].map.page_out(range);
        }
    }

    /// Removes a device and adds it again; changes no byte.
    pub(super) fn swap_off(&mut self) {
        let i = self.numbers.below(self.devices.len());
        let (id, store, priority) = self.devices[i].clone();
        vm::swap_off(id, &|| false).expect("memory enough");
        self.devices[i].0 = swap::add(store, priority, &|| false).expect("a swap device");
    }

    pub(super) fn truncate(&mut self) {
        let pages = self.numbers.below(16) as u64;
        let file = self.numbers.below(self.files.len());
        let (file, store) = &self.files[file];
        file.set_pages(pages);
        let mut store = store.borrow_mut();
        store.retain(|&index, _| index < pages);
        for index in 0..pages {
            store.entry(index).or_insert_with(|| vec![0; PAGE_SIZE]);
        }
    }
}
