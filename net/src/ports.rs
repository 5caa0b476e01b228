//! Ports: the bindings of a protocol, and Linux's rules for sharing a port.

use alloc::collections::{BTreeMap, btree_map::Entry};
use core::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU64,
};

use abi::{Errno, Result};
use nucleus::random;

use crate::ip::Cover;

/// Ports that the stack chooses: Linux's `ip_local_port_range`.
pub const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;

/// The options of a socket on which its name depends.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct NameOptions {
    pub reuse_address: bool,
    pub reuse_port: bool,
    /// An IPv6 socket excludes IPv4.
    pub v6_only: bool,
    /// The number of the only interface that its packets use (`SO_BINDTODEVICE`); 0 for all.
    pub interface: u32,
    /// The user that created the socket.
    pub user: u32,
    /// The inode number that the kernel gave the socket.
    pub tag: u64,
}

impl NameOptions {
    /// Returns what binding to an address holds.
    pub fn binding(&self, ip: IpAddr) -> Binding {
        Binding {
            cover: Cover::of(ip, self.v6_only),
            reuse_address: self.reuse_address,
            reuse_port: self.reuse_port,
            interface: self.interface,
            user: self.user,
            listening: false,
            automatic: false,
        }
    }
}

/// One socket's hold on a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Binding {
    pub cover: Cover,
    /// `SO_REUSEADDR` at the time of binding.
    pub reuse_address: bool,
    /// `SO_REUSEPORT` at the time of binding.
    pub reuse_port: bool,
    /// The number of its only interface; 0 for all.
    pub interface: u32,
    /// The owner: only sockets of one user share a port by `SO_REUSEPORT`.
    pub user: u32,
    /// Accepts connections.
    pub listening: bool,
    /// The port was chosen by `connect`: connections to other peers may share it.
    pub automatic: bool,
}

/// The rule by which two sockets may share a port although their addresses overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// `SO_REUSEADDR` on both suffices, unless the bound one listens (TCP).
    UnlessListening,
    /// `SO_REUSEADDR` on both suffices (UDP).
    Always,
}

/// The bindings of one protocol.
pub struct Ports {
    rule: Rule,
    /// By port and number of the binding.
    bound: BTreeMap<(u16, u64), Bound>,
    /// The number of holds.
    holds: usize,
    /// The number of the last binding.
    last: NonZeroU64,
    /// Random bits for the beginnings of searches: a word is enough for several.
    bits: u64,
}

/// A binding and its holders.
struct Bound {
    binding: Binding,
    /// The sockets that hold it: several only if these are accepted connections.
    holders: u32,
    /// The holders are accepted connections: only these share a binding, and none listens.
    is_accepted: bool,
}

/// Bindings of a port, the latest first, among which an accepted connection looks for one to
/// share: those of one listener differ only by the address of this machine.
const SHARE_SCAN: usize = 8;

/// A port and the number of the hold on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Hold {
    pub port: u16,
    number: NonZeroU64,
}

impl Hold {
    /// Returns the place of the binding.
    fn key(self) -> (u16, u64) {
        (self.port, self.number.get())
    }
}

impl Ports {
    /// An empty set of bindings.
    pub const fn new(rule: Rule) -> Ports {
        Ports {
            rule,
            bound: BTreeMap::new(),
            holds: 0,
            last: NonZeroU64::MIN,
            bits: 0,
        }
    }

    /// Returns a random place among the ports that the stack may choose.
    fn begin(&mut self) -> usize {
        // Above the random bits there is a one.
        if self.bits < 1 << 16 {
            self.bits = random::u64() >> 15 | 1 << 48;
        }
        let piece = (self.bits & 0xffff) as usize;
        let begin = (piece * EPHEMERAL.len()) >> 16;
        self.bits >>= 16;
        begin
    }

    /// Returns the bindings of a port.
    fn of(&self, port: u16) -> impl Iterator<Item = (u64, &Binding)> {
        let range = self.bound.range((port, 0)..=(port, u64::MAX));
        range.map(|(key, bound)| (key.1, &bound.binding))
    }

    /// Tells whether `new` can't share `port` with its bindings; `except` is its own hold.
    fn conflicts(&self, port: u16, new: &Binding, except: Option<Hold>) -> bool {
        self.of(port).any(|(number, old)| {
            if except.is_some_and(|own| own.number.get() == number)
                || !old.cover.overlaps(&new.cover)
            {
                return false;
            }
            // Sockets of different interfaces do not meet.
            if old.interface != new.interface && old.interface != 0 && new.interface != 0 {
                return false;
            }
            let by_address = old.reuse_address
                && new.reuse_address
                && (self.rule == Rule::Always || !old.listening);
            let by_port = old.reuse_port && new.reuse_port && old.user == new.user;
            !by_address && !by_port
        })
    }

    /// Adds a socket at a port, whatever others hold it.
    fn add(&mut self, port: u16, binding: Binding) -> Hold {
        self.add_bound(port, binding, false)
    }

    /// Adds an accepted connection, which shares its listener's port. Connections with the same
    /// binding share that too.
    pub fn add_accepted(&mut self, port: u16, binding: Binding) -> Hold {
        let bound = self.bound.range_mut((port, 0)..=(port, u64::MAX));
        let mut latest = bound.rev().take(SHARE_SCAN);
        let shared = latest.find(|(_, bound)| {
            bound.is_accepted && bound.binding == binding && bound.holders < u32::MAX
        });
        if let Some((&(_, number), bound)) = shared
            && let Some(number) = NonZeroU64::new(number)
        {
            bound.holders += 1;
            self.holds += 1;
            return Hold { port, number };
        }
        self.add_bound(port, binding, true)
    }

    fn add_bound(&mut self, port: u16, binding: Binding, is_accepted: bool) -> Hold {
        let number = self.last.saturating_add(1);
        self.last = number;
        self.holds += 1;
        let bound = Bound {
            binding,
            holders: 1,
            is_accepted,
        };
        self.bound.insert((port, number.get()), bound);
        Hold { port, number }
    }

    /// Takes `port`.
    ///
    /// # Errors
    /// `EADDRINUSE`.
    pub fn bind(&mut self, port: u16, binding: Binding) -> Result<Hold> {
        if self.conflicts(port, &binding, None) {
            return Err(Errno::EADDRINUSE);
        }
        Ok(self.add(port, binding))
    }

    /// Takes the port of `name` for a socket with `options`, or any if that is 0. `None` if the
    /// search is to go on.
    ///
    /// # Errors
    /// `EADDRINUSE`.
    pub fn bind_name(
        &mut self,
        name: SocketAddr,
        options: &NameOptions,
        search: &mut Search,
    ) -> Result<Option<Hold>> {
        let binding = options.binding(name.ip());
        match name.port() {
            0 => self.bind_any(binding, search),
            port => self.bind(port, binding).map(Some),
        }
    }

    /// Takes a port without conflicts. `None` if the search is to go on.
    ///
    /// # Errors
    /// `EADDRINUSE` when none is left.
    pub fn bind_any(&mut self, binding: Binding, search: &mut Search) -> Result<Option<Hold>> {
        // The search ignores the rules of sharing: a program does not expect a shared port here.
        let alone = Binding {
            reuse_address: false,
            reuse_port: false,
            ..binding
        };
        for port in search.step(self) {
            if !self.conflicts(port, &alone, None) {
                return Ok(Some(self.add(port, binding)));
            }
        }
        search.go_on(Errno::EADDRINUSE)
    }

    /// Takes a port for a connection of `connect`: one that no `bind` has and for which `free`
    /// returns true, which checks that the pair of addresses is unused. `None` if the search is to
    /// go on.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when none is left.
    pub fn bind_connection(
        &mut self,
        binding: Binding,
        search: &mut Search,
        mut free: impl FnMut(u16) -> bool,
    ) -> Result<Option<Hold>> {
        for port in search.step(self) {
            let taken = self.of(port).any(|(_, old)| !old.automatic);
            if !taken && free(port) {
                return Ok(Some(self.add(port, binding)));
            }
        }
        search.go_on(Errno::EADDRNOTAVAIL)
    }

    /// Marks the holder as listening.
    ///
    /// # Errors
    /// `EADDRINUSE`: another socket listens there.
    pub fn listen(&mut self, hold: Hold) -> Result<()> {
        let Some(old) = self.bound.get(&hold.key()) else {
            return Err(Errno::EINVAL);
        };
        let new = Binding {
            listening: true,
            ..old.binding
        };
        if self.conflicts(hold.port, &new, Some(hold)) {
            return Err(Errno::EADDRINUSE);
        }
        let kept = self.change(hold, |binding| *binding = new);
        debug_assert_eq!(kept, hold, "an accepted connection listens");
        Ok(())
    }

    /// Changes a binding: its flags, or the address that a connection has fixed. Returns the hold
    /// on it, which is another one if others share the old one.
    #[must_use]
    pub fn change(&mut self, hold: Hold, change: impl FnOnce(&mut Binding)) -> Hold {
        let Some(bound) = self.bound.get_mut(&hold.key()) else {
            return hold;
        };
        if bound.holders == 1 {
            change(&mut bound.binding);
            return hold;
        }
        bound.holders -= 1;
        self.holds -= 1;
        let mut binding = bound.binding;
        change(&mut binding);
        self.add_accepted(hold.port, binding)
    }

    /// Releases a port.
    pub fn release(&mut self, hold: Hold) {
        if let Entry::Occupied(mut bound) = self.bound.entry(hold.key()) {
            self.holds -= 1;
            match bound.get().holders {
                1 => drop(bound.remove()),
                _ => bound.get_mut().holders -= 1,
            }
        }
    }

    /// Returns the number of holds.
    pub fn count(&self) -> usize {
        self.holds
    }
}

/// Ports that one step of a search looks at.
pub const STEP: usize = 256;

/// A search among the ports that the stack may choose, in steps: the caller releases the lock of
/// the bindings between two.
pub struct Search {
    /// The first port that was looked at, as a place among all, once one was.
    start: Option<usize>,
    /// How many were.
    seen: usize,
}

impl Search {
    /// Begins a search at a random port.
    pub fn new() -> Search {
        Search {
            start: None,
            seen: 0,
        }
    }

    /// Returns the ports of the next step.
    fn step(&mut self, ports: &mut Ports) -> impl Iterator<Item = u16> + use<> {
        let (first, count) = (*EPHEMERAL.start(), EPHEMERAL.len());
        let (begin, start) = (self.seen, *self.start.get_or_insert_with(|| ports.begin()));
        self.seen = count.min(begin + STEP);
        (begin..self.seen).map(move |at| first + ((start + at) % count) as u16)
    }

    /// Returns what a step without success returns: `error` behind the last one.
    fn go_on(&self, error: Errno) -> Result<Option<Hold>> {
        match self.seen < EPHEMERAL.len() {
            true => Ok(None),
            false => Err(error),
        }
    }
}

impl Default for Search {
    fn default() -> Search {
        Search::new()
    }
}

/// Repeats a step of a search until it is over.
///
/// # Errors
/// Those of the step.
pub(crate) fn search<T>(mut step: impl FnMut(&mut Search) -> Result<Option<T>>) -> Result<T> {
    let mut search = Search::new();
    loop {
        if let Some(found) = step(&mut search)? {
            return Ok(found);
        }
    }
}
