//! What a connection's segments do with its streams: bytes leave the outbound one when they are
//! sent, and join the inbound one when they have arrived. The block of the connection is the only
//! reader of the one and the only writer of the other, one at a time.

use alloc::sync::Arc;

use abi::{Errno, Result};
use fbuf::{
    Aggregate,
    queue::{Chain, Locked},
};
use nucleus::{frame::Contents, sync::lock_when_roomy};

use super::{
    Stream, StreamState,
    growth::{Growth, Share},
    is_writable, room,
};

/// Bytes of the limit for each frame that is taken, besides a few; and of what is above the first
/// limit of a connection.
const LEAST_SLICE: usize = 512;
const LEAST_LATER_SLICE: usize = 1024;
const FIRST_LIMIT: usize = 256 * 1024;

/// Tells whether so many more frames are too many for the limit. Small pieces hold whole frames.
/// The window was counted in bytes, so more are taken than a program may write.
fn is_crowded(chain: &Chain<StreamState>, frames: usize) -> bool {
    chain.data.frame_count() + frames > most_frames(chain)
}

fn most_frames(chain: &Chain<StreamState>) -> usize {
    let limit = chain.state.limit();
    let first = limit.min(FIRST_LIMIT);
    first / LEAST_SLICE + (limit - first) / LEAST_LATER_SLICE + 64
}

/// Returns how many slices are taken at most for a packet with `n` bytes: most are in one or two.
fn most_taken(n: usize) -> usize {
    n / LEAST_SLICE + 2
}

impl Stream {
    /// Makes the stream one of a connection whose segments are packets. Its buffers grow within
    /// `all` streams' part.
    pub fn by_packets(self, all: Arc<Growth>) -> Stream {
        Stream {
            growth: Some(Share::new(all)),
            ..self
        }
    }

    /// Tells whether the connection's segments are packets.
    #[inline]
    pub fn uses_packets(&self) -> bool {
        self.growth.is_some()
    }

    /// Returns by how many of so many bytes its buffers may grow, which count from now on.
    pub fn add_growth(&self, bytes: usize) -> usize {
        self.growth.as_ref().map_or(0, |share| share.add(bytes))
    }

    /// Returns how many bytes wait to be sent.
    pub fn unsent(&self) -> usize {
        self.queue.lock().data.len()
    }

    /// Returns how many bytes that wait come before the end of urgent data, if there is any.
    pub fn urgent_ahead(&self) -> Option<usize> {
        let chain = self.queue.lock();
        let at = chain.urgent?;
        (at >= chain.start()).then(|| (at - chain.start()) as usize + 1)
    }

    /// Returns how many of the first `len` bytes end with a whole page and are
    /// [taken](Stream::take_to_send) together; 0 if none do.
    pub fn to_page_end(&self, len: usize) -> usize {
        self.queue.lock().to_page_end(len, most_taken(len))
    }

    /// Takes the first bytes, which go on to use up their part of the limit. Fewer than `n` if
    /// memory is short.
    pub fn take_to_send(&self, n: usize) -> Aggregate {
        let mut taken = Aggregate::new();
        let count = {
            let chain = self.queue.lock();
            chain.data.slice_count().min(n)
        };
        let most = count.min(most_taken(n));
        if taken.reserve(most).is_err() {
            return taken;
        }
        let mut chain = self.queue.lock();
        while taken.len() < n
            && taken.slice_count() < taken.capacity()
            && let Some(slice) = chain.take(n - taken.len())
        {
            // There is room.
            let _ = taken.append(slice);
        }
        chain.state.shift_limit(0, taken.len());
        chain.state.in_flight += taken.len() as u32;
        let start = chain.start();
        if chain.urgent.is_some_and(|at| at < start) {
            chain.urgent = None;
        }
        taken
    }

    /// Notes that bytes which were sent use up nothing any more. Wakes the writer when there is
    /// room enough.
    pub fn acknowledge(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let wakes = {
            let mut chain = self.queue.lock();
            chain.state.shift_limit(bytes, 0);
            chain.state.in_flight = chain.state.in_flight.saturating_sub(bytes as u32);
            let is_told = self.note_arrived(&mut chain, bytes);
            // Bytes that were taken to be sent may have made it so, unheard.
            is_told || is_writable(&chain)
        };
        if wakes {
            self.sender.writable.wake_all();
        }
    }

    /// Returns how many bytes there is room for.
    pub fn room(&self) -> usize {
        let chain = self.queue.lock();
        match chain.state.finished || chain.state.broken {
            true => 0,
            false => room(&chain),
        }
    }

    /// Adds bytes that have arrived; byte `urgent` of them, if any, is the urgent one: it is read
    /// apart unless it is to stay in line. The reader is not woken yet.
    ///
    /// # Errors
    /// `EPIPE` if the reader is gone, `ENOMEM`, `ENOBUFS` if the slices are too many for the limit.
    pub fn deliver(&self, mut data: Aggregate, urgent: Option<usize>, in_line: bool) -> Result<()> {
        let is_small = data.len() <= LEAST_SLICE && urgent.is_none();
        if is_small && is_crowded(&self.queue.lock(), data.frame_count()) {
            return self.deliver_copy(&data);
        }
        let mut before = Aggregate::new();
        if let Some(at) = urgent {
            before.reserve(data.slice_count())?;
            while before.len() < at
                && let Some(slice) = data.take_slice(at - before.len())
            {
                before.append(slice)?;
            }
        }
        let slices = before.slice_count() + data.slice_count();
        let frames = before.frame_count() + data.frame_count();
        let mut chain = self.lock_with_room(slices)?;
        if chain.state.abandoned {
            return Err(Errno::EPIPE);
        }
        if is_crowded(&chain, frames) {
            return Err(Errno::ENOBUFS);
        }
        if urgent.is_none() {
            chain.data.join(&mut data)?;
            return Ok(());
        }
        chain.data.join(&mut before)?;
        chain.urgent = Some(chain.end());
        chain.state.urgent = None;
        if !in_line && let Some(byte) = data.take_slice(1) {
            let mut apart = Aggregate::new();
            apart.append(byte)?;
            let mut value = [0];
            apart.peek(0, &mut value);
            chain.state.urgent = Some(value[0]);
        }
        chain.data.join(&mut data)?;
        Ok(())
    }

    /// Locks the chain with room for more slices, which are one more where the urgent byte is cut
    /// off. Memory is taken and freed without the lock.
    fn lock_with_room(&self, slices: usize) -> Result<Locked<'_, StreamState>> {
        let wanted = |chain: &Locked<'_, StreamState>| {
            let count = chain.data.slice_count();
            let has_room = chain.data.capacity() - count > slices;
            (!has_room).then(|| (2 * count).max(count + slices + 1))
        };
        let make = |wanted| -> Result<Aggregate> {
            let mut larger = Aggregate::new();
            larger.reserve(wanted)?;
            Ok(larger)
        };
        lock_when_roomy(
            || self.queue.lock(),
            wanted,
            make,
            |chain, larger| {
                if chain.data.capacity() < larger.capacity()
                    && larger.capacity() > chain.data.slice_count()
                {
                    larger.join(&mut chain.data)?;
                    core::mem::swap(larger, &mut chain.data);
                }
                Ok(())
            },
        )
    }

    /// As [`deliver`](Stream::deliver), for a few bytes of which there are many pieces already:
    /// they share frames from now on, so the peer may use all of its window.
    #[cold]
    fn deliver_copy(&self, data: &Aggregate) -> Result<()> {
        let mut bytes = [0; LEAST_SLICE];
        let n = data.peek(0, &mut bytes);
        let spare = vm::alloc_frame(Contents::Stale)?;
        let mut chain = self.queue.lock();
        if chain.state.abandoned {
            return Err(Errno::EPIPE);
        }
        // A frame that has another handle can't be filled: that is no way to hold more.
        if chain.data.slice_count() >= 2 * most_frames(&chain) {
            return Err(Errno::ENOBUFS);
        }
        chain.data.push_copy(&bytes[..n], &spare)
    }

    /// Wakes the reader if there are bytes enough.
    pub fn wake_reader(&self) {
        if self.status().is_readable {
            self.receiver.readable.wake_all();
        }
    }
}
