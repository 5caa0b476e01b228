//! What a message of a ring may name, which no kernel checks: memory that its sender can read
//! itself. That is
//!
//! - the sender's path to here, and the path from here that the channel gave the sender;
//! - other paths that both belong to, whose messages the sender sends on: by the device the kernel
//!   tells which they are, by memfds the program does.
//!
//! A path's addresses stay its own until this process leaves it, so that what was found once is not
//! asked again, and a message needs no system call: a sender that has left a path which it could
//! read counts as one of its readers as long as the channel lasts. It keeps the membership in each
//! path that it names.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::path::{self, Member};
use crate::region::Bytes;
use crate::space::{self, Space};

/// What keeps a path's addresses its own, and readable, for a message.
#[derive(Clone)]
pub(crate) enum Lender {
    Member(Arc<path::Inner>),
    Own(Arc<space::Inner>),
}

impl Lender {
    fn is_same(&self, other: &Lender) -> bool {
        match (self, other) {
            (Lender::Member(a), Lender::Member(b)) => Arc::ptr_eq(a, b),
            (Lender::Own(a), Lender::Own(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Whose addresses are known.
enum Owner {
    /// One of the channel's two paths, which each message holds.
    Near,
    Member(Weak<path::Inner>),
    Own(Weak<space::Inner>),
}

impl Owner {
    /// Returns what a message has to hold, or nothing if it holds it anyway; `None` if this process
    /// has left the path.
    fn lender(&self) -> Option<Option<Lender>> {
        match self {
            Owner::Near => Some(None),
            Owner::Member(it) => it.upgrade().map(|it| Some(Lender::Member(it))),
            Owner::Own(it) => it.upgrade().map(|it| Some(Lender::Own(it))),
        }
    }
}

/// The addresses that a peer may name, as far as they are known.
pub(crate) struct Sources {
    /// By address.
    known: Vec<(Range<usize>, Owner)>,
    /// Where the last address was, of the channel's own paths.
    last: Range<usize>,
}

/// A program's answer which member may read an address.
pub(crate) type Lend<'a> = dyn FnMut(usize) -> Option<Member> + 'a;

impl Sources {
    /// Returns those of the paths of a channel.
    pub(crate) fn new(from: &Member, own: &Space) -> Sources {
        let mut sources = Sources {
            known: Vec::new(),
            last: 0..0,
        };
        for range in [from.range(), own.range()].into_iter().flatten() {
            sources.add(range, Owner::Near);
        }
        sources
    }

    /// Returns whether the sender, the originator of `from`, may name these bytes in a message to
    /// the originator of `own`. Adds what the message has to hold to `lenders`; asks `lend` where
    /// the kernel does not know.
    pub(crate) fn may_name(
        &mut self,
        from: &Member,
        own: &Space,
        bytes: Bytes,
        lenders: &mut Vec<Lender>,
        lend: &mut Lend<'_>,
    ) -> bool {
        if bytes.is_within(&self.last) {
            return true;
        }
        self.find(bytes, lenders)
            .unwrap_or_else(|| match from.path() {
                Some(path) => {
                    // The program may join the path now; the kernel says whether the sender can.
                    let is_known = self.ask(from, path, own, bytes) || {
                        lend(bytes.start());
                        self.ask(from, path, own, bytes)
                    };
                    is_known && self.find(bytes, lenders) == Some(true)
                }
                None => {
                    let lent = lend(bytes.start());
                    let lent = lent.filter(|it| it.range().is_some_and(|it| bytes.is_within(&it)));
                    lent.is_some_and(|it| hold(lenders, Lender::Member(it.inner)))
                }
            })
    }

    /// Looks among the known addresses; `None` where nothing is known.
    fn find(&mut self, bytes: Bytes, lenders: &mut Vec<Lender>) -> Option<bool> {
        let after = self.known.partition_point(|it| it.0.start <= bytes.start());
        let at = after.checked_sub(1)?;
        let (range, owner) = &self.known[at];
        if !bytes.is_within(range) {
            return None;
        }
        match owner.lender() {
            Some(None) => {
                self.last = range.clone();
                Some(true)
            }
            Some(Some(lender)) => Some(hold(lenders, lender)),
            None => {
                self.known.remove(at);
                None
            }
        }
    }

    /// Asks the kernel whose an address is; returns whether it is known now.
    fn ask(&mut self, from: &Member, path: u64, own: &Space, bytes: Bytes) -> bool {
        let Ok(found) = from.whose(bytes.start()) else {
            return false;
        };
        let owner = if found.path == path || found.is_own && own.has_run_at(bytes.start()) {
            Owner::Near
        } else if !found.is_senders {
            return false;
        } else if found.is_own {
            match Space::find(bytes.start()) {
                Some(space) => Owner::Own(space),
                None => return false,
            }
        } else {
            match crate::membership::Membership::find(found.path) {
                Some(member) => Owner::Member(Arc::downgrade(&member)),
                None => return false,
            }
        };
        self.add(found.addresses, owner);
        true
    }

    /// Adds addresses in the place of those that were known of them.
    fn add(&mut self, range: Range<usize>, owner: Owner) {
        let is_apart = |it: &Range<usize>| it.end <= range.start || range.end <= it.start;
        self.known.retain(|(it, _)| is_apart(it));
        let at = self.known.partition_point(|it| it.0.start < range.start);
        self.known.insert(at, (range, owner));
    }
}

fn hold(lenders: &mut Vec<Lender>, lender: Lender) -> bool {
    if !lenders.iter().any(|it| it.is_same(&lender)) {
        lenders.push(lender);
    }
    true
}
