//! All protocols together, and the time that they keep.

use alloc::{sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use nucleus::{
    random,
    sync::{Mutex, Rank},
    task::{Sleep, WaitQueue},
    time,
};

use crate::{raw, tcp, udp};

const NEVER: u64 = u64::MAX;

/// The protocols of one machine.
pub struct Stack {
    pub(crate) tcp: Mutex<tcp::Table>,
    udp: Mutex<udp::Table>,
    udp_lite: Mutex<udp::Table>,
    pub(crate) raw: Mutex<Vec<Arc<raw::Socket>>>,
    /// When [`Stack::serve`] will look at the time again, in nanoseconds since boot.
    armed: AtomicU64,
    /// Where it sleeps.
    keeper: WaitQueue,
}

impl Stack {
    /// Nobody is bound to anything.
    pub fn new() -> Arc<Stack> {
        Arc::new(Stack {
            tcp: Mutex::new(Rank::Net, tcp::Table::new(random::u64())),
            udp: Mutex::new(Rank::Net, udp::Table::new()),
            udp_lite: Mutex::new(Rank::Net, udp::Table::new()),
            raw: Mutex::new(Rank::Net, Vec::new()),
            armed: AtomicU64::new(NEVER),
            keeper: WaitQueue::new(),
        })
    }

    /// Has the task in [`serve`](Stack::serve) look at the time at `due` or earlier.
    pub(crate) fn arm(&self, due: Option<u64>) {
        let Some(due) = due else { return };
        if self.armed.fetch_min(due, Ordering::SeqCst) > due {
            self.keeper.wake_all();
        }
    }

    /// Does what is due; returns when something will be next.
    pub fn run_timers(&self) -> Option<Duration> {
        let due = self.tcp.lock().run_timers();
        due.map(Duration::from_nanos)
    }

    /// All TCP sockets with a name, and the connections that are over.
    pub fn tcp_sockets(&self) -> Vec<tcp::Entry> {
        self.tcp.lock().list()
    }

    /// Who is bound where, of a protocol of datagrams.
    pub(crate) fn datagrams(&self, protocol: udp::Protocol) -> &Mutex<udp::Table> {
        match protocol {
            udp::Protocol::Udp => &self.udp,
            udp::Protocol::UdpLite => &self.udp_lite,
        }
    }

    /// All sockets of a protocol of datagrams with a name.
    pub fn udp_sockets(&self, protocol: udp::Protocol) -> Vec<Arc<udp::Socket>> {
        let table = self.datagrams(protocol).lock();
        table.list().cloned().collect()
    }

    /// Keeps the time: repeated segments, connections that have been closed for long enough. Sleeps except when something
    /// is due. Never returns.
    pub fn serve(&self) -> ! {
        loop {
            self.armed.store(NEVER, Ordering::SeqCst);
            let due = self.run_timers();
            let due = due.map_or(NEVER, |due| due.as_nanos() as u64);
            let until = self.armed.fetch_min(due, Ordering::SeqCst).min(due);
            let how = Sleep {
                interruptible: false,
                deadline: (until != NEVER).then(|| Duration::from_nanos(until)),
            };
            let earlier = || (self.armed.load(Ordering::SeqCst) < until).then_some(());
            // Why it woke doesn't matter: the loop looks at everything.
            let _ = self.keeper.wait(how, earlier);
        }
    }
}

/// Nanoseconds since boot.
pub(crate) fn now() -> u64 {
    time::since_boot().as_nanos() as u64
}
