//! Virtio over PCI: the registers, by the crate `virtio-drivers`, and what it leaves out: messages
//! as interrupts, and a queue's own doorbell.

use core::{
    cell::Cell,
    ptr::NonNull,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use virtio_drivers::{
    BufferDirection, Hal, PhysAddr,
    transport::{
        DeviceStatus, Transport,
        pci::{
            PciTransport, VIRTIO_PCI_CAP_COMMON_CFG, VIRTIO_PCI_CAP_DEVICE_CFG,
            VIRTIO_PCI_CAP_NOTIFY_CFG, VIRTIO_VENDOR_ID, bus::PCI_CAP_ID_VNDR,
        },
    },
};

use super::{
    Device, Error, Kind, MOST_STARTS, Queues, ReadConfig,
    queue::{Doorbell, Queue},
};
use crate::{
    PAGE_SIZE,
    dev::pci::{self, Function, Identity},
    dma::{self, AttachError},
    hw::machine,
    lock::{OnceBox, Rank, SpinLock},
    task::WaitQueue,
};

bitflags::bitflags! {
    /// Features: the transport's own by name, the device's as they are.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Features: u64 {
        const INDIRECT = 1 << 28;
        const VERSION_1 = 1 << 32;
        /// The device goes through an IOMMU where there is one.
        const ACCESS_PLATFORM = 1 << 33;
        const _ = !0;
    }
}

/// What a device is started with, whatever it is.
const NEEDED: Features = Features::INDIRECT.union(Features::VERSION_1);

/// The identities of a kind: the modern one, and that of a device which old drivers know too.
pub(super) fn of_kind(kind: Kind) -> &'static [Identity] {
    const fn of(device: u16) -> Identity {
        (device as u32) << 16 | VIRTIO_VENDOR_ID as u32
    }
    const fn both(modern: u16, old: u16) -> [Identity; 2] {
        [of(0x1040 + modern), of(old)]
    }
    match kind {
        Kind::Network => const { &both(1, 0x1000) },
        Kind::Block => const { &both(2, 0x1001) },
        Kind::Console => const { &both(3, 0x1003) },
        Kind::Entropy => const { &both(4, 0x1005) },
        Kind::Files => const { &both(9, 0x1009) },
    }
}

/// What the crate asks of the kernel. It only reaches registers: queues and their memory are our
/// own.
struct Machine;

// SAFETY: registers are mapped for good, at addresses of their own; no memory is ever shared
// through it.
unsafe impl Hal for Machine {
    fn dma_alloc(_: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // Address 0 means that there is none.
        (0, NonNull::dangling())
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, size: usize) -> NonNull<u8> {
        // The device may say something else than it has said to `Own::find`.
        let pages = size / PAGE_SIZE + 2;
        let is_believed = !pci::is_ram(at, size) && pages <= machine::device_pages_left();
        let mapped = is_believed.then(|| machine::map_device(at, size));
        mapped.flatten().and_then(NonNull::new).unwrap_or_else(|| {
            LIES.fetch_add(1, Ordering::SeqCst);
            NonNull::from(&SINK).cast()
        })
    }

    unsafe fn share(_: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        unreachable!("the queues are our own")
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
        unreachable!("the queues are our own")
    }
}

/// Counts registers that devices moved to memory, or enlarged, after `Own::find` had checked them.
static LIES: AtomicUsize = AtomicUsize::new(0);
/// The registers of such a device for the crate's transport, which can't do without any. Only the
/// reset when the transport is dropped uses them: they are as large as the common registers.
static SINK: [AtomicU64; common::BYTES / 8] = [const { AtomicU64::new(0) }; _];

/// The crate's transport for a function.
fn transport(function: &Function) -> Result<PciTransport, Error> {
    let before = LIES.load(Ordering::SeqCst);
    let transport = PciTransport::new::<Machine, _>(&mut pci::root(), function.at)
        .map_err(|_| Error::Lacks("the registers of version 1"))?;
    // A lie may be that of a device that another task starts: then this one is refused as well.
    match LIES.load(Ordering::SeqCst) == before {
        true => Ok(transport),
        false => Err(Error::Lacks("registers that stay where they are")),
    }
}

/// A device's registers.
pub(super) struct Registers(SpinLock<PciTransport>);

impl Registers {
    pub(super) fn read_config(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        read_config(&self.0.lock(), offset, to)
    }

    pub(super) fn reset(&self) {
        self.0.lock().set_status(DeviceStatus::empty());
    }
}

fn read_config(transport: &PciTransport, offset: usize, to: &mut [u8]) -> Result<(), Error> {
    // Read again if the device changed it meanwhile.
    for _ in 0..100 {
        let before = transport.read_config_generation();
        for (i, byte) in to.iter_mut().enumerate() {
            *byte = transport
                .read_config_space(offset + i)
                .map_err(|_| Error::Lacks("configuration"))?;
        }
        if transport.read_config_generation() == before {
            return Ok(());
        }
    }
    Err(Error::Broken)
}

/// The common registers that the crate keeps to itself, by byte.
mod common {
    pub const CONFIG_VECTOR: usize = 16;
    pub const QUEUE_SELECT: usize = 22;
    pub const QUEUE_VECTOR: usize = 26;
    pub const QUEUE_NOTIFY: usize = 30;
    pub const BYTES: usize = 56;
}
const NO_VECTOR: u16 = 0xffff;
/// Capabilities of a function at most: four bytes each, behind the header.
const MOST_CAPABILITIES: usize = (256 - 64) / 4;
/// What is mapped besides the crate's registers: doorbells and entries of the table of messages.
const SPARE_PAGES: usize = 64;

/// Where the doorbells are, and the common registers.
struct Own {
    common: *mut u8,
    notify: u64,
    notify_len: u32,
    notify_step: u32,
    /// The page of doorbells that was mapped last, and where: those of one device are neighbours.
    mapped: Cell<Option<(u64, *mut u8)>>,
}

impl Own {
    fn find(function: &Function) -> Option<Own> {
        let (mut common, mut notify) = (None, None);
        let mut pages = SPARE_PAGES;
        let root = pci::root();
        // A list that is a circle has no end.
        let (mut left, mut seen) = (MOST_CAPABILITIES, 0u8);
        for found in root.capabilities(function.at) {
            left = left.checked_sub(1)?;
            if found.id != PCI_CAP_ID_VNDR {
                continue;
            }
            let read = |offset: u8| pci::read(function, found.offset.checked_add(offset)?);
            let place = (read(4)? as u8, read(8)?, read(12)?);
            pages = pages.saturating_add(place.2 as usize / PAGE_SIZE + 2);
            // The crate maps the first of each kind, and does not look where that is.
            let (len, kind) = (
                found.private_header as u8,
                (found.private_header >> 8) as u8,
            );
            let least = if kind == VIRTIO_PCI_CAP_NOTIFY_CFG {
                20
            } else {
                16
            };
            if len < least || kind > VIRTIO_PCI_CAP_DEVICE_CFG || seen >> kind & 1 != 0 {
                continue;
            }
            seen |= 1 << kind;
            place.1.checked_add(place.2)?;
            function.memory(place.0, place.1, place.2 as usize)?;
            match kind {
                VIRTIO_PCI_CAP_COMMON_CFG if common.is_none() => common = Some(place),
                VIRTIO_PCI_CAP_NOTIFY_CFG if notify.is_none() => {
                    notify = Some((place, read(16)?));
                }
                _ => {}
            }
        }
        // The crate maps all of them, and has no way to refuse.
        if pages > machine::device_pages_left() {
            return None;
        }
        let (bar, offset, _) = common?;
        let common = function.memory(bar, offset, common::BYTES)?;
        let ((bar, offset, len), step) = notify?;
        Some(Own {
            common: machine::map_device(common, common::BYTES)?,
            notify: function.memory(bar, offset, len as usize)?,
            notify_len: len,
            notify_step: step,
            mapped: Cell::new(None),
        })
    }

    fn register(&self, at: usize) -> *mut u16 {
        self.common.wrapping_add(at).cast()
    }

    fn select(&self, queue: u16) {
        // SAFETY: mapped by `find`; the register only says which queue the others are about.
        unsafe { self.register(common::QUEUE_SELECT).write_volatile(queue) };
    }

    /// The doorbell of a queue.
    fn doorbell(&self, queue: u16) -> Option<*mut u16> {
        self.select(queue);
        // SAFETY: as above; reading has no effect.
        let step = unsafe { self.register(common::QUEUE_NOTIFY).read_volatile() };
        let offset = u32::from(step).checked_mul(self.notify_step)?;
        if offset.checked_add(2)? > self.notify_len
            || !(self.notify + u64::from(offset)).is_multiple_of(2)
        {
            return None;
        }
        // It is aligned, so it does not cross a page.
        let at = self.notify + u64::from(offset);
        let (page, inside) = (at & !(PAGE_SIZE as u64 - 1), at as usize % PAGE_SIZE);
        let mapped = match self.mapped.get() {
            Some((known, mapped)) if known == page => mapped,
            _ => machine::map_device(page, PAGE_SIZE)?,
        };
        self.mapped.set(Some((page, mapped)));
        Some(mapped.wrapping_add(inside).cast())
    }

    /// Lets message `entry` say that the configuration has changed. False if the device refuses.
    fn set_config_vector(&self, entry: u16) -> bool {
        let register = self.register(common::CONFIG_VECTOR);
        // SAFETY: mapped by `find`; the device sends that message for its configuration.
        unsafe {
            register.write_volatile(entry);
            register.read_volatile() != NO_VECTOR
        }
    }

    /// Lets message `entry` say that something is done in a queue. False if the device refuses.
    fn set_vector(&self, queue: u16, entry: u16) -> bool {
        self.select(queue);
        let register = self.register(common::QUEUE_VECTOR);
        // SAFETY: as above; the device sends that message for this queue.
        unsafe {
            register.write_volatile(entry);
            register.read_volatile() != NO_VECTOR
        }
    }
}

/// A function and the messages that were set up for it, which stay when it is started again.
pub(super) struct Owned {
    function: Function,
    /// With them, whether the function sends the message.
    told: Vec<(Arc<Told>, bool)>,
    /// How often it was started.
    starts: usize,
}

impl Owned {
    pub(super) fn new(function: Function) -> Owned {
        Owned {
            function,
            told: Vec::new(),
            starts: 0,
        }
    }

    /// Whether it may be started again.
    pub(super) fn may_start(&self) -> bool {
        self.starts < MOST_STARTS
    }

    /// Makes message `entry`, the first one that was not set up or one that was, call `handler`.
    /// False if there is none such.
    fn on_message(&mut self, entry: u16, handler: Handler) -> bool {
        if let Some((told, works)) = self.told.get(usize::from(entry)) {
            told.follow(self.starts, handler);
            return *works;
        }
        let told = Arc::new(Told::new());
        told.follow(self.starts, handler);
        let called = told.clone();
        let call = Box::new(move || called.call());
        let works = self.function.on_message(entry, call);
        self.told.push((told, works));
        works
    }
}

type Handler = Box<dyn Fn() + Send + Sync>;

/// What a message calls: a handler for each start of the device.
struct Told {
    handlers: [OnceBox<Handler>; MOST_STARTS],
    /// The present start.
    start: AtomicUsize,
}

impl Told {
    fn new() -> Told {
        Told {
            handlers: [const { OnceBox::new() }; MOST_STARTS],
            start: AtomicUsize::new(0),
        }
    }

    /// Calls `handler` from now on, that of start `start`.
    fn follow(&self, start: usize, handler: Handler) {
        self.handlers[start].get_or_insert(|| Box::new(handler));
        self.start.store(start, Ordering::Release);
    }

    /// The message has come. In an interrupt.
    fn call(&self) {
        let start = self.start.load(Ordering::Acquire);
        if let Some(handler) = self.handlers[start].get() {
            handler();
        }
    }
}

/// As [`super::Found::start_chosen`].
pub(super) fn start(
    mut owned: Owned,
    choose: impl FnOnce(u64, ReadConfig<'_>) -> Result<(u64, Queues), Error>,
) -> Result<Device, Error> {
    if !owned.may_start() || !owned.function.enable() {
        return Err(Error::Lacks("an address for its registers"));
    }
    // Dropped after the transport, which resets the device: what the device knows of stays until
    // then.
    let mut made = Vec::new();
    let domain;
    let function = &owned.function;
    let own = Own::find(function).ok_or(Error::Lacks("the registers of version 1"))?;
    let mut transport = transport(function)?;
    // Begun anew with the features that are chosen.
    transport.set_status(DeviceStatus::empty());
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let offered = transport.read_device_features();
    let (wanted, queues) = choose(offered, &|offset, to| read_config(&transport, offset, to))?;
    let wanted = NEEDED | Features::ACCESS_PLATFORM | Features::from_bits_retain(wanted);
    let features = transport.begin_init(wanted);
    if !features.contains(NEEDED) {
        return Err(Error::Lacks("indirect descriptors"));
    }
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(Error::Broken);
    }
    // A device that does not offer it uses physical addresses, though a unit may stand before it.
    // Where a unit is lost, `enable` has failed.
    let place = pci::place(owned.function.at);
    let offers = features.contains(Features::ACCESS_PLATFORM);
    let attached = match offers {
        true => dma::domain_of(place),
        false => Err(AttachError::NoUnit),
    };
    domain = match attached {
        Ok(domain) => domain,
        Err(AttachError::NoUnit) => dma::domain_beside(place),
        Err(AttachError::NoContextTable) => {
            return Err(Error::Lacks("a bus that was there at the start"));
        }
        Err(AttachError::SharedNumber) => {
            return Err(Error::Lacks("a number of its own at the IOMMU"));
        }
        Err(AttachError::OutOfMemory) => return Err(Error::OutOfMemory),
    };
    for number in 0..queues.count {
        let most = (transport.max_queue_size(number) as usize).min(queues.slots);
        if most == 0 {
            return Err(Error::Lacks("a queue"));
        }
        let doorbell = own.doorbell(number).ok_or(Error::Lacks("a doorbell"))?;
        let doorbell = Doorbell::Register(doorbell);
        made.push(Queue::attached(number, most, &domain, doorbell)?);
    }
    let groups = queues.count.div_ceil(queues.group.max(1));
    let messages = queues.messages.min(owned.function.messages());
    let messages = messages.clamp(1, groups.max(1));
    for entry in 0..messages {
        let group_of = |queue: &Queue| queue.number() / queues.group.max(1);
        let told = made.iter().filter(|it| group_of(it) % messages == entry);
        let told: Vec<_> = told.cloned().collect();
        let handler = {
            let told = told.clone();
            Box::new(move || told.iter().for_each(|queue| queue.interrupt()))
        };
        let can_tell = owned.on_message(entry, handler);
        for queue in told {
            if can_tell && own.set_vector(queue.number(), entry) {
                queue.set_interrupts();
            } else {
                crate::log!(
                    "virtio: queue {} of {} has no interrupt: it is looked at",
                    queue.number(),
                    owned.function.at
                );
            }
        }
    }
    // A message more, where there is one.
    let changes = Arc::new(WaitQueue::new());
    let told = changes.clone();
    let can_tell = owned.on_message(messages, Box::new(move || told.wake_all()));
    if can_tell {
        own.set_config_vector(messages);
    }
    for queue in &made {
        let [descriptors, available, used] = queue.addresses();
        let slots = queue.slots() as u32;
        transport.queue_set(queue.number(), slots, descriptors, available, used);
    }
    transport.finish_init();
    owned.starts += 1;
    Ok(Device {
        queues: made,
        domain,
        features: features.bits(),
        changes,
        function: SpinLock::new(Rank::Leaf, Some(owned)),
        registers: Registers(SpinLock::new(Rank::Leaf, transport)),
    })
}
