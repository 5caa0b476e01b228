//! The messages on their way to one end: datagrams, and the packets of a connection.

use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use abi::{Errno, Result};
use fbuf::{Aggregate, Sink, Slice, Source};
use nucleus::{
    Frame, PAGE_SIZE, Pieces,
    frame::Contents,
    sync::{Rank, SpinLock},
};

use super::{
    credentials::Sender,
    end::{DataQueue, End},
    name::Name,
    rights::{self, Rights},
};
use crate::process::files::OpenFile;

/// Messages of up to this many bytes share frames with others of their sender.
const SMALL: usize = PAGE_SIZE / 4;

/// Messages for one end.
pub struct Messages {
    queue: SpinLock<Queue>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Arc<Message>>,
    /// The receiving side is closed.
    closed: bool,
    /// Senders that found the queue full and wait to be told of room, by their addresses.
    waiting: BTreeMap<usize, Weak<End>>,
    /// The one of them that was looked at last, for its end.
    looked: usize,
}

/// A message.
pub struct Message {
    body: Body,
    /// The sender's name when it was sent.
    pub from: Option<Arc<Name>>,
    pub sender: Option<Sender>,
    /// Since the epoch, when it was sent.
    pub time: Duration,
    rights: SpinLock<Option<Rights>>,
    /// It has been peeked at: an empty one is not looked at again from a place behind it.
    pub seen: AtomicBool,
    /// Held for its drop.
    _charge: Charge,
}

/// The bytes of a message: most have one slice.
enum Body {
    One(Slice),
    Many(Aggregate),
}

/// The charge of a queued message on its sender's buffer; released by the drop.
pub struct Charge {
    pub to: Arc<End>,
    pub bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.to.give_back(self.bytes);
    }
}

/// The frame that a sender's last small message went to.
pub struct Tail {
    frame: Option<Frame>,
    used: usize,
}

impl Tail {
    /// No frame yet.
    pub const fn new() -> Tail {
        Tail {
            frame: None,
            used: 0,
        }
    }

    /// Copies a small message behind others.
    fn add(&mut self, from: &mut dyn Source, len: usize) -> Result<Slice> {
        // When no other handle of the frame exists, it is empty again.
        if self
            .frame
            .as_ref()
            .is_some_and(|frame| frame.handles() == 1)
        {
            self.used = 0;
        }
        if self.frame.is_none() || self.used + len > PAGE_SIZE {
            let frame = vm::alloc_frame(Contents::Stale)?;
            self.frame = Some(frame);
            self.used = 0;
        }
        let Some(frame) = &self.frame else {
            return Err(Errno::ENOMEM);
        };
        let mut done = 0;
        while done < len {
            match from.take_into(frame, self.used + done, len - done)? {
                0 => return Err(Errno::EFAULT),
                n => done += n,
            }
        }
        let slice = Slice::part(frame, self.used, len);
        self.used += len;
        Ok(slice)
    }
}

impl Message {
    /// Makes a message of all of `from`, sent by `by`, whose `tail` is used for a small one.
    ///
    /// # Errors
    /// `ENOMEM`, those of the source.
    pub fn new(
        by: &Arc<End>,
        tail: &mut Tail,
        from: &mut dyn Source,
        sender: Option<Sender>,
        rights: Option<Rights>,
    ) -> Result<Arc<Message>> {
        let len = from.left();
        let body = if len == 0 {
            Body::Many(Aggregate::new())
        } else if len <= SMALL {
            Body::One(tail.add(from, len)?)
        } else {
            let mut bytes = Aggregate::new();
            let filled = bytes.fill_from(from, len)?;
            if filled < len {
                return Err(Errno::EFAULT);
            }
            Body::Many(bytes)
        };
        Ok(Arc::new(Message {
            body,
            from: by.name(),
            sender,
            time: nucleus::time::since_epoch(),
            rights: SpinLock::new(Rank::Leaf, rights),
            seen: AtomicBool::new(false),
            _charge: by.charge(len),
        }))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match &self.body {
            Body::One(slice) => slice.len,
            Body::Many(bytes) => bytes.len(),
        }
    }

    /// Copies what `to` has room for, from the byte at `skip` on; returns how much.
    ///
    /// # Errors
    /// That of the sink.
    pub fn copy(&self, to: &mut dyn Sink, mut skip: usize) -> Result<usize> {
        let mut total = 0;
        match &self.body {
            Body::One(slice) => put(slice, to, &mut skip, &mut total)?,
            Body::Many(bytes) => {
                for slice in bytes.slices() {
                    put(slice, to, &mut skip, &mut total)?;
                }
            }
        }
        Ok(total)
    }

    /// The files that came with it, which have arrived.
    pub fn receive_rights(&self) -> Vec<Arc<OpenFile>> {
        let has_sockets = match &*self.rights.lock() {
            None => return Vec::new(),
            Some(rights) => rights.has_sockets(),
        };
        let mut sockets = has_sockets.then(rights::sockets);
        let rights = self.rights.lock().take();
        rights.map_or_else(Vec::new, |rights| rights.arrive(sockets.as_deref_mut()))
    }

    /// A second handle of each file that came with it.
    pub fn peek_rights(&self) -> Vec<Arc<OpenFile>> {
        let has_sockets = match &*self.rights.lock() {
            None => return Vec::new(),
            Some(rights) => rights.has_sockets(),
        };
        let _sockets = has_sockets.then(rights::sockets);
        let rights = self.rights.lock();
        rights.as_ref().map_or_else(Vec::new, Rights::duplicate)
    }
}

/// Returns a slice without the part that is still to be skipped, or is beyond the room.
fn put(slice: &Slice, to: &mut dyn Sink, skip: &mut usize, total: &mut usize) -> Result<()> {
    let start = slice.len.min(*skip);
    *skip -= start;
    let mut done = start;
    while done < slice.len && to.room() > 0 {
        let put = match to.keeps() {
            true => to.put_slice(slice.last(slice.len - done)),
            false => to.put_frame(slice.frame(), slice.offset + done, slice.len - done),
        };
        match put? {
            0 => break,
            n => done += n,
        }
    }
    *total += done - start;
    Ok(())
}

impl Queue {
    /// Looks at two waiting senders, in turn, and removes those that have ended. Done before each
    /// new one is added, that keeps the ended ones fewer than those that came in the last round.
    fn forget_ended(&mut self) {
        for _ in 0..2 {
            let next = self.waiting.range(self.looked + 1..).next();
            let Some((&address, waiting)) = next else {
                self.looked = 0;
                return;
            };
            self.looked = address;
            if waiting.strong_count() == 0 {
                self.waiting.remove(&address);
            }
        }
    }
}

/// A queue's answer to a message.
pub enum Push {
    Done,
    /// The receiving side is closed.
    Closed,
    /// There are as many as there may be; here is the message again.
    Full(Arc<Message>),
}

impl Messages {
    /// No messages.
    pub fn new() -> Messages {
        Messages {
            queue: SpinLock::new(Rank::Leaf, Queue::default()),
        }
    }

    /// Adds a message if there are no more than `max` before it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn push(&self, message: Arc<Message>, max: usize) -> Result<Push> {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return Ok(Push::Closed);
        }
        if queue.messages.len() > max {
            return Ok(Push::Full(message));
        }
        if queue.messages.try_reserve(1).is_err() {
            drop(queue);
            return Err(Errno::ENOMEM);
        }
        queue.messages.push_back(message);
        Ok(Push::Done)
    }

    /// Whether a further message would be one too many; `who` is then told when it no longer is.
    pub fn is_full(&self, max: usize, who: &Arc<End>) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed || queue.messages.len() <= max {
            return false;
        }
        // The address is not another end's while a weak reference to this one stands here.
        let address = Arc::as_ptr(who).addr();
        if !queue.waiting.contains_key(&address) {
            queue.forget_ended();
            queue.waiting.insert(address, Arc::downgrade(who));
        }
        true
    }

    /// The message with the byte at `skip`, counted from the first message's, and that byte's place
    /// in it; without, the first message. It stays.
    pub fn look(&self, skip: Option<usize>) -> Option<(Arc<Message>, usize)> {
        let queue = self.queue.lock();
        let Some(mut skip) = skip else {
            return queue.messages.front().map(|first| (first.clone(), 0));
        };
        let found = queue.messages.iter().find(|message| {
            let len = message.len();
            let behind = skip >= len && (len > 0 || skip > 0 || message.seen.load(Relaxed));
            skip -= if behind { len } else { 0 };
            !behind
        })?;
        Some((found.clone(), skip))
    }

    /// Takes the first message off, and tells waiting senders that there is room.
    pub fn pop(&self) -> Option<Arc<Message>> {
        let (message, waiting) = {
            let mut queue = self.queue.lock();
            let message = queue.messages.pop_front();
            let are_waiting = !queue.waiting.is_empty();
            (
                message,
                are_waiting.then(|| core::mem::take(&mut queue.waiting)),
            )
        };
        if let Some(waiting) = waiting {
            wake(waiting);
        }
        message
    }

    /// Messages, and bytes in the first of them.
    pub fn status(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        let first = queue.messages.front().map_or(0, |message| message.len());
        (queue.messages.len(), first)
    }

    fn snapshot(&self) -> Pieces<Arc<Message>> {
        self.queue.lock().messages.iter().cloned().collect()
    }
}

impl DataQueue for Messages {
    fn close(&self) {
        let waiting = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            core::mem::take(&mut queue.waiting)
        };
        wake(waiting);
    }

    fn discard(&self) -> bool {
        let mut rights = Vec::new();
        self.take_rights(&mut rights);
        drop(rights);
        let mut any = false;
        while let Some(message) = self.pop() {
            any = true;
            drop(message);
        }
        any
    }

    fn visit_rights(&self, visit: &mut dyn FnMut(&Rights)) {
        for message in self.snapshot() {
            if let Some(rights) = &*message.rights.lock() {
                visit(rights);
            }
        }
    }

    fn take_rights(&self, to: &mut Vec<Rights>) {
        for message in self.snapshot() {
            to.extend(message.rights.lock().take());
        }
    }
}

fn wake(waiting: BTreeMap<usize, Weak<End>>) {
    for end in waiting.into_values() {
        if let Some(end) = end.upgrade() {
            end.common.writers.wake_shared(false);
        }
    }
}
