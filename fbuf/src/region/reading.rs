//! How the kernel reads the memory of an aggregate: by the table of runs and the runs' objects.

use alloc::sync::Arc;
use core::ops::Range;

use abi::Errno;
use nucleus::{Frame, PAGE_SIZE, VirtRange, ephemeral};
use vm::{Pager, PagerError};

use super::{
    domain::Domain,
    path::{Path, Role, State},
    run::Run,
    table,
};
use crate::dag::{NODE_BYTES, NodeReader, WalkError};

/// Pages that are read between two checks whether the caller is to end.
const PAGES_PER_CHECK: usize = 256;

/// Reads nodes on behalf of the sender of a message.
pub(super) struct Reading<'a> {
    sender: &'a Arc<Domain>,
    path: &'a Path,
    /// The run of the last address, and whether the sender may read all of it.
    run: Option<(Arc<Run>, bool)>,
    /// The last page that was read; `None` for one that was never written.
    page: Option<(usize, Option<Frame>)>,
    pages_read: usize,
}

impl<'a> Reading<'a> {
    pub fn new(sender: &'a Arc<Domain>, path: &'a Path) -> Reading<'a> {
        Reading {
            sender,
            path,
            run: None,
            page: None,
            pages_read: 0,
        }
    }

    /// Finds the run with this address.
    ///
    /// # Errors
    /// [`WalkError::BadAddress`] if there is none.
    pub fn run_at(&mut self, address: u64) -> Result<&Arc<Run>, WalkError> {
        let is_there = self.run.as_ref();
        if is_there.is_none_or(|(run, _)| run.page_at(address).is_none()) {
            self.page = None;
            self.run = None;
            let own = {
                let state = self.path.state.lock();
                let reads_all = || self.path.reads_all(&state, self.sender);
                state.run_at(address).map(|run| (run, reads_all()))
            };
            self.run = match own {
                Some(own) => Some(own),
                None => {
                    let found = table::lock().run_at(address).cloned();
                    let run = found.ok_or(WalkError::BadAddress)?;
                    let reads_all = {
                        let state = run.path.state.lock();
                        run.path.reads_all(&state, self.sender)
                    };
                    Some((run, reads_all))
                }
            };
        }
        match &self.run {
            Some((run, _)) => Ok(run),
            None => Err(WalkError::BadAddress),
        }
    }

    /// Finds the run with these addresses, and which of its pages they are.
    ///
    /// # Errors
    /// [`WalkError::BadAddress`] if they are not in one run or the sender may not read them.
    pub fn pages_at(&mut self, bytes: Range<u64>) -> Result<(&Arc<Run>, Range<usize>), WalkError> {
        self.run_at(bytes.start)?;
        let sender = self.sender;
        let (run, reads_all) = self.run.as_ref().ok_or(WalkError::BadAddress)?;
        let first = run.page_at(bytes.start).ok_or(WalkError::BadAddress)?;
        let last = run.page_at(bytes.end - 1).ok_or(WalkError::BadAddress)?;
        let pages = first..last + 1;
        if !reads_all {
            let mut state = run.path.state.lock();
            if !state.is_granted(run, sender, pages.clone()) {
                return Err(WalkError::BadAddress);
            }
        }
        Ok((run, pages))
    }

    /// Reads bytes that lie in one page.
    fn read_part(&mut self, address: u64, to: &mut [u8]) -> Result<(), WalkError> {
        let (run, pages) = self.pages_at(address..address + to.len() as u64)?;
        let (run, page) = (run.clone(), pages.start);
        if self.page.as_ref().is_none_or(|(known, _)| *known != page) {
            let frame = run.object().bring_in(page as u64);
            let frame = frame.map_err(|error| match error {
                PagerError::OutOfMemory => WalkError::OutOfMemory,
                _ => WalkError::Io,
            })?;
            self.page = Some((page, frame));
            self.pages_read += 1;
            if self.pages_read.is_multiple_of(PAGES_PER_CHECK) && vm::is_dying() {
                return Err(WalkError::Interrupted);
            }
        }
        match &self.page {
            Some((_, Some(frame))) => {
                ephemeral::map(frame).read(address as usize % PAGE_SIZE, to);
            }
            _ => to.fill(0),
        }
        Ok(())
    }
}

impl NodeReader for Reading<'_> {
    fn read(&mut self, address: u64, to: &mut [u8; NODE_BYTES]) -> Result<(), WalkError> {
        let in_first = (PAGE_SIZE - address as usize % PAGE_SIZE).min(NODE_BYTES);
        let (first, second) = to.split_at_mut(in_first);
        self.read_part(address, first)?;
        match second.is_empty() {
            true => Ok(()),
            false => self.read_part(address + in_first as u64, second),
        }
    }

    fn check(&mut self, data: Range<u64>) -> Result<(), WalkError> {
        self.pages_at(data).map(drop)
    }
}

/// Whose memory an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The number of the path.
    pub path: u64,
    /// The addresses around it that the path owns.
    pub addresses: VirtRange,
    /// Whether the domain that asks is its originator.
    pub is_own: bool,
    /// Whether the sender can read all of it.
    pub is_senders: bool,
}

impl Path {
    /// Whether `domain` may read all the path's runs: as its originator, or as a receiver if it is
    /// cached.
    pub(super) fn reads_all(&self, state: &State, domain: &Arc<Domain>) -> bool {
        match state.role(domain) {
            Role::Originator => true,
            Role::Receiver(_) => self.mode().is_cached(),
            Role::Stranger => false,
        }
    }

    /// Finds the path that owns an address, if `domain`, a receiver of this path, can read all of
    /// that: a message that the kernel does not see names it. The addresses stay that path's until
    /// it is over and no domain is attached to it.
    ///
    /// # Errors
    /// `EPERM` for a domain that is no receiver, `EFAULT` for other addresses.
    pub fn source_of(&self, domain: &Arc<Domain>, address: u64) -> abi::Result<Source> {
        let originator = {
            let state = self.state.lock();
            match state.role(domain) {
                Role::Receiver(_) => state.originator.clone(),
                _ => return Err(Errno::EPERM),
            }
        };
        let found = table::lock().owner_at(address);
        let (path, addresses) = found.ok_or(Errno::EFAULT)?;
        let state = path.state.lock();
        if !path.reads_all(&state, domain) {
            return Err(Errno::EFAULT);
        }
        Ok(Source {
            path: path.id(),
            addresses,
            is_own: state.role(domain) == Role::Originator,
            is_senders: match originator {
                Some(sender) => path.reads_all(&state, &sender),
                // Its messages are received after its end.
                None => core::ptr::eq(&*path, self),
            },
        })
    }
}

impl State {
    /// Returns the run with this address.
    pub fn run_at(&self, address: u64) -> Option<Arc<Run>> {
        let after = self
            .runs
            .partition_point(|it| it.run.range().start.0 as u64 <= address);
        let shares = self.runs.get(after.checked_sub(1)?)?;
        shares.run.page_at(address).map(|_| shares.run.clone())
    }

    /// Whether `domain` was given all these pages of a run.
    fn is_granted(&mut self, run: &Run, domain: &Arc<Domain>, pages: Range<usize>) -> bool {
        let shares = self.shares(run);
        shares.is_some_and(|shares| shares.is_granted(domain, pages))
    }

    /// Whether `domain` may read these pages of a run of `path`.
    pub fn may_read(
        &mut self,
        path: &Path,
        run: &Run,
        domain: &Arc<Domain>,
        pages: Range<usize>,
    ) -> bool {
        path.reads_all(self, domain) || self.is_granted(run, domain, pages)
    }
}
