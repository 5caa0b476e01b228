//! Errors that come back for a datagram: "port unreachable", the one that the loopback interface has.

use alloc::collections::VecDeque;
use core::net::SocketAddr;

use abi::Errno;
use fbuf::Aggregate;

use super::Socket;

/// What has come back for a datagram (`IP_RECVERR`).
#[derive(Clone, Debug)]
pub struct ErrorReport {
    pub error: Errno,
    /// The datagram's bytes.
    pub data: Aggregate,
    /// To whom it was sent; the error comes from that machine.
    pub to: SocketAddr,
}

/// Reports that nobody has read, the oldest first.
pub(super) type Reports = VecDeque<ErrorReport>;

/// How many are kept; later ones are lost, as those for which Linux has no room.
const MOST: usize = 64;

impl Socket {
    /// A datagram of this socket to `to` has found nobody.
    pub(super) fn unreachable(&self, to: SocketAddr, data: Option<Aggregate>) {
        let error = Errno::ECONNREFUSED;
        if let Some(data) = data {
            let mut queue = self.queue();
            if queue.reports.len() < MOST && queue.reports.try_reserve(1).is_ok() {
                queue.reports.push_back(ErrorReport { error, data, to });
            }
        }
        self.inner().error = Some(error);
        self.waits().wake_all();
    }

    /// Takes the oldest report. The error that is pending is that of the next one from then on.
    pub fn take_report(&self) -> Option<ErrorReport> {
        let (report, next) = {
            let mut queue = self.queue();
            let report = queue.reports.pop_front()?;
            (report, queue.reports.front().map(|next| next.error))
        };
        self.inner().error = next;
        Some(report)
    }
}
