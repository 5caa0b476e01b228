//! The control port: messages to the host, and messages from it.

use alloc::vec::Vec;

use fbuf::{Aggregate, Slice};
use nucleus::{Frame, OutOfMemory, PAGE_SIZE, ephemeral, frame::Contents, log, sync::Mutex};
use session::{FRAME, ToHost};

use crate::device::ports::{Receiver, Sender};

/// Bytes of a message to the host, its frame included.
const MESSAGE: usize = 64;

/// The way to the host.
pub(super) struct Line(Mutex<Outbox>);

struct Outbox {
    sender: Sender,
    /// Messages on their way, each in a place of its own: there are more places than messages.
    page: Frame,
    next: usize,
    chain: Aggregate,
}

impl Line {
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new(sender: Sender) -> Result<Line, OutOfMemory> {
        let mut chain = Aggregate::new();
        chain.reserve(1).map_err(|_| OutOfMemory)?;
        let outbox = Outbox {
            sender,
            page: Frame::alloc(Contents::Zeroed)?,
            next: 0,
            chain,
        };
        Ok(Line(Mutex::new(crate::rank::SESSION_LINE, outbox)))
    }

    /// Sends a message, after those that were sent before. Sleeps while the host takes none.
    pub(super) fn say(&self, message: &ToHost) {
        let mut bytes = [0; MESSAGE];
        let Ok(framed) = session::frame(message, &mut bytes) else {
            unreachable!("messages to the host are short");
        };
        let mut outbox = self.0.lock();
        let outbox = &mut *outbox;
        outbox.sender.wait(false);
        let at = outbox.next;
        outbox.next = (at + MESSAGE) % PAGE_SIZE;
        ephemeral::map(&outbox.page).write(at, framed);
        let slice = Slice::part(&outbox.page, at, framed.len());
        if outbox.chain.append(slice).is_ok() && outbox.sender.send(&mut outbox.chain).is_err() {
            // Slots and tables were made at the start.
            log!("sessions: no memory for a message to the host");
        }
    }

    /// Waits until all messages have left.
    pub(super) fn wait(&self) {
        self.0.lock().sender.wait(true);
    }
}

/// The messages from the host.
pub(super) struct Inbox {
    receiver: Receiver,
    /// Bytes that have come and are not read.
    come: Aggregate,
    /// The message that is being read.
    message: Vec<u8>,
}

/// The beginning of a message for which there is no memory: enough to say whose it is.
const HEAD: usize = 16;
/// Memory that is kept for messages.
const KEPT: usize = PAGE_SIZE;

impl Inbox {
    pub(super) fn new(receiver: Receiver) -> Inbox {
        Inbox {
            receiver,
            come: Aggregate::new(),
            message: Vec::new(),
        }
    }

    /// Waits for the next message and returns it without its frame; with [`OutOfMemory`] only its
    /// first bytes. `None` when the device has failed, or the host sends no messages.
    pub(super) fn next(&mut self) -> Option<(&[u8], Result<(), OutOfMemory>)> {
        let mut frame = [0; FRAME];
        self.read(&mut frame)?;
        let Ok(len) = session::length(frame) else {
            log!("sessions: what the host sends is no message");
            return None;
        };
        self.message.clear();
        if self.message.capacity() > KEPT {
            self.message = Vec::new();
        }
        let kept = match self.message.try_reserve(len) {
            Ok(()) => len,
            Err(_) => {
                self.message.try_reserve(HEAD).ok()?;
                len.min(HEAD)
            }
        };
        let mut message = core::mem::take(&mut self.message);
        message.resize(kept, 0);
        self.read(&mut message)?;
        let mut rest = len - kept;
        while rest > 0 {
            let n = self.more()?.min(rest);
            self.come.clip_front(n);
            rest -= n;
        }
        self.message = message;
        let is_whole = (kept == len).then_some(()).ok_or(OutOfMemory);
        Some((&self.message, is_whole))
    }

    /// Fills `to`.
    fn read(&mut self, to: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < to.len() {
            self.more()?;
            let n = self.come.peek(0, &mut to[done..]);
            self.come.clip_front(n);
            done += n;
        }
        Some(())
    }

    /// Waits until there are bytes; returns how many.
    fn more(&mut self) -> Option<usize> {
        while self.come.is_empty() {
            let slice = self.receiver.wait()?;
            if self.come.append(slice).is_err() {
                log!("sessions: no memory for a message");
                return None;
            }
        }
        Some(self.come.len())
    }
}
