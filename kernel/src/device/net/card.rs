//! A card: its start, its configuration, the tasks that serve it, its end.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};

use net::{
    link::{Features, Mac},
    packet::Packet,
};
use nucleus::{
    PAGE_SIZE, log, random,
    sync::{Rank, SpinLock},
    task::{self, Sleep, WaitQueue, yield_now},
    virtio::{self, Device, Error, Queue, Queues, ReadConfig},
};

use super::{
    Feature,
    control::{self, Control},
    header,
    receiver::{Received, Receiver},
    sender::Sender,
    spawn,
};
use crate::device::ports::patience;

/// Places in the configuration (5.1.4).
const STATUS: usize = 6;
const PAIRS: usize = 8;
const MTU: usize = 10;
/// In the status: the link is there.
const LINK_UP: u8 = 1;

/// The MTU of a card that says nothing else.
const USUAL_MTU: u16 = 1500;
/// The least MTU that makes sense: see [`net::ip::Interface`].
const LEAST_MTU: u16 = 68;
/// Pairs of queues at most; of a device with more one is used.
const MOST_PAIRS: u16 = 16;
/// Frames for buffers of all pairs together, and the most and the least of one pair. The device
/// holds them while it waits for packets.
const BUFFERS: usize = 512;
const MOST_BUFFERS: usize = 128;
const LEAST_BUFFERS: usize = 32;
/// Packets that a task takes before it lets others run.
const TURN: usize = 64;
/// Bytes that the device may have to cut: what is left of the longest packet beside headers.
const MOST_CUT: u32 = 65_535 - 128;

/// What a card tells of.
pub trait Above: Send + Sync {
    /// Takes a packet that has arrived.
    fn receive(&self, packet: Packet);

    /// Notes that there was no memory for a packet.
    fn note_dropped(&self);

    /// Notes that the link is there, or gone.
    fn note_carrier(&self);
}

/// Two queues, and the task that serves them.
struct Pair {
    sender: Sender,
    receives: Arc<Queue>,
    sends: Arc<Queue>,
    bell: Arc<WaitQueue>,
    /// For the task, when it begins.
    receiver: SpinLock<Option<Receiver>>,
}

/// A card that runs.
pub struct Card {
    device: Device,
    pairs: Vec<Pair>,
    control: Option<Control>,
    features: Features,
    has_carrier: AtomicBool,
    has_failed: AtomicBool,
    has_status: bool,
}

/// Chooses features and queues.
fn choose(offered: u64, read: ReadConfig<'_>) -> Result<(u64, Queues), Error> {
    let mut wanted = Feature::from_bits_truncate(offered);
    if !wanted.contains(Feature::MERGED_BUFFERS) {
        // A buffer is one frame: it has no room for several segments.
        wanted -= Feature::RECEIVES_TCP_V4 | Feature::RECEIVES_TCP_V6;
    }
    if !wanted.contains(Feature::CONTROL) {
        wanted -= Feature::PAIRS | Feature::RECEIVE_MODES;
    }
    let mut pairs = 1;
    if wanted.contains(Feature::PAIRS) {
        pairs = word(read, PAIRS)?;
        if !(1..=MOST_PAIRS).contains(&pairs) {
            wanted -= Feature::PAIRS;
            pairs = 1;
        }
    }
    let count = 2 * pairs + u16::from(wanted.contains(Feature::CONTROL));
    let queues = Queues {
        count,
        // Buffers of several frames stand beside those of one.
        slots: 2 * MOST_BUFFERS,
        messages: pairs + 1,
        group: 2,
    };
    Ok((wanted.bits(), queues))
}

fn word(read: ReadConfig<'_>, at: usize) -> Result<u16, Error> {
    let mut bytes = [0; 2];
    read(at, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

impl Card {
    /// Starts a device.
    ///
    /// # Errors
    /// As [`virtio::Found::start`], and [`Error::Broken`] for a configuration that can't be.
    pub fn start(found: virtio::Found) -> Result<Arc<Card>, Error> {
        Card::new(found.start_chosen(choose)?)
    }

    fn new(device: Device) -> Result<Arc<Card>, Error> {
        let features = Feature::from_bits_truncate(device.features());
        let read: ReadConfig<'_> = &|at, to| device.read_config(at, to);
        let mut mac = [0; 6];
        match features.contains(Feature::MAC) {
            true => read(0, &mut mac)?,
            false => {
                mac.copy_from_slice(&random::u64().to_le_bytes()[..6]);
                // Of one device, and of no maker's.
                mac[0] = mac[0] & !1 | 2;
            }
        }
        let mac = Mac(mac);
        if mac.is_for_many() {
            return Err(Error::Broken);
        }
        let mut mtu = match features.contains(Feature::MTU) {
            true => word(read, MTU)?,
            false => USUAL_MTU,
        };
        if mtu < LEAST_MTU {
            return Err(Error::Broken);
        }
        if !features.contains(Feature::MERGED_BUFFERS) {
            mtu = mtu.min((PAGE_SIZE - header::LEN - header::ETHERNET) as u16);
        }
        let has_control = features.contains(Feature::CONTROL);
        let there = (device.queue_count() - u16::from(has_control)) / 2;
        let used = usize::from(there).min(task::cpu_count());
        let buffers = (BUFFERS / used).clamp(LEAST_BUFFERS, MOST_BUFFERS);
        let mut pairs = nucleus::try_vec(used)?;
        for at in 0..used as u16 {
            let (receives, sends) = (
                device.queue(2 * at).clone(),
                device.queue(2 * at + 1).clone(),
            );
            let bell = Arc::new(WaitQueue::new());
            receives.defer(bell.clone());
            sends.defer(bell.clone());
            let receiver = Receiver::new(&device, &receives, features, mtu, buffers)?;
            pairs.push(Pair {
                sender: Sender::new(&device, &sends, buffers / 2)?,
                receives,
                sends,
                bell,
                receiver: SpinLock::new(Rank::Leaf, Some(receiver)),
            });
        }
        let control = match has_control {
            true => Some(Control::new(&device, 2 * there)?),
            false => None,
        };
        let cuts = Feature::SUMS | Feature::CUTS_TCP_V4 | Feature::CUTS_TCP_V6;
        let card = Card {
            features: Features {
                mac: Some(mac),
                mtu,
                checksums: features.contains(Feature::SUMS),
                cuts: if features.contains(cuts) { MOST_CUT } else { 0 },
            },
            device,
            pairs,
            control,
            has_carrier: AtomicBool::new(true),
            has_failed: AtomicBool::new(false),
            has_status: features.contains(Feature::STATUS),
        };
        card.has_carrier.store(card.is_link_up(), Relaxed);
        if used > 1 {
            card.command(control::SET_PAIRS, &(used as u16).to_le_bytes());
        }
        if features.contains(Feature::RECEIVE_MODES) {
            card.command(control::PROMISCUOUS, &[0]);
            card.command(control::ALL_GROUPS, &[1]);
        }
        log!(
            "net: {:02x?}, MTU {mtu}, {used} of {there} pairs of queues, {features:?}",
            mac.0
        );
        Ok(Arc::new(card))
    }

    fn command(&self, command: (u8, u8), argument: &[u8]) {
        if let Some(control) = &self.control
            && let Err(error) = control.command(command, argument)
        {
            log!("net: the command {command:?} fails: {error:?}");
        }
    }

    /// Asks the device whether its link is there.
    fn is_link_up(&self) -> bool {
        let mut status = [LINK_UP; 2];
        if self.has_status {
            // One that can't be read stays as it is.
            let _ = self.device.read_config(STATUS, &mut status);
        }
        status[0] & LINK_UP != 0
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn serve(self: &Arc<Card>, above: &Arc<dyn Above>) -> abi::Result<()> {
        for at in 0..self.pairs.len() {
            let Some(receiver) = self.pairs[at].receiver.lock().take() else {
                continue;
            };
            let (card, above) = (self.clone(), above.clone());
            spawn("net-card", move || card.serve_pair(at, receiver, &*above))?;
        }
        if self.has_status {
            let (card, above) = (self.clone(), above.clone());
            spawn("net-link", move || card.serve_link(&*above))?;
        }
        Ok(())
    }

    /// Hands over what a pair's queue receives, and sends what waits; ends when the device fails.
    fn serve_pair(&self, at: usize, mut receiver: Receiver, above: &dyn Above) {
        let pair = &self.pairs[at];
        let mut has_memory = receiver.refill(true);
        while !self.has_failed.load(Relaxed) {
            let has_more = match self.take_turn(&mut receiver, above) {
                Ok(has_more) => has_more,
                Err(why) => return self.fail(above, why),
            };
            has_memory &= receiver.refill(!has_more);
            let waits = pair.sender.run();
            if pair.receives.is_broken() || pair.sends.is_broken() {
                return self.fail(above, "a queue has failed");
            }
            if has_more {
                yield_now();
                continue;
            }
            let has_news = pair.receives.rearm();
            if has_news || waits && pair.sends.rearm() {
                continue;
            }
            // One message is for both queues: after an interrupt that one of them was not meant
            // with, it is to be rearmed all the same.
            let is_due = |queue: &Queue| queue.is_silent() || queue.has_news();
            let is_woken = || {
                let may_send = pair.sender.has_waiting() && is_due(&pair.sends);
                (may_send || is_due(&pair.receives)).then_some(())
            };
            // A deadline is only a reason to look again.
            let _ = pair
                .bell
                .wait(patience(&pair.receives, has_memory), is_woken);
            has_memory = true;
        }
        pair.sender.abandon();
    }

    /// Hands over a number of packets. Returns whether there may be more.
    fn take_turn(&self, receiver: &mut Receiver, above: &dyn Above) -> Result<bool, &'static str> {
        for _ in 0..TURN {
            match receiver.next()? {
                Received::Packet(packet) => above.receive(packet),
                Received::Dropped => above.note_dropped(),
                Received::Nothing => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Notes that the link comes and goes, until the device fails.
    fn serve_link(&self, above: &dyn Above) {
        while !self.has_failed.load(Relaxed) {
            let has_changed = || {
                let is_up = self.is_link_up();
                let is_news = is_up != self.has_carrier.load(Relaxed);
                let is_over = self.has_failed.load(Relaxed);
                (is_news || is_over).then_some(is_up)
            };
            let changed = self.device.changes().wait(Sleep::SOUND, has_changed);
            if let Ok(is_up) = changed
                && !self.has_failed.load(Relaxed)
            {
                self.has_carrier.store(is_up, Relaxed);
                log!("net: the link is {}", if is_up { "there" } else { "gone" });
                above.note_carrier();
            }
        }
    }

    /// Resets the device, which has said what can't be.
    fn fail(&self, above: &dyn Above, why: &'static str) {
        if !self.has_failed.swap(true, SeqCst) {
            log!("net: a card is reset and not used any more: {why}");
            self.device.give_up(why);
            self.has_carrier.store(false, Relaxed);
            self.device.changes().wake_all();
            above.note_carrier();
        }
        for pair in &self.pairs {
            pair.bell.wake_all();
            pair.sender.abandon();
        }
    }
}

impl net::link::Device for Card {
    fn features(&self) -> Features {
        self.features
    }

    fn send(&self, packet: Packet) -> bool {
        if self.has_failed.load(Relaxed) {
            return false;
        }
        let at = task::cpu() % self.pairs.len();
        self.pairs[at].sender.send(packet)
    }

    fn has_carrier(&self) -> bool {
        self.has_carrier.load(Relaxed)
    }

    fn set_promiscuous(&self, is_wanted: bool) {
        self.command(control::PROMISCUOUS, &[is_wanted.into()]);
    }
}
