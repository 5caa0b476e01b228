//! The charge of an object that takes and frees pages.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};

use nucleus::PAGE_SIZE;

use super::{Account, Kind, current_for};

/// Pages that a [`Stock`] charges together: the slices of a new pipe.
pub const BATCH: usize = 16;

/// The pages of one object, as far as they are charged: at least as many as the object has, and at
/// most three [batches](BATCH) more. The drop takes the charge back.
#[derive(Debug)]
pub struct Stock {
    account: Option<Arc<Account>>,
    kind: Kind,
    pages: AtomicUsize,
}

impl Stock {
    /// An object of `account`, or of the kernel.
    pub const fn new(account: Option<Arc<Account>>, kind: Kind) -> Stock {
        Stock {
            account,
            kind,
            pages: AtomicUsize::new(0),
        }
    }

    /// An object of the current process, or of its user: [`current_for`].
    pub fn of_current(kind: Kind) -> Stock {
        Stock::new(current_for(kind), kind)
    }

    /// Returns the account.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Returns how many pages are charged.
    pub fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Charges what the object has now, `pages`. Most calls compare, and change nothing; returns
    /// whether this one did.
    #[inline]
    pub fn cover(&self, pages: usize) -> bool {
        let charged = self.pages.load(Relaxed);
        let changes = pages > charged || pages + 3 * BATCH < charged;
        if changes {
            self.adjust(pages);
        }
        changes
    }

    /// As [`cover`](Stock::cover) for pages that other CPUs count at the same time; `now` reads the
    /// count.
    #[inline]
    pub fn cover_counted(&self, pages: usize, now: impl Fn() -> usize) {
        let mut pages = pages;
        while self.cover(pages) {
            // Another CPU may have counted since: the last change of the charge sees every count.
            let seen = core::mem::replace(&mut pages, now());
            if pages == seen || self.account.is_none() {
                return;
            }
        }
    }

    /// Whether the owner may have this object with `pages` if it outlives its process:
    /// [`Account::may_keep`].
    #[inline]
    pub fn may_keep(&self, pages: usize, part: usize) -> bool {
        let charged = self.pages.load(Relaxed);
        let may_matter = pages > charged && self.kind.outlives_processes();
        match &self.account {
            Some(account) if may_matter => account.may_keep(self.kind, pages - charged, part),
            _ => true,
        }
    }

    #[cold]
    fn adjust(&self, pages: usize) {
        let Some(account) = &self.account else { return };
        let target = pages.next_multiple_of(BATCH);
        loop {
            let before = self.pages.load(Relaxed);
            // What the figure says is charged at each moment: added before, taken back after.
            let more = target.saturating_sub(before) * PAGE_SIZE;
            account.add(self.kind, 0, more);
            let changed = self.pages.compare_exchange(before, target, AcqRel, Relaxed);
            let too_much = match changed {
                Ok(_) => before.saturating_sub(target) * PAGE_SIZE,
                Err(_) => more,
            };
            account.take_back(self.kind, 0, too_much);
            if changed.is_ok() {
                return;
            }
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.take_back(self.kind, 0, *self.pages.get_mut() * PAGE_SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Acquire;

    use super::*;

    /// After changes with old counts, in any order, the pages that are there are charged, and no
    /// more is taken back than was added.
    #[test]
    fn a_stock_covers_what_others_count_meanwhile() {
        let user = Account::of_user(1);
        let account = Account::of_process(10, &user);
        let stock = Stock::new(Some(account.clone()), Kind::Files);
        stock.cover(100 * BATCH);
        stock.cover_counted(10 * BATCH, || 100 * BATCH);
        assert!(stock.pages() >= 100 * BATCH);
        stock.cover(0);
        let count = AtomicUsize::new(0);
        let change = |pages: usize, more: bool| {
            let new = match more {
                true => count.fetch_add(pages, Relaxed) + pages,
                false => count.fetch_sub(pages, Relaxed) - pages,
            };
            stock.cover_counted(new, || count.load(Relaxed));
        };
        change(20 * BATCH, true);
        let arrived = AtomicUsize::new(0);
        let meet = |times: usize| {
            arrived.fetch_add(1, AcqRel);
            while arrived.load(Acquire) < 2 * times {
                std::thread::yield_now();
            }
        };
        let work = |more: bool| {
            for round in 0..20_000 {
                meet(2 * round + 1);
                change(4 * BATCH, more);
                meet(2 * round + 2);
                let there = count.load(Relaxed);
                assert!(stock.pages() >= there, "{there} of {stock:?}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(true));
            scope.spawn(|| work(false));
        });
        drop(stock);
        assert_eq!((user.pages(), account.pages()), (0, 0));
    }

    #[test]
    fn a_stock_covers_its_object_and_little_more() {
        let user = Account::of_user(1);
        let account = Account::of_process(10, &user);
        let stock = Stock::new(Some(account.clone()), Kind::Files);
        let mut pages = 0_usize;
        for step in 0..2000_usize {
            // Grows and shrinks unevenly, to zero at the end of each round.
            pages = match step * 7919 % 5 {
                0..3 => pages + step % 37,
                _ => pages.saturating_sub(step % 101),
            };
            stock.cover(pages);
            assert!(stock.pages() >= pages && stock.pages() <= pages + 3 * BATCH);
            assert_eq!(user.bytes(Kind::Files), stock.pages() * PAGE_SIZE);
        }
        drop(stock);
        assert_eq!((user.pages(), account.pages()), (0, 0));
        // The kernel's own objects are charged to no account.
        Stock::new(None, Kind::Files).cover(100);
    }
}
