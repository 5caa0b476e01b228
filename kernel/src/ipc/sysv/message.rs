//! Queues of messages.
//!
//! A message goes straight to the first receiver that waits for its like, or into the queue. Short
//! bodies stand in the kernel's heap, long ones in slices of pages. Bodies are copied from and to
//! programs with no lock held.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result, raw::general as raw};
use fbuf::{Aggregate, Sink, Source};
use nucleus::{
    PAGE_SIZE, speculation,
    sync::{Mutex, MutexGuard},
    task::Sleep,
};

use vm::account::{Charge, Kind, Stock};

use super::{
    Caller, PART, charge,
    ids::{Ids, Object},
    limits::{MSGMAX, MSGMNB, MSGMNI},
    now,
    permission::{Change, Permission, READ, WRITE},
};
use crate::process::{Handoff, Pid, signal::ERESTARTNOHAND};

/// Bodies up to this many bytes are kept in the heap: a page would be mostly empty.
const SHORT: usize = 1024;

/// What a waiting message costs besides its body, in bytes.
const MESSAGE_BYTES: usize = 128;

pub static QUEUES: Ids<Queue> = Ids::new();
/// Messages and bytes in all queues.
static MESSAGES: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

pub struct Message {
    /// Its type, positive.
    pub kind: i64,
    body: Body,
}

enum Body {
    Short(Vec<u8>),
    Long(Aggregate),
}

impl Message {
    /// Makes a message of positive `kind` with all of `from` as its body.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn new(kind: i64, from: &mut dyn Source) -> Result<Message> {
        let len = from.left();
        let (body, taken) = if len <= SHORT {
            let mut bytes = nucleus::try_filled(len, 0)?;
            let taken = from.take_bytes(&mut bytes)?;
            (Body::Short(bytes), taken)
        } else {
            let mut pages = Aggregate::default();
            let mut taken = 0;
            while taken < len {
                match pages.fill_from(from, len - taken)? {
                    0 => break,
                    n => taken += n,
                }
            }
            (Body::Long(pages), taken)
        };
        match taken == len {
            true => Ok(Message { kind, body }),
            false => Err(Errno::EFAULT),
        }
    }

    /// Bytes of its body.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Short(bytes) => bytes.len(),
            Body::Long(pages) => pages.len(),
        }
    }

    /// Gives up to `max` bytes of the body to `to`; returns how many.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn give(mut self, to: &mut dyn Sink, max: usize) -> Result<usize> {
        let len = self.len().min(max);
        let mut given = 0;
        while given < len {
            let n = match &mut self.body {
                Body::Short(bytes) => to.put_bytes(&bytes[given..len])?,
                Body::Long(pages) => pages.drain_into(to, len - given)?,
            };
            if n == 0 {
                return Err(Errno::EFAULT);
            }
            given += n;
        }
        Ok(given)
    }

    /// Returns the same message again (`MSG_COPY`); the pages of a long body are shared, since they
    /// are never written.
    fn duplicate(&self) -> Result<Message> {
        let body = match &self.body {
            Body::Short(bytes) => Body::Short(nucleus::try_copy(bytes)?),
            Body::Long(pages) => {
                let mut copy = Aggregate::default();
                for slice in pages.slices() {
                    copy.append(slice.clone())?;
                }
                Body::Long(copy)
            }
        };
        Ok(Message {
            kind: self.kind,
            body,
        })
    }
}

/// Which message a receiver wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    First,
    Equal(i64),
    Except(i64),
    /// The first of the lowest type up to this one.
    Lowest(i64),
}

impl Choice {
    /// From `msgtyp` and whether `MSG_EXCEPT` is set.
    pub fn new(kind: i64, except: bool) -> Choice {
        match kind {
            0 => Choice::First,
            i64::MIN => Choice::Lowest(i64::MAX),
            kind if kind < 0 => Choice::Lowest(-kind),
            kind if except => Choice::Except(kind),
            kind => Choice::Equal(kind),
        }
    }

    fn accepts(self, kind: i64) -> bool {
        match self {
            Choice::First => true,
            Choice::Equal(wanted) => kind == wanted,
            Choice::Except(unwanted) => kind != unwanted,
            Choice::Lowest(most) => kind <= most,
        }
    }
}

pub struct Queue {
    id: i32,
    /// The empty queue, charged to its maker.
    _charge: Option<Charge>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    status: MessageQueueStatus,
    /// The messages, charged to the queue's maker.
    stock: Option<Stock>,
    messages: VecDeque<Message>,
    receivers: VecDeque<Arc<Receiver>>,
    senders: VecDeque<Arc<Sender>>,
    removed: bool,
}

struct Receiver {
    choice: Choice,
    /// Room for the body; without limit where a longer one is cut off.
    room: usize,
    pid: Pid,
    /// A message, or nothing when it has to look again.
    got: Handoff<Result<Option<Message>>>,
}

struct Sender {
    len: usize,
    /// There may be room now.
    called: Handoff<()>,
}

/// The figures of `IPC_STAT`.
#[derive(Clone, Copy, Default, Debug)]
pub struct MessageQueueStatus {
    pub permission: Permission,
    pub id: i32,
    /// Seconds since the epoch.
    pub sent: i64,
    pub received: i64,
    pub changed: i64,
    pub bytes: usize,
    pub messages: usize,
    /// Bytes, and messages, that it may hold.
    pub most: usize,
    pub last_sender: Pid,
    pub last_receiver: Pid,
}

/// `msgget`.
///
/// # Errors
/// Those of [`Ids::find_or_make`].
pub fn get(key: i32, flags: u32, caller: Caller<'_>) -> Result<i32> {
    let make = |id| Queue::new(id, key, flags, caller);
    let most = MSGMNI.get() as usize;
    QUEUES.find_or_make(key, flags, caller, most, |_| Ok(()), make)
}

/// Messages and bytes in all queues.
pub fn totals() -> (usize, usize) {
    (MESSAGES.load(Relaxed), BYTES.load(Relaxed))
}

impl Queue {
    pub(super) fn new(id: i32, key: i32, flags: u32, caller: Caller<'_>) -> Result<Arc<Queue>> {
        let charge = charge(Kind::Messages, 1, size_of::<Queue>())?;
        let status = MessageQueueStatus {
            permission: Permission::new(key, flags, caller.credentials),
            id,
            changed: now(),
            most: MSGMNB.get() as usize,
            ..MessageQueueStatus::default()
        };
        let state = State {
            status,
            stock: Some(Stock::of_current(Kind::Messages)),
            ..State::default()
        };
        Ok(Arc::new(Queue {
            id,
            _charge: charge,
            state: Mutex::new(crate::rank::IPC_OBJECT, state),
        }))
    }

    /// The figures of `IPC_STAT`.
    pub fn status(&self) -> MessageQueueStatus {
        let state = self.state.lock();
        MessageQueueStatus {
            messages: state.messages.len(),
            ..state.status
        }
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match state.removed {
            true => Err(Errno::EIDRM),
            false => Ok(state),
        }
    }

    /// Returns [`usable`](Queue::usable) state for a caller that has `rights`.
    fn allowed(&self, caller: Caller<'_>, rights: u32) -> Result<MutexGuard<'_, State>> {
        let state = self.usable()?;
        state.status.permission.check(caller.credentials, rights)?;
        Ok(state)
    }

    /// `msgsnd`; sleeps for room as `how` says, or not at all without it.
    ///
    /// # Errors
    /// `EINVAL` for a body longer than the limit, `EACCES`, `EAGAIN` (no room), `EIDRM`, `ENOMEM`,
    /// a restart number after a signal.
    pub fn send(&self, caller: Caller<'_>, message: Message, how: Option<Sleep>) -> Result<()> {
        if message.len() as u64 > MSGMAX.get() {
            return Err(Errno::EINVAL);
        }
        let len = message.len();
        loop {
            let mut state = self.allowed(caller, WRITE)?;
            if state.has_room(len) {
                return state.take(message, caller.pid);
            }
            let how = how.ok_or(Errno::EAGAIN)?;
            let sender = Arc::new(Sender {
                len,
                called: Handoff::default(),
            });
            state.senders.try_reserve(1)?;
            state.senders.push_back(sender.clone());
            drop(state);
            if sender.called.wait(how).is_err() {
                let mut state = self.state.lock();
                state.senders.retain(|other| !Arc::ptr_eq(other, &sender));
                if state.removed {
                    return Err(Errno::EIDRM);
                }
                // Room that it was told of is the next one's.
                state.call_senders();
                return Err(ERESTARTNOHAND);
            }
        }
    }

    /// `msgrcv`: takes the message that `choice` selects, whose body fits into `room` bytes or,
    /// where it may be `cut`, is cut off there by the caller. Sleeps for one as `how` says, or not
    /// at all without it.
    ///
    /// # Errors
    /// `E2BIG` (it stays in the queue), `ENOMSG`, `EACCES`, `EIDRM`, `ENOMEM`, a restart number
    /// after a signal.
    pub fn receive(
        &self,
        caller: Caller<'_>,
        choice: Choice,
        room: usize,
        cut: bool,
        how: Option<Sleep>,
    ) -> Result<Message> {
        let room = if cut { usize::MAX } else { room };
        loop {
            let mut state = self.allowed(caller, READ)?;
            if let Some(at) = state.find(choice) {
                if state.messages[at].len() > room {
                    return Err(Errno::E2BIG);
                }
                return state.give(at, caller.pid).ok_or(Errno::ENOMSG);
            }
            let how = how.ok_or(Errno::ENOMSG)?;
            let receiver = Arc::new(Receiver {
                choice,
                room,
                pid: caller.pid,
                got: Handoff::default(),
            });
            state.receivers.try_reserve(1)?;
            state.receivers.push_back(receiver.clone());
            drop(state);
            let got = receiver.got.wait(how);
            if let Some(message) = got.unwrap_or_else(|_| self.give_up(&receiver))? {
                return Ok(message);
            }
        }
    }

    /// A receiver goes without a message, unless it has been given one meanwhile.
    fn give_up(&self, receiver: &Arc<Receiver>) -> Result<Option<Message>> {
        let mut state = self.state.lock();
        if let Some(got) = receiver.got.take() {
            return got;
        }
        state
            .receivers
            .retain(|other| !Arc::ptr_eq(other, receiver));
        Err(ERESTARTNOHAND)
    }

    /// `msgrcv` with `MSG_COPY`: returns a copy of message number `at`, whose body fits into
    /// `room`.
    ///
    /// # Errors
    /// `ENOMSG`, `E2BIG`, or `EINVAL` where it may be `cut`, if it does not fit; `EACCES`, `EIDRM`,
    /// `ENOMEM`.
    pub fn copy(&self, caller: Caller<'_>, at: i64, room: usize, cut: bool) -> Result<Message> {
        let state = self.allowed(caller, READ)?;
        let message = usize::try_from(at)
            .ok()
            .filter(|at| *at < state.messages.len())
            .map(|at| &state.messages[speculation::mask_index(at, state.messages.len())])
            .ok_or(Errno::ENOMSG)?;
        if message.len() > room {
            return Err(if cut { Errno::EINVAL } else { Errno::E2BIG });
        }
        message.duplicate()
    }

    /// `IPC_SET`; `most` bytes that it may hold.
    ///
    /// # Errors
    /// `EIDRM`, `EPERM`, `EINVAL`.
    pub fn set(&self, caller: Caller<'_>, change: Change, most: usize) -> Result<()> {
        let mut state = self.usable()?;
        state.status.permission.check_owner(caller)?;
        if most as u64 > MSGMNB.get() && !caller.credentials.may(raw::CAP_SYS_RESOURCE) {
            return Err(Errno::EPERM);
        }
        state.status.permission.set(caller, change)?;
        state.status.most = most;
        state.status.changed = now();
        // Waiters may have lost their permission, or have room now: each looks again.
        for receiver in core::mem::take(&mut state.receivers) {
            receiver.got.give(Ok(None));
        }
        for sender in core::mem::take(&mut state.senders) {
            sender.called.give(());
        }
        Ok(())
    }
}

impl State {
    fn has_room(&self, len: usize) -> bool {
        self.status.bytes + len <= self.status.most && self.messages.len() < self.status.most
    }

    /// Returns about how many pages its messages hold with `more` messages of `bytes` together:
    /// those in pages hold whole ones.
    fn pages(&self, more: usize, bytes: usize) -> usize {
        let short = (self.messages.len() + more) * MESSAGE_BYTES;
        (short + 2 * (self.status.bytes + bytes)) / PAGE_SIZE
    }

    /// Charges the messages that there are now.
    fn cover(&self) {
        if let Some(stock) = &self.stock {
            stock.cover(self.pages(0, 0));
        }
    }

    /// Whether the queue's maker may have one more message of `len` bytes waiting.
    fn may_grow(&self, len: usize) -> bool {
        self.stock
            .as_ref()
            .is_none_or(|stock| stock.may_keep(self.pages(1, len), PART))
    }

    /// Takes a message from a sender: for a receiver that waits, or into the queue.
    fn take(&mut self, message: Message, pid: Pid) -> Result<()> {
        self.messages.try_reserve(1)?;
        self.status.last_sender = pid;
        self.status.sent = now();
        while let Some(at) = self
            .receivers
            .iter()
            .position(|receiver| receiver.choice.accepts(message.kind))
        {
            let Some(receiver) = self.receivers.remove(at) else {
                break;
            };
            if message.len() <= receiver.room {
                self.status.last_receiver = receiver.pid;
                self.status.received = now();
                receiver.got.give(Ok(Some(message)));
                return Ok(());
            }
            receiver.got.give(Err(Errno::E2BIG));
        }
        if !self.may_grow(message.len()) {
            return Err(Errno::ENOMEM);
        }
        self.status.bytes += message.len();
        MESSAGES.fetch_add(1, Relaxed);
        BYTES.fetch_add(message.len(), Relaxed);
        self.messages.push_back(message);
        self.cover();
        Ok(())
    }

    /// Where the message stands that a receiver wants.
    fn find(&self, choice: Choice) -> Option<usize> {
        let mut acceptable = self
            .messages
            .iter()
            .enumerate()
            .filter(|(_, message)| choice.accepts(message.kind));
        match choice {
            // The first of those that are equal, as `min_by_key` chooses.
            Choice::Lowest(_) => acceptable.min_by_key(|(_, message)| message.kind),
            _ => acceptable.next(),
        }
        .map(|(at, _)| at)
    }

    /// Gives the message at `at` to a receiver.
    fn give(&mut self, at: usize, pid: Pid) -> Option<Message> {
        let message = self.messages.remove(at)?;
        self.status.last_receiver = pid;
        self.status.received = now();
        self.status.bytes -= message.len();
        MESSAGES.fetch_sub(1, Relaxed);
        BYTES.fetch_sub(message.len(), Relaxed);
        self.cover();
        self.call_senders();
        Some(message)
    }

    /// Wakes the senders, the longest waiting first, for whose messages there is room together. One
    /// whose message is too long does not hold up the others.
    fn call_senders(&mut self) {
        let mut bytes = self.status.bytes;
        let mut messages = self.messages.len();
        let most = self.status.most;
        self.senders.retain(|sender| {
            let fits = bytes + sender.len <= most && messages < most;
            if fits {
                bytes += sender.len;
                messages += 1;
                sender.called.give(());
            }
            !fits
        });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        MESSAGES.fetch_sub(state.messages.len(), Relaxed);
        BYTES.fetch_sub(state.status.bytes, Relaxed);
    }
}

impl Object for Queue {
    fn permission(&self) -> Permission {
        self.state.lock().status.permission
    }

    fn id(&self) -> i32 {
        self.id
    }

    /// Waiters get `EIDRM`.
    fn remove(&self, caller: Caller<'_>) -> Result<()> {
        let messages = {
            let mut state = self.usable()?;
            state.status.permission.check_owner(caller)?;
            state.removed = true;
            for receiver in core::mem::take(&mut state.receivers) {
                receiver.got.give(Err(Errno::EIDRM));
            }
            for sender in core::mem::take(&mut state.senders) {
                sender.called.give(());
            }
            MESSAGES.fetch_sub(state.messages.len(), Relaxed);
            BYTES.fetch_sub(core::mem::take(&mut state.status.bytes), Relaxed);
            core::mem::take(&mut state.messages)
        };
        drop(QUEUES.remove(self.id));
        drop(messages);
        Ok(())
    }
}
