//! Membership in groups: which ones are joined on which interface, and what queries of routers and
//! switches ask of it.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};
use nucleus::frame;

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

/// Groups by interface.
#[derive(Default, Debug)]
pub(super) struct Groups(BTreeMap<(u32, IpAddr), Members>);

/// The members of a group.
#[derive(Clone, Copy, Debug)]
struct Members {
    count: u32,
    /// The user whose socket was the first one.
    user: u32,
}

impl Groups {
    /// Adds a member; returns whether it is the first one.
    ///
    /// # Errors
    /// `ENOBUFS` if there are too many groups, `ENOMEM`.
    fn join(&mut self, group: (u32, IpAddr), by: Joining) -> Result<bool> {
        if let Some(members) = self.0.get_mut(&group) {
            members.count += 1;
            return Ok(false);
        }
        let user = match by {
            Joining::Own => 0,
            Joining::Socket(user) => {
                let own = self.0.values().filter(|members| members.user == user);
                if self.0.len() >= MOST || user != 0 && own.count() >= MOST_OF_ONE {
                    return Err(Errno::ENOBUFS);
                }
                frame::check_not_scarce()?;
                user
            }
        };
        self.0.insert(group, Members { count: 1, user });
        Ok(true)
    }

    /// Removes a member; returns whether it was the last one.
    fn leave(&mut self, group: (u32, IpAddr)) -> bool {
        match self.0.get_mut(&group) {
            Some(Members { count: 1, .. }) => self.0.remove(&group).is_some(),
            Some(members) => {
                members.count -= 1;
                false
            }
            None => false,
        }
    }
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

    /// Joins the group of an address.
    pub(super) fn join_own(&self, group: IpAddr, index: u32) {
        // Nothing refuses that.
        let _ = self.join_by(Joining::Own, group, index);
    }

    fn join_by(&self, by: Joining, group: IpAddr, index: u32) -> Result<()> {
        let is_first = self.groups.lock().join((index, group), by)?;
        if is_first && let Some(interface) = self.interface(index) {
            self.tell_of_group(&interface, group, Membership::Begins);
        }
        Ok(())
    }

    /// Notes that a socket has left a group.
    pub(crate) fn leave(&self, group: IpAddr, index: u32) {
        let is_last = self.groups.lock().leave((index, group));
        if is_last && let Some(interface) = self.interface(index) {
            self.tell_of_group(&interface, group, Membership::Ends);
        }
    }

    /// Visits the groups with their interfaces and numbers of members, in order.
    pub fn visit_groups(&self, mut visit: impl FnMut(u32, IpAddr, u32)) {
        let mut last = None;
        loop {
            let next = {
                let groups = self.groups.lock();
                let found = match last {
                    None => groups.0.iter().next(),
                    Some(last) => {
                        use core::ops::Bound::{Excluded, Unbounded};
                        groups.0.range((Excluded(last), Unbounded)).next()
                    }
                };
                found.map(|(key, members)| (*key, members.count))
            };
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
            let is_joined = {
                let groups = self.groups.lock();
                groups.0.contains_key(&(interface.index(), group))
            };
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
        use core::ops::Bound::{Excluded, Unbounded};
        let groups = self.groups.lock();
        let mut rest = groups.0.range((Excluded((index, last)), Unbounded));
        let (key, _) = rest.next()?;
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
