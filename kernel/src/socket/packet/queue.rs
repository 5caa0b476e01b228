//! The packets that wait for a packet socket's reader, and how many were seen and lost.

use alloc::collections::VecDeque;
use core::time::Duration;

use fbuf::{Aggregate, BytesSource};
use nucleus::{
    frame,
    sync::{Rank, SpinLock, lock_when_roomy},
};
use vm::account::{Kind, Stock};

use super::{name::Name, seen::Seen};

/// Linux's accounting for keeping one packet, besides its bytes.
const OVERHEAD: usize = 768;

/// The queue of one socket, charged to its maker.
pub struct Queue(SpinLock<State>);

struct State {
    packets: VecDeque<Kept>,
    /// Bytes, as they count against the receive buffer.
    cost: usize,
    /// Frames that they hold.
    frames: usize,
    stock: Stock,
    /// Packets since the last question for them, those that were lost included.
    seen: u32,
    lost: u32,
}

/// A packet that waits to be received.
#[derive(Clone)]
pub struct Kept {
    pub data: Aggregate,
    /// Bytes of the packet, of which the filter wanted fewer perhaps.
    pub whole: usize,
    pub name: Name,
    /// Since the epoch.
    pub at: Duration,
    pub checksum: u32,
    pub link: usize,
}

impl Queue {
    /// An empty queue.
    pub fn new() -> Queue {
        Queue(SpinLock::new(
            Rank::Leaf,
            State {
                packets: VecDeque::new(),
                cost: 0,
                frames: 0,
                stock: Stock::of_current(Kind::Sockets),
                seen: 0,
                lost: 0,
            },
        ))
    }

    /// Takes the next packet, or a copy of it.
    pub fn take(&self, peek: bool) -> Option<Kept> {
        let mut queue = self.0.lock();
        if peek {
            return queue.packets.front().cloned();
        }
        let kept = queue.packets.pop_front()?;
        queue.cost -= kept.data.len() + OVERHEAD;
        queue.frames -= kept.data.slice_count();
        let frames = queue.frames;
        queue.stock.cover(frames);
        Some(kept)
    }

    /// Keeps the first `len` bytes of a packet that was seen at a time; false without room in
    /// `limit`, the receive buffer.
    pub fn keep(&self, seen: &Seen<'_>, len: usize, at: Duration, limit: usize) -> bool {
        let cost = len + OVERHEAD;
        {
            let queue = self.0.lock();
            if queue.cost > 0 && queue.cost + cost > limit {
                return false;
            }
        }
        if frame::is_scarce() {
            return false;
        }
        let mut data = Aggregate::new();
        let mut piece = [0; 512];
        let mut done = 0;
        while done < len {
            let wanted = (len - done).min(piece.len());
            let n = seen.copy(done, &mut piece[..wanted]);
            let filled = data.fill_from(&mut BytesSource::new(&piece[..n]), n);
            if n == 0 || filled != Ok(n) {
                return false;
            }
            done += n;
        }
        let kept = Kept {
            data,
            whole: seen.size(),
            name: seen.name,
            at,
            checksum: seen.checksum(),
            link: seen.link,
        };
        // As many packets as the socket's buffer has room for are moved at once.
        let roomy = lock_when_roomy(
            || self.0.lock(),
            |queue| {
                let len = queue.packets.len();
                (len == queue.packets.capacity()).then(|| (2 * len).max(8))
            },
            |wanted| {
                let mut larger = VecDeque::new();
                larger.try_reserve_exact(wanted).map(|()| larger)
            },
            |queue, larger| {
                if queue.packets.capacity() < larger.capacity() {
                    larger.append(&mut queue.packets);
                    core::mem::swap(&mut queue.packets, larger);
                }
                Ok(())
            },
        );
        let Ok(mut queue) = roomy else {
            return false;
        };
        queue.cost += cost;
        queue.frames += kept.data.slice_count();
        let frames = queue.frames;
        queue.stock.cover(frames);
        queue.packets.push_back(kept);
        true
    }

    /// Tells whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.0.lock().packets.is_empty()
    }

    /// Returns how many bytes of the next packet wait; 0 without one.
    pub fn next_len(&self) -> usize {
        self.0.lock().packets.front().map_or(0, |it| it.data.len())
    }

    /// Returns how many bytes count against the receive buffer.
    pub fn cost(&self) -> usize {
        self.0.lock().cost
    }

    /// Counts a packet that interests the socket.
    pub fn note(&self, was_kept: bool) {
        let mut queue = self.0.lock();
        queue.seen = queue.seen.wrapping_add(1);
        queue.lost = queue.lost.wrapping_add(u32::from(!was_kept));
    }

    /// Tells whether packets were lost since the last question for the counts.
    pub fn has_lost(&self) -> bool {
        self.0.lock().lost > 0
    }

    /// Returns the packets that were seen, and those among them that were lost, since the last
    /// question for them.
    pub fn take_counts(&self) -> [u32; 2] {
        let mut queue = self.0.lock();
        let counts = [queue.seen, queue.lost];
        (queue.seen, queue.lost) = (0, 0);
        counts
    }

    /// Drops all packets, when the socket is closed.
    pub fn clear(&self) {
        let kept = core::mem::take(&mut self.0.lock().packets);
        drop(kept);
    }
}
