/*
 * A plugin for QEMU's emulator that counts how often each block of instructions was run.
 *
 * `causeway profile` builds it, loads it with `-plugin counter.so,out=FILE` and reads FILE when QEMU
 * has ended. Counting begins with the first instruction of a program: what the kernel does to start
 * is not counted. Where a program has marks, only what runs between them is counted: BEGIN forgets
 * all at its first time and counts on from there, END stops until the next BEGIN.
 *
 * With `sections=FILE` in place of `out=FILE`, each END writes a line `PROGRAMS KERNEL` into FILE:
 * the instructions since the last BEGIN.
 *
 * FILE has a line `programs N`, the instructions of programs, and for each block of the kernel a
 * line `block TIMES ADDRESS OFFSET...`: how often it ran, and where its instructions stand.
 */
#include "plugin.h"

struct block {
    struct block *next;
    uint64_t address;
    uint64_t times;
    size_t count;
    uint16_t offsets[];
};

#define BUCKETS 65536
static struct block *buckets[BUCKETS];
static uint64_t programs;
static bool started, counting, marked;
static char path[4096];
/* The sections' file, and the kernel's instructions of one. Without it they are not added up. */
static FILE *sections;
static uint64_t kernel;

static void forget(void)
{
    for (size_t at = 0; at < BUCKETS; at++) {
        for (struct block *block = buckets[at]; block; block = block->next) {
            __atomic_store_n(&block->times, 0, __ATOMIC_RELAXED);
        }
    }
    __atomic_store_n(&programs, 0, __ATOMIC_RELAXED);
}

static void ran_kernel(unsigned cpu, void *data)
{
    (void)cpu;
    if (__atomic_load_n(&counting, __ATOMIC_RELAXED)) {
        struct block *block = data;
        if (sections) {
            __atomic_fetch_add(&kernel, block->count, __ATOMIC_RELAXED);
        } else {
            __atomic_fetch_add(&block->times, 1, __ATOMIC_RELAXED);
        }
    } else {
        __atomic_store_n(&started, true, __ATOMIC_RELAXED);
    }
}

static void ran_program(unsigned cpu, void *data)
{
    (void)cpu;
    if (!__atomic_load_n(&counting, __ATOMIC_RELAXED)) {
        if (__atomic_load_n(&marked, __ATOMIC_RELAXED) || !__atomic_load_n(&started, __ATOMIC_RELAXED)) {
            return;
        }
        __atomic_store_n(&counting, true, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&programs, (uintptr_t)data, __ATOMIC_RELAXED);
}

static void ran_begin(unsigned cpu, void *data)
{
    (void)cpu, (void)data;
    enter();
    if (sections) {
        __atomic_store_n(&programs, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&kernel, 0, __ATOMIC_RELAXED);
    } else if (!marked) {
        forget();
    }
    __atomic_store_n(&marked, true, __ATOMIC_RELAXED);
    __atomic_store_n(&counting, true, __ATOMIC_RELAXED);
    leave();
}

static void ran_end(unsigned cpu, void *data)
{
    (void)cpu, (void)data;
    enter();
    if (sections && counting) {
        fprintf(sections, "%" PRIu64 " %" PRIu64 "\n", programs, kernel);
        fflush(sections);
    }
    __atomic_store_n(&counting, false, __ATOMIC_RELAXED);
    leave();
}

/* The block that starts at `address` and has these instructions: the same one each time that QEMU
 * translates it anew. */
static struct block *block_of(struct qemu_plugin_tb *tb, uint64_t address, size_t count)
{
    struct block **bucket = &buckets[(address ^ address >> 16) % BUCKETS];
    enter();
    struct block *block = *bucket;
    while (block && (block->address != address || block->count != count)) {
        block = block->next;
    }
    if (!block) {
        block = calloc(1, sizeof *block + count * sizeof block->offsets[0]);
        if (!block) {
            abort();
        }
        block->address = address;
        block->count = count;
        for (size_t at = 0; at < count; at++) {
            block->offsets[at] =
                (uint16_t)(qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, at)) - address);
        }
        block->next = *bucket;
        *bucket = block;
    }
    leave();
    return block;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    uint64_t address = qemu_plugin_tb_vaddr(tb);
    size_t count = qemu_plugin_tb_n_insns(tb);
    if (address >= KERNEL) {
        qemu_plugin_register_vcpu_tb_exec_cb(tb, ran_kernel, NO_REGISTERS, block_of(tb, address, count));
        return;
    }
    if (address < PROGRAMS) {
        return;
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb, ran_program, NO_REGISTERS, (void *)(uintptr_t)count);
    for (size_t at = 0; at < count; at++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(tb, at);
        switch (mark_of(instruction)) {
        case BEGIN:
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, ran_begin, NO_REGISTERS, NULL);
            break;
        case END:
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, ran_end, NO_REGISTERS, NULL);
            break;
        }
    }
}

static void ended(qemu_plugin_id_t id, void *data)
{
    (void)id, (void)data;
    if (sections) {
        return;
    }
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return;
    }
    fprintf(file, "programs %" PRIu64 "\n", programs);
    for (size_t at = 0; at < BUCKETS; at++) {
        for (struct block *block = buckets[at]; block; block = block->next) {
            if (!block->times) {
                continue;
            }
            fprintf(file, "block %" PRIu64 " %" PRIx64, block->times, block->address);
            for (size_t at = 0; at < block->count; at++) {
                fprintf(file, " %x", block->offsets[at]);
            }
            fputc('\n', file);
        }
    }
    fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
                                                               const struct qemu_info *info, int argc,
                                                               char **argv)
{
    (void)info;
    static const char by_section[] = "sections=";
    if (argc == 1 && strncmp(argv[0], by_section, strlen(by_section)) == 0) {
        sections = fopen(argv[0] + strlen(by_section), "w");
        if (!sections) {
            perror(argv[0]);
            return -1;
        }
    } else if (argc == 1 && strncmp(argv[0], "out=", 4) == 0 && strlen(argv[0]) - 4 < sizeof path) {
        strcpy(path, argv[0] + 4);
    } else {
        fprintf(stderr, "counter: wants out=FILE or sections=FILE\n");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
