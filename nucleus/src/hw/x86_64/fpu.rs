//! The floating-point and vector registers: which components programs have, and the area in memory
//! that holds them, which is that of a signal frame.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cpu::{Features, features};

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
pub const END_MARK: usize = 4;

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

pub fn size() -> usize {
    SIZE.load(Ordering::Relaxed) as usize
}

pub fn components() -> u64 {
    COMPONENTS.load(Ordering::Relaxed)
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Saves the registers.
///
/// # Safety
/// The area has [`size`] bytes, aligned to 64.
#[inline(always)]
pub unsafe fn save(area: *mut u8) {
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
    }
}

/// Loads the registers.
///
/// # Safety
/// The area holds a state that the CPU has saved or that was [accepted](accept).
#[inline(always)]
pub unsafe fn load(area: *const u8) {
    let (low, high) = (components() as u32, (components() >> 32) as u32);
    // SAFETY: as in `save`; a saved or validated state does not fault.
    unsafe {
        if features().contains(Features::XSAVE) {
            asm!("xrstor64 [{}]", in(reg) area, in("eax") low, in("edx") high,
                options(nostack, preserves_flags));
        } else {
            asm!("fxrstor64 [{}]", in(reg) area, options(nostack, preserves_flags));
        }
    }
}

/// Bytes of the state in a signal frame.
pub fn frame_size() -> usize {
    match components() {
        0 => LEGACY_SIZE,
        _ => size() + END_MARK,
    }
}

/// Whether the CPU takes the state in a frame. A frame without the marks gets its initial state
/// behind the legacy part.
pub fn accept(frame: &mut [u8]) -> bool {
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
pub fn initialise(frame: &mut [u8]) {
    frame.fill(0);
    frame[..2].copy_from_slice(&CONTROL_INITIAL.to_le_bytes());
    frame[MXCSR..MXCSR + 4].copy_from_slice(&MXCSR_INITIAL.to_le_bytes());
}

/// Writes Linux's marks: what the frame holds and how long it is, in bytes that the CPU leaves to
/// software.
pub fn mark(frame: &mut [u8]) {
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
