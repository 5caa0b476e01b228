//! The first instructions: from the 32-bit state in which a loader leaves the CPU to 64-bit Rust.
//!
//! Two doors lead in, the PVH note (`qemu -kernel`) and the multiboot2 header (GRUB). Both give
//! 32-bit protected mode without paging and a physical address in `ebx`. The boot page tables map
//! the first 4 GiB three times: at 0, at the direct map, and (the first GiB) at the kernel image's
//! base. `nucleus_place` then chooses where the kernel goes on, and maps image and direct map
//! there; from the mapping at 0, the code changes each address in the image (the table of
//! relocations, which `tools/causeway/src/relocations.rs` makes, and the direct map's immediates),
//! and jumps to the new place. `space` builds the real page tables.

use core::arch::global_asm;

use super::layout::{DIRECT_MAP, KERNEL_BASE};

/// Which loader started the kernel; the numbers are those that the entry code passes on.
pub const LOADER_PVH: u32 = 1;
pub const LOADER_MULTIBOOT2: u32 = 2;

const DIRECT_SLOT: usize = (DIRECT_MAP >> 39) & 511;
const IMAGE_L3_SLOT: usize = (KERNEL_BASE >> 30) & 511;

global_asm!(
    r#"
    .set BASE, {base}

    /* Multiboot2: i386 architecture; information request (command line, modules, memory map);
       physical entry address; page-aligned modules; end. */
    .section .boot.header, "a"
    .balign 8
mb2_header:
    .long 0xe85250d6, 0, mb2_end - mb2_header
    .long -(0xe85250d6 + 0 + (mb2_end - mb2_header))
    .short 1, 0
    .long 20, 1, 3, 6
    .balign 8
    .short 3, 0
    .long 12, multiboot2_entry - BASE
    .balign 8
    .short 6, 0
    .long 8
    .balign 8
    .short 0, 0
    .long 8
mb2_end:

    /* PVH: XEN_ELFNOTE_PHYS32_ENTRY. */
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_entry - BASE

    .section .boot.text, "ax"
    .code32
    .globl multiboot2_entry
pvh_entry:
    movl ${pvh}, %esi
    jmp 1f
multiboot2_entry:
    movl ${mb2}, %esi
1:
    cli
    cld
    movl $(boot_stack_top - BASE), %esp
    /* ebx is clobbered by cpuid. */
    movl %ebx, %ebp

    /* Long mode and no-execute pages must exist. */
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb no_cpu
    movl $0x80000001, %eax
    cpuid
    andl $0x20100000, %edx
    cmpl $0x20100000, %edx
    jne no_cpu

    /* The level-2 tables: 2048 pages of 2 MiB, present and writable. */
    movl $(boot_l2 - BASE), %edi
    movl $0x83, %eax
    xorl %edx, %edx
1:
    movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    incl %edx
    cmpl $2048, %edx
    jb 1b

    /* The level-3 table for the first 4 GiB, and the one of the kernel image. */
    movl $(boot_l2 - BASE + 3), %eax
    movl $(boot_l3 - BASE), %edi
    movl %eax, (%edi)
    addl $0x1000, %eax
    movl %eax, 8(%edi)
    addl $0x1000, %eax
    movl %eax, 16(%edi)
    addl $0x1000, %eax
    movl %eax, 24(%edi)
    movl $(boot_l2 - BASE + 3), (boot_l3_image - BASE + {image_slot} * 8)

    movl $(boot_l3 - BASE + 3), (boot_l4 - BASE)
    movl $(boot_l3 - BASE + 3), (boot_l4 - BASE + {direct_slot} * 8)
    movl $(boot_l3_image - BASE + 3), (boot_l4 - BASE + 511 * 8)

    movl $(boot_l4 - BASE), %eax
    movl %eax, %cr3
    /* PAE */
    movl %cr4, %eax
    orl $0x20, %eax
    movl %eax, %cr4
    /* EFER: long mode, no-execute */
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x900, %eax
    wrmsr
    /* PG, WP, NE, MP, PE; no EM, no TS */
    movl $0x80010023, %eax
    movl %eax, %cr0
    lgdt (boot_gdt_pointer - BASE)
    ljmp $0x08, $(start64 - BASE)

no_cpu:
    /* "CPU?" to the first serial port, then the debug exit's "bad start". */
    movl $(no_cpu_text - BASE), %esi
    movw $0x3f8, %dx
1:
    lodsb
    testb %al, %al
    jz 2f
    outb %al, %dx
    jmp 1b
2:
    movw $0xf4, %dx
    movl $0x12, %eax
    outb %al, %dx
3:
    hlt
    jmp 3b
no_cpu_text:
    .asciz "causeway: this CPU lacks long mode or no-execute pages\n"

    .code64
start64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %fs
    movl %eax, %gs
    movl %eax, %ss
    movabsq $boot_stack_top, %rsp
    movl %esi, %ebx
    movl %ebp, %r12d
    xorl %ebp, %ebp
    movl %ebx, %edi
    movl %r12d, %esi
    movabsq $nucleus_place, %rax
    callq *%rax
    /* rax: how far the image moves, rdx: how far the direct map. No code of the image runs but this
       until all of it has changed. */
    leaq kernel_relocations(%rip), %rsi
    movl (%rsi), %ecx
    movl 4(%rsi), %r8d
    addq $8, %rsi
    jmp 2f
1:
    movl (%rsi), %edi
    addq %rax, (%rdi)
    addq $4, %rsi
    decl %ecx
2:
    testl %ecx, %ecx
    jnz 1b
    jmp 4f
3:
    movl (%rsi), %edi
    addl %eax, (%rdi)
    addq $4, %rsi
    decl %r8d
4:
    testl %r8d, %r8d
    jnz 3b
    /* Each site of the direct map's address is named by its distance. */
    leaq __direct_sites_start(%rip), %rsi
    leaq __direct_sites_end(%rip), %rcx
    jmp 6f
5:
    movslq (%rsi), %rdi
    addq %rdx, (%rsi, %rdi)
    addq $4, %rsi
6:
    cmpq %rcx, %rsi
    jb 5b
    /* The image's place, in the two last GiB. */
    leaq boot_l2_image + 3(%rip), %rcx
    movq %rcx, boot_l3_image + 510 * 8(%rip)
    addq $0x1000, %rcx
    movq %rcx, boot_l3_image + 511 * 8(%rip)
    movq %cr3, %rcx
    movq %rcx, %cr3
    leaq 7f(%rip), %rcx
    leaq (%rcx, %rax), %rax
    movabsq $BASE, %rcx
    addq %rcx, %rax
    jmpq *%rax
7:
    leaq boot_stack_top(%rip), %rsp
    movl %ebx, %edi
    movl %r12d, %esi
    call nucleus_main
    ud2

    /* Counts of the places below: a kernel without a table stays where it was linked. */
    .section .relocations, "a"
    .balign 8
    .globl kernel_relocations
kernel_relocations:
    .long 0, 0
    .section .boot.text, "ax"

    .balign 8
    .globl boot_gdt, boot_gdt_pointer
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    /* 64-bit code */
    .quad 0x00cf93000000ffff    /* data */
    .quad 0x00cf9b000000ffff    /* 32-bit code, for the other CPUs' start */
boot_gdt_pointer:
    .short 31
    .quad boot_gdt - BASE

    .section .bss.boot, "aw", @nobits
    .balign 4096
    .globl boot_l4
boot_l4:
    .skip 4096
boot_l3:
    .skip 4096
    .globl boot_l3_direct, boot_l2, boot_l2_image
boot_l3_image:
    .skip 4096
boot_l3_direct:
    .skip 4096
boot_l2_image:
    .skip 2 * 4096
boot_l2:
    .skip 4 * 4096
    .skip 32768
    .globl boot_stack_top
boot_stack_top:
    "#,
    base = const KERNEL_BASE,
    pvh = const LOADER_PVH,
    mb2 = const LOADER_MULTIBOOT2,
    direct_slot = const DIRECT_SLOT,
    image_slot = const IMAGE_L3_SLOT,
    options(att_syntax)
);
