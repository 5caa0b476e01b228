//! The floating-point and vector state of programs.
//!
//! The kernel computes nothing with these registers. A program's state is loaded when the program
//! is entered and is saved when the CPU switches to another task; in between (system calls,
//! faults, interrupts) it stays where it is, at no cost. `PerCpu::live` names the state that this
//! CPU's registers hold; a state that is live on one CPU is current nowhere else.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cpu::{self, Features, features, msr, write_msr};
use super::percpu;
use crate::OutOfMemory;

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
        asm!("xsetbv", in("ecx") 0, in("eax") components as u32, in("edx") (components >> 32) as u32,
            options(nostack, preserves_flags));
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

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// A program's state outside the general registers: FPU and vectors, FS and GS bases.
pub struct UserState {
    inner: NonNull<Inner>,
}

#[repr(C, align(64))]
struct Inner {
    /// The bases as the program last had them.
    bases: [u64; 2],
    /// The bases that the kernel last asked for.
    asked: [u64; 2],
    // The save area follows.
}

// SAFETY: the pointer is owned; the contents are bytes.
unsafe impl Send for UserState {}
// SAFETY: shared access only saves the live state on its own CPU with interrupts off, and reads.
unsafe impl Sync for UserState {}

fn layout() -> Layout {
    // The size is a few KiB and the alignment a power of two.
    Layout::from_size_align(size_of::<Inner>() + size(), 64).expect("a small layout")
}

impl Inner {
    fn area(this: NonNull<Inner>) -> *mut u8 {
        // SAFETY: the allocation holds the area right after the structure.
        unsafe { this.as_ptr().add(1).cast() }
    }

    /// # Safety
    /// The CPU's registers hold this state, and interrupts are off.
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
            if found.contains(Features::FSGSBASE) {
                (*this.as_ptr()).bases = [read_fs(), read_user_gs()];
            }
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
            let [fs, gs] = (*this.as_ptr()).bases;
            write_fs(fs);
            write_user_gs(gs);
        }
    }
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
unsafe fn write_user_gs(base: u64) {
    // SAFETY: as in `read_user_gs`; the register that waits for `swapgs` is the program's.
    unsafe {
        if features().contains(Features::FSGSBASE) {
            asm!("swapgs", "wrgsbase {}", "swapgs", in(reg) base, options(nostack, preserves_flags));
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
    let live = percpu::this().live.load(Ordering::Relaxed);
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
        let mut state = UserState { inner };
        state.reset();
        Ok(state)
    }

    /// A copy, with the same bases.
    pub fn duplicate(&self) -> Result<UserState, OutOfMemory> {
        let copy = UserState::new()?;
        self.sync();
        // SAFETY: both allocations have this size, and nobody else knows the new one.
        unsafe {
            let from = self.inner.as_ptr().cast::<u8>();
            from.copy_to_nonoverlapping(copy.inner.as_ptr().cast(), layout().size());
        }
        Ok(copy)
    }

    /// Puts the state back to the initial one, bases 0.
    pub fn reset(&mut self) {
        let area = self.take();
        area.fill(0);
        area[..2].copy_from_slice(&CONTROL_INITIAL.to_le_bytes());
        area[MXCSR..MXCSR + 4].copy_from_slice(&MXCSR_INITIAL.to_le_bytes());
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
            if wanted[i] != inner.asked[i] {
                bases[i] = wanted[i];
            } else {
                inner.asked[i] = bases[i];
            }
        }
        bases
    }

    fn is_live(&self) -> bool {
        percpu::this().live.load(Ordering::Relaxed) == self.inner.as_ptr() as usize
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

    /// Makes this CPU's registers hold the state. `wanted` are the FS and GS bases in the registers that the kernel
    /// can change: where one differs from what it was the last time, the kernel did change it.
    /// Interrupts are off until the program is entered.
    #[inline]
    pub fn make_live(&mut self, wanted: [u64; 2]) {
        if !self.is_live() {
            save_live();
            // SAFETY: interrupts are off; the state is valid by construction.
            unsafe { Inner::load(self.inner) };
            let this = self.inner.as_ptr() as usize;
            percpu::this().live.store(this, Ordering::Relaxed);
        }
        // SAFETY: owned by `self`.
        let inner = unsafe { self.inner.as_mut() };
        if wanted != inner.asked {
            // SAFETY: canonical, and interrupts are off.
            unsafe {
                if wanted[0] != inner.asked[0] {
                    inner.bases[0] = canonical(wanted[0]);
                    write_fs(inner.bases[0]);
                }
                if wanted[1] != inner.asked[1] {
                    inner.bases[1] = canonical(wanted[1]);
                    write_user_gs(inner.bases[1]);
                }
            }
            inner.asked = wanted;
        }
    }

    /// Bytes that [`store`](UserState::store) fills.
    pub fn stored_size() -> usize {
        if components() == 0 {
            LEGACY_SIZE
        } else {
            size() + 4
        }
    }

    /// Copies the state out in the layout of a signal frame. `to` has the stored size.
    pub fn store(&mut self, to: &mut [u8]) {
        let used = size();
        to[..used].copy_from_slice(self.take());
        to[SOFTWARE_BYTES..LEGACY_SIZE].fill(0);
        if components() == 0 {
            return;
        }
        let software = &mut to[SOFTWARE_BYTES..LEGACY_SIZE];
        software[..4].copy_from_slice(&MAGIC1.to_le_bytes());
        software[4..8].copy_from_slice(&(used as u32 + 4).to_le_bytes());
        software[8..16].copy_from_slice(&components().to_le_bytes());
        software[16..20].copy_from_slice(&(used as u32).to_le_bytes());
        to[used..used + 4].copy_from_slice(&MAGIC2.to_le_bytes());
    }

    /// Takes the state from a signal frame: the whole of it if the marks are there and the frame
    /// is long enough, else the legacy part, with the rest in its initial state. Refuses what the
    /// CPU would fault on, and then changes nothing.
    pub fn restore(&mut self, from: &[u8]) -> bool {
        if from.len() < LEGACY_SIZE {
            return false;
        }
        if read_u32(from, MXCSR) & !VALID_MXCSR.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let used = size();
        let whole = components() != 0
            && read_u32(from, SOFTWARE_BYTES) == MAGIC1
            && read_u32(from, SOFTWARE_BYTES + 16) as usize == used
            && from.len() >= used + 4
            && read_u32(from, used) == MAGIC2;
        if whole {
            let header = &from[LEGACY_SIZE..LEGACY_SIZE + HEADER_SIZE];
            if read_u64(header, 0) & !components() != 0 || header[8..].iter().any(|&b| b != 0) {
                return false;
            }
            self.take().copy_from_slice(&from[..used]);
        } else {
            let area = self.take();
            area.fill(0);
            area[..LEGACY_SIZE].copy_from_slice(&from[..LEGACY_SIZE]);
            if components() != 0 {
                area[LEGACY_SIZE..LEGACY_SIZE + 8].copy_from_slice(&0b11u64.to_le_bytes());
            }
        }
        true
    }
}

impl Drop for UserState {
    fn drop(&mut self) {
        let irqs = cpu::irqs_disable();
        if self.is_live() {
            percpu::this().live.store(0, Ordering::Relaxed);
        }
        cpu::irqs_restore(irqs);
        // SAFETY: allocated with this layout, and no CPU holds it live: a state that is live on a
        // CPU belongs to the task that runs there, which is the one that drops it.
        unsafe { dealloc(self.inner.as_ptr().cast(), layout()) };
    }
}
