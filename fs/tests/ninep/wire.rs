//! The way to a server made of code, which damages answers when it is told to.
#![allow(dead_code, reason = "two test programs use it")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use abi::Errno;
use fbuf::View;
use fs::ninep::{Flight, Transport};
use nucleus::{
    ephemeral,
    task::{self, Sleep, Woken},
    time,
};

use crate::{server::Server, support::Random};

/// What a server does to its answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manners {
    Honest,
    /// One answer in so many is damaged.
    Damages(usize),
    /// It is gone.
    Gone,
}

/// The way to a server.
pub struct Wire {
    pub server: Mutex<Server>,
    random: Mutex<Random>,
    manners: Mutex<Manners>,
    /// The most parts of a message.
    slices: AtomicUsize,
    messages: AtomicUsize,
}

/// An answer that arrives at a time.
struct Answer {
    head: Vec<u8>,
    total: usize,
    at: Duration,
}

impl Wire {
    pub fn new(seed: u64) -> Arc<Wire> {
        Arc::new(Wire {
            server: Mutex::new(Server::new()),
            random: Mutex::new(Random::new(seed)),
            manners: Mutex::new(Manners::Honest),
            slices: AtomicUsize::new(128),
            messages: AtomicUsize::new(0),
        })
    }

    /// From now on a message has so many parts at most.
    pub fn limit(&self, slices: usize) {
        self.slices.store(slices, Ordering::Relaxed);
    }

    /// Returns how many messages were sent.
    pub fn messages(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    pub fn behave(&self, manners: Manners) {
        *self.manners.lock().unwrap() = manners;
    }

    /// Damages an answer; gives how long the server says that it is.
    fn damage(random: &mut Random, answer: &mut Vec<u8>) -> usize {
        let flip = |random: &mut Random, answer: &mut Vec<u8>, from: usize| {
            let at = from + random.below((answer.len() - from).max(1));
            if let Some(byte) = answer.get_mut(at) {
                *byte = random.next() as u8;
            }
        };
        match random.below(9) {
            0 => answer.truncate(random.below(answer.len())),
            1 => answer.clear(),
            2 => answer.extend(random.bytes(300)),
            3 => *answer = random.bytes(300),
            // Its first bytes, by which it is known, stay in most cases.
            4 => flip(random, answer, 0),
            5 => return random.next() as u32 as usize,
            6 => {
                // A body that is cut, or goes on, with a size that fits.
                let len = 7 + random.below(2 * answer.len());
                answer.resize(len, random.next() as u8);
                answer[..4].copy_from_slice(&(len as u32).to_le_bytes());
            }
            _ => (0..1 + random.below(8)).for_each(|_| flip(random, answer, 7)),
        }
        answer.len()
    }
}

impl Transport for Wire {
    fn max_slices(&self) -> usize {
        self.slices.load(Ordering::Relaxed)
    }

    fn send(
        &self,
        message: &[u8],
        data: &[View],
        reply: usize,
        receive: &[View],
    ) -> Result<Box<dyn Flight>, Errno> {
        self.messages.fetch_add(1, Ordering::Relaxed);
        let manners = *self.manners.lock().unwrap();
        if manners == Manners::Gone {
            return Err(Errno::EIO);
        }
        let mut message = message.to_vec();
        for slice in data {
            let mut bytes = vec![0; slice.len];
            ephemeral::map(&slice.frame).read(slice.offset, &mut bytes);
            message.extend(bytes);
        }
        let mut answer = self.server.lock().unwrap().answer(&message);
        let mut random = self.random.lock().unwrap();
        let mut total = answer.len();
        if let Manners::Damages(one_in) = manners
            && random.below(one_in) == 0
        {
            total = Wire::damage(&mut random, &mut answer);
        }
        let at = time::since_boot() + Duration::from_micros(random.next() % 50);
        drop(random);
        let rest = answer.split_off(reply.min(answer.len()));
        let mut rest = &rest[..];
        for slice in receive {
            let (now, later) = rest.split_at(slice.len.min(rest.len()));
            ephemeral::map(&slice.frame).write(slice.offset, now);
            rest = later;
        }
        Ok(Box::new(Answer {
            head: answer,
            total,
            at,
        }))
    }
}

impl Flight for Answer {
    fn has_landed(&self) -> bool {
        time::since_boot() >= self.at
    }

    fn wait(&self, how: Sleep) -> Result<(), Woken> {
        let deadline = how.deadline.unwrap_or(self.at).min(self.at);
        task::sleep(Sleep {
            deadline: Some(deadline),
            ..how
        });
        match self.has_landed() {
            true => Ok(()),
            false => Err(Woken::TimedOut),
        }
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let len = self.head.len().min(to.len());
        to[..len].copy_from_slice(&self.head[..len]);
        Ok(self.total)
    }
}
