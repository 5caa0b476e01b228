/*
 * A plugin for QEMU's emulator that finds the cache lines that CPUs share: which lines of physical
 * memory the kernel reads and writes between two marks of a program, on each CPU.
 *
 * A line is shared if one CPU writes it and another one touches it, between one BEGIN and the next
 * END. With `out=FILE`, each END writes into FILE a line `section ALL SHARED`: the kernel's accesses
 * to memory, and those to shared lines; and for each instruction with some of the latter `at ADDRESS
 * ACCESSES WRITES LINES WHERE`: its address, the accesses, how many of them write, to how many lines,
 * and the address of the line that it accesses most. `end` follows.
 *
 * An instruction that accesses a line again and little else in between is counted once: a copy of a
 * line's bytes, or a wait for another CPU, which would count the host's scheduling.
 */
#include "plugin.h"

#define LINE_BITS 6
#define CPUS 256
/* The pairs of an instruction and a line that a CPU accessed last. */
#define RECENT 4

struct entry {
    uint64_t line;
    uint64_t at;
    uint64_t where;
    uint32_t accesses, writes;
};

/* A hash table by `line` and `at`; a place with `at` 0 is empty. */
struct table {
    struct entry *entries;
    size_t places, count;
};

struct cpu {
    struct table table;
    uint64_t all;
    struct recent {
        uint64_t line, at;
        bool wrote;
    } recent[RECENT];
    unsigned next;
    /* It is in the table. */
    bool is_busy;
} __attribute__((aligned(64)));

static struct cpu cpus[CPUS];
static bool counting;
static FILE *out;

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        abort();
    }
    return memory;
}

static struct entry *find(struct table *table, uint64_t line, uint64_t at)
{
    if (table->count * 2 >= table->places) {
        struct table larger = {.places = table->places ? table->places * 2 : 4096};
        larger.entries = zeroed(larger.places, sizeof *larger.entries);
        for (size_t place = 0; place < table->places; place++) {
            struct entry *old = &table->entries[place];
            if (old->at) {
                *find(&larger, old->line, old->at) = *old;
            }
        }
        free(table->entries);
        *table = larger;
    }
    uint64_t hash = (line * UINT64_C(0x9e3779b97f4a7c15)) ^ (at * UINT64_C(0xc2b2ae3d27d4eb4f));
    hash ^= hash >> 29;
    for (size_t place = hash & (table->places - 1);; place = (place + 1) & (table->places - 1)) {
        struct entry *entry = &table->entries[place];
        if (!entry->at) {
            entry->line = line;
            entry->at = at;
            table->count++;
            return entry;
        }
        if (entry->line == line && entry->at == at) {
            return entry;
        }
    }
}

/* Ends counting: no CPU is in its table afterwards. Returns whether it was on. */
static bool stop(void)
{
    bool was_on = __atomic_exchange_n(&counting, false, __ATOMIC_SEQ_CST);
    for (unsigned number = 0; number < CPUS; number++) {
        while (__atomic_load_n(&cpus[number].is_busy, __ATOMIC_SEQ_CST)) {
        }
    }
    return was_on;
}

static void count(struct cpu *cpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, address);
    if (!place || qemu_plugin_hwaddr_is_io(place)) {
        return;
    }
    uint64_t line = qemu_plugin_hwaddr_phys_addr(place) >> LINE_BITS;
    uint64_t at = (uint64_t)(uintptr_t)data;
    bool writes = qemu_plugin_mem_is_store(info);
    for (unsigned index = 0; index < RECENT; index++) {
        struct recent *recent = &cpu->recent[index];
        if (recent->line == line && recent->at == at) {
            /* An instruction that changes memory reads it first. */
            if (writes && !recent->wrote) {
                recent->wrote = true;
                find(&cpu->table, line, at)->writes++;
            }
            return;
        }
    }
    cpu->recent[cpu->next] = (struct recent){line, at, writes};
    cpu->next = (cpu->next + 1) % RECENT;
    struct entry *entry = find(&cpu->table, line, at);
    entry->where = address;
    entry->accesses++;
    entry->writes += writes;
    cpu->all++;
}

static void accessed(unsigned number, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    if (!__atomic_load_n(&counting, __ATOMIC_RELAXED) || number >= CPUS) {
        return;
    }
    struct cpu *cpu = &cpus[number];
    __atomic_store_n(&cpu->is_busy, true, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&counting, __ATOMIC_SEQ_CST)) {
        count(cpu, info, address, data);
    }
    __atomic_store_n(&cpu->is_busy, false, __ATOMIC_SEQ_CST);
}

static void forget(void)
{
    for (unsigned number = 0; number < CPUS; number++) {
        struct cpu *cpu = &cpus[number];
        if (cpu->table.entries) {
            memset(cpu->table.entries, 0, cpu->table.places * sizeof *cpu->table.entries);
        }
        cpu->table.count = 0;
        cpu->all = 0;
        memset(cpu->recent, 0, sizeof cpu->recent);
    }
}

/* What the CPUs do with a line, in the place of `accesses` and `writes`: the only CPU that touches
 * it, plus 1, or MANY; and whether one writes it. */
#define MANY UINT32_MAX

static void report(void)
{
    struct table lines = {0}, sums = {0}, most = {0};
    uint64_t all = 0, shared = 0;
    for (unsigned number = 0; number < CPUS; number++) {
        struct table *table = &cpus[number].table;
        all += cpus[number].all;
        for (size_t place = 0; place < table->places; place++) {
            struct entry *entry = &table->entries[place];
            if (!entry->at) {
                continue;
            }
            struct entry *line = find(&lines, entry->line, 1);
            bool is_own = line->accesses == 0 || line->accesses == number + 1;
            line->accesses = is_own ? number + 1 : MANY;
            line->writes |= entry->writes != 0;
        }
    }
    for (unsigned number = 0; number < CPUS; number++) {
        struct table *table = &cpus[number].table;
        for (size_t place = 0; place < table->places; place++) {
            struct entry *entry = &table->entries[place];
            if (!entry->at) {
                continue;
            }
            struct entry *line = find(&lines, entry->line, 1);
            if (line->accesses != MANY || !line->writes) {
                continue;
            }
            shared += entry->accesses;
            struct entry *sum = find(&sums, 0, entry->at);
            sum->accesses += entry->accesses;
            sum->writes += entry->writes;
            /* Of `most`, `writes` counts lines. */
            struct entry *seen = find(&most, 0, entry->at);
            struct entry *pair = find(&lines, entry->line, entry->at);
            seen->writes += !pair->accesses;
            pair->accesses = 1;
            if (entry->accesses > seen->accesses) {
                seen->accesses = entry->accesses;
                sum->where = entry->where;
            }
        }
    }
    fprintf(out, "section %" PRIu64 " %" PRIu64 "\n", all, shared);
    for (size_t place = 0; place < sums.places; place++) {
        struct entry *sum = &sums.entries[place];
        if (sum->at) {
            fprintf(out, "at %" PRIx64 " %u %u %u %" PRIx64 "\n", sum->at, sum->accesses, sum->writes,
                    find(&most, 0, sum->at)->writes, sum->where);
        }
    }
    fprintf(out, "end\n");
    fflush(out);
    free(lines.entries);
    free(sums.entries);
    free(most.entries);
}

static void ran_begin(unsigned cpu, void *data)
{
    (void)cpu, (void)data;
    stop();
    forget();
    __atomic_store_n(&counting, true, __ATOMIC_SEQ_CST);
}

static void ran_end(unsigned cpu, void *data)
{
    (void)cpu, (void)data;
    if (stop()) {
        report();
    }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    uint64_t address = qemu_plugin_tb_vaddr(tb);
    if (address < KERNEL && address < PROGRAMS) {
        return;
    }
    for (size_t index = 0; index < qemu_plugin_tb_n_insns(tb); index++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(tb, index);
        if (address >= KERNEL) {
            void *at = (void *)(uintptr_t)qemu_plugin_insn_vaddr(instruction);
            qemu_plugin_register_vcpu_mem_cb(instruction, accessed, NO_REGISTERS, ALL_KINDS, at);
            continue;
        }
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

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
                                                               const struct qemu_info *info, int argc,
                                                               char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0) {
        fprintf(stderr, "sharing: wants out=FILE\n");
        return -1;
    }
    out = fopen(argv[0] + 4, "w");
    if (!out) {
        perror(argv[0]);
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
