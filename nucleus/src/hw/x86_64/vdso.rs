//! The shared object that programs call for the time, and the page of numbers that it reads.
//!
//! The object is written here as its assembler source, headers and tables included, so that it is
//! made by no linker: the assembler knows all distances. Programs find it by `AT_SYSINFO_EHDR`; the
//! page with the numbers is mapped just behind it. Its functions compute what the system calls
//! compute, from the same numbers, and call them for what they don't know.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{clock, cpu};
use crate::hw::TICKS_PER_SECOND;

/// What the functions read: the even number before and after tells that it did not change in
/// between.
#[repr(C)]
pub struct Numbers {
    sequence: AtomicU32,
    padding: u32,
    /// The counter's value at time 0.
    start: AtomicU64,
    /// Nanoseconds a tick of the counter, times 2^32.
    ns_per_tick: AtomicU64,
    /// Nanoseconds from the epoch to time 0.
    epoch: AtomicU64,
}

impl Numbers {
    /// Sets all. One caller at a time, with interrupts off: readers spin meanwhile.
    pub fn set(&self, epoch: u64) {
        debug_assert!(!cpu::irqs_enabled());
        let (start, ns_per_tick) = clock::conversion();
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence
            .store(before.wrapping_add(1), Ordering::Relaxed);
        // The odd number is seen before any of the new ones is.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.ns_per_tick.store(ns_per_tick, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.sequence
            .store(before.wrapping_add(2), Ordering::Release);
    }
}

/// Clocks that give the time since boot, a bit each: monotonic, raw, coarse, boottime.
const OF_BOOT: u32 = 1 << 1 | 1 << 4 | 1 << 6 | 1 << 7;
/// Clocks that give the time since the epoch: realtime, coarse, TAI.
const OF_EPOCH: u32 = 1 << 0 | 1 << 5 | 1 << 11;
/// Those of both whose resolution is the tick.
const COARSE: u32 = 1 << 5 | 1 << 6;
/// The numbers of the system calls.
const CLOCK_GETTIME: u32 = 228;
const CLOCK_GETRES: u32 = 229;

global_asm!(
    r#"
    .pushsection .rodata.vdso, "a"
    .balign 4096
    .globl vdso_image_start
vdso_image_start:
    /* ELF header: 64 bits, little endian, System V; a shared object for x86-64. */
    .byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0
    .short 3, 62
    .long 1
    .quad 0
    .quad 64
    .quad 0
    .long 0
    .short 64, 56, 2, 64, 0, 0

    /* One segment to load, readable and executable, and the dynamic section. */
    .long 1, 5
    .quad 0, 0, 0
    .quad vdso_image_end - vdso_image_start
    .quad vdso_image_end - vdso_image_start
    .quad 4096
    .long 2, 4
    .quad vdso_dynamic - vdso_image_start
    .quad vdso_dynamic - vdso_image_start
    .quad vdso_dynamic - vdso_image_start
    .quad vdso_dynamic_end - vdso_dynamic
    .quad vdso_dynamic_end - vdso_dynamic
    .quad 8

    /* Hash table: one bucket, in which each symbol is followed by the next. */
    .balign 8
vdso_hash:
    .long 1, 11
    .long 1
    .long 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0

    .macro VDSO_SYMBOL name, info, function, end
    .long \name - vdso_names
    .byte \info, 0
    .short 1
    .quad \function - vdso_image_start
    .quad \end - \function
    .endm
    .balign 8
vdso_symbols:
    .quad 0, 0, 0
    /* Global functions, and weak ones of the plain names. */
    VDSO_SYMBOL vdso_n1, 0x12, vdso_clock_gettime, vdso_clock_gettime_end
    VDSO_SYMBOL vdso_n2, 0x12, vdso_gettimeofday, vdso_gettimeofday_end
    VDSO_SYMBOL vdso_n3, 0x12, vdso_time, vdso_time_end
    VDSO_SYMBOL vdso_n4, 0x12, vdso_getcpu, vdso_getcpu_end
    VDSO_SYMBOL vdso_n5, 0x12, vdso_clock_getres, vdso_clock_getres_end
    VDSO_SYMBOL vdso_n1 + 7, 0x22, vdso_clock_gettime, vdso_clock_gettime_end
    VDSO_SYMBOL vdso_n2 + 7, 0x22, vdso_gettimeofday, vdso_gettimeofday_end
    VDSO_SYMBOL vdso_n3 + 7, 0x22, vdso_time, vdso_time_end
    VDSO_SYMBOL vdso_n4 + 7, 0x22, vdso_getcpu, vdso_getcpu_end
    VDSO_SYMBOL vdso_n5 + 7, 0x22, vdso_clock_getres, vdso_clock_getres_end

vdso_names:
    .byte 0
vdso_soname:
    .asciz "linux-vdso.so.1"
vdso_version_name:
    .asciz "LINUX_2.6"
vdso_n1:
    .asciz "__vdso_clock_gettime"
vdso_n2:
    .asciz "__vdso_gettimeofday"
vdso_n3:
    .asciz "__vdso_time"
vdso_n4:
    .asciz "__vdso_getcpu"
vdso_n5:
    .asciz "__vdso_clock_getres"
vdso_names_end:

    /* All have version 2. */
    .balign 2
vdso_versions:
    .short 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2

    /* Version 1 is the object itself, 2 is LINUX_2.6; with the hashes of their names. */
    .balign 8
vdso_definitions:
    .short 1, 1, 1, 1
    .long 0x0deebfa1, 20, 28
    .long vdso_soname - vdso_names, 0
    .short 1, 0, 2, 1
    .long 0x03ae75f6, 20, 0
    .long vdso_version_name - vdso_names, 0

    .balign 8
vdso_dynamic:
    .quad 14, vdso_soname - vdso_names
    .quad 4, vdso_hash - vdso_image_start
    .quad 5, vdso_names - vdso_image_start
    .quad 6, vdso_symbols - vdso_image_start
    .quad 10, vdso_names_end - vdso_names
    .quad 11, 24
    .quad 0x6ffffff0, vdso_versions - vdso_image_start
    .quad 0x6ffffffc, vdso_definitions - vdso_image_start
    .quad 0x6ffffffd, 2
    .quad 0, 0
vdso_dynamic_end:

    /* rax: nanoseconds since boot, plus the number at `of`, if any. r8, r9 and rdx are lost. No
       read of the counter is begun before the reads before it, nor does it wait for those after
       it. */
    .macro VDSO_TIME of
    lea r8, [rip + vdso_numbers]
9001:
    mov r9d, [r8]
    test r9d, 1
    jnz 9002f
    lfence
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, [r8 + {start}]
    mul qword ptr [r8 + {ns_per_tick}]
    shrd rax, rdx, 32
    .ifnb \of
    add rax, [r8 + \of]
    .endif
    cmp r9d, [r8]
    je 9003f
9002:
    pause
    jmp 9001b
9003:
    .endm
    /* rax: seconds, rdx: the nanoseconds left, of rax nanoseconds. */
    .macro VDSO_SPLIT
    xor edx, edx
    mov ecx, 1000000000
    div rcx
    .endm

    /* (edi: clock, rsi: to a timespec) */
    .balign 32
vdso_clock_gettime:
    cmp edi, 31
    ja 3f
    mov eax, {of_boot}
    bt eax, edi
    jnc 2f
    VDSO_TIME
1:  VDSO_SPLIT
    mov [rsi], rax
    mov [rsi + 8], rdx
    xor eax, eax
    ret
2:  mov eax, {of_epoch}
    bt eax, edi
    jnc 3f
    VDSO_TIME {epoch}
    jmp 1b
3:  mov eax, {clock_gettime}
    syscall
    ret
vdso_clock_gettime_end:

    /* (rdi: to a timeval or 0, rsi: to a timezone or 0) */
    .balign 32
vdso_gettimeofday:
    test rdi, rdi
    jz 1f
    VDSO_TIME {epoch}
    VDSO_SPLIT
    mov [rdi], rax
    mov eax, edx
    xor edx, edx
    mov ecx, 1000
    div ecx
    mov [rdi + 8], rax
1:  test rsi, rsi
    jz 2f
    mov qword ptr [rsi], 0
2:  xor eax, eax
    ret
vdso_gettimeofday_end:

    /* (rdi: to the seconds or 0) */
    .balign 32
vdso_time:
    VDSO_TIME {epoch}
    VDSO_SPLIT
    test rdi, rdi
    jz 1f
    mov [rdi], rax
1:  ret
vdso_time_end:

    /* (rdi: to the CPU or 0, rsi: to the node or 0). The limit of a segment is the CPU's number. */
    .balign 32
vdso_getcpu:
    mov eax, {cpu_number}
    lsl eax, eax
    test rdi, rdi
    jz 1f
    mov [rdi], eax
1:  test rsi, rsi
    jz 2f
    mov dword ptr [rsi], 0
2:  xor eax, eax
    ret
vdso_getcpu_end:

    /* (edi: clock, rsi: to a timespec or 0) */
    .balign 32
vdso_clock_getres:
    cmp edi, 31
    ja 3f
    mov eax, {of_boot} | {of_epoch}
    bt eax, edi
    jnc 3f
    mov edx, 1
    mov ecx, {tick}
    mov eax, {coarse}
    bt eax, edi
    cmovc edx, ecx
    test rsi, rsi
    jz 2f
    mov qword ptr [rsi], 0
    mov [rsi + 8], rdx
2:  xor eax, eax
    ret
3:  mov eax, {clock_getres}
    syscall
    ret
vdso_clock_getres_end:

    .globl vdso_image_end
vdso_image_end:
    .balign 4096
    /* In programs; nothing of them is here. */
vdso_numbers:
    .popsection
    "#,
    start = const core::mem::offset_of!(Numbers, start),
    ns_per_tick = const core::mem::offset_of!(Numbers, ns_per_tick),
    epoch = const core::mem::offset_of!(Numbers, epoch),
    of_boot = const OF_BOOT,
    of_epoch = const OF_EPOCH,
    coarse = const COARSE,
    tick = const 1_000_000_000 / TICKS_PER_SECOND,
    clock_gettime = const CLOCK_GETTIME,
    clock_getres = const CLOCK_GETRES,
    cpu_number = const super::gdt::CPU_NUMBER,
);

unsafe extern "C" {
    static vdso_image_start: u8;
    static vdso_image_end: u8;
}

/// The object's bytes.
pub(crate) fn image() -> &'static [u8] {
    let (start, end) = (&raw const vdso_image_start, &raw const vdso_image_end);
    // SAFETY: the assembler put the object between the two, in memory that never changes.
    unsafe { core::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}
