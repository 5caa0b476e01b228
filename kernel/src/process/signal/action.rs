//! The actions of a process on signals (`sigaction`).

use alloc::sync::Arc;

use abi::raw::general as raw;
use nucleus::{
    speculation,
    sync::{Rank, SpinLock},
};

use super::SignalSet;

/// `SIG_DFL` as a handler's address.
pub const DEFAULT: u64 = 0;
/// `SIG_IGN` as a handler's address.
pub const IGNORE: u64 = 1;

/// The flags that are kept. As on Linux, others are dropped, so that a program can ask which there
/// are.
const KNOWN_FLAGS: u64 = raw::SA_NOCLDSTOP as u64
    | raw::SA_NOCLDWAIT as u64
    | raw::SA_SIGINFO as u64
    | raw::SA_EXPOSE_TAGBITS as u64
    | raw::SA_RESTORER as u64
    | raw::SA_ONSTACK as u64
    | raw::SA_RESTART as u64
    | raw::SA_NODEFER as u64
    | raw::SA_RESETHAND as u64;

/// One signal's action, as `rt_sigaction` exchanges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// [`DEFAULT`], [`IGNORE`], or the address of a function.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where a handler returns to.
    pub restorer: u64,
    /// Blocked while the handler runs.
    pub mask: SignalSet,
    /// It was set by a 32-bit call: the handler is 32-bit code.
    pub compatible: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Ignore,
    Stop,
    Terminate,
}

impl Action {
    /// From the words of `struct kernel_sigaction`.
    pub fn decode(words: [u64; 4]) -> Action {
        Action {
            handler: words[0],
            flags: words[1] & KNOWN_FLAGS,
            restorer: words[2],
            mask: SignalSet(words[3]).without(SignalSet::UNSTOPPABLE),
            compatible: false,
        }
    }

    /// The words of `struct kernel_sigaction`.
    pub fn encode(&self) -> [u64; 4] {
        [self.handler, self.flags, self.restorer, self.mask.0]
    }

    /// Whether a flag (`SA_*`) is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag as u64 != 0
    }

    /// Whether `signal` with this action does nothing.
    pub fn ignores(&self, signal: u32) -> bool {
        self.handler == IGNORE || (self.handler == DEFAULT && SignalSet::IGNORED.has(signal))
    }
}

pub fn default_of(signal: u32) -> Fate {
    if SignalSet::IGNORED.has(signal) {
        Fate::Ignore
    } else if SignalSet::STOPS.has(signal) {
        Fate::Stop
    } else {
        Fate::Terminate
    }
}

/// The actions of a process, or of several (`CLONE_SIGHAND`).
pub struct Actions {
    table: SpinLock<[Action; 64]>,
}

/// The place of `signal`, 1 to 64, which a program chose.
fn place(signal: u32) -> usize {
    speculation::mask_index(signal as usize - 1, 64)
}

impl Actions {
    pub fn new() -> Arc<Actions> {
        Arc::new(Actions {
            table: SpinLock::new(Rank::Leaf, [Action::default(); 64]),
        })
    }

    /// The action of `signal`, 1 to 64.
    pub fn get(&self, signal: u32) -> Action {
        self.table.lock()[place(signal)]
    }

    /// Sets the action of `signal` and returns the old one.
    pub fn set(&self, signal: u32, action: Action) -> Action {
        core::mem::replace(&mut self.table.lock()[place(signal)], action)
    }

    /// A copy; with `reset`, handlers become the default (`CLONE_CLEAR_SIGHAND`).
    pub fn duplicate(&self, reset: bool) -> Arc<Actions> {
        let mut table = *self.table.lock();
        if reset {
            reset_handlers(&mut table);
        }
        Arc::new(Actions {
            table: SpinLock::new(Rank::Leaf, table),
        })
    }

    /// `execve`: handlers become the default; ignored signals stay ignored.
    pub fn reset(&self) {
        reset_handlers(&mut self.table.lock());
    }

    /// The signals that are ignored, and those that have a handler (`/proc/PID/status`).
    pub fn ignored_and_caught(&self) -> (SignalSet, SignalSet) {
        let table = self.table.lock();
        let mut ignored = SignalSet::EMPTY;
        let mut caught = SignalSet::EMPTY;
        for (at, action) in table.iter().enumerate() {
            let one = SignalSet::one(at as u32 + 1);
            match action.handler {
                DEFAULT => {}
                IGNORE => ignored = ignored.union(one),
                _ => caught = caught.union(one),
            }
        }
        (ignored, caught)
    }

    /// Whether a child's end needs no `wait`: `SIGCHLD` is ignored or has `SA_NOCLDWAIT`; and
    /// whether no signal is wanted for stops (`SA_NOCLDSTOP`).
    pub fn child_rules(&self) -> ChildRules {
        let action = self.get(raw::SIGCHLD);
        ChildRules {
            ignored: action.handler == IGNORE,
            no_zombies: action.handler == IGNORE || action.has(raw::SA_NOCLDWAIT),
            no_stops: action.handler == IGNORE || action.has(raw::SA_NOCLDSTOP),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ChildRules {
    pub ignored: bool,
    pub no_zombies: bool,
    pub no_stops: bool,
}

fn reset_handlers(table: &mut [Action; 64]) {
    for action in table.iter_mut() {
        let handler = match action.handler {
            IGNORE => IGNORE,
            _ => DEFAULT,
        };
        *action = Action {
            handler,
            ..Action::default()
        };
    }
}
