//! Virtio devices (virtio 1.1): found on the PCI bus, reached by requests.
//!
//! A driver, which lives floors above, takes the devices of its [kind](Kind) by [`take`], starts
//! each with the features that it knows, and gives [`Request`]s to their [`Queue`]s: chains of
//! [parts](crate::dma::Part) of frames, as many in flight as the queue has slots. The device reads
//! and writes the frames themselves; nothing is copied on the way. A task that waits for a request
//! sleeps on its wait queue, which the device's interrupt wakes.

mod queue;
mod request;
mod rings;
#[cfg(not(target_os = "none"))]
pub mod simulated;
#[cfg(target_os = "none")]
mod transport;

use alloc::{sync::Arc, vec::Vec};

pub use queue::Queue;
pub use request::Request;

use crate::{
    dma::{Attachment, Pool},
    lock::SpinLock,
    task::WaitQueue,
};

/// What a device is: the numbers of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Kind {
    Network = 1,
    Block = 2,
    Console = 3,
    Entropy = 4,
    /// A 9P server.
    Files = 9,
}

/// Why something was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// All slots are taken.
    Full,
    /// The request has too many parts.
    TooLong,
    /// The device broke the protocol, or refused it.
    Broken,
    /// The device lacks something that is needed: what.
    Lacks(&'static str),
    /// No memory.
    OutOfMemory,
}

impl From<crate::OutOfMemory> for Error {
    fn from(_: crate::OutOfMemory) -> Error {
        Error::OutOfMemory
    }
}

/// How often a device is started at most. Each start keeps its rings, its registers' addresses and,
/// where no unit stands before the device, what the device may still write to.
pub const MOST_STARTS: usize = 4;

/// A device that was found and has no other owner; it does nothing yet, or no more.
pub struct Found {
    #[cfg(target_os = "none")]
    function: transport::Owned,
    #[cfg(not(target_os = "none"))]
    script: Arc<simulated::Script>,
    #[cfg(not(target_os = "none"))]
    starts: usize,
}

/// How many queues a device is started with, and what each of them takes.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// How many.
    pub count: u16,
    /// The most slots of each.
    pub slots: usize,
    /// The messages by which they interrupt, at least 1, as far as the device has so many: group
    /// `n` has message `n`, and where there are fewer, groups share them in turn.
    pub messages: u16,
    /// Queues of a group, which follow each other; at least 1.
    pub group: u16,
}

/// Copies bytes from an offset on out of the configuration of a device that begins to work.
pub type ReadConfig<'a> = &'a dyn Fn(usize, &mut [u8]) -> Result<(), Error>;

impl Queues {
    /// As many queues, each as large as the device lets it be and with a message of its own.
    pub const fn of_their_own(count: u16) -> Queues {
        Queues {
            count,
            slots: rings::MAX_SLOTS,
            messages: count,
            group: 1,
        }
    }
}

/// A device that runs.
pub struct Device {
    /// Dropped first, which resets the device: its rings and requests may go after that.
    #[cfg(target_os = "none")]
    registers: transport::Registers,
    queues: Vec<Arc<Queue>>,
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    domain: Arc<Attachment>,
    features: u64,
    /// Woken when the device has changed its configuration.
    changes: Arc<WaitQueue>,
    /// The device itself, until it is taken to be started again.
    #[cfg(target_os = "none")]
    function: SpinLock<Option<transport::Owned>>,
    #[cfg(not(target_os = "none"))]
    script: Arc<simulated::Script>,
    #[cfg(not(target_os = "none"))]
    starts: SpinLock<Option<usize>>,
}

/// The devices of a kind that were not taken before, in the order of their places on the bus.
pub fn take(kind: Kind) -> Vec<Found> {
    #[cfg(target_os = "none")]
    {
        let wanted = transport::of_kind(kind);
        let taken = crate::dev::pci::take(wanted);
        taken
            .into_iter()
            .map(|function| Found {
                function: transport::Owned::new(function),
            })
            .collect()
    }
    #[cfg(not(target_os = "none"))]
    {
        let _ = kind;
        Vec::new()
    }
}

impl Found {
    /// Starts the device with those of the features `wanted` that it offers, and with `queues`
    /// queues that share nothing.
    ///
    /// # Errors
    /// As [`start_with`](Found::start_with).
    pub fn start(self, wanted: u64, queues: u16) -> Result<Device, Error> {
        self.start_with(wanted, Queues::of_their_own(queues))
    }

    /// Starts the device with those of the features `wanted` that it offers, and with these queues.
    ///
    /// # Errors
    /// [`Error::Lacks`], [`Error::Broken`], [`Error::OutOfMemory`]; the device does nothing then.
    pub fn start_with(self, wanted: u64, queues: Queues) -> Result<Device, Error> {
        self.start_chosen(|_, _| Ok((wanted, queues)))
    }

    /// Starts the device with the features and queues that `choose` makes of the features that it
    /// offers and its configuration.
    ///
    /// # Errors
    /// As [`start_with`](Found::start_with), and those of `choose`.
    pub fn start_chosen(
        self,
        choose: impl FnOnce(u64, ReadConfig<'_>) -> Result<(u64, Queues), Error>,
    ) -> Result<Device, Error> {
        #[cfg(target_os = "none")]
        {
            transport::start(self.function, choose)
        }
        #[cfg(not(target_os = "none"))]
        {
            simulated::start(self.script, self.starts, choose)
        }
    }
}

impl Device {
    /// The features that both sides know.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Queue `number`, less than were asked for at [`start`](Found::start).
    pub fn queue(&self, number: u16) -> &Arc<Queue> {
        &self.queues[number as usize]
    }

    /// How many queues there are.
    pub fn queue_count(&self) -> u16 {
        self.queues.len() as u16
    }

    /// Woken when the device says that its configuration has changed. Without a message to spare it
    /// never is.
    pub fn changes(&self) -> &Arc<WaitQueue> {
        &self.changes
    }

    /// Resets the device, which breaks its promises, and fails all requests, now and later. A unit
    /// keeps it from memory from now on; without one, what it could write to is never free again.
    pub fn give_up(&self, why: &str) {
        #[cfg(target_os = "none")]
        self.registers.reset();
        for queue in &self.queues {
            queue.give_up(why);
        }
    }

    /// Takes the device, which was [given up](Device::give_up), to be started again; `None` if that
    /// was not done, if it was taken before, or if it was started [`MOST_STARTS`] times. Its owner
    /// keeps this one: what it consists of is never free again, as the device may go on using it.
    pub fn take_again(&self) -> Option<Found> {
        if !self.queues.iter().all(|queue| queue.is_broken()) {
            return None;
        }
        #[cfg(target_os = "none")]
        {
            let function = self.function.lock().take()?;
            function.may_start().then_some(Found { function })
        }
        #[cfg(not(target_os = "none"))]
        {
            let starts = self.starts.lock().take()?;
            let script = self.script.clone();
            (starts < MOST_STARTS).then_some(Found { script, starts })
        }
    }

    /// Makes a pool whose frames, up to `keep`, stay mapped for the device.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::OutOfMemory).
    pub fn pool(&self, keep: usize) -> Result<Arc<Pool>, crate::OutOfMemory> {
        Pool::in_domain(keep, Some(self.domain.clone()))
    }

    /// Copies bytes from `offset` on out of the device's configuration.
    ///
    /// # Errors
    /// [`Error::Lacks`] if it has not so many.
    pub fn read_config(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        #[cfg(target_os = "none")]
        {
            self.registers.read_config(offset, to)
        }
        #[cfg(not(target_os = "none"))]
        {
            self.script.read_config(offset, to)
        }
    }
}
