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
//! processes. The charge stays there when the object is
//! passed on, when the process ends, and when its user changes: the account lives as long as it has
//! charges, and the user's figures include it. Only freeing the memory ends a charge. A page with
//! several holders (`tee`, a loan) counts once for each: any of them alone would keep it.
//!
//! There is no node above the users: a sum over all of them would be a cache line that all CPUs
//! share, and is only needed by its readers.
//!
//! Everything here is atomic: no lock, no allocation and bounded work, so charges may change under
//! spin locks and in interrupts. When the last reference to an account is dropped, its figures must
//! be zero; [`unbalanced`] counts those that were not.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use nucleus::{PAGE_SIZE, frame, sync::OnceBox};

use crate::swap;

/// Pages that a [`Stock`] charges together: the slices of a new pipe.
pub const BATCH: usize = 16;

macro_rules! kinds {
    ($($(#[$comment:meta])* $kind:ident = $name:literal,)*) => {
        /// What memory is used for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($(#[$comment])* $kind,)*
        }

        impl Kind {
            /// All kinds, by their numbers.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// Returns the word for it in `/proc`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }
    };
}

impl Kind {
    /// Whether things of this kind stay when all processes that used them have ended, until
    /// they are removed.
    pub fn outlives_processes(self) -> bool {
        Kind::KEPT.contains(&self)
    }

    /// Those kinds.
    const KEPT: [Kind; 5] = {
        use Kind::{Files, Messages, PosixQueues, Segments, Semaphores};
        [Files, Segments, Messages, Semaphores, PosixQueues]
    };
}

kinds! {
    /// Threads and processes: stacks, records, tables of descriptors at their smallest.
    Threads = "threads",
    /// Pipes; their number is that of the slices that fit.
    Pipes = "pipes",
    /// Sockets, and the data in their queues.
    Sockets = "sockets",
    /// Files on their way through local sockets.
    FilesInFlight = "files_in_flight",
    /// System V queues of messages.
    Messages = "messages",
    /// System V sets of semaphores.
    Semaphores = "semaphores",
    /// What is undone in sets of semaphores when processes end.
    Undos = "semaphore_undos",
    /// System V segments: pages that they have, in frames or in swap; their number is that of their
    /// pages, present or not.
    Segments = "segments",
    /// POSIX queues of messages; their bytes are those that `RLIMIT_MSGQUEUE` limits.
    PosixQueues = "posix_queues",
    /// Files with a place in a file system in memory: their pages, in frames or in swap, names,
    /// records, texts of links and extended attributes; their number is that of files and names.
    Files = "files",
    /// Pages that go with their last user, in frames or in swap: shared mappings, `memfd_create`.
    SharedMemory = "shared_memory",
    /// Advisory locks: record locks, and those of whole files.
    Locks = "locks",
    /// Watches of epoll instances.
    EpollWatches = "epoll_watches",
    /// Inotify instances, and the events that wait there.
    InotifyInstances = "inotify_instances",
    /// Watches of inotify instances.
    InotifyWatches = "inotify_watches",
    /// Signals that wait with their details, and timers that send some.
    Signals = "signals",
    /// Tables of more descriptors than a new one has room for; their number is that of descriptors.
    Descriptors = "descriptors",
    /// Open files: those of a table's first descriptors by the highest of these, the others one by
    /// one; and texts that files keep.
    OpenFiles = "open_files",
    /// Pseudo terminals.
    Terminals = "terminals",
    /// Filters of system calls; their number is that of instructions.
    Filters = "seccomp_filters",
    /// Calls that wait for many files or words; their number is that of those.
    Waits = "waits",
    /// Programs that are being put together, until they run.
    Executions = "executions",
}

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
            // Another CPU may have counted since: whoever changes the charge last sees all.
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

    /// Whoever comes last with an old count, what is there is charged at the end, and no more is
    /// taken back than was added.
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
