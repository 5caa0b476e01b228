//! The ports of a virtio console device (virtio 1.1, 5.3): streams of bytes between the host and
//! the kernel, two queues each.
//!
//! A [`Receiver`] keeps frames with the device, which fills them one after the other; a filled one
//! becomes a slice, and another frame takes its place. A [`Sender`] gives the device slices as they
//! are. No byte is copied here.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::{mem, time::Duration};

use fbuf::{Aggregate, Slice};
use nucleus::{
    Frame, OutOfMemory, PAGE_SIZE,
    dma::{Buffer, Part},
    frame::Contents,
    log,
    task::Sleep,
    virtio::{self, Device, Error, Kind, Queue, Queues, Request},
};

/// `VIRTIO_CONSOLE_F_MULTIPORT`.
const MULTIPORT: u64 = 1 << 1;
/// `max_nr_ports` in the device's configuration.
const MAX_PORTS: usize = 4;

/// The queues of control messages between the device and its driver.
const CONTROL_IN: u16 = 2;
const CONTROL_OUT: u16 = 3;

/// Slots of a queue: two transfers of the largest size are on their way, and one fills up.
const SLOTS: usize = 32;
/// Messages by which the queues interrupt. The device has one for each port and one more.
const MESSAGES: u16 = 4;

/// `struct virtio_console_control`: a port, an event, a value.
const CONTROL: usize = 8;
/// What a control message may have behind it: the name of a port.
const CONTROL_MAX: usize = 128;
/// Control messages that the device may send before they are looked at: it names all its ports at
/// once, and drops what finds no room.
const CONTROLS: usize = 32;
/// Events, as the specification numbers them.
const DEVICE_READY: u16 = 0;
const DEVICE_ADD: u16 = 1;
const PORT_READY: u16 = 3;
const PORT_OPEN: u16 = 6;

/// Control messages that the device may send for each port before all are named.
const MOST_SAID: u32 = 16;
/// How long the device may take to name its ports.
const PATIENCE: Duration = Duration::from_secs(5);

/// Frames that a receiver keeps with the device.
const RECEIVING: usize = 16;
/// Transfers that a sender has on their way.
const SENDING: usize = 2;

/// A console device with ports.
pub struct Ports {
    device: Device,
    /// Ports are less than this.
    count: u32,
}

/// Starts the first console device with at least `count` ports, numbered from 0, and opens those
/// from 1 on.
///
/// # Errors
/// As [`virtio::Found::start`], and [`Error::Lacks`] if there is no such device, or it has fewer
/// ports.
pub fn start(count: u32) -> Result<Arc<Ports>, Error> {
    let found = virtio::take(Kind::Console).into_iter().next();
    let found = found.ok_or(Error::Lacks("a console device"))?;
    let number = u16::try_from(2 * count + 2).map_err(|_| Error::TooLong)?;
    let device = found.start_with(
        MULTIPORT,
        Queues {
            count: number,
            slots: SLOTS,
            messages: MESSAGES,
            group: 1,
        },
    )?;
    if device.features() & MULTIPORT == 0 {
        return Err(Error::Lacks("ports"));
    }
    let mut most = [0; 4];
    device.read_config(MAX_PORTS, &mut most)?;
    if u32::from_le_bytes(most) < count {
        return Err(Error::Lacks("enough ports"));
    }
    let ports = Ports { device, count };
    ports.open()?;
    Ok(Arc::new(ports))
}

impl Ports {
    /// Returns the receiving half of a port. There is to be one of each port.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn receiver(&self, port: u32) -> Result<Receiver, OutOfMemory> {
        Receiver::new(self.queue(port, 0))
    }

    /// Returns the sending half of a port. There is to be one of each port.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn sender(&self, port: u32) -> Result<Sender, OutOfMemory> {
        Sender::new(self.queue(port, 1))
    }

    /// Port 0 has queues 0 and 1, then come those of control messages, then those of other ports.
    fn queue(&self, port: u32, half: u16) -> &Arc<Queue> {
        assert!(port < self.count, "a port that was not asked for");
        let first = match port {
            0 => 0,
            port => 2 + 2 * port as u16,
        };
        self.device.queue(first + half)
    }

    /// Tells the device that its driver is there, and opens each port that it names.
    fn open(&self) -> Result<(), Error> {
        let (inward, outward) = (
            self.device.queue(CONTROL_IN),
            self.device.queue(CONTROL_OUT),
        );
        let pool = self.device.pool(2)?;
        let page = pool.take()?;
        let mut waiting = VecDeque::new();
        waiting
            .try_reserve(CONTROLS)
            .map_err(|_| Error::OutOfMemory)?;
        for i in 0..CONTROLS {
            let request = Request::idle(1)?;
            listen(inward, &request, &page, i)?;
            waiting.push_back((request, i));
        }
        let said = pool.take()?;
        let says = Request::idle(1)?;
        say(outward, &says, &said, &[(0, DEVICE_READY)])?;
        let until = Sleep::within(PATIENCE);
        let mut is_named = nucleus::try_filled(self.count as usize, false)?;
        let mut left = self.count - 1;
        // A device says a few things of each port, and nothing without end.
        let mut messages = 0..MOST_SAID * self.count;
        while left > 0 {
            messages.next().ok_or(Error::Broken)?;
            let Some((request, place)) = waiting.pop_front() else {
                return Err(Error::Broken);
            };
            let heard = inward.wait(&request, until);
            let written = heard.map_err(|_| Error::Lacks("enough ports"))??;
            let mut message = [0; CONTROL];
            page.read(place * CONTROL_MAX, &mut message);
            let (port, rest) = message.split_at(4);
            let port = u32::from_le_bytes(port.try_into().unwrap_or_default());
            let event = u16::from_le_bytes([rest[0], rest[1]]);
            // Messages about a port's name and its other end are ignored.
            let is_new = |named: &mut bool| !mem::replace(named, true);
            if written as usize >= CONTROL
                && event == DEVICE_ADD
                && port > 0
                && is_named.get_mut(port as usize).is_some_and(is_new)
            {
                left -= 1;
                say(
                    outward,
                    &says,
                    &said,
                    &[(port, PORT_READY), (port, PORT_OPEN)],
                )?;
            }
            listen(inward, &request, &page, place)?;
            waiting.push_back((request, place));
        }
        // The last messages stay with the device; their frame is not the pool's any more.
        Ok(())
    }
}

/// Gives the device a request for its next control message, whose place is in `page`.
fn listen(queue: &Queue, request: &Arc<Request>, page: &Buffer, place: usize) -> Result<(), Error> {
    const { assert!(CONTROLS * CONTROL_MAX <= PAGE_SIZE && CONTROLS <= SLOTS) };
    let part = page.part(place * CONTROL_MAX, CONTROL_MAX);
    request.renew(0, |parts| parts.push(part));
    queue.submit(request)
}

/// Sends control messages with the value 1, one after the other.
fn say(
    queue: &Queue,
    request: &Arc<Request>,
    page: &Buffer,
    messages: &[(u32, u16)],
) -> Result<(), Error> {
    for &(port, event) in messages {
        let mut bytes = [0; CONTROL];
        bytes[..4].copy_from_slice(&port.to_le_bytes());
        bytes[4..6].copy_from_slice(&event.to_le_bytes());
        bytes[6..].copy_from_slice(&1u16.to_le_bytes());
        page.write(0, &bytes);
        let part = page.part(0, CONTROL);
        request.renew(1, |parts| parts.push(part));
        queue.submit(request)?;
        let sent = queue.wait(request, Sleep::within(PATIENCE));
        sent.map_err(|_| Error::Broken)??;
    }
    Ok(())
}

/// Returns how to wait for a queue's progress: without interrupts, or while memory is missing, the
/// waiter looks again by itself.
pub fn patience(queue: &Queue, has_memory: bool) -> Sleep {
    match (queue.has_interrupts(), has_memory) {
        (true, true) => Sleep::SOUND,
        (false, true) => Sleep::within(Duration::from_millis(1)),
        (_, false) => Sleep::within(Duration::from_millis(10)),
    }
}

/// Bytes from the host.
pub struct Receiver {
    queue: Arc<Queue>,
    /// Frames that the device fills, in this order.
    flying: VecDeque<(Arc<Request>, Frame)>,
    /// Requests without a frame.
    idle: Vec<Arc<Request>>,
    broken: bool,
}

impl Receiver {
    fn new(queue: &Arc<Queue>) -> Result<Receiver, OutOfMemory> {
        queue.prepare(RECEIVING)?;
        let mut flying = VecDeque::new();
        flying.try_reserve(RECEIVING).map_err(|_| OutOfMemory)?;
        let mut idle = nucleus::try_vec(RECEIVING)?;
        for _ in 0..RECEIVING {
            idle.push(Request::idle(1)?);
        }
        Ok(Receiver {
            queue: queue.clone(),
            flying,
            idle,
            broken: false,
        })
    }

    /// Returns the queue, whose [`progress`](Queue::progress) is woken when bytes have come.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Waits for the next bytes; `None` when the device has failed.
    pub fn wait(&mut self) -> Option<Slice> {
        let queue = self.queue.clone();
        loop {
            let has_all = self.refill();
            let how = patience(&queue, has_all);
            let found = queue.progress().wait(how, || match self.take() {
                None if self.broken => Some(None),
                found => found.map(Some),
            });
            // A deadline is only a reason to ask again.
            if let Ok(found) = found {
                return found;
            }
        }
    }

    /// Whether the device has failed: no more bytes come.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Gives the device frames for bytes to come. Returns false if memory is missing for some.
    pub fn refill(&mut self) -> bool {
        while !self.broken
            && let Some(request) = self.idle.pop()
        {
            // Zeroed: a device that says to have written more than it has shows nothing of others.
            let Ok(frame) = Frame::alloc(Contents::Zeroed) else {
                self.idle.push(request);
                return !self.flying.is_empty();
            };
            request.renew(0, |parts| parts.push(Part::whole(frame.clone())));
            if let Err(error) = self.queue.try_submit(&request) {
                request.abandon();
                self.idle.push(request);
                match error {
                    Error::OutOfMemory => return !self.flying.is_empty(),
                    error => self.fail(error),
                }
                break;
            }
            self.flying.push_back((request, frame));
        }
        true
    }

    /// Returns the next bytes, if there are any.
    pub fn take(&mut self) -> Option<Slice> {
        loop {
            let (request, _) = self.flying.front()?;
            if !self.queue.is_done(request) {
                return None;
            }
            let result = request.result()?;
            let (request, frame) = self.flying.pop_front()?;
            request.clear();
            self.idle.push(request);
            match result {
                Ok(0) => {}
                Ok(len) if len as usize <= PAGE_SIZE => {
                    let len = len as usize;
                    return Some(Slice::part(&frame, 0, len));
                }
                Ok(_) => self.fail(Error::Broken),
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: Error) {
        if !self.broken {
            log!("console: a port receives no more: {error:?}");
        }
        self.broken = true;
    }
}

/// Bytes to the host.
pub struct Sender {
    queue: Arc<Queue>,
    requests: [Arc<Request>; SENDING],
    /// The slices of each request that is with the device: they own what it reads.
    flying: [Aggregate; SENDING],
    broken: bool,
}

impl Sender {
    fn new(queue: &Arc<Queue>) -> Result<Sender, OutOfMemory> {
        queue.prepare(SENDING)?;
        let parts = queue.max_parts();
        let mut flying = [const { Aggregate::new() }; SENDING];
        for slices in &mut flying {
            slices.reserve(parts).map_err(|_| OutOfMemory)?;
        }
        Ok(Sender {
            queue: queue.clone(),
            requests: [Request::idle(parts)?, Request::idle(parts)?],
            flying,
            broken: false,
        })
    }

    /// Returns the queue, whose [`progress`](Queue::progress) is woken when bytes have gone.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Waits until another transfer may begin, or with `all` until all bytes have left.
    pub fn wait(&mut self, all: bool) {
        let queue = self.queue.clone();
        let most = if all { 0 } else { SENDING - 1 };
        let is_over = |sender: &mut Sender| (sender.settle() <= most).then_some(());
        while queue
            .progress()
            .wait(patience(&queue, true), || is_over(self))
            .is_err()
        {}
    }

    /// The most slices of one transfer.
    pub fn max_slices(&self) -> usize {
        self.queue.max_parts()
    }

    /// Whether another transfer may begin. Frees the slices of those that are over.
    pub fn has_room(&mut self) -> bool {
        self.settle() < SENDING
    }

    /// Returns how many transfers are on their way.
    fn settle(&mut self) -> usize {
        for (request, flying) in self.requests.iter().zip(&mut self.flying) {
            if !flying.is_empty() && self.queue.is_done(request) {
                self.broken |= matches!(request.result(), Some(Err(_)));
                request.clear();
                flying.clear();
            }
        }
        let flying = self.flying.iter().filter(|flying| !flying.is_empty());
        flying.count()
    }

    /// Sends the first slices of `bytes`, up to [`max_slices`](Sender::max_slices), if there is
    /// [room](Sender::has_room). A device that has failed swallows them.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing was sent.
    pub fn send(&mut self, bytes: &mut Aggregate) -> Result<(), OutOfMemory> {
        if !self.has_room() || bytes.is_empty() {
            return Ok(());
        }
        let Some(free) = self.flying.iter().position(Aggregate::is_empty) else {
            return Ok(());
        };
        let request = &self.requests[free];
        let max = self.queue.max_parts();
        let mut len = 0;
        request.renew(bytes.slice_count().min(max), |parts| {
            for slice in bytes.slices().take(max) {
                parts.push(Part::new(slice.frame().clone(), slice.offset, slice.len));
                len += slice.len;
            }
        });
        match self.queue.try_submit(request) {
            Ok(()) => {
                bytes.share_front(&mut self.flying[free], len, max);
            }
            Err(error) => {
                request.abandon();
                if error == Error::OutOfMemory {
                    return Err(OutOfMemory);
                }
                if !self.broken {
                    log!("console: a port sends no more: {error:?}");
                }
                self.broken = true;
            }
        }
        bytes.clip_front(len);
        Ok(())
    }
}
