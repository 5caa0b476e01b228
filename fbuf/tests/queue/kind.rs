//! A kind of queues with either limit and with marks, and a queue whose two sides sleep.

use std::{collections::VecDeque, sync::Arc};

use abi::{Errno, Result};
use fbuf::{
    BytesSink, BytesSource, Slice, Source, View,
    queue::{Added, Chain, Drain, Fill, Queue, Slots, Space, SpareFrames, State},
};
use nucleus::task::{self, Sleep, WaitQueue};
use vm::{
    TransferCall,
    account::{Kind as Use, Stock},
};

pub const SLOTS: usize = 16;
pub const BYTES: usize = 40_000;

/// Bits of readiness.
pub const IN: u32 = 1;
pub const OUT: u32 = 2;
pub const CLOSED: u32 = 4;

/// A kind with either limit, whose reads stop at marks.
pub struct Kind {
    pub slots: usize,
    pub bytes: usize,
    pub closed: bool,
    /// Positions at which a read begins anew, in rising order.
    pub marks: VecDeque<u64>,
}

impl Kind {
    pub fn slots() -> Kind {
        Kind {
            slots: SLOTS,
            bytes: usize::MAX,
            closed: false,
            marks: VecDeque::new(),
        }
    }

    pub fn bytes() -> Kind {
        Kind {
            slots: usize::MAX,
            bytes: BYTES,
            ..Kind::slots()
        }
    }

    pub fn queue(self) -> Queue<Kind> {
        match self.slots {
            usize::MAX => Queue::new(self, Stock::new(None, Use::Pipes)),
            _ => Queue::with_slots(self, Stock::new(None, Use::Pipes)).unwrap(),
        }
    }
}

impl State for Kind {
    const STORES_READY: bool = true;
    const CALLS: [TransferCall; 2] = [TransferCall::PipeWrite, TransferCall::PipeRead];

    type Spare = SpareFrames;

    fn ready(chain: &Chain<Kind>) -> u32 {
        let has_room = chain.has_slot() && chain.data.len() < chain.state.bytes;
        let bits = [
            (!chain.data.is_empty(), IN),
            (has_room, OUT),
            (chain.state.closed, CLOSED),
        ];
        bits.iter()
            .filter(|(holds, _)| *holds)
            .map(|(_, bit)| bit)
            .sum()
    }

    fn keeps_frames(chain: &Chain<Kind>) -> bool {
        !chain.state.closed
    }
}

impl Slots for Kind {
    fn slots(&self) -> usize {
        self.slots
    }
}

#[derive(Default)]
pub struct Write {
    pub least: usize,
    /// The bytes are marked at their first.
    pub mark: bool,
    pub was_empty: bool,
}

impl Fill<Kind> for Write {
    fn space(&mut self, chain: &mut Chain<Kind>) -> Result<Space> {
        if chain.state.closed {
            return Err(Errno::EPIPE);
        }
        Ok(Space {
            slots: chain.free_slots(),
            bytes: chain.state.bytes - chain.data.len().min(chain.state.bytes),
            least: self.least,
            continues: !self.mark,
        })
    }

    fn may_link(&mut self, chain: &mut Chain<Kind>) -> Result<bool> {
        // Nothing can fail, nor is allocated, once the source's bytes are taken.
        assert!(chain.data.capacity() > chain.data.slice_count() || chain.free_slots() == 0);
        Ok(true)
    }

    fn linked(&mut self, chain: &mut Chain<Kind>, added: Added) {
        assert_eq!(chain.end(), added.at + added.len as u64);
        self.least = 0;
        self.was_empty |= chain.start() == added.at;
        if self.mark {
            chain.state.marks.push_back(added.at);
            self.mark = false;
        }
    }
}

#[derive(Default)]
pub struct Read {
    pub taken: usize,
    pub was_full: bool,
}

impl Drain<Kind> for Read {
    fn front(&mut self, chain: &mut Chain<Kind>) -> Option<View> {
        let start = chain.start();
        let marks = &mut chain.state.marks;
        while marks.front().is_some_and(|&mark| mark < start) {
            marks.pop_front();
        }
        if self.taken > 0 && marks.front() == Some(&start) {
            return None;
        }
        let next = marks.iter().copied().find(|&mark| mark > start);
        let mut slice = chain.first()?;
        if let Some(next) = next {
            slice.len = slice.len.min((next - start) as usize);
        }
        Some(slice)
    }

    fn take(&mut self, chain: &mut Chain<Kind>, n: usize) -> Option<Slice> {
        self.was_full |= Kind::ready(chain) & OUT == 0;
        self.taken += n;
        chain.take(n)
    }
}

/// A queue whose two sides sleep, as a pipe's do. Sleepers look at the stored readiness only.
pub struct Sleepy {
    pub queue: Queue<Kind>,
    pub readers: WaitQueue,
    pub writers: WaitQueue,
}

impl Sleepy {
    pub fn new(kind: Kind) -> Arc<Sleepy> {
        Arc::new(Sleepy {
            queue: kind.queue(),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
        })
    }

    pub fn wait(&self, queue: &WaitQueue, bits: u32) {
        let ready = || (self.queue.ready() & bits != 0).then_some(());
        queue.wait(Sleep::SOUND, ready).unwrap();
    }

    pub fn write(&self, bytes: &[u8], least: usize) {
        let mut from = BytesSource::new(bytes);
        while from.left() > 0 {
            let mut call = Write {
                least,
                ..Write::default()
            };
            match self.queue.fill(&mut from, &mut call).unwrap() {
                // A write that must fit whole waits for more than one slot at times.
                0 if least > 0 => task::yield_now(),
                0 => self.wait(&self.writers, OUT),
                _ if call.was_empty => self.readers.wake_all(),
                _ => {}
            }
        }
    }

    /// Reads up to `max` bytes; nothing at the end.
    pub fn read(&self, max: usize) -> Vec<u8> {
        let mut buffer = vec![0; max];
        loop {
            let mut call = Read::default();
            let n = {
                let reading = self.queue.lock_reading();
                let mut to = BytesSink::new(&mut buffer);
                self.queue.drain(&reading, &mut to, max, &mut call).unwrap()
            };
            if call.was_full {
                self.writers.wake_all();
            }
            if n > 0 {
                buffer.truncate(n);
                return buffer;
            }
            if self.queue.ready() & (CLOSED | IN) == CLOSED {
                return Vec::new();
            }
            self.wait(&self.readers, IN | CLOSED);
        }
    }

    pub fn close(&self) {
        self.queue.lock().state.closed = true;
        self.readers.wake_all();
    }
}

/// Byte `n` of the stream.
pub fn byte(n: usize) -> u8 {
    (n ^ n >> 8 ^ n >> 16) as u8
}
