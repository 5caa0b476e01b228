//! The floating-point and vector state of programs, and their data segments.
//!
//! The kernel computes nothing with these registers. A program's state is loaded when the program
//! is entered and is saved when the CPU switches to another task; in between (system calls,
//! faults, interrupts) it stays where it is, at no cost. `PerCpu::live` names the state that this
//! CPU's registers hold; a state that is live on one CPU is current nowhere else.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::sync::Arc;
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cpu::{self, Features, features, msr, write_msr};
use super::gdt::{self, FIRST_TLS, USER_DATA};
use super::{mitigations, percpu};
use crate::hw::local_segments::LocalSegments;
use crate::hw::registers::{Registers, Selectors, TLS_SEGMENTS};
use crate::hw::{Window, segment, segment::MOST_TURNS};
use crate::{OutOfMemory, speculation};

/// x87, SSE, AVX and the three parts of AVX-512: what programs get if the CPU has it.
const WANTED: u64 = 0b1110_0111;
/// The part of the state that every 64-bit CPU has, in the layout of `fxsave`.
pub const LEGACY_SIZE: usize = 512;
const HEADER_SIZE: usize = 64;
const CONTROL_INITIAL: u16 = 0x37f;
const MXCSR_INITIAL: u32 = 0x1f80;
const MXCSR: usize = 24;
const MXCSR_MASK: usize = 28;

/// Linux's mark in the software-reserved bytes of a signal frame, and its end mark.
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
const SOFTWARE_BYTES: usize = 464;
/// Bytes of the end mark.
const END_MARK: usize = 4;

static COMPONENTS: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU32 = AtomicU32::new(LEGACY_SIZE as u32);
static VALID_MXCSR: AtomicU32 = AtomicU32::new(0xffbf);

/// Turns on, on this CPU, the state components that programs may use.
pub fn enable() {
    if !features().contains(Features::XSAVE) {
        return;
    }
    let leaf = __cpuid_count(13, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    let mut components = supported & WANTED;
    if components & 0b1110_0000 != 0b1110_0000 {
        components &= 0b111;
    }
    // SAFETY: x87 is in every set; all are supported.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") components as u32,
            in("edx") (components >> 32) as u32, options(nostack, preserves_flags));
    }
    COMPONENTS.store(components, Ordering::Relaxed);
    SIZE.store(__cpuid_count(13, 0).ebx, Ordering::Relaxed);
}

/// Learns which control bits of SSE this CPU takes. Once, on the boot CPU, after [`enable`].
pub fn detect() {
    #[repr(align(16))]
    struct Area([u8; LEGACY_SIZE]);
    let mut area = Area([0; LEGACY_SIZE]);
    // SAFETY: the area is large enough and aligned.
    unsafe { asm!("fxsave64 [{}]", in(reg) &mut area, options(nostack, preserves_flags)) };
    let mask = read_u32(&area.0, MXCSR_MASK);
    if mask != 0 {
        VALID_MXCSR.store(mask, Ordering::Relaxed);
    }
}

fn size() -> usize {
    SIZE.load(Ordering::Relaxed) as usize
}

fn components() -> u64 {
    COMPONENTS.load(Ordering::Relaxed)
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// A program's state outside the general registers: FPU and vectors, FS and GS bases. One task's
/// own: what is live on a CPU is that of the task that runs there, or was saved by its switch.
pub struct UserState {
    inner: NonNull<Inner>,
}

#[repr(C, align(64))]
struct Inner {
    /// The bases as the program last had them.
    bases: [u64; 2],
    /// The bases that the kernel last asked for.
    asked: [u64; 2],
    /// The descriptors that a 32-bit thread has set; 0 for none.
    descriptors: [u64; TLS_SEGMENTS],
    /// The data selectors as the program last had them.
    selectors: Selectors,
    /// The program's bits of `SPEC_CTRL`.
    restrictions: u32,
    /// In a small space: bit per descriptor that is turned round.
    turned: u32,
    /// How often one was.
    turns: u32,
    /// The registers when one was last, as a number.
    turned_at: u64,
    /// The local segments of a 32-bit program; none for a 64-bit one.
    local: Option<Arc<LocalSegments>>,
    // The save area follows, marked as a signal frame's is.
}

fn layout() -> Layout {
    // The size is a few KiB and the alignment a power of two.
    Layout::from_size_align(size_of::<Inner>() + size() + END_MARK, 64).expect("a small layout")
}

impl Inner {
    fn area(this: NonNull<Inner>) -> *mut u8 {
        // SAFETY: the allocation holds the area right after the structure.
        unsafe { this.as_ptr().add(1).cast() }
    }

    /// # Safety
    /// The CPU's registers hold this state, and interrupts are off.
    #[inline(always)]
    unsafe fn save(this: NonNull<Inner>) {
        let area = Inner::area(this);
        let (low, high) = (components() as u32, (components() >> 32) as u32);
        let found = features();
        // SAFETY: the area has the size that the CPU reported for these components, aligned to 64.
        unsafe {
            if found.contains(Features::XSAVEOPT) {
                asm!("xsaveopt64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                    options(nostack, preserves_flags));
            } else if found.contains(Features::XSAVE) {
                asm!("xsave64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                    options(nostack, preserves_flags));
            } else {
                asm!("fxsave64 [{}]", in(reg) area, options(nostack, preserves_flags));
            }
            Inner::save_segments(this);
        }
    }

    /// Saves the data selectors and the bases only.
    ///
    /// # Safety
    /// The state is live on this CPU, and interrupts are off.
    #[inline(always)]
    unsafe fn save_segments(this: NonNull<Inner>) {
        // SAFETY: the state exists, and nothing else uses it while it is live here.
        let inner = unsafe { &mut *this.as_ptr() };
        inner.selectors = read_selectors();
        if percpu::segments_base() != 0 {
            // 32-bit code, which can't set the bases in another way; those loaded are moved.
            inner.bases = bases_of(inner);
        } else if features().contains(Features::FSGSBASE) {
            // SAFETY: FSGSBASE is on, and interrupts are off.
            inner.bases = unsafe { [read_fs(), read_user_gs()] };
        }
    }

    /// # Safety
    /// The state was validated or saved by the CPU, and interrupts are off.
    unsafe fn load(this: NonNull<Inner>) {
        let area = Inner::area(this);
        let (low, high) = (components() as u32, (components() >> 32) as u32);
        // SAFETY: as in `save`; a saved or validated state does not fault.
        unsafe {
            if features().contains(Features::XSAVE) {
                asm!("xrstor64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                    options(nostack, preserves_flags));
            } else {
                asm!("fxrstor64 [{}]", in(reg) area, options(nostack, preserves_flags));
            }
            let inner = &mut *this.as_ptr();
            load_selectors(inner, percpu::window());
            if percpu::segments_base() == 0 {
                if inner.local.is_some() {
                    inner.find_local_bases();
                }
                let [fs, gs] = inner.bases;
                write_fs(fs);
                write_user_gs(gs);
            }
        }
    }
}

impl Inner {
    /// A local segment may have another base by now than when the program loaded it. Interrupts are
    /// off.
    #[cold]
    fn find_local_bases(&mut self) {
        let selectors = [self.selectors.fs, self.selectors.gs];
        for (at, selector) in selectors.into_iter().enumerate() {
            if selector & LOCAL != 0 {
                let word = gdt::descriptor(percpu::this(), u64::from(selector));
                self.bases[at] = word.map_or(0, segment::base);
            }
        }
    }
}

/// The bit of a selector of a local segment.
const LOCAL: u16 = 4;

/// The data selectors in this CPU's registers. The kernel loads none of its own.
fn read_selectors() -> Selectors {
    let [ds, es, fs, gs]: [u16; 4];
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0:x}, ds", "mov {1:x}, es", "mov {2:x}, fs", "mov {3:x}, gs",
            out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs,
            options(nomem, nostack, preserves_flags));
    }
    Selectors { ds, es, fs, gs }
}

/// A data selector that the CPU will load: as it is, or 0 in the place of one that it would refuse.
fn loadable(selector: u16) -> u16 {
    // Present, and data or code that may be read.
    const IS_CODE: u64 = 1 << 43;
    const IS_READABLE: u64 = 1 << 41;
    if selector <= 3 || selector == USER_DATA {
        return selector;
    }
    match gdt::descriptor(percpu::this(), u64::from(selector)) {
        Some(word)
            if word & segment::PRESENT != 0 && (word & IS_CODE == 0 || word & IS_READABLE != 0) =>
        {
            selector
        }
        _ => 0,
    }
}

/// Makes this CPU's data selectors and descriptors those of a program. The bases of FS and GS are
/// set afterwards. What is loaded already is left alone, unless its descriptor may be another one
/// now.
///
/// # Safety
/// Interrupts are off.
#[inline(always)]
unsafe fn load_selectors(inner: &Inner, window: Window) {
    if window.base | percpu::segments_base() != 0 {
        // SAFETY: the caller's promise.
        return unsafe { load_region(inner, window) };
    }
    gdt::set_tls(percpu::this(), &inner.descriptors);
    // SAFETY: as above.
    unsafe { load_selectors_of(inner) };
}

/// As [`load_selectors`] for a program in a small space, or after one.
///
/// # Safety
/// Interrupts are off.
#[cold]
#[inline(never)]
unsafe fn load_region(inner: &Inner, window: Window) {
    let mut descriptors = inner.descriptors;
    for (n, it) in descriptors.iter_mut().enumerate() {
        *it = segment::in_region(*it, window, inner.turned >> n & 1 != 0);
    }
    gdt::set_tls(percpu::this(), &descriptors);
    percpu::set_segments_base(window.base);
    // SAFETY: the caller's promise.
    unsafe { load_selectors_of(inner) };
}

/// Loads the program's selectors, of descriptors that are in this CPU's tables.
///
/// # Safety
/// Interrupts are off.
#[inline(always)]
unsafe fn load_selectors_of(inner: &Inner) {
    let now = read_selectors();
    let Selectors { ds, es, fs, gs } = inner.selectors;
    let differs = |wanted: u16, now: u16| wanted != now || wanted > 3;
    // SAFETY: each selector is null or names a segment of programs' privilege that is present. The
    // kernel uses none of these registers but the base of GS, which `swapgs` keeps out of the way;
    // no interrupt comes between.
    unsafe {
        if differs(ds, now.ds) {
            asm!("mov ds, {0:x}", in(reg) loadable(ds), options(nostack, preserves_flags));
        }
        if differs(es, now.es) {
            asm!("mov es, {0:x}", in(reg) loadable(es), options(nostack, preserves_flags));
        }
        if differs(fs, now.fs) {
            asm!("mov fs, {0:x}", in(reg) loadable(fs), options(nostack, preserves_flags));
        }
        if differs(gs, now.gs) {
            asm!("swapgs", "mov gs, {0:x}", "swapgs", in(reg) loadable(gs),
                options(nostack, preserves_flags));
        }
    }
}

/// The bases of FS and GS, as the program has set them.
#[cold]
#[inline(never)]
fn bases_of(inner: &Inner) -> [u64; 2] {
    let Selectors { fs, gs, .. } = inner.selectors;
    [fs, gs].map(|selector| base_of(selector, inner).unwrap_or(0))
}

/// The base of the segment that a selector names, as the program has set it, if it is one of a
/// thread's own or a local one.
fn base_of(selector: u16, inner: &Inner) -> Option<u64> {
    let index = usize::from(selector >> 3);
    let word = match (selector & LOCAL != 0, &inner.local) {
        (false, _) => *speculation::get(&inner.descriptors, index.checked_sub(FIRST_TLS)?)?,
        (true, local) => local.as_ref()?.word(index),
    };
    Some(segment::base(word))
}

/// # Safety
/// FSGSBASE is on.
unsafe fn read_fs() -> u64 {
    let base;
    // SAFETY: the caller's promise.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nostack, preserves_flags)) };
    base
}

/// The program's GS base; the kernel's own is in place.
///
/// # Safety
/// FSGSBASE is on and interrupts are off.
unsafe fn read_user_gs() -> u64 {
    let base;
    // SAFETY: nothing between the two exchanges uses GS, and no interrupt comes between.
    unsafe {
        asm!("swapgs", "rdgsbase {}", "swapgs", out(reg) base, options(nostack, preserves_flags));
    }
    base
}

/// # Safety
/// `base` is canonical.
#[inline]
unsafe fn write_fs(base: u64) {
    // SAFETY: the kernel does not use FS.
    unsafe {
        if features().contains(Features::FSGSBASE) {
            asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags));
        } else {
            write_msr(msr::FS_BASE, base);
        }
    }
}

/// # Safety
/// `base` is canonical and interrupts are off.
#[inline]
unsafe fn write_user_gs(base: u64) {
    // SAFETY: as in `read_user_gs`; the register that waits for `swapgs` is the program's.
    unsafe {
        if features().contains(Features::FSGSBASE) {
            asm!("swapgs", "wrgsbase {}", "swapgs", in(reg) base,
                options(nostack, preserves_flags));
        } else {
            write_msr(msr::KERNEL_GS_BASE, base);
        }
    }
}

/// Nearest canonical address, by copying bit 47 upwards.
fn canonical(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}

/// Saves the state that this CPU's registers hold, before another task may use them. Called with
/// interrupts off by the context switch.
#[inline]
pub fn save_live() {
    let live = percpu::this().live.load(Ordering::Relaxed) & !percpu::MOVED;
    if let Some(inner) = NonNull::new(live as *mut Inner) {
        // SAFETY: `live` names a state that exists (its drop clears it) and is in the registers.
        unsafe { Inner::save(inner) };
        percpu::this().live.store(0, Ordering::Relaxed);
    }
}

impl UserState {
    /// The initial state of a program.
    pub fn new() -> Result<UserState, OutOfMemory> {
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(layout()) };
        let inner = NonNull::new(memory.cast::<Inner>()).ok_or(OutOfMemory)?;
        // SAFETY: the allocation holds the structure, and zero is a value of all its other fields.
        unsafe { (&raw mut (*inner.as_ptr()).local).write(None) };
        let mut state = UserState { inner };
        state.reset();
        Ok(state)
    }

    /// A copy, with the same bases.
    pub fn duplicate(&self) -> Result<UserState, OutOfMemory> {
        let copy = UserState::new()?;
        self.sync();
        // SAFETY: both allocations have this size, and the new one is not published yet. What it
        // has of the local segments, nothing, is replaced by another reference to them.
        unsafe {
            let from = self.inner.as_ptr().cast::<u8>();
            from.copy_to_nonoverlapping(copy.inner.as_ptr().cast(), layout().size());
            let local = self.local_segments().cloned();
            (&raw mut (*copy.inner.as_ptr()).local).write(local);
        }
        Ok(copy)
    }

    /// Puts the state back to the initial one, bases 0.
    pub fn reset(&mut self) {
        let frame = self.take_frame();
        initialise(frame);
        mark(frame);
        // SAFETY: owned, and not live any more.
        unsafe {
            (*self.inner.as_ptr()).bases = [0; 2];
            (*self.inner.as_ptr()).asked = [0; 2];
        }
    }

    /// The FS and GS bases that the program has now, which it may have set itself. `wanted` are
    /// those that the kernel wants it to have, as for [`make_live`](UserState::make_live): one that
    /// the kernel has changed since then counts. The answer counts as what the kernel asked for.
    pub fn take_bases(&mut self, wanted: [u64; 2]) -> [u64; 2] {
        self.sync();
        // SAFETY: owned by `self`.
        let inner = unsafe { self.inner.as_mut() };
        let mut bases = inner.bases;
        for i in 0..2 {
            if wanted[i] == inner.asked[i] {
                inner.asked[i] = bases[i];
            } else {
                bases[i] = wanted[i];
            }
        }
        bases
    }

    /// The data selectors that the program has now.
    pub fn selectors(&mut self) -> Selectors {
        self.sync();
        // SAFETY: owned by `self`.
        unsafe { self.inner.as_ref().selectors }
    }

    /// Sets the data selectors, and with them the bases of segments that a thread has set itself.
    pub fn set_selectors(&mut self, selectors: Selectors) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        let inner = unsafe { self.inner.as_mut() };
        let old = core::mem::replace(&mut inner.selectors, selectors);
        for (i, (old, new)) in [(old.fs, selectors.fs), (old.gs, selectors.gs)]
            .into_iter()
            .enumerate()
        {
            let own = |n: usize| speculation::get(&inner.descriptors, n);
            let index = usize::from(new >> 3).checked_sub(FIRST_TLS);
            match index.filter(|_| new & LOCAL == 0).and_then(own) {
                Some(descriptor) => inner.bases[i] = segment::base(*descriptor),
                None if new != old => inner.bases[i] = 0,
                None => {}
            }
        }
    }

    /// The local segments of a 32-bit program.
    #[inline]
    pub fn local_segments(&self) -> Option<&Arc<LocalSegments>> {
        // SAFETY: owned by `self`; the CPU does not change it.
        unsafe { self.inner.as_ref().local.as_ref() }
    }

    /// Makes it the state of a 32-bit program with these local segments, or of a 64-bit one.
    pub fn set_local_segments(&mut self, local: Option<Arc<LocalSegments>>) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().local = local };
    }

    /// Sets the program's bits of `SPEC_CTRL`.
    pub fn set_restrictions(&mut self, bits: u32) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().restrictions = bits };
    }

    /// The descriptors that the thread has set; 0 for none.
    pub fn descriptors(&self) -> [u64; TLS_SEGMENTS] {
        // SAFETY: owned by `self`; the CPU's copy is never changed.
        unsafe { self.inner.as_ref().descriptors }
    }

    /// Sets the thread's descriptors: data segments of programs' privilege, accessed, or 0.
    pub fn set_descriptors(&mut self, descriptors: [u64; TLS_SEGMENTS]) {
        self.take();
        // SAFETY: owned by `self`, and not live any more.
        unsafe { self.inner.as_mut().descriptors = descriptors };
        let selectors = self.selectors();
        self.set_selectors(selectors);
    }

    #[inline]
    fn is_live(&self) -> bool {
        let live = percpu::this().live.load(Ordering::Relaxed) & !percpu::MOVED;
        live == self.inner.as_ptr() as usize
    }

    /// Whether it is live, and its segments are those of where the program is.
    #[inline]
    fn is_current(&self) -> bool {
        percpu::this().live.load(Ordering::Relaxed) == self.inner.as_ptr() as usize
    }

    /// Whether another thread has changed the local segments since this CPU made its copy.
    #[inline]
    fn has_stale_segments(&self) -> bool {
        let stamp = percpu::this().local_stamp.load(Ordering::Relaxed);
        self.local_segments()
            .is_some_and(|local| local.stamp() != stamp)
    }

    /// Brings the memory up to date; the registers stay live.
    fn sync(&self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            // SAFETY: live on this CPU, interrupts off.
            unsafe { Inner::save(self.inner) };
        }
        cpu::irqs_restore(irqs);
    }

    /// The save area in memory, current, and the registers no longer in use; to be changed.
    fn take(&mut self) -> &mut [u8] {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            save_live();
        }
        cpu::irqs_restore(irqs);
        // SAFETY: the allocation holds this many bytes after the structure.
        unsafe { core::slice::from_raw_parts_mut(Inner::area(self.inner), size()) }
    }

    /// The registers are no longer in use: another task may have the state.
    pub fn park(&mut self) {
        self.take();
    }

    /// The registers are no longer in use, and what they hold is lost but for the selectors and
    /// bases: the save area is about to be written anew.
    fn leave_registers(&mut self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            // SAFETY: it is live here, and interrupts are off.
            unsafe { Inner::save_segments(self.inner) };
            percpu::this().live.store(0, Ordering::Relaxed);
        }
        cpu::irqs_restore(irqs);
    }

    /// Makes this CPU's registers hold the state. `wanted` are the FS and GS bases in the registers
    /// that the kernel can change: where one differs from what it was the last time, the kernel did
    /// change it. `has_local`: it may be the state of a 32-bit program. Interrupts are off until
    /// the program is entered.
    #[inline]
    pub fn make_live(&mut self, wanted: [u64; 2], has_local: bool) {
        if !self.is_current() || has_local && self.has_stale_segments() {
            save_live();
            let local = self.local_segments().map(|local| &**local);
            gdt::set_program(percpu::this(), percpu::window(), local);
            // SAFETY: interrupts are off; the state is valid by construction.
            unsafe { Inner::load(self.inner) };
            // SAFETY: owned by `self`.
            mitigations::restrict_program(unsafe { self.inner.as_ref().restrictions });
            let this = self.inner.as_ptr() as usize;
            percpu::this().live.store(this, Ordering::Relaxed);
        }
        // SAFETY: owned by `self`.
        let inner = unsafe { self.inner.as_mut() };
        if wanted != inner.asked {
            // In a small space a base comes with a limit, by a selector, or not at all.
            let is_small = percpu::segments_base() != 0;
            // SAFETY: canonical, and interrupts are off.
            unsafe {
                if wanted[0] != inner.asked[0] && !is_small {
                    inner.bases[0] = canonical(wanted[0]);
                    write_fs(inner.bases[0]);
                }
                if wanted[1] != inner.asked[1] && !is_small {
                    inner.bases[1] = canonical(wanted[1]);
                    write_user_gs(inner.bases[1]);
                }
            }
            inner.asked = wanted;
        }
    }

    /// After a general protection fault in a small space: turns the thread's segments round that
    /// serve one sign only and are in use. Whether that may help: not if these registers had them
    /// turned the last time. The state is live, and interrupts are off.
    pub fn turn_segments(&mut self, regs: &Registers) -> bool {
        let window = percpu::window();
        // SAFETY: owned by `self`; the registers hold the rest.
        let inner = unsafe { self.inner.as_mut() };
        let Selectors { ds, es, fs, gs } = read_selectors();
        let mut used = 0;
        for selector in [ds, es, fs, gs] {
            let n = usize::from(selector >> 3).wrapping_sub(FIRST_TLS);
            let own = speculation::get(&inner.descriptors, n).copied();
            let own = own.filter(|_| selector & LOCAL == 0);
            if own.is_some_and(segment::has_both_signs) {
                used |= 1 << n;
            }
        }
        let at = regs.fingerprint();
        let is_again = at == inner.turned_at && inner.turns != 0;
        if used == 0 || !window.is_small() || is_again || inner.turns >= MOST_TURNS {
            return false;
        }
        inner.turned_at = at;
        inner.turned ^= used;
        inner.turns = inner.turns.saturating_add(1);
        inner.selectors = Selectors { ds, es, fs, gs };
        // SAFETY: interrupts are off.
        unsafe { load_selectors(inner, window) };
        true
    }

    /// How often its segments were turned round.
    pub fn turns(&self) -> u32 {
        // SAFETY: owned by `self`.
        unsafe { self.inner.as_ref().turns }
    }

    /// Bytes of the state in a signal frame.
    pub fn frame_size() -> usize {
        if components() == 0 {
            LEGACY_SIZE
        } else {
            size() + END_MARK
        }
    }

    /// The state in the layout of a signal frame, as long as [`frame_size`](UserState::frame_size)
    /// says.
    pub fn frame(&mut self) -> &[u8] {
        // The marks stand in the area all the time: the CPU does not use their place.
        self.take_frame()
    }

    /// Takes the state from a signal frame, of which `read` fills in the bytes: the whole of it if
    /// the marks are there, else the legacy part, with the rest in its initial state. What cannot
    /// be read, or the CPU would fault on, is refused: the state is the initial one then.
    pub fn load_frame<E>(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.leave_registers();
        let frame = self.take_frame();
        let outcome = read(frame).map(|()| accept(frame));
        if !matches!(outcome, Ok(true)) {
            initialise(frame);
        }
        mark(frame);
        outcome
    }

    /// The save area with the end mark behind it; otherwise as [`take`](UserState::take).
    fn take_frame(&mut self) -> &mut [u8] {
        let len = Self::frame_size();
        let area = self.take().as_mut_ptr();
        // SAFETY: the allocation has room for the mark after the area.
        unsafe { core::slice::from_raw_parts_mut(area, len) }
    }
}

/// Whether the CPU takes the state in a frame. A frame without the marks gets its initial state
/// behind the legacy part.
fn accept(frame: &mut [u8]) -> bool {
    if read_u32(frame, MXCSR) & !VALID_MXCSR.load(Ordering::Relaxed) != 0 {
        return false;
    }
    if components() == 0 {
        return true;
    }
    let used = size();
    let whole = read_u32(frame, SOFTWARE_BYTES) == MAGIC1
        && read_u32(frame, SOFTWARE_BYTES + 16) as usize == used
        && read_u32(frame, used) == MAGIC2;
    if whole {
        let (header, _) = frame[LEGACY_SIZE..][..HEADER_SIZE].as_chunks::<8>();
        let reserved = header[1..]
            .iter()
            .fold(0, |all, word| all | u64::from_le_bytes(*word));
        return u64::from_le_bytes(header[0]) & !components() == 0 && reserved == 0;
    }
    frame[LEGACY_SIZE..].fill(0);
    frame[LEGACY_SIZE..LEGACY_SIZE + 8].copy_from_slice(&0b11u64.to_le_bytes());
    true
}

/// Writes the initial state.
fn initialise(frame: &mut [u8]) {
    frame.fill(0);
    frame[..2].copy_from_slice(&CONTROL_INITIAL.to_le_bytes());
    frame[MXCSR..MXCSR + 4].copy_from_slice(&MXCSR_INITIAL.to_le_bytes());
}

/// Writes Linux's marks: what the frame holds and how long it is, in bytes that the CPU leaves to
/// software.
fn mark(frame: &mut [u8]) {
    let software = &mut frame[SOFTWARE_BYTES..LEGACY_SIZE];
    software.fill(0);
    if components() == 0 {
        return;
    }
    let used = size();
    software[..4].copy_from_slice(&MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&((used + END_MARK) as u32).to_le_bytes());
    software[8..16].copy_from_slice(&components().to_le_bytes());
    software[16..20].copy_from_slice(&(used as u32).to_le_bytes());
    frame[used..used + END_MARK].copy_from_slice(&MAGIC2.to_le_bytes());
}

impl Drop for UserState {
    fn drop(&mut self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            percpu::this().live.store(0, Ordering::Relaxed);
        }
        cpu::irqs_restore(irqs);
        // SAFETY: owned by `self`, allocated with this layout, and no CPU holds it live: a state
        // that is live on a CPU belongs to the task that runs there, which is the one that drops
        // it.
        unsafe {
            self.inner.as_mut().local = None;
            dealloc(self.inner.as_ptr().cast(), layout());
        }
    }
}
