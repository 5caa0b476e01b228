//! Membership in groups: which ones are joined on which interface, and what queries of routers and
//! switches ask of it.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};
use nucleus::{
    frame,
    sync::{SpinLock, lock_with_room},
};

use super::{
    Family,
    input::Received,
    interface::{Interface, LOOPBACK},
    network::Network,
    reports::{self, Membership},
};
use crate::{packet::Sum, timer::now};

/// The most groups of all interfaces that sockets join and the link is told of, and those of them
/// that sockets of an ordinary user were the first to join.
const MOST: usize = 1024;
const MOST_OF_ONE: usize = 256;
/// Types of messages of IGMP, and of ICMP for IPv6.
const QUERY: u8 = 0x11;
pub(super) const LISTENER_QUERY: u8 = 130;
/// Bytes of queries of IGMP version 3 and MLD version 2, which are longer than those before.
const QUERY_V3: usize = 12;
const LISTENER_QUERY_V2: usize = 28;

/// Groups by interface, in order.
pub(super) type Groups = Vec<(Key, Members)>;

/// The number of an interface, and a group.
type Key = (u32, IpAddr);

/// The members of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members {
    count: u32,
    /// The user whose socket was the first one.
    user: u32,
}

/// Returns the place of a group, or the one that it would have.
fn find(groups: &Groups, key: &Key) -> core::result::Result<usize, usize> {
    groups.binary_search_by(|(other, _)| other.cmp(key))
}

/// Adds a member to a group that has some; returns whether it has.
fn join_others(groups: &mut Groups, key: &Key) -> bool {
    let at = find(groups, key);
    if let Ok(at) = at {
        groups[at].1.count += 1;
    }
    at.is_ok()
}

/// Adds a member; returns whether it is the first one.
///
/// # Errors
/// `ENOBUFS` if there are too many groups, `ENOMEM`.
fn join(groups: &SpinLock<Groups>, key: Key, by: Joining) -> Result<bool> {
    if join_others(&mut groups.lock(), &key) {
        return Ok(false);
    }
    let mut groups = lock_with_room(groups)?;
    if join_others(&mut groups, &key) {
        return Ok(false);
    }
    let user = match by {
        Joining::Own => 0,
        Joining::Socket(user) => {
            let own = groups.iter().filter(|(_, members)| members.user == user);
            if groups.len() >= MOST || user != 0 && own.count() >= MOST_OF_ONE {
                return Err(Errno::ENOBUFS);
            }
            frame::check_not_scarce()?;
            user
        }
    };
    let at = find(&groups, &key).unwrap_or_else(|place| place);
    groups.insert(at, (key, Members { count: 1, user }));
    Ok(true)
}

/// Removes a member; returns whether it was the last one.
fn leave(groups: &mut Groups, key: &Key) -> bool {
    let Ok(at) = find(groups, key) else {
        return false;
    };
    groups[at].1.count -= 1;
    let is_last = groups[at].1.count == 0;
    if is_last {
        groups.remove(at);
    }
    is_last
}

/// Returns the first group behind a key, or of all, with its number of members.
fn behind(groups: &Groups, key: Option<&Key>) -> Option<(Key, u32)> {
    let at = match key.map(|key| find(groups, key)) {
        None => 0,
        Some(Ok(at)) => at + 1,
        Some(Err(at)) => at,
    };
    groups.get(at).map(|(key, members)| (*key, members.count))
}

/// A member of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joining {
    /// An interface's address. There are few: addresses are limited.
    Own,
    /// A socket of this user.
    Socket(u32),
}

impl Network {
    /// Returns the number of the interface on which a group is joined; 0 leaves that to the routes.
    pub(crate) fn interface_for(&self, group: IpAddr, interface: u32) -> u32 {
        match interface {
            0 => self
                .route(group)
                .map_or(LOOPBACK, |route| route.interface.index()),
            index => index,
        }
    }

    /// Notes that a socket of a user has joined a group on an interface. The link is told of the
    /// first one.
    ///
    /// # Errors
    /// `ENOBUFS` if there are too many groups, or too many of this user, `ENOMEM`: the link is not
    /// told, and nothing is to be left.
    pub(crate) fn join(&self, group: IpAddr, index: u32, user: u32) -> Result<()> {
        self.join_by(Joining::Socket(user), group, index)
    }

    /// Joins the group of an address, for which the caller has made room.
    pub(super) fn join_own(&self, group: IpAddr, index: u32) {
        let _ = self.join_by(Joining::Own, group, index);
    }

    fn join_by(&self, by: Joining, group: IpAddr, index: u32) -> Result<()> {
        let is_first = join(&self.groups, (index, group), by)?;
        if is_first && let Some(interface) = self.interface(index) {
            self.tell_of_group(&interface, group, Membership::Begins);
        }
        Ok(())
    }

    /// Notes that a socket has left a group.
    pub(crate) fn leave(&self, group: IpAddr, index: u32) {
        let is_last = leave(&mut self.groups.lock(), &(index, group));
        if is_last && let Some(interface) = self.interface(index) {
            self.tell_of_group(&interface, group, Membership::Ends);
        }
    }

    /// Visits the groups with their interfaces and numbers of members, in order.
    pub fn visit_groups(&self, mut visit: impl FnMut(u32, IpAddr, u32)) {
        let mut last = None;
        loop {
            let next = behind(&self.groups.lock(), last.as_ref());
            let Some((key, count)) = next else { return };
            visit(key.0, key.1, count);
            last = Some(key);
        }
    }

    /// Answers a query of IGMP.
    pub(super) fn receive_igmp(&self, interface: &Interface, packet: &Received) {
        let is_old = packet.data.len() < QUERY_V3;
        let mut message = [0; 8];
        let mut sum = Sum::default();
        sum.add_slices(&packet.data);
        if packet.data.peek(0, &mut message) < 8 || sum.finish() != 0 || message[0] != QUERY {
            return;
        }
        let asked = Ipv4Addr::new(message[4], message[5], message[6], message[7]);
        self.answer_query(interface, asked.into(), is_old);
    }

    /// Answers a query of MLD, whose checksum was verified.
    pub(super) fn receive_listener_query(&self, interface: &Interface, packet: &Received) {
        let mut message = [0; 24];
        let is_near = matches!(packet.from, IpAddr::V6(from) if from.is_unicast_link_local());
        if packet.data.peek(0, &mut message) < 24 || !is_near || packet.hops != 1 {
            return;
        }
        let mut group = [0; 16];
        group.copy_from_slice(&message[8..24]);
        let is_old = packet.data.len() < LISTENER_QUERY_V2;
        self.answer_query(interface, Ipv6Addr::from(group).into(), is_old);
    }

    /// Tells of the groups that a query asks for: one, or all. A flood of queries is answered at
    /// the rate of messages about errors.
    /// After one of an old version, reports are of that version, too.
    fn answer_query(&self, interface: &Interface, asked: IpAddr, is_old: bool) {
        if is_old {
            interface.note_old_querier(asked.is_ipv4(), now());
        }
        let mut next = Some(asked);
        if asked.is_unspecified() {
            next = self.group_behind(interface.index(), asked);
        }
        while let Some(group) = next {
            let is_joined = find(&self.groups.lock(), &(interface.index(), group)).is_ok();
            if is_joined {
                if !self.errors.lock().take(now()) {
                    return;
                }
                self.tell_of_group(interface, group, Membership::GoesOn);
            }
            if !asked.is_unspecified() {
                return;
            }
            next = self.group_behind(interface.index(), group);
        }
    }

    /// Tells an interface's link of all its groups: it is there again, or a report can have a
    /// source now.
    pub fn tell_of_groups(&self, index: u32) {
        let Some(interface) = self.interface(index) else {
            return;
        };
        for family in [Family::V4, Family::V6] {
            let mut last = family.unspecified();
            while let Some(group) = self.group_behind(index, last) {
                self.tell_of_group(&interface, group, Membership::Begins);
                last = group;
            }
        }
    }

    /// Returns the next group of an interface and of the same version of IP behind one.
    fn group_behind(&self, index: u32, last: IpAddr) -> Option<IpAddr> {
        let (key, _) = behind(&self.groups.lock(), Some(&(index, last)))?;
        (key.0 == index && key.1.is_ipv4() == last.is_ipv4()).then_some(key.1)
    }

    /// Tells the link whether this machine is a member of a group.
    fn tell_of_group(&self, interface: &Interface, group: IpAddr, what: Membership) {
        if interface.is_loopback() || !interface.is_up() {
            return;
        }
        let is_old = interface.has_old_querier(group.is_ipv4(), now());
        let Some((head, to)) = reports::write(interface, group, what, is_old) else {
            return;
        };
        // The interface may have no address yet (RFC 3590).
        if let Ok(route) = self.link(interface.index(), to) {
            self.send_made(&route, to, head, fbuf::Aggregate::new());
        }
    }
}
