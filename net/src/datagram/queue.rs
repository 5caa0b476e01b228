//! The receive queue of a datagram socket, and the errors that came back for what it sent.

use alloc::collections::VecDeque;
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::counters::Counter;
use abi::{Errno, Result};
use fbuf::Aggregate;
use nucleus::{PAGE_SIZE, frame};
use vm::account::{Kind, Stock};

use super::{Options, Socket};
use crate::Readiness;

/// Bytes that Linux charges for keeping one datagram, besides its data.
const OVERHEAD: usize = 768;
/// Reports that are kept; later ones are lost, like those for which Linux has no room.
const MAX_REPORTS: usize = 64;

/// A datagram that has been received.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Datagram {
    pub data: Aggregate,
    pub from: SocketAddr,
    /// The address to which it was sent.
    pub to: SocketAddr,
    /// The time of sending, since the epoch.
    pub at: Duration,
    /// Type of service, or traffic class.
    pub service: u8,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Bytes that its checksum covers, the header's included; 0 if it covers all.
    pub coverage: u16,
    /// The number of the interface where it has arrived.
    pub interface: u32,
}

impl Datagram {
    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }

    /// Frames that its data hold.
    fn frames(&self) -> usize {
        self.data.frame_count()
    }
}

/// An error that came back for a datagram (`IP_RECVERR`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ErrorReport {
    pub error: Errno,
    /// The datagram's bytes, as many as the message has.
    pub data: Aggregate,
    /// The destination.
    pub to: SocketAddr,
    /// The machine that reports the error; `None` for this one.
    pub offender: Option<IpAddr>,
    /// Type and code of the message of ICMP.
    pub kind: u8,
    pub code: u8,
    /// The MTU of the path, where it is too small.
    pub info: u32,
}

impl ErrorReport {
    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }

    fn frames(&self) -> usize {
        self.data.frame_count()
    }
}

/// Datagrams that wait to be received. Guarded by the socket's queue lock.
pub(super) struct Queue {
    pub datagrams: VecDeque<Datagram>,
    /// Bytes charged against the receive buffer.
    pub cost: usize,
    /// Datagrams that were dropped for lack of room.
    pub dropped: u64,
    /// Unread reports, the oldest first.
    pub reports: VecDeque<ErrorReport>,
    /// Frames that datagrams and reports hold: a small one holds a whole frame.
    frames: usize,
    /// For whom they are kept.
    stock: Stock,
}

impl Queue {
    /// An empty queue, charged to the current process.
    pub fn new() -> Queue {
        Queue {
            datagrams: VecDeque::new(),
            cost: 0,
            dropped: 0,
            reports: VecDeque::new(),
            frames: 0,
            stock: Stock::of_current(Kind::Sockets),
        }
    }

    /// Tells whether the receive buffer, of `limit` bytes, has room for `cost` more. An empty queue
    /// takes anything, however small the buffer is.
    fn has_room(&self, cost: usize, limit: usize) -> bool {
        self.cost == 0 || self.cost + cost <= limit
    }

    /// Notes that a datagram or a report is about to be added, with `cost` bytes.
    fn note_added(&mut self, cost: usize, frames: usize) {
        self.cost += cost;
        self.frames += frames;
        self.stock.cover(self.frames);
    }

    fn note_taken(&mut self, cost: usize, frames: usize) {
        self.cost -= cost;
        self.frames -= frames;
        self.stock.cover(self.frames);
    }

    /// Takes all datagrams and reports out.
    pub fn take_all(&mut self) -> (VecDeque<Datagram>, VecDeque<ErrorReport>) {
        (self.cost, self.frames) = (0, 0);
        self.stock.cover(0);
        let reports = core::mem::take(&mut self.reports);
        (core::mem::take(&mut self.datagrams), reports)
    }
}

impl Socket {
    /// Adds a datagram, or drops it if there is no room.
    pub(super) fn enqueue(&self, datagram: Datagram) {
        let Options {
            receive_buffer: limit,
            receive_coverage,
            ..
        } = self.inner().options;
        if let Some(wanted) = receive_coverage
            && datagram.coverage != 0
            && (wanted == 0 || datagram.coverage < wanted)
        {
            return;
        }
        let cost = datagram.cost();
        let v6 = u64::from(datagram.to.is_ipv6());
        let refused = {
            let mut queue = self.queue();
            // The last free frames are reserved for programs' own memory.
            let fits = queue.has_room(cost, limit)
                && !(frame::is_scarce() && datagram.data.len() > PAGE_SIZE);
            if fits && queue.datagrams.try_reserve(1).is_ok() {
                queue.note_added(cost, datagram.frames());
                queue.datagrams.push_back(datagram);
                None
            } else {
                queue.dropped += 1;
                Some(datagram)
            }
        };
        let is_udp = self.protocol().has_ports();
        // A refused datagram is freed after the spin lock was released.
        if refused.is_none() {
            if is_udp {
                Counter::udp_received.add(1);
                Counter::udp_received_v6.add(v6);
            }
            self.waits().readable.wake_shared(false);
        } else if is_udp {
            Counter::udp_dropped.add(1);
            Counter::udp_dropped_v6.add(v6);
        }
    }

    /// Takes the next datagram, or copies it. Returns `None` after reading was shut.
    ///
    /// # Errors
    /// `EAGAIN` when there is none, or the pending error.
    pub fn receive(&self, peek: bool) -> Result<Option<Datagram>> {
        {
            let mut queue = self.queue();
            if peek && let Some(datagram) = queue.datagrams.front() {
                return Ok(Some(datagram.clone()));
            }
            if let Some(datagram) = queue.datagrams.pop_front() {
                queue.note_taken(datagram.cost(), datagram.frames());
                return Ok(Some(datagram));
            }
        }
        let mut inner = self.inner();
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        if inner.read_shut {
            return Ok(None);
        }
        Err(Errno::EAGAIN)
    }

    /// Returns what can be done now.
    pub fn readiness(&self) -> Readiness {
        let (waiting, reported) = {
            let queue = self.queue();
            (!queue.datagrams.is_empty(), !queue.reports.is_empty())
        };
        let inner = self.inner();
        Readiness {
            has_completion: false,
            writable: true,
            urgent: false,
            readable: waiting || inner.read_shut || inner.error.is_some(),
            error: inner.error.is_some() || reported,
            read_hung_up: inner.read_shut,
            hung_up: inner.read_shut && inner.write_shut,
        }
    }

    /// Notes that a datagram of this socket to `to` found no receiver; a report is made if its
    /// data was kept.
    pub(super) fn unreachable(&self, to: SocketAddr, data: Option<Aggregate>) {
        // "Destination unreachable", "port".
        let (kind, code) = if to.is_ipv4() { (3, 3) } else { (1, 4) };
        let report = data.map(|data| ErrorReport {
            error: Errno::ECONNREFUSED,
            data,
            to,
            offender: Some(to.ip()),
            kind,
            code,
            info: 0,
        });
        self.fail(Errno::ECONNREFUSED, report);
    }

    /// Makes an error the pending one, with a report if there is one and the receive buffer has
    /// room for it.
    pub(super) fn fail(&self, error: Errno, mut report: Option<ErrorReport>) {
        let limit = self.inner().options.receive_buffer;
        if let Some(cost) = report.as_ref().map(ErrorReport::cost) {
            let mut queue = self.queue();
            let fits = queue.reports.len() < MAX_REPORTS && queue.has_room(cost, limit);
            if fits
                && queue.reports.try_reserve(1).is_ok()
                && let Some(report) = report.take()
            {
                queue.note_added(cost, report.frames());
                queue.reports.push_back(report);
            }
        }
        // One without room is freed after the spin lock was released.
        drop(report);
        self.inner().error = Some(error);
        self.waits().wake_all();
    }

    /// Takes the oldest report. The next one's error, if any, becomes the pending error.
    pub fn take_report(&self) -> Option<ErrorReport> {
        let (report, next) = {
            let mut queue = self.queue();
            let report = queue.reports.pop_front()?;
            queue.note_taken(report.cost(), report.frames());
            (report, queue.reports.front().map(|next| next.error))
        };
        self.inner().error = next;
        Some(report)
    }
}
