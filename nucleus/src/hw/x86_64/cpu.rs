//! One CPU's control registers, model-specific registers, flags and features.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU32, Ordering};

use bitflags::bitflags;

/// The memory types by the three bits of a page-table entry: as after a reset, but the second one
/// is write-combining instead of write-through.
const MEMORY_TYPES: u64 = 0x0007_0406_0007_0106;

/// Model-specific registers.
pub mod msr {
    pub const APIC_BASE: u32 = 0x1b;
    pub const SPEC_CTRL: u32 = 0x48;
    pub const PRED_CMD: u32 = 0x49;
    pub const ARCH_CAPABILITIES: u32 = 0x10a;
    pub const MEMORY_TYPES: u32 = 0x277;
    pub const TSC_DEADLINE: u32 = 0x6e0;
    pub const X2APIC: u32 = 0x800;
    pub const EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const SYSENTER_CS: u32 = 0x174;
    pub const CSTAR: u32 = 0xc000_0083;
    pub const SFMASK: u32 = 0xc000_0084;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
}

/// Bits of RFLAGS.
pub mod rflags {
    pub const TRAP: u64 = 1 << 8;
    pub const INTERRUPT: u64 = 1 << 9;
    pub const DIRECTION: u64 = 1 << 10;
    pub const IO_PRIVILEGE: u64 = 3 << 12;
    pub const NESTED: u64 = 1 << 14;
    pub const ALIGNMENT: u64 = 1 << 18;
    /// What a program may set: carry, parity, adjust, zero, sign, trap, direction, overflow,
    /// resume, alignment check, identification.
    pub const PROGRAM: u64 = 0x25_0dd5;
}

const CR0_PROTECTED: u64 = 1 << 0;
const CR0_MONITOR_FPU: u64 = 1 << 1;
const CR0_NUMERIC_ERROR: u64 = 1 << 5;
const CR0_WRITE_PROTECT: u64 = 1 << 16;
const CR0_ALIGNMENT_MASK: u64 = 1 << 18;
const CR0_PAGING: u64 = 1 << 31;

const CR4_PAE: u64 = 1 << 5;
const CR4_MACHINE_CHECK: u64 = 1 << 6;
const CR4_GLOBAL: u64 = 1 << 7;
const CR4_FXSAVE: u64 = 1 << 9;
const CR4_SIMD_EXCEPTIONS: u64 = 1 << 10;
const CR4_UMIP: u64 = 1 << 11;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_TAGS: u64 = 1 << 17;
const CR4_XSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

const EFER_SYSCALL: u64 = 1;
const EFER_NO_EXECUTE: u64 = 1 << 11;

bitflags! {
    /// What the CPU can do, as far as the kernel chooses by it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u32 {
        const FSGSBASE = 1 << 0;
        const SMEP = 1 << 1;
        const SMAP = 1 << 2;
        const UMIP = 1 << 3;
        const XSAVE = 1 << 4;
        const XSAVEOPT = 1 << 5;
        const X2APIC = 1 << 6;
        const TSC_DEADLINE = 1 << 7;
        const HUGE_PAGES = 1 << 8;
        const RDRAND = 1 << 9;
        const RDSEED = 1 << 10;
        const HYPERVISOR = 1 << 11;
        /// Address-space tags (PCID).
        const TAGS = 1 << 12;
        const INVPCID = 1 << 13;
    }
}

/// The boot CPU's features; the others are taken to be its equals, as virtual machines' CPUs are.
static FEATURES: AtomicU32 = AtomicU32::new(0);

/// What the CPUs can do. Empty before [`detect`].
#[inline]
pub fn features() -> Features {
    Features::from_bits_truncate(FEATURES.load(Ordering::Relaxed))
}

/// Reads the boot CPU's features.
pub fn detect() {
    let highest = __cpuid(0).eax;
    let one = __cpuid(1);
    let mut found = Features::empty();
    let mut set = |feature, register: u32, bit: u32| {
        if register >> bit & 1 != 0 {
            found |= feature;
        }
    };
    set(Features::TAGS, one.ecx, 17);
    set(Features::X2APIC, one.ecx, 21);
    set(Features::TSC_DEADLINE, one.ecx, 24);
    set(Features::XSAVE, one.ecx, 26);
    set(Features::RDRAND, one.ecx, 30);
    set(Features::HYPERVISOR, one.ecx, 31);
    if highest >= 7 {
        let seven = __cpuid_count(7, 0);
        set(Features::FSGSBASE, seven.ebx, 0);
        set(Features::SMEP, seven.ebx, 7);
        set(Features::INVPCID, seven.ebx, 10);
        set(Features::RDSEED, seven.ebx, 18);
        set(Features::SMAP, seven.ebx, 20);
        set(Features::UMIP, seven.ecx, 2);
    }
    if highest >= 13 && one.ecx >> 26 & 1 != 0 {
        set(Features::XSAVEOPT, __cpuid_count(13, 1).eax, 0);
    }
    if __cpuid(0x8000_0000).eax >= 0x8000_0001 {
        set(Features::HUGE_PAGES, __cpuid(0x8000_0001).edx, 26);
    }
    FEATURES.store(found.bits(), Ordering::Relaxed);
}

/// Sets this CPU's control registers: every protection that it has is on. `keeps_global`:
/// translations of the kernel's half stay when another root is loaded. `has_tags`: roots are loaded
/// by address-space tags, the present one by 0.
pub fn set_controls(keeps_global: bool, has_tags: bool) {
    let has = |feature, bit| if features().contains(feature) { bit } else { 0 };
    let cr0 = CR0_PROTECTED
        | CR0_MONITOR_FPU
        | CR0_NUMERIC_ERROR
        | CR0_WRITE_PROTECT
        | CR0_ALIGNMENT_MASK
        | CR0_PAGING;
    let cr4 = CR4_PAE
        | CR4_MACHINE_CHECK
        | if keeps_global { CR4_GLOBAL } else { 0 }
        | CR4_FXSAVE
        | CR4_SIMD_EXCEPTIONS
        | has(Features::UMIP, CR4_UMIP)
        | has(Features::FSGSBASE, CR4_FSGSBASE)
        | if has_tags { CR4_TAGS } else { 0 }
        | has(Features::XSAVE, CR4_XSAVE)
        | has(Features::SMEP, CR4_SMEP)
        | has(Features::SMAP, CR4_SMAP);
    // SAFETY: paging, long mode and write protection stay as they are; the rest forbids more than
    // before or enables what the kernel saves and restores; no mapping has the memory type that
    // becomes another one.
    unsafe {
        asm!("mov cr0, {}", in(reg) cr0, options(nostack, preserves_flags));
        asm!("mov cr4, {}", in(reg) cr4, options(nostack, preserves_flags));
        let efer = read_msr(msr::EFER);
        write_msr(msr::EFER, efer | EFER_SYSCALL | EFER_NO_EXECUTE);
        write_msr(msr::MEMORY_TYPES, MEMORY_TYPES);
    }
}

/// Writes the lines of the caches that hold these bytes to memory, and waits until they are there.
pub(crate) fn write_back_caches(from: *const u8, len: usize) {
    const LINE: usize = 64;
    for at in (0..len).step_by(LINE) {
        // SAFETY: changes no byte; an address that is not mapped is not the caller's.
        unsafe {
            asm!("clflush [{}]", in(reg) from.wrapping_add(at), options(nostack, preserves_flags))
        };
    }
    // SAFETY: orders.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) };
}

/// Drops all translations, global ones too, if the CPU keeps such: a change of the bit does it.
pub fn flush_global() {
    // SAFETY: forgetting translations is always right; the register ends as it was. An interrupt in
    // between finds a CPU that keeps none.
    unsafe {
        asm!("mov {0}, cr4", "btc {0}, 7", "mov cr4, {0}", "btc {0}, 7", "mov cr4, {0}",
            out(reg) _, options(nostack));
    }
}

/// Reads a model-specific register.
///
/// # Safety
/// The register exists on this CPU.
#[inline]
pub unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
            options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The register exists, takes this value, and nothing that the compiler or another part of the
/// kernel relies on changes with it.
#[inline]
pub unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// The address of the last page fault on this CPU.
#[inline]
pub fn fault_address() -> usize {
    let address;
    // SAFETY: reading CR2 changes nothing.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// The time-stamp counter.
#[inline]
pub fn time_stamp() -> u64 {
    // SAFETY: every CPU with long mode has the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A random number of the processor's generator; `None` if it has none, or none at the moment.
pub fn processor_random() -> Option<u64> {
    /// Either instruction may fail while others drain the generator; Intel suggests ten tries.
    const TRIES: u32 = 10;
    for _ in 0..TRIES {
        let (mut value, mut ok): (u64, u8);
        // SAFETY: the instructions exist, and only write a register and the carry flag.
        unsafe {
            if features().contains(Features::RDSEED) {
                asm!("rdseed {}", "setc {}", out(reg) value, out(reg_byte) ok,
                    options(nomem, nostack));
                if ok != 0 {
                    return Some(value);
                }
            }
            if !features().contains(Features::RDRAND) {
                return None;
            }
            asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) ok,
                options(nomem, nostack));
        }
        if ok != 0 {
            return Some(value);
        }
        core::hint::spin_loop();
    }
    None
}

/// Whether this CPU takes interrupts.
#[inline]
pub fn irqs_enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags by way of the stack.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & rflags::INTERRUPT != 0
}

/// Stops taking interrupts; returns whether they were taken before.
#[inline]
pub fn irqs_disable() -> bool {
    let before = irqs_enabled();
    // SAFETY: interrupts that are off break nothing. The compiler moves no memory access across.
    unsafe { asm!("cli", options(nostack)) };
    before
}

/// Takes interrupts from now on.
#[inline]
pub fn irqs_enable() {
    // SAFETY: the handlers were installed before any code turned interrupts on.
    unsafe { asm!("sti", options(nostack)) };
}

/// Undoes an [`irqs_disable`].
#[inline]
pub fn irqs_restore(before: bool) {
    if before {
        irqs_enable();
    }
}

/// Halts until an interrupt. Called with interrupts off; returns with them on, after the handler.
/// `sti` takes effect after the next instruction, so no interrupt slips in before the halt.
#[inline]
pub fn wait_for_interrupt() {
    // SAFETY: halting changes nothing, and the handlers are installed.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Halts forever.
pub fn halt() -> ! {
    loop {
        // SAFETY: nothing runs on this CPU any more.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

/// Tells the CPU that this is a loop that waits for another one.
#[inline]
pub fn spin_hint() {
    core::hint::spin_loop();
}

/// How many bits a physical address has: others are reserved in page tables.
pub fn address_bits() -> u32 {
    const LEAF: u32 = 0x8000_0008;
    match __cpuid(0x8000_0000).eax >= LEAF {
        true => (__cpuid(LEAF).eax & 0xff).min(52),
        false => 36,
    }
}
