//! The news that a program may change bytes again that it has promised to leave alone
//! (`MSG_ZEROCOPY`): its calls have numbers, and each is told when the peer has its bytes.
//!
//! The bytes do not depend on the promise: pages that were lent are copied for a writer. A program
//! that keeps it saves these copies. Calls that follow each other share an entry once there are
//! many, so the memory is bounded whatever the peer and the program do.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result};
use fbuf::queue::Chain;
use vm::account::{Account, Charge, Kind};

use super::{Stream, StreamState};

/// Entries of each kind. Linux's `optmem_max` is enough for 35.
const MOST: usize = 32;

/// Calls whose bytes have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The number of the first call.
    pub first: u32,
    /// That of the last one.
    pub last: u32,
    /// Bytes were copied.
    pub is_copied: bool,
}

/// Calls whose bytes are on their way.
#[derive(Clone, Copy, Default)]
struct Awaited {
    calls: Completion,
    /// The position in the stream behind the bytes of the last call.
    end: u64,
}

/// What a stream keeps for its writer.
#[derive(Default)]
pub(super) struct Completions {
    /// The number of the next call.
    next: u32,
    awaited: Fifo<Awaited>,
    told: Fifo<Completion>,
    _charge: Option<Charge>,
}

/// A queue of [`MOST`] entries at most, the oldest first.
struct Fifo<T> {
    entries: [T; MOST],
    count: usize,
}

impl<T: Copy + Default> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo {
            entries: [T::default(); MOST],
            count: 0,
        }
    }
}

impl<T: Copy> Fifo<T> {
    fn first(&self) -> Option<T> {
        (self.count > 0).then(|| self.entries[0])
    }

    fn take(&mut self) -> Option<T> {
        let first = self.first()?;
        self.entries.copy_within(1..self.count, 0);
        self.count -= 1;
        Some(first)
    }

    /// Adds an entry, unless `merge` adds it to the last one; it is told whether it has to.
    fn add(&mut self, new: T, merge: impl FnOnce(&mut T, bool) -> bool) {
        let is_full = self.count == MOST;
        let last = self.entries[..self.count].last_mut();
        if !last.is_some_and(|last| merge(last, is_full)) && !is_full {
            self.entries[self.count] = new;
            self.count += 1;
        }
    }
}

impl Completion {
    /// Adds the calls behind these.
    fn join(&mut self, next: Completion) {
        self.last = next.last;
        self.is_copied |= next.is_copied;
    }
}

impl Completions {
    /// Notes that the calls' bytes have arrived. Neighbours that went the same way are one entry.
    fn tell(&mut self, new: Completion) {
        self.told.add(new, |last, is_full| {
            let joins = last.is_copied == new.is_copied || is_full;
            if joins {
                last.join(new);
            }
            joins
        });
    }

    /// Notes that all bytes before `position` have arrived. Returns whether that is news.
    fn arrived(&mut self, position: u64) -> bool {
        let mut any = false;
        while self.awaited.first().is_some_and(|it| it.end <= position) {
            if let Some(Awaited { calls, .. }) = self.awaited.take() {
                self.tell(calls);
                any = true;
            }
        }
        any
    }

    /// Notes a call with bytes before `end`.
    fn note(&mut self, end: u64, is_copied: bool) {
        let calls = Completion {
            first: self.next,
            last: self.next,
            is_copied,
        };
        self.next = self.next.wrapping_add(1);
        let new = Awaited { calls, end };
        self.awaited.add(new, |last, is_full| {
            if is_full {
                last.calls.join(calls);
                last.end = end;
            }
            is_full
        });
    }
}

impl Stream {
    /// Notes that `bytes` more bytes have arrived. Returns whether a call is to be told.
    pub(super) fn note_arrived(&self, chain: &mut Chain<StreamState>, bytes: usize) -> bool {
        chain.state.arrived += bytes as u64;
        let position = chain.state.arrived;
        let completions = chain.state.completions.as_mut();
        let tells = completions.is_some_and(|completions| completions.arrived(position));
        if tells {
            self.has_news.store(true, Relaxed);
        }
        tells
    }

    /// Whether a call may be told.
    pub fn has_completion(&self) -> bool {
        self.has_news.load(Relaxed)
    }

    /// Makes room for the news about a call, which is charged to `payer`.
    ///
    /// # Errors
    /// `ENOBUFS`.
    pub fn prepare_completion(&self, payer: Option<&Arc<Account>>) -> Result<()> {
        if self.queue.lock().state.completions.is_some() {
            return Ok(());
        }
        let bytes = size_of::<Completions>();
        let fresh = Completions {
            _charge: payer.map(|payer| payer.charge(Kind::Sockets, 0, bytes)),
            ..Completions::default()
        };
        let fresh = nucleus::try_box(fresh).map_err(|_| Errno::ENOBUFS)?;
        let mut chain = self.queue.lock();
        // Another thread may have been faster; its box stays.
        let spare: Option<Box<Completions>> = match chain.state.completions {
            Some(_) => Some(fresh),
            None => chain.state.completions.replace(fresh),
        };
        drop(chain);
        drop(spare);
        Ok(())
    }

    /// Notes a call that has written: it is told when its bytes have arrived, or at once where they
    /// go to a reader on this machine, which may take any time.
    pub fn await_completion(&self, is_copied: bool) {
        let tells = {
            let mut chain = self.queue.lock();
            let is_over = chain.state.broken || !self.uses_packets();
            let end = if is_over { 0 } else { chain.end() };
            let arrived = chain.state.arrived;
            let Some(completions) = &mut chain.state.completions else {
                return;
            };
            completions.note(end, is_copied || !self.uses_packets());
            let tells = completions.arrived(arrived);
            if tells {
                self.has_news.store(true, Relaxed);
            }
            tells
        };
        if tells {
            self.sender.writable.wake_all();
        }
    }

    /// Takes the news about the oldest calls.
    pub fn take_completion(&self) -> Option<Completion> {
        let mut chain = self.queue.lock();
        let told = &mut chain.state.completions.as_mut()?.told;
        let first = told.take();
        self.has_news.store(told.count > 0, Relaxed);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(completions: &mut Completions) -> alloc::vec::Vec<(u32, u32, bool)> {
        let each = core::iter::from_fn(|| completions.told.take());
        each.map(|it| (it.first, it.last, it.is_copied)).collect()
    }

    #[test]
    fn calls_are_told_in_ranges_when_their_bytes_have_arrived() {
        let mut completions = Completions {
            next: u32::MAX - 1,
            ..Completions::default()
        };
        for (end, is_copied) in [(10, false), (20, false), (20, true), (30, false)] {
            completions.note(end, is_copied);
        }
        assert!(!completions.arrived(9));
        assert!(completions.arrived(19));
        assert_eq!(
            told(&mut completions),
            [(u32::MAX - 1, u32::MAX - 1, false)]
        );
        assert!(completions.arrived(30));
        let rest = [(u32::MAX, u32::MAX, false), (0, 0, true), (1, 1, false)];
        assert_eq!(told(&mut completions), rest);
    }

    /// Neither a peer that acknowledges nothing nor a program that asks for nothing takes more.
    #[test]
    fn many_calls_share_an_entry() {
        let mut completions = Completions::default();
        for call in 0..1000 {
            completions.note(call + 1, false);
        }
        assert!(!completions.arrived(0));
        assert_eq!(completions.awaited.count, MOST);
        // The last entry is for all that followed.
        assert!(completions.arrived(999));
        assert_eq!(told(&mut completions), [(0, MOST as u32 - 2, false)]);
        assert!(completions.arrived(1000));
        assert_eq!(told(&mut completions), [(MOST as u32 - 1, 999, false)]);
        for call in 0..1000 {
            completions.note(0, call % 2 == 0);
            completions.arrived(0);
        }
        let told = told(&mut completions);
        assert_eq!(told.len(), MOST);
        assert_eq!(told[MOST - 1], (1000 + MOST as u32 - 1, 1999, true));
    }
}
