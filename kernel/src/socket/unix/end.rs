//! One end: the part of a local socket that others hold. It outlives the socket's open file while
//! others hold it.

use alloc::{
    collections::VecDeque,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use abi::{
    Errno, Result,
    raw::net::{AF_UNIX, SOCK_STREAM},
};
use nucleus::{
    PAGE_SIZE, Pieces, Slots,
    sync::{Mutex, OnceBox, Rank, SpinLock},
    task::WaitQueue,
};

use vm::account::{Kind, Stock};

use super::{
    channel::Channel,
    messages::{Charge, Messages, Tail},
    name::Name,
    rights::Rights,
};
use crate::socket::{PeerCredentials, Shutdown, Socket, Waited};

/// Nothing more is received.
const RECEIVE: u32 = 1;
/// Nothing more is sent.
const SEND: u32 = 2;

/// The charge of a message on its sender's buffer besides its bytes: about as much as on Linux.
const MESSAGE_OVERHEAD: usize = 768;

/// One end.
pub struct End {
    pub common: Waited,
    pub inbox: Inbox,
    name: OnceBox<Arc<Name>>,
    pub stage: SpinLock<Stage>,
    /// Waiters for room in the queue of connections.
    pub connecters: WaitQueue,
    /// [`RECEIVE`], [`SEND`].
    shut: AtomicU32,
    /// The inode of the end that this one sends to, 0 for none.
    peer: AtomicU64,
    /// Bytes of messages from here that wait elsewhere, with [`MESSAGE_OVERHEAD`] each.
    sent: AtomicUsize,
    /// Charges about twice as much, as a message of more than a quarter of a page holds whole
    /// frames.
    stock: Stock,
    pub tail: Mutex<Tail>,
    /// Its place among all; [`usize::MAX`] in none.
    place: AtomicUsize,
}

/// The data that wait to be received.
#[allow(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each socket"
)]
pub enum Inbox {
    Bytes(Channel),
    Messages(Messages),
}

/// What both kinds of queues do.
pub trait DataQueue {
    /// Makes later sends fail.
    fn close(&self);

    /// Drops all that is in it; returns whether there was anything.
    fn discard(&self) -> bool;

    /// Visits the rights in it.
    fn visit_rights(&self, visit: &mut dyn FnMut(&Rights));

    /// Takes out the rights in it; the data stay.
    fn take_rights(&self, to: &mut Vec<Rights>);
}

impl Inbox {
    fn queue(&self) -> &dyn DataQueue {
        match self {
            Inbox::Bytes(channel) => channel,
            Inbox::Messages(messages) => messages,
        }
    }
}

/// How far a connection has come.
pub enum Stage {
    /// No connection.
    Fresh,
    /// About to be queued for a listener.
    Connecting,
    /// There is, or was, another end.
    Connected,
    /// Accepts connections.
    Listening(Listener),
    /// The socket was closed.
    Closed,
}

impl Stage {
    /// Checks that a connection can be begun.
    ///
    /// # Errors
    /// `EALREADY`, `EISCONN`, `EINVAL`.
    pub fn check_fresh(&self) -> Result<()> {
        match self {
            Stage::Fresh => Ok(()),
            Stage::Connecting => Err(Errno::EALREADY),
            Stage::Connected => Err(Errno::EISCONN),
            Stage::Listening(_) | Stage::Closed => Err(Errno::EINVAL),
        }
    }
}

/// A socket that its listener has not accepted yet.
pub trait Pending: Socket {
    /// The end that other sockets hold.
    fn end(&self) -> &Arc<End>;

    /// Closes it before it is accepted; the other end is told.
    fn refuse(&self);
}

/// The part of a socket that accepts connections.
pub struct Listener {
    /// Connections that may wait.
    pub backlog: u32,
    /// Those that do.
    pub waiting: VecDeque<Arc<dyn Pending>>,
    /// The credentials of the thread that called `listen`.
    pub credentials: Option<PeerCredentials>,
}

/// All ends of sockets that are open, in places that they keep, for `/proc/net/unix`.
static ALL: SpinLock<Slots<Weak<End>>> = SpinLock::new(Rank::Leaf, Slots::new());

/// Visits the ends of sockets that are open, without memory of its own. One that comes or goes
/// meanwhile may be seen or not.
pub fn all() -> impl Iterator<Item = Arc<End>> {
    let all = (0..).map_while(|place| Some(ALL.lock().get(place)?.and_then(Weak::upgrade)));
    all.flatten()
}

impl End {
    /// An end of a socket of type `kind`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(kind: u32) -> Result<Arc<End>> {
        let inbox = match kind {
            SOCK_STREAM => Inbox::Bytes(Channel::new()),
            _ => Inbox::Messages(Messages::new()),
        };
        let common = Waited::new(AF_UNIX, kind, 0);
        let stock = Stock::new(common.account().cloned(), Kind::Sockets);
        let end = Arc::new(End {
            common,
            inbox,
            name: OnceBox::new(),
            stage: SpinLock::new(Rank::Leaf, Stage::Fresh),
            connecters: WaitQueue::new(),
            shut: AtomicU32::new(0),
            peer: AtomicU64::new(0),
            sent: AtomicUsize::new(0),
            stock,
            tail: Mutex::new(fbuf::rank::QUEUE_WRITING, Tail::new()),
            place: AtomicUsize::new(usize::MAX),
        });
        let listed = Arc::downgrade(&end);
        let place = Slots::add_with(listed, |end, spare| ALL.lock().add(end, spare))?;
        end.place.store(place, Relaxed);
        Ok(end)
    }

    /// Its name.
    pub fn name(&self) -> Option<Arc<Name>> {
        self.name.get().cloned()
    }

    /// Gives it its name, once; false if it had one already.
    pub fn set_name(&self, name: &Arc<Name>) -> bool {
        let set = self
            .name
            .get_or_insert(|| alloc::boxed::Box::new(name.clone()));
        Arc::ptr_eq(set, name)
    }

    /// Whether nothing more is received.
    pub fn is_receive_shut(&self) -> bool {
        self.shut.load(Acquire) & RECEIVE != 0
    }

    /// Whether nothing more is sent.
    pub fn is_send_shut(&self) -> bool {
        self.shut.load(Acquire) & SEND != 0
    }

    /// Ends directions, and wakes the waiters of this socket.
    pub fn shut(&self, what: Shutdown) {
        let bits = (u32::from(what.receive) * RECEIVE) | (u32::from(what.send) * SEND);
        if what.receive {
            // Stores before the flag are visible to threads that see it.
            self.inbox.queue().close();
        }
        self.shut.fetch_or(bits, SeqCst);
        self.common.wake();
    }

    /// Whether it sends to `other`, if not told otherwise.
    pub fn sends_to(&self, other: &Arc<End>) -> bool {
        self.peer.load(Acquire) == other.common.inode
    }

    /// Returns the inode of the socket that this one sends to, if not told otherwise.
    pub fn peer_inode(&self) -> Option<u64> {
        Some(self.peer.load(Acquire)).filter(|&inode| inode != 0)
    }

    /// Whether it has no default receiver.
    pub fn has_no_peer(&self) -> bool {
        self.peer.load(Acquire) == 0
    }

    /// Notes the end that it sends to.
    pub fn set_peer(&self, other: Option<&Arc<End>>) {
        let inode = other.map_or(0, |other| other.common.inode);
        self.peer.store(inode, Release);
    }

    /// Whether a message more may be sent: Linux lets the last one exceed the limit.
    pub fn may_charge(&self) -> bool {
        self.sent.load(Acquire) < self.common.send_buffer()
    }

    /// Whether so little waits elsewhere that a poll says that it can send.
    pub fn is_writable(&self) -> bool {
        self.sent.load(Acquire) * 4 <= self.common.send_buffer()
    }

    /// Charges `sent` bytes of messages, each byte twice.
    fn cover(&self, sent: usize) {
        let pages = |sent| 2 * sent / PAGE_SIZE;
        self.stock
            .cover_counted(pages(sent), || pages(self.sent.load(SeqCst)));
    }

    /// Counts a message of `bytes` bytes.
    pub fn charge(self: &Arc<End>, bytes: usize) -> Charge {
        let bytes = bytes + MESSAGE_OVERHEAD;
        let sent = self.sent.fetch_add(bytes, SeqCst) + bytes;
        self.cover(sent);
        let to = self.clone();
        Charge { to, bytes }
    }

    /// Takes back the charge, and wakes waiters for room once there is enough of it.
    pub fn give_back(&self, bytes: usize) {
        let before = self.sent.fetch_sub(bytes, SeqCst);
        self.cover(before - bytes);
        let limit = self.common.send_buffer();
        if before * 4 > limit && self.is_writable() {
            self.common.writers.wake_shared(false);
        }
    }

    /// Bytes of messages that wait elsewhere.
    pub fn bytes_sent(&self) -> usize {
        self.sent.load(Relaxed)
    }

    /// Shows the rights in its queue, and in those of connections that wait to be accepted.
    pub fn visit_rights(&self, visit: &mut dyn FnMut(&Rights)) {
        for end in self.with_waiting() {
            end.inbox.queue().visit_rights(visit);
        }
        self.inbox.queue().visit_rights(visit);
    }

    /// Takes out what [`visit_rights`](End::visit_rights) shows.
    pub fn take_rights(&self, to: &mut Vec<Rights>) {
        for end in self.with_waiting() {
            end.inbox.queue().take_rights(to);
        }
        self.inbox.queue().take_rights(to);
    }

    /// The ends of connections that wait to be accepted here.
    fn with_waiting(&self) -> Pieces<Arc<End>> {
        match &*self.stage.lock() {
            Stage::Listening(listener) => listener
                .waiting
                .iter()
                .map(|socket| socket.end().clone())
                .collect(),
            _ => Pieces::new(),
        }
    }

    /// The socket was closed: the name is free, nothing comes in any more. Returns whether
    /// something had not been received.
    pub fn release(self: &Arc<End>) -> bool {
        let listed = ALL.lock().remove(self.place.swap(usize::MAX, Relaxed));
        drop(listed);
        self.shut(Shutdown {
            receive: true,
            send: true,
        });
        if let Some(name) = self.name.get() {
            name.forget(self);
        }
        let before = core::mem::replace(&mut *self.stage.lock(), Stage::Closed);
        self.connecters.wake_all();
        if let Stage::Listening(listener) = before {
            for socket in listener.waiting {
                socket.refuse();
            }
        }
        self.inbox.queue().discard()
    }

    /// Whether the end is gone, as a sender sees it.
    pub fn is_closed(&self) -> bool {
        matches!(*self.stage.lock(), Stage::Closed)
    }

    /// Sets the error of a stream or connection whose other end is gone.
    pub fn reset(&self) {
        self.common.set_error(Errno::ECONNRESET);
    }
}
