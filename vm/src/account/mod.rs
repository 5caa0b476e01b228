//! Accounts: for whom the kernel's memory is used.
//!
//! Accounts form a tree. A leaf is a process, its parent the user of the process; a group of users
//! or processes would be one more inner node. A charge counts in its account and in all accounts
//! above, so an inner node's figures include those of its children.
//!
//! ```text
//!   user 0            user 1000 ──────────────┐
//!    ├─ process 1      ├─ process 210          └ what ended processes left (a pipe that another
//!    └─ process 2      └─ process 211            process has open, a System V queue)
//! ```
//! - A [`Charge`] belongs to an object and lasts as long: a watch, a thread, a timer.
//! - A [`Stock`] belongs to an object that takes and frees pages: the frames of a queue, the pages
//!   of a file in memory. It charges [`BATCH`] pages at a time, so the accounts' cache lines stay
//!   out of the path of each write and fault.
//!
//! An object is charged to the process that makes it, or to that one's user if it outlives
//! processes. The charge stays there when the object is passed on, when the process ends, and when
//! its user changes: the account lives as long as it has charges, and the user's figures include
//! it. Only freeing the memory ends a charge. A page with several holders (`tee`, a loan) counts
//! once for each: any of them alone would keep it.
//!
//! There is no node above the users: a sum over all of them would be a cache line that all CPUs
//! share, and is only needed by its readers.
//!
//! Everything here is atomic: no lock, no allocation and bounded work, so charges may change under
//! spin locks and in interrupts. When the last reference to an account is dropped, its figures must
//! be zero; [`unbalanced`] counts those that were not.

mod kind;
mod stock;

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed},
};

use nucleus::{PAGE_SIZE, frame, sync::OnceBox};

use crate::swap;

pub use kind::Kind;
pub use stock::{BATCH, Stock};

/// Whose account it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The processes with this real user id.
    User(u32),
    /// The process with this id.
    Process(u32),
}

/// A node of the tree.
#[derive(Debug)]
pub struct Account {
    owner: Owner,
    parent: Option<Arc<Account>>,
    used: [Used; Kind::ALL.len()],
    /// What ending its processes would free, in pages, when a victim was chosen last. [one thread
    /// at a time chooses]
    pub weight: AtomicUsize,
    /// The choice that the weight is of. [as the weight]
    weighed: AtomicU64,
    /// Until when its user gets no new processes, in milliseconds since boot: some were ended
    /// because memory ran out.
    pub held_back: AtomicU64,
}

/// Figures of one kind.
#[derive(Debug)]
struct Used {
    bytes: AtomicUsize,
    things: AtomicUsize,
}

/// Returns the pages that one ordinary user may hold in memory that outlives its processes (files
/// in memory, System V segments): half of memory and swap. Ending processes does not free them, so
/// the rest must do for the others.
pub fn user_share() -> usize {
    usize::midpoint(frame::total(), swap::usage().total)
}

/// Accounts that were dropped with charges on them.
static UNBALANCED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many accounts were dropped with charges on them: 0, or the kernel is wrong.
pub fn unbalanced() -> usize {
    UNBALANCED.load(Relaxed)
}

/// Returns the account of the current process; `None` in a task of the kernel.
pub type Current = fn() -> Option<Arc<Account>>;

static CURRENT: OnceBox<Current> = OnceBox::new();

/// Registers how the account of the current process is found. The first one stays.
pub fn set_current(current: Current) {
    CURRENT.get_or_insert(|| Box::new(current));
}

/// Returns the account that the caller's objects are charged to; `None` for the kernel's own.
pub fn current() -> Option<Arc<Account>> {
    CURRENT.get().and_then(|current| current())
}

/// As [`current`], for an object of this kind. What outlives processes is charged to their user at
/// once: the end of the process would not free it, and the account of a process that has ended
/// would be kept for nothing.
pub fn current_for(kind: Kind) -> Option<Arc<Account>> {
    let account = current()?;
    Some(match kind.outlives_processes() {
        true => account.user().clone(),
        false => account,
    })
}

impl Account {
    /// Makes the account of the user with this id.
    pub fn of_user(uid: u32) -> Arc<Account> {
        Account::new(Owner::User(uid), None)
    }

    /// Makes the account of the process with this id, one of `user`'s.
    pub fn of_process(pid: u32, user: &Arc<Account>) -> Arc<Account> {
        Account::new(Owner::Process(pid), Some(user.clone()))
    }

    fn new(owner: Owner, parent: Option<Arc<Account>>) -> Arc<Account> {
        Arc::new(Account {
            owner,
            parent,
            used: [const {
                Used {
                    bytes: AtomicUsize::new(0),
                    things: AtomicUsize::new(0),
                }
            }; Kind::ALL.len()],
            weight: AtomicUsize::new(0),
            weighed: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        })
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the account of the user, this one or one above.
    #[inline]
    pub fn user(self: &Arc<Account>) -> &Arc<Account> {
        let mut account = self;
        while let (Owner::Process(_), Some(parent)) = (account.owner, &account.parent) {
            account = parent;
        }
        account
    }

    /// Returns the id of the [user](Account::user).
    pub fn uid(self: &Arc<Account>) -> u32 {
        match self.user().owner {
            Owner::User(uid) => uid,
            Owner::Process(_) => 0,
        }
    }

    /// Returns how many things of this kind are charged.
    pub fn things(&self, kind: Kind) -> usize {
        self.used[kind as usize].things.load(Relaxed)
    }

    /// Returns how many bytes of this kind are charged.
    pub fn bytes(&self, kind: Kind) -> usize {
        self.used[kind as usize].bytes.load(Relaxed)
    }

    /// Whether the user may hold `pages` more of what outlives processes, within one `part`th of
    /// [`user_share`]: all kinds together with a `part` of 1, else this one. Root may.
    #[inline]
    pub fn may_keep(self: &Arc<Account>, kind: Kind, pages: usize, part: usize) -> bool {
        let user = self.user();
        user.owner == Owner::User(0) || user.may_keep_more(kind, pages, part)
    }

    /// As [`may_keep`](Account::may_keep), for an ordinary user.
    fn may_keep_more(&self, kind: Kind, pages: usize, part: usize) -> bool {
        let kept = match part {
            1 => self.kept_pages(),
            _ => self.bytes(kind) / PAGE_SIZE,
        };
        kept.saturating_add(pages) <= user_share() / part
    }

    /// Returns the pages of all kinds together that are freed when processes end, rounded down.
    pub fn pages(&self) -> usize {
        let kinds = Kind::ALL.iter().filter(|kind| !kind.outlives_processes());
        self.pages_of(kinds.copied())
    }

    /// Returns the pages of the other kinds, rounded down. A segment counts with its size, in
    /// pages: its maker chooses that, so in bytes it might wrap.
    pub fn kept_pages(&self) -> usize {
        let others = Kind::KEPT
            .into_iter()
            .filter(|&kind| kind != Kind::Segments);
        self.pages_of(others)
            .saturating_add(self.things(Kind::Segments))
    }

    fn pages_of(&self, kinds: impl Iterator<Item = Kind>) -> usize {
        let bytes = kinds.map(|kind| self.bytes(kind));
        bytes.fold(0, usize::saturating_add) / PAGE_SIZE
    }

    /// Adds `pages` to its weight, which begins with what is charged to it in each `choice` of a
    /// victim. Choices have rising numbers from 1 on.
    pub fn weigh(&self, choice: u64, pages: usize) {
        let is_first = self.weighed.swap(choice, Relaxed) != choice;
        let before = match is_first {
            true => self.pages(),
            false => self.weight.load(Relaxed),
        };
        self.weight.store(before + pages, Relaxed);
    }

    /// Adds to this account and to those above.
    #[inline]
    pub fn add(&self, kind: Kind, things: usize, bytes: usize) {
        let mut next = Some(self);
        while let Some(account) = next {
            let used = &account.used[kind as usize];
            if things > 0 {
                used.things.fetch_add(things, Relaxed);
            }
            if bytes > 0 {
                used.bytes.fetch_add(bytes, Relaxed);
            }
            next = account.parent.as_deref();
        }
    }

    /// Takes back what was [added](Account::add).
    #[inline]
    pub fn take_back(&self, kind: Kind, things: usize, bytes: usize) {
        let mut next = Some(self);
        while let Some(account) = next {
            let used = &account.used[kind as usize];
            if things > 0 {
                let before = used.things.fetch_sub(things, Relaxed);
                debug_assert!(before >= things, "{kind:?} of {:?}", account.owner);
            }
            if bytes > 0 {
                let before = used.bytes.fetch_sub(bytes, Relaxed);
                debug_assert!(before >= bytes, "{kind:?} of {:?}", account.owner);
            }
            next = account.parent.as_deref();
        }
    }

    /// As [`add`](Account::add), if `may` says that the user may have what is charged by then, this
    /// included; returns whether it did.
    #[inline]
    pub fn add_if(
        self: &Arc<Account>,
        kind: Kind,
        things: usize,
        bytes: usize,
        may: impl FnOnce(&Arc<Account>) -> bool,
    ) -> bool {
        self.add(kind, things, bytes);
        let granted = may(self.user());
        if !granted {
            self.take_back(kind, things, bytes);
        }
        granted
    }

    /// Charges `things` and `bytes`, whatever there is already.
    pub fn charge(self: &Arc<Account>, kind: Kind, things: usize, bytes: usize) -> Charge {
        self.add(kind, things, bytes);
        Charge {
            account: self.clone(),
            kind,
            things,
            bytes,
        }
    }

    /// As [`charge`](Account::charge), if the user then has at most `limit` things of the kind.
    pub fn charge_within(
        self: &Arc<Account>,
        kind: Kind,
        things: usize,
        bytes: usize,
        limit: usize,
    ) -> Option<Charge> {
        self.charge_if(kind, things, bytes, |user| user.things(kind) <= limit)
    }

    /// As [`charge`](Account::charge), if `may` says that the user may have what is charged by
    /// then, this included. Two that race for the last place may both fail, but never both succeed.
    pub fn charge_if(
        self: &Arc<Account>,
        kind: Kind,
        things: usize,
        bytes: usize,
        may: impl FnOnce(&Arc<Account>) -> bool,
    ) -> Option<Charge> {
        let charge = self.charge(kind, things, bytes);
        may(self.user()).then_some(charge)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let is_zero = |used: &Used| used.things.load(Acquire) == 0 && used.bytes.load(Relaxed) == 0;
        if !self.used.iter().all(is_zero) {
            UNBALANCED.fetch_add(1, Relaxed);
            debug_assert!(false, "charges are left: {self:?}");
        }
    }
}

/// Things that are charged to an account; taken back by the drop.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    kind: Kind,
    things: usize,
    bytes: usize,
}

impl Charge {
    /// Returns the account.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns how many things are charged.
    pub fn things(&self) -> usize {
        self.things
    }

    /// Charges `things` and `bytes` more.
    pub fn add(&mut self, things: usize, bytes: usize) {
        self.account.add(self.kind, things, bytes);
        self.things += things;
        self.bytes += bytes;
    }

    /// Changes the number of things; the bytes stay.
    pub fn set_things(&mut self, things: usize) {
        if things > self.things {
            self.account.add(self.kind, things - self.things, 0);
        } else {
            self.account.take_back(self.kind, self.things - things, 0);
        }
        self.things = things;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.take_back(self.kind, self.things, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_counts_in_every_account_above_and_is_taken_back() {
        let user = Account::of_user(1);
        let (one, other) = (
            Account::of_process(10, &user),
            Account::of_process(11, &user),
        );
        let first = one.charge(Kind::Pipes, 16, 1000);
        let second = other.charge(Kind::Pipes, 2, 500);
        assert_eq!(
            (one.things(Kind::Pipes), one.bytes(Kind::Pipes)),
            (16, 1000)
        );
        assert_eq!(
            (user.things(Kind::Pipes), user.bytes(Kind::Pipes)),
            (18, 1500)
        );
        assert_eq!((one.uid(), user.uid()), (1, 1));
        // The process is gone; its pipe is not.
        drop(one);
        assert_eq!(user.things(Kind::Pipes), 18);
        drop(first);
        assert_eq!(
            (user.things(Kind::Pipes), user.bytes(Kind::Pipes)),
            (2, 500)
        );
        drop(second);
        assert_eq!(user.pages(), 0);
    }

    #[test]
    fn a_limit_is_the_users() {
        let user = Account::of_user(1);
        let (one, other) = (
            Account::of_process(10, &user),
            Account::of_process(11, &user),
        );
        let mut first = one.charge_within(Kind::Signals, 1, 64, 2).unwrap();
        let _second = other.charge_within(Kind::Signals, 1, 64, 2).unwrap();
        assert!(other.charge_within(Kind::Signals, 1, 64, 2).is_none());
        assert_eq!(user.things(Kind::Signals), 2);
        first.set_things(0);
        assert!(other.charge_within(Kind::Signals, 1, 64, 2).is_some());
        first.set_things(5);
        assert_eq!((first.things(), user.things(Kind::Signals)), (5, 6));
    }

    /// A user counts afresh in each choice, whichever of its processes comes first.
    #[test]
    fn a_weight_is_of_one_choice() {
        let user = Account::of_user(1);
        let _pipes = user.charge(Kind::Pipes, 1, 10 * PAGE_SIZE);
        for choice in 1..4 {
            user.weigh(choice, 5);
            assert_eq!(user.weight.load(Relaxed), 15);
            user.weigh(choice, 7);
            assert_eq!(user.weight.load(Relaxed), 22);
        }
    }

    /// Sizes that programs choose do not wrap: neither when a segment's pages become bytes, nor in
    /// sums with what there is already.
    #[test]
    fn a_size_that_would_wrap_is_too_much() {
        let user = Account::of_user(1);
        let account = Account::of_process(10, &user);
        let there = 4097;
        let _files = account.charge(Kind::Files, 0, there * PAGE_SIZE);
        // The bytes of both together are 2^64.
        let pages = (1 << 52) - there;
        let may = |user: &Arc<Account>| user.may_keep(Kind::Segments, 0, 1);
        assert!(account.charge_if(Kind::Segments, pages, 0, may).is_none());
        let segment = account.charge(Kind::Segments, pages, 0);
        assert_eq!(user.kept_pages(), 1 << 52);
        assert!(!account.may_keep(Kind::Files, 1, 1));
        drop(segment);
        let _files = account.charge(Kind::Files, 0, usize::MAX - there * PAGE_SIZE);
        let _messages = account.charge(Kind::Messages, 0, 2 * PAGE_SIZE);
        assert_eq!(user.kept_pages(), usize::MAX / PAGE_SIZE);
        for part in [1, 8] {
            assert!(!account.may_keep(Kind::Files, usize::MAX, part));
            assert!(!account.may_keep(Kind::Messages, usize::MAX, part));
        }
    }
}
