//! A card: its start, its configuration, the tasks that serve it, its end and its next start.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use fbuf::{Aggregate, region::Pool};
use net::{
    link::{Features, Mac},
    packet::{Checksum, Packet},
};
use nucleus::{
    PAGE_SIZE, log, random,
    sync::{OnceBox, Rank, SpinLock},
    task::{self, Sleep, WaitQueue, yield_now},
    virtio::{self, Device, Error, MOST_STARTS, Queue, Queues, ReadConfig},
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
    /// Takes a packet that has arrived, with what the device says of its checksum.
    fn receive(&self, data: Aggregate, checksum: Checksum);

    /// Notes that there was no memory for a packet.
    fn note_dropped(&self);

    /// Notes that the link is there, or gone.
    fn note_carrier(&self);

    /// Returns the fbufs that are to be filled. Their drop may sleep.
    fn pool(&self) -> Option<Arc<Pool>> {
        None
    }
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

/// A card. One that has failed is started again, a few times.
pub struct Card {
    features: Features,
    /// The device by its starts. What an earlier one consists of stays with it.
    runs: [OnceBox<Run>; MOST_STARTS],
    /// The present start.
    present: AtomicUsize,
    /// It is not started again.
    is_over: AtomicBool,
    is_promiscuous: AtomicBool,
}

/// A device that runs, or has failed.
struct Run {
    device: Device,
    pairs: Vec<Pair>,
    control: Option<Control>,
    features: Features,
    has_carrier: AtomicBool,
    has_failed: AtomicBool,
    has_status: bool,
    /// Its tasks, and the thread that starts them.
    tasks: AtomicUsize,
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
        let first = Run::start(found)?;
        let card = Card {
            features: first.features,
            runs: [const { OnceBox::new() }; MOST_STARTS],
            present: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            is_promiscuous: AtomicBool::new(false),
        };
        card.runs[0].get_or_insert(|| Box::new(first));
        Ok(Arc::new(card))
    }

    /// Returns the device as it runs, or has failed.
    fn run(&self) -> Option<&Run> {
        self.runs[self.present.load(Acquire)].get()
    }

    /// Tells whether the card has failed for the last time.
    #[cfg(test)]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn serve(self: &Arc<Card>, above: &Arc<dyn Above>) -> abi::Result<()> {
        let Some(run) = self.run() else {
            return Ok(());
        };
        let result = self.spawn_tasks(run, above);
        self.leave(run, above);
        result
    }

    fn spawn_tasks(self: &Arc<Card>, run: &Run, above: &Arc<dyn Above>) -> abi::Result<()> {
        let start = |name, body: fn(&Run, usize, &dyn Above), at| {
            let (card, above) = (self.clone(), above.clone());
            run.tasks.fetch_add(1, SeqCst);
            let spawned = spawn(name, move || {
                if let Some(run) = card.run() {
                    body(run, at, &*above);
                    card.leave(run, &above);
                }
            });
            // The caller is counted as well.
            spawned.inspect_err(|_| {
                run.tasks.fetch_sub(1, SeqCst);
            })
        };
        for at in 0..run.pairs.len() {
            start("net-card", Run::serve_pair, at)?;
        }
        if run.has_status {
            start("net-link", |run, _, above| run.serve_link(above), 0)?;
        }
        Ok(())
    }

    /// Notes that a task of a start is over. The last one, after a failure, starts the device
    /// again.
    fn leave(self: &Arc<Card>, run: &Run, above: &Arc<dyn Above>) {
        let is_last = run.tasks.fetch_sub(1, SeqCst) == 1;
        if !is_last || !run.has_failed.load(SeqCst) {
            return;
        }
        if let Err(why) = self.restart(run) {
            log!("net: the card is not used any more: {why:?}");
            self.is_over.store(true, SeqCst);
            return;
        }
        let served = self.serve(above);
        above.note_carrier();
        if served.is_err() {
            log!("net: no memory for the tasks of a card");
        }
    }

    /// Starts the device again, all of whose tasks are over.
    fn restart(&self, old: &Run) -> Result<(), Error> {
        let found = old.device.take_again();
        let next = Run::start(found.ok_or(Error::Lacks("further starts"))?)?;
        let own = self.features;
        if (next.features.mac, next.features.mtu) != (own.mac, own.mtu)
            || own.checksums && !next.features.checksums
            || own.cuts > next.features.cuts
        {
            next.device.give_up("it is another one now");
            return Err(Error::Broken);
        }
        let at = self.present.load(Relaxed) + 1;
        let place = self.runs.get(at).ok_or(Error::Lacks("further starts"))?;
        let next = place.get_or_insert(|| Box::new(next));
        self.present.store(at, Release);
        // The place before the wish, which others write in the other order: see `set_promiscuous`.
        fence(SeqCst);
        let mut is_set = false;
        while self.is_promiscuous.load(SeqCst) != is_set {
            is_set = !is_set;
            next.command(control::PROMISCUOUS, &[is_set.into()]);
        }
        Ok(())
    }
}

impl Run {
    fn start(found: virtio::Found) -> Result<Run, Error> {
        Run::new(found.start_chosen(choose)?)
    }

    fn new(device: Device) -> Result<Run, Error> {
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
        let run = Run {
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
            tasks: AtomicUsize::new(1),
        };
        run.has_carrier.store(run.is_link_up(), Relaxed);
        if used > 1 {
            run.command(control::SET_PAIRS, &(used as u16).to_le_bytes());
        }
        if features.contains(Feature::RECEIVE_MODES) {
            run.command(control::PROMISCUOUS, &[0]);
            run.command(control::ALL_GROUPS, &[1]);
        }
        log!(
            "net: {:02x?}, MTU {mtu}, {used} of {there} pairs of queues, {features:?}",
            mac.0
        );
        Ok(run)
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

    /// Hands over what a pair's queue receives, and sends what waits; ends when the device fails.
    fn serve_pair(&self, at: usize, above: &dyn Above) {
        let pair = &self.pairs[at];
        let Some(mut receiver) = pair.receiver.lock().take() else {
            return;
        };
        let mut has_memory = receiver.refill(true, above);
        while !self.has_failed.load(Relaxed) {
            let has_more = match self.take_turn(&mut receiver, above) {
                Ok(has_more) => has_more,
                Err(why) => return self.fail(above, why),
            };
            has_memory &= receiver.refill(false, above);
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
                Received::Packet(data, checksum) => above.receive(data, checksum),
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
            log!("net: a card is reset: {why}");
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

    fn send(&self, packet: &mut Packet) -> bool {
        let Some(run) = self.run().filter(|run| !run.has_failed.load(Relaxed)) else {
            return false;
        };
        let at = task::cpu() % run.pairs.len();
        run.pairs[at].sender.send(packet)
    }

    fn has_carrier(&self) -> bool {
        let run = self.run();
        run.is_some_and(|run| run.has_carrier.load(Relaxed))
    }

    fn set_promiscuous(&self, is_wanted: bool) {
        self.is_promiscuous.store(is_wanted, SeqCst);
        fence(SeqCst);
        if let Some(run) = self.run() {
            run.command(control::PROMISCUOUS, &[is_wanted.into()]);
        }
    }
}
