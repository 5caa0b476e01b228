//! QEMU's `edu` device as an attacker: it reads and writes at any address, and is given wrong ones
//! here. `fault_injection=edu` runs it in the first task; the log says of each target
//! whether the device reached it. `edu` takes a tenth of a second for each access.
//!
//! Where no IOMMU keeps the device from it (`iommu=off`), it only reads.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use crate::counters::Counter;
use crate::dev::{
    pci::{self, Function},
    refused,
};
use crate::dma::{self, Addresses, Attachment, Driver, Part, Policy};
use crate::frame::{Contents, record};
use crate::hw::iommu::Stale;
use crate::hw::machine::{self, ptr};
use crate::hw::x86_64::{config, gdt, idt, layout, vtd::injection};
use crate::mem::frame::record::Type;
use crate::power::{Stop, stop};
use crate::task::{self, Sleep};
use crate::{Frame, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Pmap, frame};

const EDU: pci::Identity = 0x11e8 << 16 | 0x1234;
/// The device's registers, and its memory, which only its own DMA reaches.
const SOURCE: usize = 0x80;
const TARGET: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const BUFFER: u64 = 0x4_0000;

const START: u64 = 1;
const TO_MEMORY: u64 = 1 << 1;

/// The word that the device writes: harmless as an entry of a page table, for it is not present.
const PATTERN: u64 = 0xa4a4_a4a4_a4a4_a4a4;

/// The time until an interrupt of the unit has come.
const SOON: Duration = Duration::from_millis(200);

struct Edu {
    function: Function,
    registers: *mut u64,
    place: u16,
    domain: Arc<Attachment>,
    /// Memory that the device may use, and where it finds it: [`PATTERN`], and room for a word.
    pattern: (Frame, u64),
    room: (Frame, u64),
}

/// Whether the device reached something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Reached,
    /// The unit reported it.
    Refused,
    /// Neither.
    Silent,
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Outcome::Reached => "reached",
            Outcome::Refused => "refused",
            Outcome::Silent => "silent",
        })
    }
}

fn word(at: PhysAddr) -> *mut u64 {
    ptr(at).cast()
}

/// The first word of a page that is not 0.
fn first_word(page: PhysAddr) -> PhysAddr {
    let words = (0..PAGE_SIZE as u64 / 8).map(|n| PhysAddr(page.0 + n * 8));
    // SAFETY: memory of the direct map, which is read.
    let mut words = words.filter(|&at| unsafe { word(at).read_volatile() } != 0);
    words.next().expect("the page is not empty")
}

impl Edu {
    fn find() -> Option<Edu> {
        let mut function: Function = pci::take(&[EDU]).pop()?;
        function.enable().then_some(())?;
        let registers = machine::map_device(function.memory(0, 0, PAGE_SIZE)?, PAGE_SIZE)?;
        let place = pci::place(function.at);
        let domain = dma::domain_of(place).expect("a unit before the device");
        let lasting = |bytes: u64| {
            let frame = Frame::alloc_direct(Contents::Zeroed).ok()?;
            // SAFETY: the frame was just made.
            unsafe { frame.bytes().cast::<u64>().write_volatile(bytes) };
            let at = domain.map_lasting(&frame, true, true).ok()?;
            Some((frame, at))
        };
        let (pattern, room) = (lasting(PATTERN)?, lasting(0)?);
        Some(Edu {
            function,
            registers: registers.cast(),
            place,
            domain,
            pattern,
            room,
        })
    }

    fn set(&self, register: usize, value: u64) {
        // SAFETY: a register of the device, mapped for good.
        unsafe { self.registers.byte_add(register).write_volatile(value) };
    }

    fn start(&self, address: u64, bytes: u64, to_memory: bool) {
        let (source, target, way) = match to_memory {
            true => (BUFFER, address, TO_MEMORY),
            false => (address, BUFFER, 0),
        };
        self.set(SOURCE, source);
        self.set(TARGET, target);
        self.set(COUNT, bytes);
        self.set(COMMAND, START | way);
    }

    fn finish(&self) {
        // SAFETY: as in `set`; reading has no effect.
        while unsafe { self.registers.byte_add(COMMAND).read_volatile() } & START != 0 {
            task::sleep(Sleep::within(Duration::from_millis(1)));
        }
    }

    /// Copies a word between memory and the device.
    fn copy(&self, address: u64, to_memory: bool) {
        self.start(address, 8, to_memory);
        self.finish();
    }

    /// Fills the device's memory with the pattern.
    fn load_pattern(&self) {
        self.copy(self.pattern.1, false);
    }

    /// The word that is in the device's memory.
    fn held(&self) -> u64 {
        self.copy(self.room.1, true);
        // SAFETY: the frame is ours; the device has written it.
        unsafe { self.room.0.bytes().cast::<u64>().read_volatile() }
    }

    /// Writes the pattern to an address; `at` is where that would be in memory.
    fn write(&self, address: u64, at: Option<PhysAddr>) -> Outcome {
        self.load_pattern();
        self.judge(|| {
            // SAFETY: memory of the direct map, which stays what it is during the test.
            let before = at.map(|at| unsafe { word(at).read_volatile() });
            self.copy(address, true);
            self.mend(address, at, before)
        })
    }

    /// Whether memory has changed. The device undoes it: the guard may refuse that to the CPU.
    fn mend(&self, address: u64, at: Option<PhysAddr>, before: Option<u64>) -> bool {
        let (Some(at), Some(before)) = (at, before) else {
            return false;
        };
        // SAFETY: as in `write`.
        let is_changed = unsafe { word(at).read_volatile() } != before;
        if is_changed {
            // SAFETY: the frame is ours.
            unsafe { self.room.0.bytes().cast::<u64>().write_volatile(before) };
            self.copy(self.room.1, false);
            self.copy(address, true);
        }
        is_changed
    }

    /// Reads an address; `at` is where that would be in memory.
    fn read(&self, address: u64, at: Option<PhysAddr>) -> Outcome {
        self.load_pattern();
        self.judge(|| {
            self.copy(address, false);
            // SAFETY: as in `write`.
            at.is_some_and(|at| self.held() == unsafe { word(at).read_volatile() })
        })
    }

    fn judge(&self, attempt: impl FnOnce() -> bool) -> Outcome {
        let before = Counter::iommu_faults.total();
        if attempt() {
            return Outcome::Reached;
        }
        match until(|| Counter::iommu_faults.total() > before) {
            true => Outcome::Refused,
            false => Outcome::Silent,
        }
    }

    fn attack(&self, name: &str, address: u64, at: Option<PhysAddr>) {
        let read = self.read(address, at);
        match dma::policy() {
            Policy::Off => crate::log!("edu: {name}: read {read}"),
            _ => crate::log!(
                "edu: {name}: read {read}, write {}",
                self.write(address, at)
            ),
        }
    }

    /// As [`attack`](Self::attack), at the place in memory.
    fn attack_memory(&self, name: &str, at: PhysAddr) {
        self.attack(name, at.0, Some(at));
    }
}

/// Waits a little for something; returns whether it came.
fn until(is_there: impl Fn() -> bool) -> bool {
    let end = crate::time::since_boot() + SOON;
    while !is_there() && crate::time::since_boot() < end {
        task::sleep(Sleep::within(Duration::from_millis(1)));
    }
    is_there()
}

/// See the head of the file.
pub fn attack() -> ! {
    let edu = Edu::find().expect("an edu device");
    crate::log!("edu: policy {:?}", dma::policy());
    try_own_memory(&edu);
    claims(&edu);
    own_tables(&edu);
    others(&edu);
    changing(&edu);
    edu.attack("an address that is not mapped", 0x7f_ffff_f000, None);
    edu.attack("an address that is too large", 1 << 50, None);
    if dma::policy() != Policy::Off {
        flood(&edu);
    }
    crate::log!("exit: status 0");
    stop(Stop::Done)
}

/// A device that says that its registers are where memory is: a driver would write them there.
fn claims(edu: &Edu) {
    let page = Frame::alloc_direct(Contents::Zeroed).expect("memory for the test");
    // Where its registers can be: they take a MiB.
    let is_believed = edu.function.claim(page.number() << PAGE_SHIFT & !0xf_ffff);
    let state = if is_believed { "believed" } else { "refused" };
    crate::log!("edu: registers that are memory: {state}");
}

fn in_image(at: usize) -> PhysAddr {
    PhysAddr((at - layout::image_base()) as u64 & !7)
}

/// `fault_injection=edu-silence`: the unit stops answering while its IOTLB holds translations
/// of the device.
pub fn outlive_unit() -> ! {
    let edu = Edu::find().expect("an edu device");
    try_own_memory(&edu);
    injection::silence();
    machine::iommu_invalidate(&[Stale::All]);
    look_bus_master(&edu);
    look_reach(&edu);
    crate::log!("exit: status 0");
    stop(Stop::Done)
}

fn try_own_memory(edu: &Edu) {
    edu.load_pattern();
    let works = edu.held() == PATTERN;
    crate::log!(
        "edu: its own memory: {}",
        if works { "works" } else { "fails" }
    );
}

fn look_bus_master(edu: &Edu) {
    let command = config::read(edu.place, config::COMMAND);
    let is_master = command & config::BUS_MASTER != 0;
    let rank = if is_master { "still a" } else { "no" };
    crate::log!("edu: it is {rank} bus master");
}

/// Whether the device writes its own memory still.
fn look_reach(edu: &Edu) {
    // SAFETY: the frame is ours.
    unsafe { edu.room.0.bytes().cast::<u64>().write_volatile(7) };
    edu.load_pattern();
    let reaches = if edu.held() == 7 { "nothing" } else { "memory" };
    crate::log!("edu: it reaches {reaches}");
}

/// Tables and text that the processor uses.
fn own_tables(edu: &Edu) {
    edu.attack_memory("kernel text", in_image(attack as *const () as usize));
    edu.attack_memory("IDT", in_image(idt::place().start + 8 * 16));
    // A descriptor that no code uses before a program runs.
    let unused = gdt::place().start + usize::from(gdt::USER_CODE_32 & !7);
    edu.attack_memory("GDT", in_image(unused));
    let pmap = Pmap::new().expect("memory for the test");
    let page = Frame::alloc(Contents::Zeroed).expect("memory for the test");
    let mut pending = crate::pmap::Pending::new();
    let rights = crate::Prot::READ | crate::Prot::WRITE;
    pmap.enter(crate::VirtAddr(0x40_0000), &page, rights, &mut pending)
        .expect("memory for the test");
    let root = pmap.root();
    edu.attack_memory("a page table", first_word(root));
    drop(pmap);
    // The root is in the cache of page tables now, ready for the next space.
    let is_pooled = record::record(root.frame_number() as u32).is_cached();
    assert!(is_pooled, "the table of a space that has ended is kept");
    edu.attack_memory("a pooled frame", first_word(root));
}

/// Memory that is another program's, or free.
fn others(edu: &Edu) {
    let page = Frame::alloc_direct(Contents::Zeroed).expect("memory for the test");
    // SAFETY: the frame was just made.
    unsafe { page.bytes().cast::<u64>().write_volatile(0x1234_5678) };
    let at = PhysAddr(page.number() << PAGE_SHIFT);
    edu.attack_memory("another program's page", at);
    drop(page);
    edu.attack_memory("a free frame", at);
}

/// The level of page tables that have one frame and no part of the kernel's.
const LEVEL: usize = 2;

/// Takes page tables until this frame is one. None are kept ready, so that each is made of the free
/// frame that is at hand.
fn become_table(at: PhysAddr) -> Vec<u32> {
    let mut taken = Vec::new();
    while taken.len() < 4096 {
        let Some(table) = frame::take_table(LEVEL) else {
            break;
        };
        taken.push(table.index());
        if record::address(table.index()) == at {
            break;
        }
    }
    taken
}

/// A request that ends while the device goes on using its memory.
fn changing(edu: &Edu) {
    let page = Frame::alloc_direct(Contents::Zeroed).expect("memory for the test");
    let index = page.index();
    let at = PhysAddr(page.number() << PAGE_SHIFT);
    let strict = edu.domain.strict();
    let window = strict.map(|it| it.add_window().expect("memory for the test"));
    let address = {
        let parts = [Part::whole(page.clone())];
        let addresses = Addresses::new(&edu.domain, window.as_deref(), 1);
        let mut addresses = addresses.expect("no request has the window");
        let address = addresses.of(&parts, true).address;
        addresses.give();
        address
    };
    edu.load_pattern();
    // The unit's IOTLB has it from now on.
    edu.copy(address, true);
    // SAFETY: the frame is ours.
    let first = unsafe { word(at).read_volatile() };
    let works = if first == PATTERN { "works" } else { "fails" };
    crate::log!("edu: memory of a request: {works}");
    if dma::policy() == Policy::Off {
        return;
    }
    let mut is_late = Outcome::Silent;
    let keeps_tables = frame::keeps_tables();
    frame::keep_tables(false);
    edu.load_pattern();
    let before = Counter::iommu_faults.total();
    edu.start(address, 8, true);
    drop(page);
    if let (Some(strict), Some(window)) = (strict, &window) {
        dma::take(&edu.domain, window);
        let is_free = record::record(index).kind() == Type::Free;
        let state = if is_free { "free" } else { "not free" };
        crate::log!("edu: a frame freed and still pending: {state}");
        strict.flush(Counter::iotlb_other);
    }
    let taken = become_table(at);
    let is_table = taken.last().is_some_and(|&it| record::address(it) == at);
    assert!(is_table, "the frame is taken again");
    edu.finish();
    // The table was made empty.
    let entry: *mut u64 = record::table_bytes(index).cast();
    // SAFETY: the table is ours, and no CPU uses it.
    if unsafe { entry.read_volatile() } != 0 {
        is_late = Outcome::Reached;
        // SAFETY: as above.
        unsafe { entry.write_volatile(0) };
    } else if until(|| Counter::iommu_faults.total() > before) {
        is_late = Outcome::Refused;
    }
    crate::log!("edu: a frame that becomes a table during the access: write {is_late}");
    for index in taken {
        frame::give_table(LEVEL, index);
    }
    frame::keep_tables(keeps_tables);
}

struct Notified(AtomicBool);

impl Driver for Notified {
    fn device_lost(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A device that goes on is stopped, and its driver is notified.
fn flood(edu: &Edu) {
    let notified = Arc::new(Notified(AtomicBool::new(false)));
    let driver: Arc<dyn Driver> = notified.clone();
    edu.domain
        .add_driver(Arc::downgrade(&driver))
        .expect("memory for the test");
    let is_blocked = || {
        let all = refused::all();
        let mut all = all.into_iter();
        all.any(|(device, _, is_blocked)| device.0 == edu.place && is_blocked)
    };
    for _ in 0..100 {
        if is_blocked() {
            break;
        }
        // A little less than its memory: it takes the end for one too many.
        edu.start(0x7f_ffff_0000, PAGE_SIZE as u64 - 8, true);
        edu.finish();
    }
    let state = if is_blocked() {
        "is stopped"
    } else {
        "goes on"
    };
    crate::log!("edu: after many faults it {state}");
    look_bus_master(edu);
    let is_revoked = until(|| edu.domain.is_revoked());
    let state = if is_revoked { "given up" } else { "kept" };
    crate::log!("edu: its domain is {state}");
    look_reach(edu);
    let is_notified = until(|| notified.0.load(Ordering::SeqCst));
    let hears = if is_notified {
        "hears"
    } else {
        "does not hear"
    };
    crate::log!("edu: its driver {hears} of it");
    drop(driver);
}
