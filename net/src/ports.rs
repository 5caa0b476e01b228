//! Ports: who is bound to which, and whether another one may be (Linux's rules).

use alloc::collections::BTreeMap;

use abi::{Errno, Result};

use crate::ip::Cover;

/// Ports that the stack gives out itself: Linux's `ip_local_port_range`.
pub const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;

/// One socket's hold on a port.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub cover: Cover,
    /// `SO_REUSEADDR` at the time.
    pub reuse_address: bool,
    /// `SO_REUSEPORT` at the time.
    pub reuse_port: bool,
    /// The owner: only sockets of one user share a port by `SO_REUSEPORT`.
    pub user: u32,
    /// Accepts connections.
    pub listening: bool,
    /// The port was chosen by `connect`: other connections may have it too, to other peers.
    pub automatic: bool,
}

/// The rule by which two sockets may have a port in common although their addresses overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// `SO_REUSEADDR` on both is enough, unless the one that is there listens (TCP).
    UnlessListening,
    /// `SO_REUSEADDR` on both is enough (UDP).
    Always,
}

/// The bindings of one protocol.
pub struct Ports {
    rule: Rule,
    /// By port and number of the binding.
    bound: BTreeMap<(u16, u64), Binding>,
    /// The number of the last binding.
    last: u64,
}

/// A port and the number of the hold on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    pub port: u16,
    number: u64,
}

impl Ports {
    /// Nobody is bound.
    pub const fn new(rule: Rule) -> Ports {
        Ports {
            rule,
            bound: BTreeMap::new(),
            last: 0,
        }
    }

    /// The bindings of a port.
    fn of(&self, port: u16) -> impl Iterator<Item = (u64, &Binding)> {
        let range = self.bound.range((port, 0)..=(port, u64::MAX));
        range.map(|(key, binding)| (key.1, binding))
    }

    /// Whether `new` can't have `port` beside those that are there; `except` is its own hold.
    fn conflicts(&self, port: u16, new: &Binding, except: Option<Hold>) -> bool {
        self.of(port).any(|(number, old)| {
            if except == Some(Hold { port, number }) || !old.cover.overlaps(&new.cover) {
                return false;
            }
            let by_address = old.reuse_address
                && new.reuse_address
                && (self.rule == Rule::Always || !old.listening);
            let by_port = old.reuse_port && new.reuse_port && old.user == new.user;
            !by_address && !by_port
        })
    }

    fn add(&mut self, port: u16, binding: Binding) -> Hold {
        self.last += 1;
        self.bound.insert((port, self.last), binding);
        Hold {
            port,
            number: self.last,
        }
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

    /// Takes a port that nobody has in the way; `random` chooses where the search begins.
    ///
    /// # Errors
    /// `EADDRINUSE` when none is left.
    pub fn bind_any(&mut self, binding: Binding, random: u64) -> Result<Hold> {
        // A port that is shared would surprise whoever has it: the search leaves the rules of sharing out.
        let alone = Binding {
            reuse_address: false,
            reuse_port: false,
            ..binding
        };
        for port in ephemeral_from(random) {
            if !self.conflicts(port, &alone, None) {
                return Ok(self.add(port, binding));
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// Takes a port for a connection of `connect`: one that no `bind` has and for which `free` holds, which looks
    /// whether the pair of addresses is in use.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when none is left.
    pub fn bind_connection(
        &mut self,
        binding: Binding,
        random: u64,
        mut free: impl FnMut(u16) -> bool,
    ) -> Result<Hold> {
        for port in ephemeral_from(random) {
            let taken = self.of(port).any(|(_, old)| !old.automatic);
            if !taken && free(port) {
                return Ok(self.add(port, binding));
            }
        }
        Err(Errno::EADDRNOTAVAIL)
    }

    /// One more socket at a port that is held already: a connection that was accepted there.
    pub fn join(&mut self, port: u16, binding: Binding) -> Hold {
        self.add(port, binding)
    }

    /// Whether the holder may accept connections there.
    ///
    /// # Errors
    /// `EADDRINUSE`: another one does.
    pub fn listen(&mut self, hold: Hold) -> Result<()> {
        let Some(old) = self.bound.get(&(hold.port, hold.number)) else {
            return Err(Errno::EINVAL);
        };
        let new = Binding {
            listening: true,
            ..*old
        };
        if self.conflicts(hold.port, &new, Some(hold)) {
            return Err(Errno::EADDRINUSE);
        }
        self.bound.insert((hold.port, hold.number), new);
        Ok(())
    }

    /// Changes a binding in place: other flags, or the address that a connection has fixed.
    pub fn change(&mut self, hold: Hold, change: impl FnOnce(&mut Binding)) {
        if let Some(binding) = self.bound.get_mut(&(hold.port, hold.number)) {
            change(binding);
        }
    }

    /// Gives a port back.
    pub fn release(&mut self, hold: Hold) {
        self.bound.remove(&(hold.port, hold.number));
    }

    /// How many holds there are.
    pub fn count(&self) -> usize {
        self.bound.len()
    }
}

/// All ports that may be given out, beginning somewhere.
fn ephemeral_from(random: u64) -> impl Iterator<Item = u16> {
    let (first, count) = (*EPHEMERAL.start(), EPHEMERAL.len() as u64);
    let start = random % count;
    (0..count).map(move |i| first + ((start + i) % count) as u16)
}
