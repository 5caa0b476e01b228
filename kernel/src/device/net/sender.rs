//! Packets on their way out.
//!
//! A packet is one request: the device's header and the packet's own, which are copied into a place
//! of the request's, then the slices as they are. These are kept until the device is done with
//! them, so that no owner writes there meanwhile. Packets for which there is no request wait.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fbuf::Aggregate;
use net::packet::Packet;
use nucleus::{
    PAGE_SIZE,
    dma::{Buffer, Part},
    sync::{Rank, SpinLock},
    virtio::{Device, Error, Queue, Request},
};

use super::header;
use crate::counters::Counter;

/// Slices of a packet at most; of one with more a copy is sent. The largest packet of whole pages
/// has 17.
const SLICES: usize = 24;
/// Bytes of a request's place for headers.
const PLACE: usize = 256;
/// Requests that are taken back at once.
const REAPED: usize = 16;
/// Packets that may wait, for each pair: Linux's `tx_queue_len` is 1000 for a card.
const MOST_WAITING: usize = 256;

/// The sending half of a pair.
pub struct Sender {
    queue: Arc<Queue>,
    requests: Vec<Arc<Request>>,
    /// The slices of each request: they own what the device reads.
    flying: Vec<SpinLock<Aggregate>>,
    /// Room for headers.
    places: Vec<Buffer>,
    /// The requests that the device does not have.
    idle: SpinLock<Vec<u32>>,
    waiting: SpinLock<VecDeque<Packet>>,
    /// How many wait.
    count: AtomicUsize,
}

/// What became of a packet.
enum Outcome {
    /// The device has it.
    Sent,
    /// All requests are with the device: the packet is as it was.
    Full,
    /// It is dropped.
    Dropped,
}

impl Sender {
    pub fn new(device: &Device, queue: &Arc<Queue>, count: usize) -> Result<Sender, Error> {
        const { assert!(header::LEN + 128 <= PLACE) };
        let count = count.min(queue.slots());
        queue.prepare(count)?;
        queue.silence();
        let pages = (count * PLACE).div_ceil(PAGE_SIZE);
        let pool = device.pool(pages)?;
        let mut places = nucleus::try_vec(pages)?;
        for _ in 0..pages {
            places.push(pool.take()?);
        }
        let mut requests = nucleus::try_vec(count)?;
        let mut flying = nucleus::try_vec(count)?;
        let mut idle = nucleus::try_vec(count)?;
        for number in 0..count as u32 {
            requests.push(Request::idle_numbered(1 + SLICES, number)?);
            flying.push(SpinLock::new(Rank::Leaf, Aggregate::new()));
            idle.push(number);
        }
        let mut waiting = VecDeque::new();
        waiting
            .try_reserve_exact(MOST_WAITING)
            .map_err(|_| Error::OutOfMemory)?;
        Ok(Sender {
            queue: queue.clone(),
            requests,
            flying,
            places,
            idle: SpinLock::new(Rank::Leaf, idle),
            waiting: SpinLock::new(Rank::Leaf, waiting),
            count: AtomicUsize::new(0),
        })
    }

    /// Sends a packet, or lets it wait. Returns false if it is dropped.
    pub fn send(&self, packet: &mut Packet) -> bool {
        // Those that wait go first.
        if !self.has_waiting() {
            match self.try_send(packet) {
                Outcome::Sent => return true,
                Outcome::Dropped => return false,
                Outcome::Full => {}
            }
        }
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= MOST_WAITING {
                return false;
            }
            waiting.push_back(core::mem::take(packet));
            self.count.store(waiting.len(), Relaxed);
        }
        // The pair's task sends it when the device has room, of which an interrupt tells; but
        // there may be room already.
        while (self.queue.rearm() || !self.idle.lock().is_empty()) && self.run() {}
        true
    }

    /// Drops all packets, after the device has failed.
    pub fn abandon(&self) {
        loop {
            let packet = self.waiting.lock().pop_front();
            if packet.is_none() {
                break;
            }
        }
        self.count.store(0, Relaxed);
        for (request, flying) in self.requests.iter().zip(&self.flying) {
            if request.result().is_some() {
                request.clear();
                drop(core::mem::take(&mut *flying.lock()));
            }
        }
    }

    /// Tells whether packets wait.
    pub fn has_waiting(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Takes back what the device is done with, and sends packets that wait. Returns whether it
    /// has to be told of further progress.
    pub fn run(&self) -> bool {
        self.reap();
        while self.has_waiting() {
            let next = {
                let mut waiting = self.waiting.lock();
                let next = waiting.pop_front();
                self.count.store(waiting.len(), Relaxed);
                next
            };
            let Some(mut packet) = next else { break };
            if let Outcome::Full = self.try_send(&mut packet) {
                let mut waiting = self.waiting.lock();
                // The place that it has left may have been taken: the last one has to go.
                let last = (waiting.len() >= MOST_WAITING)
                    .then(|| waiting.pop_back())
                    .flatten();
                waiting.push_front(packet);
                self.count.store(waiting.len(), Relaxed);
                drop(waiting);
                drop(last);
                return true;
            }
        }
        false
    }

    /// Takes back what the device is done with.
    fn reap(&self) {
        let mut done = [0; REAPED];
        loop {
            let count = self.queue.take_done(&mut done);
            for number in &done[..count] {
                let at = *number as usize;
                self.requests[at].clear();
                let slices = core::mem::take(&mut *self.flying[at].lock());
                drop(slices);
            }
            if count > 0 {
                self.idle.lock().extend_from_slice(&done[..count]);
            }
            if count < done.len() {
                break;
            }
        }
    }

    fn try_send(&self, packet: &mut Packet) -> Outcome {
        let mut number = self.idle.lock().pop();
        if number.is_none() {
            self.reap();
            number = self.idle.lock().pop();
        }
        let Some(number) = number else {
            return Outcome::Full;
        };
        if self.submit(number, packet).is_ok() {
            return Outcome::Sent;
        }
        let at = number as usize;
        self.requests[at].abandon();
        drop(core::mem::take(&mut *self.flying[at].lock()));
        self.idle.lock().push(number);
        Outcome::Dropped
    }

    fn submit(&self, number: u32, packet: &mut Packet) -> Result<(), Error> {
        let at = number as usize;
        let offset = at * PLACE % PAGE_SIZE;
        let page = &self.places[at * PLACE / PAGE_SIZE];
        let head = packet.head.as_slice();
        let len = header::LEN + head.len();
        page.write(offset, &header::of(packet));
        page.write(offset + header::LEN, head);
        let mut data = core::mem::take(&mut packet.data);
        let (mut passed, mut copies) = (data.len(), len);
        if data.slice_count() > SLICES {
            data = copied(&data)?;
            (passed, copies) = (0, copies + passed);
        }
        Counter::card_sent_passed.add(passed as u64);
        Counter::card_sent_copied.add(copies as u64);
        let request = &self.requests[at];
        request.renew(1 + data.slice_count(), |parts| {
            parts.push(page.part(offset, len));
            for slice in data.slices() {
                parts.push(Part::new(slice.frame().clone(), slice.offset, slice.len));
            }
        });
        *self.flying[at].lock() = data;
        self.queue.try_submit(request)
    }
}

/// Returns the same bytes in as few slices as there can be.
fn copied(data: &Aggregate) -> Result<Aggregate, Error> {
    let mut copy = Aggregate::new();
    let mut piece = [0; 1024];
    let mut at = 0;
    while at < data.len() {
        let n = data.peek(at, &mut piece);
        let filled = copy.fill_from(&mut fbuf::BytesSource::new(&piece[..n]), n);
        if filled != Ok(n) {
            return Err(Error::OutOfMemory);
        }
        at += n;
    }
    Ok(copy)
}
