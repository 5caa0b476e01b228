//! Changes of mappings, and of the set of address spaces.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange, pmap, pmap::Promotion};
use vm::{Advice, Backing, Inherit, Lock, MapError, MapRequest, Pager, Place};

use super::{
    MAX_SPACES, Model, number,
    space::{Below, Page, Space},
};

impl Model {
    pub(super) fn map(&mut self) {
        let range = self.range();
        let (space, prot, shared) = (
            self.space(),
            self.prot(),
            self.numbers.chance(self.shared_mappings),
        );
        let pages = range.len() / PAGE_SIZE;
        let (file, first) = (self.numbers.below(self.files.len()), self.numbers.below(8));
        let (backing, store) = match self.numbers.chance(40) {
            true => {
                let (file, store) = &self.files[file];
                let backing = Backing::Object {
                    pager: file.clone() as Arc<dyn Pager>,
                    offset: (first * PAGE_SIZE) as u64,
                };
                (backing, Some((store.clone(), first as u64)))
            }
            false if shared => {
                let zeros = (0..pages as u64).map(|i| (i, vec![0; PAGE_SIZE]));
                let store = Rc::new(RefCell::new(zeros.collect()));
                (Backing::Zero, Some((store, 0)))
            }
            false => (Backing::Zero, None),
        };
        let place = match self.numbers.below(10) {
            0 => Place::Any,
            1 => Place::Hint(range.start),
            2 => Place::FixedNoReplace(range.start),
            _ => Place::Fixed(range.start),
        };
        let populate = self.numbers.chance(15);
        let space = &mut self.spaces[space];
        let result = space.map.map(MapRequest {
            place,
            backing,
            shared,
            populate,
            ..MapRequest::zero(range.len(), prot)
        });
        let taken = range.pages().any(|va| space.is_mapped(va));
        let start = match (result, place) {
            (Err(error), Place::FixedNoReplace(_)) if taken => {
                assert_eq!(error, vm::MapError::Exists);
                return;
            }
            (result, _) => result.expect("room"),
        };
        if let Place::Any | Place::Hint(_) = place {
            let new = VirtRange::new(start, start + range.len());
            assert!(!new.pages().any(|va| space.is_mapped(va)));
        } else {
            assert_eq!(start, range.start);
        }
        for i in 0..pages {
            let below = match &store {
                None => Below::Zero,
                Some((store, first)) => Below::Store(store.clone(), first + i as u64),
            };
            let page = Page {
                prot,
                shared,
                locked: false,
                inherit: match shared {
                    true => Inherit::Share,
                    false => Inherit::Copy,
                },
                shares: false,
                copy: Rc::default(),
                below,
            };
            space.pages.insert(number(start) + i, page);
        }
        if populate && !shared && prot.contains(Prot::WRITE) {
            // As empty writes, up to the first page beyond the end.
            let mut new = (0..pages).map(|i| number(start) + i);
            new.all(|n| {
                let page = space.pages.get_mut(&n).expect("a page");
                page.write(0, &[]).is_ok()
            });
        }
    }

    pub(super) fn unmap(&mut self) {
        let (range, space) = (self.range(), self.space());
        let space = &mut self.spaces[space];
        space.map.unmap(range).expect("unmap");
        space
            .pages
            .retain(|&n, _| !range.contains(VirtAddr(n * PAGE_SIZE)));
    }

    pub(super) fn protect(&mut self) {
        let (range, space, prot) = (self.range(), self.space(), self.prot());
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.protect(range, prot).is_ok(), whole);
        if whole {
            space.pages_of(range).for_each(|page| page.prot = prot);
        }
    }

    pub(super) fn remap(&mut self) {
        let (range, space, other) = (self.range(), self.space(), self.range());
        let to = match self.numbers.chance(50) {
            true => Place::Fixed(other.start),
            false => Place::Any,
        };
        let space = &mut self.spaces[space];
        let pages = other.len() / PAGE_SIZE;
        let result = space.map.remap(range, other.len(), true, to, false);
        // The result depends on the boundaries of entries, which the model does not know.
        let Ok(start) = result else {
            return;
        };
        let moved: Vec<_> = range
            .pages()
            .map(|va| {
                space
                    .pages
                    .remove(&number(va))
                    .expect("mapped, as it was moved")
            })
            .collect();
        let last = moved[moved.len() - 1].clone();
        for (i, page) in (0..pages).zip(moved.into_iter().map(Some).chain(std::iter::repeat(None)))
        {
            let page = page.unwrap_or_else(|| Page {
                copy: Rc::default(),
                below: match &last.below {
                    Below::Zero => Below::Zero,
                    Below::Store(store, index) => {
                        let more = (i + 1 - range.len() / PAGE_SIZE) as u64;
                        Below::Store(store.clone(), index + more)
                    }
                },
                ..last.clone()
            });
            space.pages.insert(number(start) + i, page);
        }
    }

    pub(super) fn dont_need(&mut self) {
        let (range, space) = (self.range(), self.space());
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        let done = space.map.advise(range, Advice::DontNeed);
        if space.pages_of(range).any(|page| page.locked) {
            assert_eq!(done, Err(MapError::Invalid));
            return;
        }
        assert_eq!(done.is_ok(), whole);
        for page in space.pages_of(range).filter(|page| !page.shares) {
            page.copy = Rc::default();
        }
    }

    pub(super) fn advise(&mut self) {
        let (range, space) = (self.range(), self.space());
        let advice = *self.numbers.pick(&[
            Advice::Normal,
            Advice::Random,
            Advice::Sequential,
            Advice::WillNeed,
            Advice::Cold,
            Advice::PageOut,
        ]);
        // The result depends only on addresses, and no byte changes.
        let _ = self.spaces[space].map.advise(range, advice);
    }

    /// Changes no byte.
    pub(super) fn lock(&mut self) {
        let (range, space) = (self.range(), self.space());
        let lock = match self.numbers.chance(60) {
            true => Lock::OnFault,
            false => Lock::None,
        };
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.lock(range, lock).is_ok(), whole);
        let locked = lock != Lock::None;
        space.pages_of(range).for_each(|page| page.locked = locked);
    }

    /// Changes what children inherit.
    pub(super) fn inherit(&mut self) {
        let (range, space) = (self.range(), self.space());
        let inherit = *self.numbers.pick(&[
            Inherit::Share,
            Inherit::Share,
            Inherit::Copy,
            Inherit::Copy,
            Inherit::None,
            Inherit::Zero,
        ]);
        let space = &mut self.spaces[space];
        let whole = range.pages().all(|va| space.is_mapped(va));
        assert_eq!(space.map.inherit(range, inherit).is_ok(), whole);
        space
            .pages_of(range)
            .for_each(|page| page.inherit = inherit);
    }

    /// Checks that exactly the mappings of locked memory are wired.
    pub(super) fn check_wired(&self) {
        let mut wired = BTreeSet::new();
        let mut mapped = Vec::new();
        for space in &self.spaces {
            let locked = space.pages.values().filter(|page| page.locked).count();
            assert_eq!(space.map.sizes().locked, locked, "locked pages");
            for (&n, page) in &space.pages {
                if let Some((frame, _)) = space.map.pmap().extract(VirtAddr(n * PAGE_SIZE)) {
                    if page.locked {
                        wired.insert(frame.number());
                    }
                    mapped.push(frame);
                }
            }
        }
        for frame in mapped {
            let expected = wired.contains(&frame.number());
            assert_eq!(pmap::is_wired(&frame), expected, "{frame:?} is wired");
        }
    }

    pub(super) fn fork(&mut self) {
        if self.spaces.len() == MAX_SPACES {
            return;
        }
        let parent = self.space();
        let map = self.spaces[parent].map.fork().expect("fork");
        let parent = &mut self.spaces[parent];
        let mut pages = BTreeMap::new();
        for (&n, page) in &mut parent.pages {
            let child = page.clone();
            let child = match page.inherit {
                Inherit::None => continue,
                Inherit::Zero => Page {
                    shared: false,
                    shares: false,
                    copy: Rc::default(),
                    below: Below::Zero,
                    ..child
                },
                Inherit::Share => {
                    page.shares |= !page.shared;
                    page.clone()
                }
                Inherit::Copy => Page {
                    shared: false,
                    shares: false,
                    copy: Rc::new(RefCell::new(page.copy.borrow().clone())),
                    ..child
                },
            };
            pages.insert(
                n,
                Page {
                    locked: false,
                    ..child
                },
            );
        }
        let child = Space::new(map, pages, self.cpus);
        self.spaces.push(child);
    }

    /// A small space becomes large: nothing of it changes.
    pub(super) fn promote(&mut self) {
        let space = self.space();
        let was_small = self.spaces[space].map.is_small();
        let promoted = self.spaces[space].map.promote(Promotion::Mapping);
        assert_eq!(promoted, was_small);
    }

    pub(super) fn exit(&mut self) {
        if self.spaces.len() > 1 {
            let space = self.space();
            self.spaces.swap_remove(space).end();
        }
    }
}
