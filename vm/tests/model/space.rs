//! What the model knows of an address space: its pages, and their bytes.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, sync::Arc};

use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, VirtRange};
use vm::{Fault, Inherit, Map};

use super::{number, support::Worker};

pub(super) type Bytes = Vec<u8>;
/// Pages that several mappings see, by index; absent ones are beyond the end.
pub(super) type Store = Rc<RefCell<BTreeMap<u64, Bytes>>>;

#[derive(Clone)]
pub(super) enum Below {
    Zero,
    Store(Store, u64),
}

#[derive(Clone)]
pub(super) struct Page {
    pub(super) prot: Prot,
    pub(super) shared: bool,
    pub(super) locked: bool,
    pub(super) inherit: Inherit,
    /// Inherited by children as shared.
    pub(super) shares: bool,
    /// A private copy; one for all sharers.
    pub(super) copy: Rc<RefCell<Option<Bytes>>>,
    pub(super) below: Below,
}

impl Page {
    /// The result of a read.
    pub(super) fn bytes(&self) -> Result<Bytes, Fault> {
        match (&*self.copy.borrow(), &self.below) {
            (Some(copy), _) => Ok(copy.clone()),
            (None, Below::Zero) => Ok(vec![0; PAGE_SIZE]),
            (None, Below::Store(store, index)) => {
                store.borrow().get(index).cloned().ok_or(Fault::BeyondEnd)
            }
        }
    }

    pub(super) fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let mut bytes = self.bytes()?;
        bytes[offset..offset + from.len()].copy_from_slice(from);
        match &self.below {
            Below::Store(store, index) if self.shared => {
                store.borrow_mut().insert(*index, bytes);
            }
            _ => *self.copy.borrow_mut() = Some(bytes),
        }
        Ok(())
    }
}

pub(super) struct Space {
    pub(super) map: Arc<Map>,
    pub(super) workers: Vec<Worker>,
    /// By page number.
    pub(super) pages: BTreeMap<usize, Page>,
}

impl Space {
    pub(super) fn new(map: Arc<Map>, pages: BTreeMap<usize, Page>, cpus: usize) -> Space {
        let workers = Worker::on_each(&map, cpus);
        Space {
            map,
            workers,
            pages,
        }
    }

    pub(super) fn end(self) {
        self.workers.into_iter().for_each(Worker::end);
        self.map.tear_down();
    }

    pub(super) fn is_mapped(&self, at: VirtAddr) -> bool {
        self.pages.contains_key(&number(at))
    }

    /// Those pages of a range that are mapped.
    pub(super) fn pages_of(&mut self, range: VirtRange) -> impl Iterator<Item = &mut Page> {
        let pages = number(range.start)..number(range.end);
        self.pages.range_mut(pages).map(|(_, page)| page)
    }

    /// The result that an access to the page must give.
    pub(super) fn judge(&mut self, at: VirtAddr, access: Access) -> Result<&mut Page, Fault> {
        let page = self.pages.get_mut(&(at.0 / PAGE_SIZE));
        let page = page.ok_or(Fault::NotMapped)?;
        let allowed = match access {
            Access::Read => !page.prot.is_empty(),
            _ => page.prot.contains(access.needs()),
        };
        if !allowed {
            return Err(Fault::Protection);
        }
        page.bytes()?;
        Ok(page)
    }
}
