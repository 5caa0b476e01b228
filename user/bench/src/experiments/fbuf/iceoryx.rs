//! Messages by iceoryx2, shared-memory middleware, which needs the kernel for waking only: samples
//! of a publisher, and events where the other program sleeps.

use std::error::Error;
use std::mem::MaybeUninit;
use std::{hint, io};

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::Crossing;
use crate::Failure;
use crate::movement::{Order, PAGE, Peer, wrong};

/// The acts of the other program.
const ATTACH: u8 = 0;
const RECEIVE: u8 = 1;

type Answer<T> = Result<T, Box<dyn Error>>;

fn failed(why: impl std::fmt::Debug) -> io::Error {
    wrong(format!("iceoryx2: {why:?}"))
}

/// One side: what it publishes, and what it subscribes to.
struct Side {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
    /// Whether it looks for samples without sleeping.
    polls: bool,
    _node: Node<ipc::Service>,
}

impl Side {
    /// Opens the services of a pair of programs; `own` names what this one sends.
    fn open(pair: u32, [own, other]: [&str; 2], size: usize, polls: bool) -> Answer<Side> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new()
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<ipc::Service>()?;
        let samples = |of: &str| -> Answer<_> {
            let name = format!("{pair}/{of}").as_str().try_into()?;
            let service = node.service_builder(&name).publish_subscribe::<[u8]>();
            Ok(service.open_or_create()?)
        };
        let events = |of: &str| -> Answer<_> {
            let name = format!("{pair}/{of}").as_str().try_into()?;
            Ok(node.service_builder(&name).event().open_or_create()?)
        };
        let sent = samples(own)?;
        let publisher = sent.publisher_builder().initial_max_slice_len(size);
        Ok(Side {
            publisher: publisher.create()?,
            subscriber: samples(other)?.subscriber_builder().create()?,
            notifier: events(own)?.notifier_builder().create()?,
            listener: events(other)?.listener_builder().create()?,
            polls,
            _node: node,
        })
    }

    /// Sends a message with a stamp in each page.
    fn send(&self, size: usize, number: u64) -> io::Result<()> {
        let mut sample = self.publisher.loan_slice_uninit(size).map_err(failed)?;
        for page in sample.payload_mut().chunks_mut(PAGE) {
            let stamp = number.to_le_bytes().map(MaybeUninit::new);
            let len = stamp.len().min(page.len());
            page[..len].copy_from_slice(&stamp[..len]);
        }
        // SAFETY: bytes have no invalid values, and the memory is shared, which is zeroed at first.
        let sample = unsafe { sample.assume_init() };
        sample.send().map_err(failed)?;
        match self.polls {
            true => Ok(()),
            false => self.notifier.notify().map(drop).map_err(failed),
        }
    }

    /// Receives a message, and reads the stamp of each page.
    fn receive(&self, number: u64) -> io::Result<()> {
        let sample = loop {
            if let Some(sample) = self.subscriber.receive().map_err(failed)? {
                break sample;
            }
            match self.polls {
                true => hint::spin_loop(),
                false => {
                    let waited = self.listener.blocking_wait(|_| {});
                    waited.map_err(failed)?;
                }
            }
        };
        for page in sample.payload().chunks(PAGE) {
            let len = page.len().min(8);
            if page[..len] != number.to_le_bytes()[..len] {
                return Err(wrong(format!("message {number} has {:x?}", &page[..len])));
            }
        }
        Ok(())
    }
}

/// A pair of programs.
pub(super) struct BySamples {
    side: Side,
    peer: Peer,
    size: usize,
    number: u64,
}

impl BySamples {
    pub(super) fn start(size: usize, cpu: usize) -> Result<Self, Failure> {
        let pair = std::process::id();
        let polls = cpu != 0;
        let open = move |names| Side::open(pair, names, size, polls).map_err(failed);
        let (mut side, mut number) = (None, 0);
        let mut peer = Peer::start(cpu, move |order: Order| {
            if order.act == ATTACH {
                side = Some(open(["answers", "requests"])?);
            }
            let Some(side) = &side else {
                return Ok(());
            };
            for _ in 0..order.count {
                side.receive(number)?;
                side.send(1, number)?;
                number += 1;
            }
            Ok(())
        })?;
        let mut side = None;
        peer.with(ATTACH, 0, || {
            side = Some(open(["requests", "answers"])?);
            Ok(())
        })?;
        let side = side.ok_or("no services")?;
        Ok(Self {
            side,
            peer,
            size,
            number: 0,
        })
    }
}

impl Crossing for BySamples {
    fn send(&mut self, count: u64) -> Result<(), Failure> {
        let (side, number, size) = (&self.side, &mut self.number, self.size);
        self.peer.with(RECEIVE, count, || {
            for _ in 0..count {
                side.send(size, *number)?;
                side.receive(*number)?;
                *number += 1;
            }
            Ok(())
        })
    }
}
