/*
 * What the plugins for QEMU's emulator share: the declarations of its interface, and the marks of
 * programs.
 *
 * QEMU's package brings no header for plugins: the few declarations below are its documented
 * interface (docs/devel/tcg-plugins). VERSION is what the QEMU at hand wants to see.
 *
 * The instruction `nopl BEGIN(%rax)` of a program begins a counted part and `nopl END(%rax)` ends
 * it. Both do nothing on any machine.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;
typedef uint64_t qemu_plugin_id_t;
typedef void (*on_run)(unsigned cpu, void *data);
typedef uint32_t qemu_plugin_meminfo_t;
typedef void (*on_access)(unsigned cpu, qemu_plugin_meminfo_t, uint64_t address, void *data);
struct qemu_plugin_hwaddr;

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                                  void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, on_run, int flags, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, on_run, int flags, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, on_access, int flags, int kinds, void *);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
extern struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t address);
extern bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
#if VERSION >= 3
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
#else
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
#endif

__attribute__((visibility("default"))) int qemu_plugin_version = VERSION;

/* The callbacks look at no register. */
enum { NO_REGISTERS = 0 };
/* Loads and stores. */
enum { ALL_KINDS = 3 };

/* Addresses from here on are the kernel's. */
#define KERNEL (UINT64_C(1) << 63)
/* Addresses from here on are programs', once the kernel runs at its own. What boots a machine and its CPUs stands
 * below, or runs before. */
#define PROGRAMS (UINT64_C(4) << 20)

/* `nopl MARK(%rax)`: seven bytes, the last four of them one of these words. */
static const uint8_t mark[3] = {0x0f, 0x1f, 0x80};
#define BEGIN UINT32_C(0x6e676562)
#define END UINT32_C(0x21646e65)

/* Translation takes turns under no lock of QEMU's that the interface promises. */
static char lock;
__attribute__((unused)) static void enter(void)
{
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
    }
}
__attribute__((unused)) static void leave(void)
{
    __atomic_clear(&lock, __ATOMIC_RELEASE);
}

/* The word of a mark, or 0. */
static uint32_t mark_of(struct qemu_plugin_insn *instruction)
{
    uint8_t bytes[7];
    if (qemu_plugin_insn_size(instruction) != sizeof bytes) {
        return 0;
    }
#if VERSION >= 3
    qemu_plugin_insn_data(instruction, bytes, sizeof bytes);
#else
    memcpy(bytes, qemu_plugin_insn_data(instruction), sizeof bytes);
#endif
    uint32_t word;
    memcpy(&word, bytes + sizeof mark, sizeof word);
    return memcmp(bytes, mark, sizeof mark) == 0 ? word : 0;
}
