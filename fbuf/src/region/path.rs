//! A path: an originator, its receivers, and the runs of chunks that it has.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    array,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use abi::{Errno, Result};
use nucleus::{
    VirtAddr, VirtRange,
    frame::check_not_scarce,
    sync::{Mutex, SpinLock},
    task::WaitQueue,
};
use vm::account::{self, Charge, Kind};

use super::{
    DEFAULT_LIMIT, MANY_NOTICES, MOST_MEMBERS, MOST_PATH_CHUNKS, MOST_RUN_CHUNKS, MOST_USER_CHUNKS,
    Mode,
    domain::Domain,
    message::{Extent, Member, Messages},
    run::Run,
    shares::RunShares,
    table,
};
use crate::dag::Walk;

/// A path. It lasts as long as its descriptors do; its runs, as long as messages include them.
pub struct Path {
    id: u64,
    mode: Mode,
    limit: usize,
    /// The number of the originator's domain, and its process.
    originator: u64,
    owner: u32,
    own: Weak<Path>,
    pub(super) state: Mutex<State>,
    /// The memory of a walk, for the next one.
    pub(super) spare: SpinLock<Option<Walk>>,
    /// The memory of a freed message, for the next one; empty.
    pub(super) spare_extents: SpinLock<Vec<Extent>>,
    /// Its records.
    _charge: Option<Charge>,
    /// Where each receiver waits for messages.
    receivers: [WaitQueue; MOST_MEMBERS],
    /// Where the originator waits for room and notices.
    pub(super) sender: WaitQueue,
    /// Where receivers wait for words that the originator writes, by the words' addresses.
    bells: [WaitQueue; BELLS],
    /// The originator is gone.
    is_over: AtomicBool,
}

/// What a path is charged with, in bytes: all that it may keep, but for runs and for what large
/// messages are charged themselves.
const RECORD_BYTES: usize = size_of::<Path>() + Messages::MOST_BYTES + Walk::KEPT_BYTES;

/// Queues of waiters for words: a ring that one receiver reads mostly has one for itself.
const BELLS: usize = 16;

/// Neighbouring bytes whose words have one queue: those of a ring.
const BELL_BYTES: usize = 8192;

/// The state of a path.
pub(super) struct State {
    /// `None` once it has ended or left, and of a path of the kernel.
    pub originator: Option<Arc<Domain>>,
    /// The kernel is the originator, and has not ended the path.
    pub is_kernels: bool,
    pub members: [Option<Member>; MOST_MEMBERS],
    /// How many receivers have joined, of which some may have left.
    pub joined: u64,
    /// By address.
    pub runs: Vec<RunShares>,
    pub messages: Messages,
    /// Pages that the originator is to be told about.
    notices: usize,
}

/// What a domain is to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It writes the chunks and sends.
    Originator,
    /// The receiver with this index.
    Receiver(usize),
    /// Nothing.
    Stranger,
}

impl Path {
    /// Makes a path of which `originator` is the originator, with at most `limit` chunks, or
    /// [`DEFAULT_LIMIT`] for 0.
    ///
    /// # Errors
    /// `EINVAL` for too large a limit, `ENOMEM`, `EMFILE`.
    pub fn new(originator: &Arc<Domain>, mode: Mode, limit: usize) -> Result<Arc<Path>> {
        let limit = match limit {
            0 => DEFAULT_LIMIT,
            1..=MOST_PATH_CHUNKS => limit,
            _ => return Err(Errno::EINVAL),
        };
        check_not_scarce()?;
        let path = Path::make(Some(originator), mode, limit)?;
        originator.join(&path)?;
        Ok(path)
    }

    /// Makes a path of a domain, or of the kernel.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn make(
        originator: Option<&Arc<Domain>>,
        mode: Mode,
        limit: usize,
    ) -> Result<Arc<Path>> {
        table::lock().add_path(|id| {
            Arc::new_cyclic(|own| Path {
                id,
                mode,
                limit,
                originator: originator.map_or(0, |it| it.id()),
                owner: originator.map_or(0, |it| it.owner()),
                own: own.clone(),
                state: Mutex::new(
                    crate::rank::FBUF_PATH,
                    State {
                        originator: originator.cloned(),
                        is_kernels: originator.is_none(),
                        members: array::from_fn(|_| None),
                        joined: 0,
                        runs: Vec::new(),
                        messages: Messages::default(),
                        notices: 0,
                    },
                ),
                spare: SpinLock::new(nucleus::sync::Rank::Leaf, None),
                spare_extents: SpinLock::new(nucleus::sync::Rank::Leaf, Vec::new()),
                _charge: account::current().map(|it| it.charge(Kind::Fbufs, 0, RECORD_BYTES)),
                receivers: array::from_fn(|_| WaitQueue::new()),
                sender: WaitQueue::new(),
                bells: array::from_fn(|_| WaitQueue::new()),
                is_over: AtomicBool::new(false),
            })
        })
    }

    /// Returns its number, which no other path has had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns its mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of the originator's domain; 0: the kernel.
    pub fn originator(&self) -> u64 {
        self.originator
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns how many chunks it may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns what `domain` is to the path.
    pub fn role(&self, domain: &Arc<Domain>) -> Role {
        self.state.lock().role(domain)
    }

    /// Returns where the domain waits: a receiver for messages, any other one for what the
    /// originator waits for.
    pub fn queue(&self, role: Role) -> &WaitQueue {
        match role {
            Role::Receiver(index) => self.receivers.get(index).unwrap_or(&self.sender),
            _ => &self.sender,
        }
    }

    /// Returns where receivers wait for the word with this address, and for others. A bell wakes
    /// them after the word was changed, and when the path [is over](Path::is_over).
    pub fn bell(&self, word: VirtAddr) -> &WaitQueue {
        &self.bells[word.0 / BELL_BYTES % BELLS]
    }

    /// Whether the originator is gone.
    pub fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Returns where a domain waits in any role.
    pub fn queues(&self) -> impl Iterator<Item = &WaitQueue> {
        self.receivers.iter().chain([&self.sender])
    }

    /// Makes `domain` a receiver unless it is one. Returns its number, from 1 on, which no other
    /// receiver of the path has had. It can read the chunks of a cached path from now on.
    ///
    /// # Errors
    /// `EPERM` for the originator, `ENOSPC` for too many receivers, `EPIPE` once the originator is
    /// gone, `ENOMEM`, `EMFILE`.
    pub fn attach(&self, domain: &Arc<Domain>) -> Result<u64> {
        check_not_scarce()?;
        let mut state = self.state.lock();
        match state.role(domain) {
            Role::Receiver(index) => {
                let member = state.members.get(index).and_then(Option::as_ref);
                return Ok(member.map_or(0, |member| member.number));
            }
            Role::Originator => return Err(Errno::EPERM),
            Role::Stranger => {}
        }
        if !state.has_originator() {
            return Err(Errno::EPIPE);
        }
        let free = state.members.iter().position(Option::is_none);
        let index = free.ok_or(Errno::ENOSPC)?;
        let number = state.joined + 1;
        let member = Member::new(number, domain.clone())?;
        domain.join(&self.own.upgrade().ok_or(Errno::EPIPE)?)?;
        if self.mode.is_cached() {
            for i in 0..state.runs.len() {
                if let Err(error) = state.runs[i].join(domain) {
                    for shares in &mut state.runs[..i] {
                        shares.leave(domain);
                    }
                    domain.leave(self);
                    return Err(error);
                }
            }
        }
        state.members[index] = Some(member);
        state.joined = number;
        Ok(number)
    }

    /// Gives the originator `chunks` contiguous chunks, and returns their addresses.
    ///
    /// # Errors
    /// `EPERM` for another domain, `EINVAL` for a number that is not allowed, `ENOSPC` beyond the
    /// limit of the path or of the user and where the region is full, `ENOMEM`.
    pub fn grow(&self, domain: &Arc<Domain>, chunks: usize) -> Result<VirtRange> {
        if !(1..=MOST_RUN_CHUNKS).contains(&chunks) {
            return Err(Errno::EINVAL);
        }
        check_not_scarce()?;
        let mut state = self.state.lock();
        state.check_originator(domain)?;
        if state.chunks() + chunks > self.limit {
            return Err(Errno::ENOSPC);
        }
        let made = self.add_run(&mut state, chunks, 0, |_| Ok(()))?;
        Ok(made.range())
    }

    /// Adds a run of free chunks, which `fill` may fill before it is mapped. Its records take
    /// `more` bytes besides the usual ones.
    ///
    /// # Errors
    /// `ENOSPC` beyond the limit of the user and where the region is full, `ENOMEM`; those of
    /// `fill`.
    pub(super) fn add_run(
        &self,
        state: &mut State,
        chunks: usize,
        more: usize,
        fill: impl FnOnce(&Run) -> Result<()>,
    ) -> Result<Arc<Run>> {
        state.runs.try_reserve(1)?;
        let pages = chunks * (super::CHUNK / nucleus::PAGE_SIZE);
        let bytes = RunShares::bytes_for(pages) + more;
        let account = account::current();
        let charge_addresses = || match &account {
            None => Ok(None),
            Some(account) => {
                let charge = account.charge_within(Kind::Fbufs, chunks, 0, MOST_USER_CHUNKS);
                Ok(Some(charge.ok_or(Errno::ENOSPC)?))
            }
        };
        let charge = account.as_ref().map(|it| it.charge(Kind::Fbufs, 0, bytes));
        let path = self.own.upgrade().ok_or(Errno::EPIPE)?;
        let run = table::lock().add_run(&path, chunks, charge_addresses, |start| {
            let run = Run::new(path.clone(), start, chunks, charge)?;
            Ok(Arc::new(run))
        })?;
        let originator = state.originator.clone();
        let given = RunShares::new(run.clone(), originator.clone()).and_then(|shares| {
            fill(&run)?;
            if let Some(domain) = &originator {
                domain.map(&run, true)?;
            }
            if self.mode.is_cached() {
                for member in state.members.iter().flatten() {
                    member.domain.map(&run, false)?;
                }
            }
            Ok(shares)
        });
        match given {
            Ok(shares) => {
                let place = state
                    .runs
                    .partition_point(|it| it.run.range().start < run.range().start);
                state.runs.insert(place, shares);
                Ok(run)
            }
            Err(error) => {
                state.unmap_everywhere(&run);
                run.end();
                table::lock().remove_run(&run);
                Err(error)
            }
        }
    }

    /// Takes back the run that starts at `address`.
    ///
    /// # Errors
    /// `EPERM` for another domain than the originator, `EINVAL` if no run starts there, `EBUSY`
    /// while a message includes one of its pages.
    pub fn shrink(&self, domain: &Arc<Domain>, address: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.check_originator(domain)?;
        let is_it = |it: &RunShares| it.run.range().start.0 as u64 == address;
        let at = state.runs.iter().position(is_it).ok_or(Errno::EINVAL)?;
        if state.runs[at].is_referenced() {
            return Err(Errno::EBUSY);
        }
        state.retire(at);
        Ok(())
    }

    /// Makes the domain leave the path: a receiver frees all its messages, the originator sends no
    /// more. Its mappings of the path's chunks are removed.
    pub fn leave(&self, domain: &Arc<Domain>) {
        domain.leave(self);
        self.remove_domain(domain, true);
    }

    /// Makes the originator and all receivers leave, after the last descriptor was closed.
    pub fn close(&self) {
        self.end_kernel();
        loop {
            let domain = {
                let state = self.state.lock();
                let mut members = state.members.iter().flatten();
                let member = members.next().map(|member| &member.domain);
                match state.originator.as_ref().or(member) {
                    Some(domain) => domain.clone(),
                    None => return,
                }
            };
            self.leave(&domain);
        }
    }

    /// As [`leave`](Path::leave). Without `unmaps` the address space removes the mappings itself.
    pub(super) fn remove_domain(&self, domain: &Arc<Domain>, unmaps: bool) {
        let mut state = self.state.lock();
        let read_all;
        match state.role(domain) {
            Role::Stranger => return,
            Role::Originator => {
                state.originator = None;
                for shares in &mut state.runs {
                    shares.originator = None;
                }
                domain.count_fetched(core::mem::take(&mut state.notices));
                read_all = true;
            }
            Role::Receiver(index) => {
                state.members[index] = None;
                // Before another receiver can get this place.
                state.messages.forget_member(1 << index);
                read_all = self.mode.is_cached();
            }
        }
        for shares in &mut state.runs {
            match unmaps {
                true if read_all => shares.leave(domain),
                true => {}
                false => shares.forget_domain(domain),
            }
        }
        self.retire_unused(&mut state);
        let is_over = !state.has_originator();
        drop(state);
        loop {
            let freed = self.state.lock().messages.take_any_free();
            let Some(extents) = freed else { break };
            self.release(extents);
        }
        if unmaps && !read_all {
            let mut state = self.state.lock();
            state.runs.iter_mut().for_each(|it| it.drop_unused(domain));
        }
        match is_over {
            true => self.end_waits(),
            false => self.queues().for_each(WaitQueue::wake_all),
        }
    }

    /// The originator is gone: wakes all that wait for it.
    pub(super) fn end_waits(&self) {
        self.is_over.store(true, SeqCst);
        self.queues().for_each(WaitQueue::wake_all);
        self.bells.iter().for_each(WaitQueue::wake_all);
    }

    /// Retires the runs without references once the originator is gone, unless receivers of a
    /// cached path still read them.
    pub(super) fn retire_unused(&self, state: &mut State) {
        let has_readers = self.mode.is_cached() && state.members.iter().any(Option::is_some);
        if state.has_originator() || has_readers {
            return;
        }
        let is_unused = |it: &RunShares| !it.is_referenced();
        while let Some(at) = state.runs.iter().position(is_unused) {
            state.retire(at);
        }
        // A receiver may have checked addresses that it has not read yet.
        if state.runs.is_empty() && state.members.iter().all(Option::is_none) {
            table::lock().disown(self);
        }
    }

    /// Counts pages that were noted for the originator, and wakes it at [`MANY_NOTICES`].
    pub(super) fn note(&self, state: &mut State, pages: usize) {
        let Some(originator) = &state.originator else {
            return;
        };
        originator.count_notices(pages);
        let before = state.notices;
        state.notices += pages;
        if before < MANY_NOTICES && state.notices >= MANY_NOTICES {
            self.sender.wake_all();
        }
    }

    /// Takes up to `most` ranges of pages that were freed by all their receivers since they were
    /// sent, and calls `each` with their addresses.
    ///
    /// # Errors
    /// `EPERM` for another domain than the originator.
    pub fn take_notices(
        &self,
        domain: &Arc<Domain>,
        most: usize,
        each: &mut dyn FnMut(VirtRange),
    ) -> Result<()> {
        let mut state = self.state.lock();
        state.check_originator(domain)?;
        let mut taken = 0;
        let mut pages = 0;
        for shares in &mut state.runs {
            let before = shares.notices();
            while taken < most
                && let Some(range) = shares.take_notice()
            {
                taken += 1;
                each(shares.run.addresses(range));
            }
            pages += before - shares.notices();
        }
        state.notices = state.notices.saturating_sub(pages);
        domain.count_fetched(pages);
        Ok(())
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let mut table = table::lock();
        table.disown(self);
        table.remove_path(self);
    }
}

impl State {
    /// Returns what `domain` is to the path.
    pub fn role(&self, domain: &Arc<Domain>) -> Role {
        let is_it = |other: &Arc<Domain>| Arc::ptr_eq(other, domain);
        if self.originator.as_ref().is_some_and(is_it) {
            return Role::Originator;
        }
        let is_member = |it: &Option<Member>| it.as_ref().is_some_and(|it| is_it(&it.domain));
        match self.members.iter().position(is_member) {
            Some(index) => Role::Receiver(index),
            None => Role::Stranger,
        }
    }

    /// # Errors
    /// `EPERM` unless `domain` is the originator.
    pub fn check_originator(&self, domain: &Arc<Domain>) -> Result<()> {
        match self.role(domain) {
            Role::Originator => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }

    /// Returns how many chunks the path has.
    pub fn chunks(&self) -> usize {
        self.runs.iter().map(|it| it.run.chunks()).sum()
    }

    /// Returns how many pages the originator is to be told about.
    pub fn notices(&self) -> usize {
        self.notices
    }

    /// Returns the state of a run.
    pub fn shares(&mut self, run: &Run) -> Option<&mut RunShares> {
        let start = run.range().start;
        let found = self
            .runs
            .binary_search_by_key(&start, |it| it.run.range().start);
        found.ok().and_then(|at| self.runs.get_mut(at))
    }

    /// Unmaps all of a run in all domains of the path.
    fn unmap_everywhere(&self, run: &Run) {
        let members = self.members.iter().flatten().map(|member| &member.domain);
        for domain in members.chain(self.originator.as_ref()) {
            domain.unmap(run);
        }
    }

    /// Ends a run without references. Its addresses stay the path's.
    fn retire(&mut self, at: usize) {
        let mut shares = self.runs.remove(at);
        self.unmap_everywhere(&shares.run);
        shares.end_grants();
        shares.run.end();
        table::lock().remove_run(&shares.run);
        let notices = shares.notices();
        if let Some(originator) = &self.originator {
            self.notices = self.notices.saturating_sub(notices);
            originator.count_fetched(notices);
        }
    }
}
