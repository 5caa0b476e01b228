//! Messages: send, receive, free, secure (`fbufs.txt` 3.1, 3.2.3, 3.2.4).
//!
//! ```text
//!   send:     walk the aggregate ─> extents ─> hold ─> secure ─> walk again ─> give
//!                 ─> lock this path: queue, wake
//!   free:     the last receiver ─> drop the references
//!                                   └─> pages without any: hide, writable again, notice
//! ```
//!
//! *Hold* checks the sender's right to the pages once more, and adds a reference to each. The check
//! while the aggregate was read only decides which memory the kernel looks at. *Secure* takes the
//! right to write them, if this path or theirs is secured; only a secured path walks again. *Give*
//! shows them to the receivers that cannot read them yet. Pages of this path on which nothing but
//! *hold* is to be done, since it is cached and volatile, are held last, with the path locked that
//! gets the message; all others before that. Rights and mappings change in [`Steps`]: a path is
//! locked for a bounded number of pages, and a sender that is killed takes back what it has done.
//! References are counted for an extent at once.
//!
//! A program may change nodes until they are secured. So on a secured path the aggregate is walked
//! again once all that it reached cannot be written, and must not reach more then. A receiver that
//! sends on pages of another path cannot take the right to write them from their originator: on a
//! secured path they must be secured already.

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use nucleus::{VirtRange, frame::check_not_scarce, pmap::Pending};

use super::{
    MOST_MEMBERS,
    domain::Domain,
    message::{Extent, UNCHARGED},
    mode::Mode,
    path::{Path, Role, State},
    reading::Reading,
    run::Run,
    shares::RunShares,
    steps::{Step, Steps},
};
use crate::{
    counters::Counter,
    dag::{MOST_RANGES, Walk},
};

/// A message, as its receiver gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The address of the root node.
    pub root: u64,
    /// The message's number, to free it.
    pub id: u64,
    /// The number of the sender's domain.
    pub sender: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// Receivers, one for each index of a member.
type Receivers = [Option<Arc<Domain>>; MOST_MEMBERS];

impl Path {
    /// Sends the aggregate with this root to one receiver, or to all with `None`. Returns the
    /// message's number and how many notices wait.
    ///
    /// # Errors
    /// `EAGAIN` if a queue is full; `EPERM` for another domain than the originator; `EINVAL` for a
    /// number that no receiver has had, `EPIPE` where the receiver is gone or there is none; those
    /// of [`WalkError`](crate::dag::WalkError), `EFAULT` also if an aggregate is changed while it
    /// is secured; `EPERM` for other paths' pages that are not secured, on a path that is; `EUSERS`
    /// if too many domains or messages have one of these; `EBUSY` if a device may be writing a page
    /// that is to be secured; `EINTR` if the caller is to end; `ENOMEM`.
    pub fn send(&self, sender: &Arc<Domain>, to: Option<u64>, root: u64) -> Result<(u64, usize)> {
        // A full queue is found out before the work.
        self.state.lock().targets(sender, to, None)?;
        check_not_scarce()?;
        let mut walk = self.spare.lock().take().unwrap_or_default();
        let sent = self.send_walked(&mut walk, sender, to, root);
        walk.shrink();
        let before = self.spare.lock().replace(walk);
        drop(before);
        sent
    }

    fn send_walked(
        &self,
        walk: &mut Walk,
        sender: &Arc<Domain>,
        to: Option<u64>,
        root: u64,
    ) -> Result<(u64, usize)> {
        let mut reading = Reading::new(sender, self);
        walk.run(root, &mut reading, &mut |_| {})?;
        let (mut own, mut others) = self.extents(walk, &mut reading)?;
        drop(reading);
        if own.len() + others.len() > MOST_RANGES {
            return Err(Errno::E2BIG);
        }
        own.try_reserve(others.len())?;
        if !self.mode().is_cached() || self.mode().is_secured() {
            others.try_reserve(own.len())?;
            others.append(&mut own);
        }
        let mut receivers = None;
        if !others.is_empty() {
            receivers = Some(self.receivers_of(sender, to)?);
            if let Err((error, held)) = self.hold_all(&others, sender) {
                others.truncate(held);
                self.release_all(&others, false);
                return Err(error);
            }
        }
        let mut ready = self.secure_all(&others, sender);
        if ready.is_ok() && self.mode().is_secured() {
            ready = self.walk_secured(walk, sender, root);
        }
        // Last: pages that other messages include stay given when this one is not sent.
        if let (Ok(()), Some(receivers)) = (&ready, &receivers) {
            ready = self.give_all(&others, receivers);
        }
        if let Err(error) = ready {
            self.release_all(&others, false);
            return Err(error);
        }
        match self.enqueue(walk, sender, to, receivers.as_ref(), root, own, others) {
            Ok(sent) => Ok(sent),
            Err((error, others)) => {
                self.release_all(&others, false);
                Err(error)
            }
        }
    }

    /// Holds extents one by one. An error tells how many are held then.
    fn hold_all(
        &self,
        extents: &[Extent],
        sender: &Arc<Domain>,
    ) -> core::result::Result<(), (Errno, usize)> {
        for (held, extent) in extents.iter().enumerate() {
            let path = &extent.run.path;
            let mut state = path.state.lock();
            let result = path.hold(&mut state, extent, sender, self.mode());
            result.map_err(|error| (error, held))?;
        }
        Ok(())
    }

    /// Secures those pages of extents that are held which the sender originates, as far as this
    /// path or theirs is secured.
    ///
    /// # Errors
    /// `EBUSY` if a device may be writing some, `EINTR`; a part may be secured then.
    fn secure_all(&self, extents: &[Extent], sender: &Arc<Domain>) -> Result<()> {
        for step in Steps::of(extents) {
            let path = step.path();
            if !self.mode().is_secured() && !path.mode().is_secured() {
                continue;
            }
            check_not_dying()?;
            let mut state = path.state.lock();
            if state.role(sender) != Role::Originator {
                continue;
            }
            let mut pending = Pending::new();
            for (run, pages) in step.parts() {
                let shares = state.shares(run).ok_or(Errno::EFAULT)?;
                shares.secure(pages, &mut pending)?;
            }
            pending.flush();
        }
        Ok(())
    }

    /// Makes the pages of extents that are held readable for the receivers.
    ///
    /// # Errors
    /// `EUSERS` for too many domains, `ENOMEM`, `EINTR`. None is readable then, except that for a
    /// caller that is to end pages may be which other messages include.
    fn give_all(&self, extents: &[Extent], receivers: &Receivers) -> Result<()> {
        // Receivers of a cached path can read its pages already.
        let is_given = |step: &Step<'_>| {
            let is_own = core::ptr::eq(&**step.path(), self);
            !self.mode().is_cached() || !is_own
        };
        type Act = dyn Fn(&mut RunShares, &Arc<Domain>, Range<usize>, bool) -> Result<()>;
        let each = |step: &Step<'_>, act: &Act| -> Result<()> {
            let path = step.path();
            let mut state = path.state.lock();
            for (run, pages) in step.parts() {
                for domain in receivers.iter().flatten() {
                    let reads_all = path.reads_all(&state, domain);
                    let shares = state.shares(run).ok_or(Errno::EFAULT)?;
                    act(shares, domain, pages.clone(), reads_all)?;
                }
            }
            Ok(())
        };
        // What can fail comes first.
        for step in Steps::of(extents).filter(is_given) {
            each(&step, &RunShares::prepare)?;
        }
        for step in Steps::of(extents).filter(is_given) {
            check_not_dying()?;
            each(&step, &RunShares::give)?;
        }
        Ok(())
    }

    /// Walks an aggregate again all of whose pages are secured and held: it must not reach others
    /// than before, as it may if a program has changed it meanwhile.
    fn walk_secured(&self, walk: &mut Walk, sender: &Arc<Domain>, root: u64) -> Result<()> {
        let mut again = Walk::default();
        again.run(root, &mut Reading::new(sender, self), &mut |_| {})?;
        if !walk.pages.include(&again.pages) {
            return Err(Errno::EFAULT);
        }
        walk.bytes = again.bytes;
        Ok(())
    }

    /// Splits what a walk has reached into extents of this path's runs, and those of others.
    fn extents(
        &self,
        walk: &Walk,
        reading: &mut Reading<'_>,
    ) -> Result<(Vec<Extent>, Vec<Extent>)> {
        let mut own = core::mem::take(&mut *self.spare_extents.lock());
        own.try_reserve(walk.pages.len())?;
        let mut others = Vec::new();
        for range in walk.pages.iter() {
            let mut start = range.start;
            while start < range.end {
                let run = reading.run_at(start)?;
                let end = range.end.min(run.range().end.0 as u64);
                let (run, pages) = reading.pages_at(start..end)?;
                start = end;
                let run = run.clone();
                let list = match core::ptr::eq(&*run.path, self) {
                    true => &mut own,
                    false => &mut others,
                };
                list.try_reserve(1)?;
                list.push(Extent { run, pages });
            }
        }
        Ok((own, others))
    }

    /// Returns the domains that a message is for.
    fn receivers_of(&self, sender: &Arc<Domain>, to: Option<u64>) -> Result<Receivers> {
        let state = self.state.lock();
        let bits = state.targets(sender, to, None)?;
        Ok(state.domains(bits))
    }

    /// Holds the message's own pages and puts it into the queues: of those receivers for which
    /// `others` are held, if there are any. `extents` has room for `others`.
    #[expect(clippy::too_many_arguments)]
    fn enqueue(
        &self,
        walk: &Walk,
        sender: &Arc<Domain>,
        to: Option<u64>,
        held_for: Option<&Receivers>,
        root: u64,
        mut extents: Vec<Extent>,
        others: Vec<Extent>,
    ) -> core::result::Result<(u64, usize), (Errno, Vec<Extent>)> {
        let mut state = self.state.lock();
        let bits = match state.targets(sender, to, held_for) {
            Ok(bits) => bits,
            Err(error) => return Err((error, others)),
        };
        for i in 0..extents.len() {
            if let Err(error) = self.hold(&mut state, &extents[i], sender, self.mode()) {
                self.unhold(&mut state, Steps::of(&extents[..i]), false);
                return Err((error, others));
            }
        }
        let own = extents.len();
        extents.extend(others);
        match state.messages.add(root, walk.bytes, bits, extents) {
            Ok(id) => {
                for (index, member) in state.members.iter_mut().enumerate() {
                    if bits >> index & 1 != 0
                        && let Some(member) = member
                    {
                        member.queue.push_back(id);
                    }
                }
                let notices = state.notices();
                drop(state);
                Counter::fbuf_messages.add(1);
                Counter::fbuf_bytes_passed.add(walk.bytes);
                for index in (0..MOST_MEMBERS).filter(|index| bits >> index & 1 != 0) {
                    self.queue(Role::Receiver(index)).wake_shared(false);
                }
                Ok((id, notices))
            }
            Err((error, mut extents)) => {
                self.unhold(&mut state, Steps::of(&extents[..own]), false);
                extents.drain(..own);
                Err((error, extents))
            }
        }
    }

    /// Adds a reference to each page of an extent of this path, for a message of a path with the
    /// mode `by`.
    ///
    /// # Errors
    /// `EFAULT` if the sender may not read them, `EPERM` if it cannot secure them, `EUSERS` for too
    /// many references; nothing has changed then.
    fn hold(
        &self,
        state: &mut State,
        extent: &Extent,
        sender: &Arc<Domain>,
        by: Mode,
    ) -> Result<()> {
        let pages = || extent.pages.clone();
        if !state.may_read(self, &extent.run, sender, pages()) {
            return Err(Errno::EFAULT);
        }
        let is_originator = state.role(sender) == Role::Originator;
        let has_writer = state.originator.is_some() && !is_originator;
        let shares = state.shares(&extent.run).ok_or(Errno::EFAULT)?;
        shares.check_room(pages())?;
        if by.is_secured() && has_writer && !shares.are_secured(pages()) {
            return Err(Errno::EPERM);
        }
        shares.refer(pages())
    }

    /// Drops the references of extents of this path; with `notes`, tells the originator.
    fn unhold<'a>(
        &self,
        state: &mut State,
        steps: impl Iterator<Item = Step<'a>> + Clone,
        notes: bool,
    ) {
        let notes = notes && state.originator.is_some();
        let parts = || steps.clone().flat_map(|step| step.parts());
        let mut pending = Pending::new();
        for (run, pages) in parts() {
            if let Some(shares) = state.shares(run) {
                shares.unrefer(pages, &mut pending);
            }
        }
        // What its originator writes from now on is not seen by a receiver.
        pending.flush();
        let mut noted = 0;
        for (run, pages) in parts() {
            if let Some(shares) = state.shares(run) {
                noted += shares.free(pages, notes);
            }
        }
        if noted > 0 {
            self.note(state, noted);
        }
    }

    /// Drops the references of a message that no member has any more.
    pub(super) fn release(&self, extents: Vec<Extent>) {
        self.release_all(&extents, true);
    }

    fn release_all(&self, extents: &[Extent], notes: bool) {
        self.release_steps(Steps::of(extents), notes);
    }

    fn release_steps(&self, steps: Steps<'_>, notes: bool) {
        for step in steps {
            let path = step.path();
            let mut state = path.state.lock();
            path.unhold(&mut state, core::iter::once(step), notes);
            path.retire_unused(&mut state);
        }
    }

    /// Keeps the memory of a message for the next one, unless it is large.
    fn keep(&self, mut extents: Vec<Extent>) {
        extents.clear();
        if extents.capacity() <= UNCHARGED {
            let before = core::mem::replace(&mut *self.spare_extents.lock(), extents);
            drop(before);
        }
    }

    /// Takes the oldest message for the receiver; `None` if there is none now.
    ///
    /// # Errors
    /// `EPERM` for a domain that is no receiver; `EPIPE` if there will be none.
    pub fn receive(&self, domain: &Arc<Domain>) -> Result<Option<Received>> {
        let mut state = self.state.lock();
        let Role::Receiver(index) = state.role(domain) else {
            return Err(Errno::EPERM);
        };
        let State {
            members, messages, ..
        } = &mut *state;
        let next = members[index]
            .as_mut()
            .and_then(|member| member.queue.pop_front());
        let Some(id) = next else {
            return match state.has_originator() {
                true => Ok(None),
                false => Err(Errno::EPIPE),
            };
        };
        let message = messages.get(id).ok_or(Errno::EPIPE)?;
        message.queued &= !(1 << index);
        message.held |= 1 << index;
        let received = Received {
            root: message.root,
            id,
            sender: self.originator(),
            bytes: message.bytes,
        };
        drop(state);
        self.sender.wake_shared(false);
        Ok(Some(received))
    }

    /// The receiver is done with a message that it has received.
    ///
    /// # Errors
    /// `EPERM` for a domain that is no receiver; `EINVAL` for a message that it does not have.
    pub fn free(&self, domain: &Arc<Domain>, id: u64) -> Result<()> {
        let mut state = self.state.lock();
        let Role::Receiver(index) = state.role(domain) else {
            return Err(Errno::EPERM);
        };
        let bit = 1 << index;
        let message = state.messages.get(id).filter(|it| it.held & bit != 0);
        message.ok_or(Errno::EINVAL)?.held &= !bit;
        let was_full = !state.messages.has_room();
        let Some(extents) = state.messages.take_if_free(id) else {
            return Ok(());
        };
        let mut steps = Steps::of(&extents);
        // Mostly there is one, for which the path is locked already.
        let own = |step: &Step<'_>| core::ptr::eq(&**step.path(), self);
        match steps.next().filter(own) {
            Some(step) => {
                self.unhold(&mut state, core::iter::once(step), true);
                self.retire_unused(&mut state);
            }
            None => steps = Steps::of(&extents),
        }
        drop(state);
        self.release_steps(steps, true);
        self.keep(extents);
        if was_full {
            self.sender.wake_shared(false);
        }
        Ok(())
    }

    /// Calls `each` with the ranges of pages that a message of a receiver includes; returns how
    /// many there are.
    ///
    /// # Errors
    /// Those of [`free`](Path::free).
    pub fn ranges_of(
        &self,
        domain: &Arc<Domain>,
        id: u64,
        each: &mut dyn FnMut(VirtRange),
    ) -> Result<usize> {
        let mut state = self.state.lock();
        let Role::Receiver(index) = state.role(domain) else {
            return Err(Errno::EPERM);
        };
        let message = state.messages.get(id);
        let message = message.filter(|it| it.held >> index & 1 != 0);
        let extents = &message.ok_or(Errno::EINVAL)?.extents;
        for extent in extents {
            each(extent.run.addresses(extent.pages.clone()));
        }
        Ok(extents.len())
    }

    /// A receiver asks that pages which its messages include are not written until they are freed
    /// (`fbufs.txt` 3.2.4). On a secured path nothing is left to do.
    ///
    /// # Errors
    /// `EPERM` for a domain that is no receiver; `EFAULT` for pages that no message of it includes;
    /// `EBUSY` if a device may be writing them; `E2BIG` for pages of too many runs; `EINVAL`.
    pub fn secure(&self, domain: &Arc<Domain>, bytes: VirtRange) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes = bytes.start.0 as u64..bytes.end.0 as u64;
        let mut reading = Reading::new(domain, self);
        let mut start = bytes.start;
        while start < bytes.end {
            let run = reading.run_at(start)?.clone();
            let end = bytes.end.min(run.range().end.0 as u64);
            let (_, pages) = reading.pages_at(start..end)?;
            start = end;
            for step in Steps::of(&[Extent { run, pages }]) {
                check_not_dying()?;
                for (run, pages) in step.parts() {
                    self.secure_part(domain, run, pages)?;
                }
            }
        }
        Ok(())
    }

    fn secure_part(&self, domain: &Arc<Domain>, run: &Arc<Run>, pages: Range<usize>) -> Result<()> {
        {
            let state = self.state.lock();
            let Role::Receiver(index) = state.role(domain) else {
                return Err(Errno::EPERM);
            };
            if !state.holds(index, run, pages.clone()) {
                return Err(Errno::EFAULT);
            }
        }
        let mut state = run.path.state.lock();
        let shares = state.shares(run).ok_or(Errno::EFAULT)?;
        // They may have been freed since.
        if !shares.are_referenced(pages.clone()) {
            return Err(Errno::EFAULT);
        }
        let mut pending = Pending::new();
        let secured = shares.secure(pages, &mut pending);
        pending.flush();
        secured
    }

    /// Whether the receiver has a message to take, whether the originator is gone, whether there is
    /// room for a message to all, and how many notices wait.
    pub fn readiness(&self, role: Role) -> Readiness {
        let state = self.state.lock();
        let member = match role {
            Role::Receiver(index) => state.members.get(index).and_then(Option::as_ref),
            _ => None,
        };
        let mut members = state.members.iter().flatten();
        Readiness {
            has_message: member.is_some_and(|member| !member.queue.is_empty()),
            is_over: !state.has_originator(),
            has_room: state.messages.has_room() && members.all(|member| member.has_room()),
            notices: state.notices(),
        }
    }
}

/// # Errors
/// `EINTR` if the caller is to end.
fn check_not_dying() -> Result<()> {
    match vm::is_dying() {
        true => Err(Errno::EINTR),
        false => Ok(()),
    }
}

/// What is ready of a path.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    /// The receiver has a message to take.
    pub has_message: bool,
    /// The originator is gone.
    pub is_over: bool,
    /// Every queue has room.
    pub has_room: bool,
    /// Notices that wait for the originator.
    pub notices: usize,
}

impl State {
    /// Returns the receivers of a message by bits, only those `among` some: each has room in its
    /// queue.
    ///
    /// # Errors
    /// As [`Path::send`].
    fn targets(
        &self,
        sender: &Arc<Domain>,
        to: Option<u64>,
        among: Option<&Receivers>,
    ) -> Result<u16> {
        self.check_originator(sender)?;
        let mut bits = 0;
        let mut is_full = !self.messages.has_room();
        for (index, member) in self.members.iter().enumerate() {
            if let Some(member) = member
                && to.is_none_or(|to| to == member.number)
                && among.is_none_or(|among| {
                    let before = among.get(index).and_then(Option::as_ref);
                    before.is_some_and(|domain| Arc::ptr_eq(domain, &member.domain))
                })
            {
                bits |= 1 << index;
                is_full |= !member.has_room();
            }
        }
        match (bits, to) {
            (0, Some(to)) if to > self.joined => Err(Errno::EINVAL),
            (0, _) => Err(Errno::EPIPE),
            _ if is_full => Err(Errno::EAGAIN),
            _ => Ok(bits),
        }
    }

    fn domains(&self, bits: u16) -> Receivers {
        core::array::from_fn(|index| {
            let member = self.members.get(index)?.as_ref()?;
            (bits >> index & 1 != 0).then(|| member.domain.clone())
        })
    }

    /// Whether messages that the receiver holds include all these pages.
    fn holds(&self, index: usize, run: &Arc<Run>, pages: Range<usize>) -> bool {
        let held = || {
            let mine = self.messages.iter().filter(|it| it.held >> index & 1 != 0);
            let extents = mine.flat_map(|it| &it.extents);
            extents.filter(|it| Arc::ptr_eq(&it.run, run))
        };
        let mut rest = pages;
        while rest.start < rest.end {
            let here = held().find(|it| it.pages.contains(&rest.start));
            let Some(found) = here else { return false };
            rest.start = found.pages.end;
        }
        true
    }
}
