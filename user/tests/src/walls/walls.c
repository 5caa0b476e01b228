// A 32-bit program that tries to get out of its segments, and into 64-bit code.
//
// usage: walls [limits] [region=MIB] [wide]: runs the attacks of the table below, each in a child, and
// prints those that did not end as they must; the status is their number (100 at most).
//
// limits   also those of which QEMU's emulator makes something else: it checks neither limits nor
//          whether there is a segment, and reads the stack of a far return as the kernel would,
//          which is forbidden (SMAP)
// region   the segments that the kernel gives must end with a region of that size, which is attacked
//          like the limit of a local segment. What leaves a region becomes large and is tried again,
//          so that these attacks end as they would without a region
// wide     the local segments are a page longer than the attacks believe, as if the kernel were
//          wrong: most of them must say so

#include "runtime.h"

// Where the attacks start: segments with one limit. Behind it is memory that may be neither read
// nor changed.
struct ground {
    u16 data, code;
    // The last valid offset, and the first one behind it where memory may be: a region's first page
    // is never mapped.
    u32 limit, past;
};

static struct ground ground;

// Memory below and above the limit of the local segments, and what is in it above.
enum { INSIDE = 2 * PAGE, OUTSIDE = 2 * PAGE, PATTERN = 0x5a };
static u8 *arena;

// Local segments by number.
enum { L_DATA, L_CODE, L_ODD };

#define GO_ON "\n movl $77, %%ebx\n movl $1, %%eax\n int $0x80\n"
// Ends with THROUGH in 32-bit code, and with IN_64_BITS in 64-bit code, where `dec eax` is a prefix.
#define GO_ON_32 \
    "\n movl $96, %%ebx\n xorl %%eax, %%eax\n .byte 0x48\n nop\n testl %%eax, %%eax\n" \
    " jz 9f\n movl $77, %%ebx\n 9: movl $1, %%eax\n int $0x80\n"
#define ATTACK(name, text, ...) \
    static void name(void) { asm volatile(text GO_ON : : __VA_ARGS__ : "memory", "cc"); }

#define PAST ground.past

// Every segment, read and written; cs can't be written.
ATTACK(read_ds, "movl %1, %%ds\n movb (%0), %%cl", "a"(PAST), "d"((u32)ground.data))
ATTACK(read_es, "movl %1, %%es\n movb %%es:(%0), %%cl", "a"(PAST), "d"((u32)ground.data))
ATTACK(read_fs, "movl %1, %%fs\n movb %%fs:(%0), %%cl", "a"(PAST), "d"((u32)ground.data))
ATTACK(read_gs, "movl %1, %%gs\n movb %%gs:(%0), %%cl", "a"(PAST), "d"((u32)ground.data))
ATTACK(read_ss, "movl %1, %%ss\n movb %%ss:(%0), %%cl", "a"(PAST), "d"((u32)ground.data))
ATTACK(read_cs, "movl %1, %%fs\n movb %%fs:(%0), %%cl", "a"(PAST), "d"((u32)ground.code))
ATTACK(write_ds, "movl %1, %%ds\n movb %%cl, (%0)", "a"(PAST), "d"((u32)ground.data))
ATTACK(write_es, "movl %1, %%es\n movb %%cl, %%es:(%0)", "a"(PAST), "d"((u32)ground.data))
ATTACK(write_fs, "movl %1, %%fs\n movb %%cl, %%fs:(%0)", "a"(PAST), "d"((u32)ground.data))
ATTACK(write_gs, "movl %1, %%gs\n movb %%cl, %%gs:(%0)", "a"(PAST), "d"((u32)ground.data))
ATTACK(write_ss, "movl %1, %%ss\n movb %%cl, %%ss:(%0)", "a"(PAST), "d"((u32)ground.data))
ATTACK(write_cs, "movl %1, %%ds\n movb %%cl, (%0)", "a"(0), "d"((u32)ground.code))
ATTACK(last_byte, "movl %1, %%fs\n movb %%fs:(%0), %%cl", "a"(ground.limit), "d"((u32)ground.data))
ATTACK(across, "movl %1, %%fs\n movl %%fs:-2(%0), %%ecx", "a"(PAST), "d"((u32)ground.data))
ATTACK(far_off, "movl %1, %%fs\n movb %%fs:(%0), %%cl", "a"(0xfffffff0), "d"((u32)ground.data))
ATTACK(sum, "movl %1, %%fs\n movb %%fs:1(%0,%2,1), %%cl",
       "a"(ground.past / 2), "d"((u32)ground.data), "S"(ground.past - 1 - ground.past / 2))
// Prefixes: 16-bit addresses, operands of 16 bits, one that 64-bit code takes for more.
ATTACK(address_16, "movl %1, %%fs\n addr16 movb %%fs:(%%bx), %%cl",
       "b"(PAST), "d"((u32)ground.data))
ATTACK(operand_16, "movl %1, %%fs\n movw %%fs:-1(%0), %%cx", "a"(PAST), "d"((u32)ground.data))
ATTACK(prefix_64, "movl %1, %%fs\n .byte 0x64, 0x48\n movl %%fs:-1(%%ebx), %%ecx",
       "b"(PAST), "d"((u32)ground.data))
ATTACK(locked, "movl %1, %%fs\n lock incl %%fs:(%0)", "a"(PAST), "d"((u32)ground.data))
// Wide accesses and those of the floating-point unit.
ATTACK(exchange_8, "movl %1, %%fs\n cmpxchg8b %%fs:-4(%0)", "D"(PAST), "S"((u32)ground.data))
ATTACK(save_state, "movl %1, %%fs\n fxsave %%fs:-0x100(%0)", "D"(PAST), "S"((u32)ground.data))
ATTACK(save_old, "movl %1, %%fs\n fnsave %%fs:-0x40(%0)", "D"(PAST), "S"((u32)ground.data))
ATTACK(translate, "movl %1, %%fs\n movb $255, %%al\n fs xlat",
       "b"(ground.past - 255), "d"((u32)ground.data))
// String instructions: upwards, downwards, and around the end of all offsets.
#define STRING(name, prefix, what, offset, count) \
    ATTACK(name, "movl %3, %%es\n movl %3, %%ds\n " prefix "\n rep " what, \
           "S"(offset), "D"(offset), "c"(count), "d"((u32)ground.data))
STRING(store_up, "cld", "stosb", ground.limit - 15, 32)
STRING(store_words_up, "cld", "stosl", ground.limit - 13, 8)
STRING(load_up, "cld", "lodsb", ground.limit - 15, 32)
STRING(copy_up, "cld", "movsb", ground.limit - 15, 32)
STRING(scan_up, "cld", "scasb", PAST, 32)
STRING(compare_up, "cld", "cmpsb", PAST, 32)
STRING(copy_down, "std", "movsb", 15, 32)
STRING(store_down, "std", "stosl", 8, 8)
STRING(store_around, "cld", "stosb", 0xfffffff0, 32)
STRING(copy_around, "cld", "movsl", 0xfffffff0, 32)
STRING(port, "cld", "insb", 0, 1)
// The stack.
#define STACK(name, what, offset) \
    ATTACK(name, "movl %1, %%ss\n movl %0, %%esp\n " what, "a"(offset), "d"((u32)ground.data))
STACK(push_past, "pushl %%eax", PAST + 4)
STACK(push_across, "pushl %%eax", PAST + 2)
STACK(push_below, "pushl %%eax", 0)
STACK(push_all, "pushal", 16)
STACK(push_inside, "pushl %%eax", PAST)
STACK(pop_past, "popl %%ecx", PAST)
STACK(call_past, "call 1f\n 1:", PAST + 4)
STACK(frame_past, "movl %%eax, %%ebp\n enter $8, $3", PAST + 8)
STACK(return_past, "ret", PAST)

// Code: `exit(THROUGH)`, so that its last byte is at an offset of the arena.
static const u8 through[] = {0xbb, THROUGH, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xcd, 0x80};

static void jump(u32 offset, u16 selector) {
    struct { u32 offset; u16 selector; } to = {offset, selector};
    asm volatile("ljmp *(%0)" : : "r"(&to) : "memory");
}

static void run_code(u32 first) {
    memcpy(arena + first, through, sizeof through);
    jump(first, ground.code);
}
static void code_inside(void) { run_code(INSIDE - sizeof through); }
static void code_across(void) { run_code(INSIDE - 5); }
static void code_last_byte(void) { run_code(INSIDE - sizeof through + 1); }
static void code_behind(void) {
    arena[INSIDE - 1] = 0x90;
    jump(INSIDE - 1, ground.code);
}
static void code_past(void) { jump(PAST, ground.code); }
static void code_near(void) {
    // `jmp eax` from inside.
    memcpy(arena, "\xff\xe0", 2);
    struct { u32 offset; u16 selector; } to = {0, ground.code};
    asm volatile("ljmp *(%1)" : : "a"(PAST), "r"(&to) : "memory");
}
ATTACK(jump_past, "jmp *%0", "a"(PAST))

// Far transfers to all other places of the table, and of the local one.
static u16 target;
#define FAR(name, text) \
    static void name(void) { \
        struct { u32 offset; u16 selector; } to; \
        asm volatile("movl $1f, (%0)\n movw %w1, 4(%0)\n" text "\n 1:" GO_ON_32 \
                     : : "r"(&to), "d"((u32)target) : "memory"); \
    }
FAR(far_jump, "ljmp *(%0)")
FAR(far_call, "lcall *(%0)")
FAR(far_return, "pushl %1\n pushl $1f\n lretl")
FAR(far_return_pop, "pushl $0\n pushl %1\n pushl $1f\n lretl $4")
FAR(far_return_16, "pushw %w1\n pushw $0\n lretw")
FAR(interrupt_return, "pushfl\n pushl %1\n pushl $1f\n iretl")
FAR(load_ds, "movl %1, %%ds")
FAR(load_es, "pushl %1\n popl %%es")
FAR(load_ss, "movl %1, %%ss")
FAR(load_far, "lfs (%0), %%eax")
FAR(is_visible, "larl %1, %%eax\n jz 2f\n hlt\n 2:")
FAR(has_limit, "lsll %1, %%eax\n jz 2f\n hlt\n 2:")

// Signal frames with other segments.
static u32 forged_at, forged;
static void forge(int signal, void *info, u32 *context) {
    (void)signal, (void)info;
    context[CONTEXT_AT + forged_at] = forged;
}
static void raise(void) {
    handle(SIGUSR1, forge);
    call(KILL, call(GETPID, 0, 0, 0), SIGUSR1, 0);
    asm volatile("" GO_ON_32 : : : "memory");
}
static void frame_cs(void) { forged_at = R_CS, forged = target, raise(); }
static void frame_ss(void) { forged_at = R_SS, forged = target, raise(); }
static void frame_ds(void) {
    handle(SIGUSR1, forge);
    forged_at = R_DS, forged = target;
    call(KILL, call(GETPID, 0, 0, 0), SIGUSR1, 0);
    asm volatile("movb (%0), %%al" GO_ON : : "r"(&ground) : "memory");
}
static void frame_flags(void) {
    // Privilege for ports, virtual-8086 mode, nested task.
    handle(SIGUSR1, forge);
    forged_at = R_FLAGS, forged = 0x27202;
    call(KILL, call(GETPID, 0, 0, 0), SIGUSR1, 0);
    asm volatile("cli" GO_ON : : : "memory");
}
static void forge_both(int signal, void *info, u32 *context) {
    (void)signal, (void)info;
    context[CONTEXT_AT + R_CS] = ground.code;
    context[CONTEXT_AT + R_EIP] = forged;
}
static void frame_past_limit(void) {
    handle(SIGUSR1, forge_both);
    forged = PAST;
    call(KILL, call(GETPID, 0, 0, 0), SIGUSR1, 0);
}
static void frame_local(void) {
    memcpy(arena + 64, through, sizeof through);
    handle(SIGUSR1, forge_both);
    forged = 64;
    call(KILL, call(GETPID, 0, 0, 0), SIGUSR1, 0);
}

// Local segments that are not to be.
static void try_local(u32 base, u32 limit, u32 flags, u32 offset) {
    u16 selector = local(L_ODD, base, limit, flags);
    if (!selector)
        leave(REFUSED);
    asm volatile("movl %1, %%fs\n movb %%fs:(%0), %%cl" GO_ON
                 : : "a"(offset), "d"((u32)selector) : "memory");
}
static void data_16(void) { try_local((u32)arena, INSIDE - 1, 0, 0); }
static void code_16(void) { try_local((u32)arena, INSIDE - 1, CODE, 0); }
static void gate(void) { try_local(0, 0, BITS_32 | CODE | DOWN, 0); }
static void absent(void) { try_local((u32)arena, INSIDE - 1, BITS_32 | ABSENT, 0); }
static void down_below(void) { try_local((u32)arena, INSIDE - 1, BITS_32 | DOWN, INSIDE - 1); }
static void down_above(void) { try_local((u32)arena, INSIDE - 1, BITS_32 | DOWN, INSIDE); }
static void wide(void) { try_local(0xfffff000, 0xfffff, BITS_32 | IN_PAGES, 2 * PAGE); }
static void one_byte(void) { try_local((u32)arena, 0, BITS_32 | READ_ONLY, 1); }
static void long_code(void) {
    target = local(L_ODD, 0, 0xfffff, BITS_32 | CODE | IN_PAGES | LONG);
    far_jump();
}
static void emptied(void) {
    u16 selector = local(L_ODD, (u32)arena, INSIDE - 1, BITS_32);
    asm volatile("movl %0, %%fs" : : "r"((u32)selector));
    // The segment goes while it is in use: the kernel loads none in its place.
    local(L_ODD, 0, 0, READ_ONLY | ABSENT);
    asm volatile("movb %%fs:0, %%cl" GO_ON : : : "memory");
}
static void beyond_thread(void) {
    struct user_desc segment = {-1u, PAST, 0xfffff, BITS_32 | IN_PAGES};
    if (call(SET_THREAD_AREA, (u32)&segment, 0, 0))
        leave(REFUSED);
    asm volatile("movl %0, %%gs\n movb %%gs:0, %%cl" GO_ON
                 : : "r"(segment.number << 3 | 3) : "memory");
}
static void beyond_local(void) { try_local(PAST, 0xfffff, BITS_32 | IN_PAGES, 0); }
static void beyond_down(void) { try_local(0, 0, BITS_32 | DOWN, PAST); }
static void number_segment(void) {
    asm volatile("movl %0, %%fs\n movb %%fs:0, %%cl" GO_ON : : "r"((u32)CPU_NUMBER) : "memory");
}

// Instructions that are the kernel's, or 64-bit code's.
ATTACK(system_call, "movl $20, %%eax\n syscall" GO_ON_32, "c"(0))
ATTACK(system_enter, "movl $20, %%eax\n sysenter" GO_ON_32, "c"(0))
ATTACK(system_return, "sysret", "c"(0))
ATTACK(swap_gs, ".byte 0x0f, 0x01, 0xf8", "c"(0))
ATTACK(write_base, ".byte 0xf3, 0x0f, 0xae, 0xd0", "a"(0))
ATTACK(load_table, "lgdt (%0)", "r"(arena))
ATTACK(load_local, "lldt %w0", "r"(0))
ATTACK(load_task, "ltr %w0", "r"(0x38))
ATTACK(load_root, "movl %0, %%cr3", "r"(0))
ATTACK(write_register, "wrmsr", "c"(0xc0000080), "a"(0), "d"(0))
ATTACK(old_gate, "lcall $7, $0", "c"(0))

enum {
    GP = 1 << 13, NP = 1 << 11, SS = 1 << 12, PF = 1 << 14, UD = 1 << 6, OK = 1, NO = 2,
};
// When an attack runs: only if the words say so; only in the arena, of which the code is; with
// each selector that is not one of those which a program has.
enum { LIMITS = 1, ARENA = 2, SELECTORS = 4, REGION = 8 };

static const struct attack {
    const char *name;
    void (*run)(void);
    u32 ends, when;
} attacks[] = {
#define WALL(name, ends) {#name, name, ends, LIMITS}
    WALL(read_ds, GP), WALL(read_es, GP), WALL(read_fs, GP), WALL(read_gs, GP), WALL(read_ss, SS),
    WALL(read_cs, GP), WALL(write_ds, GP), WALL(write_es, GP), WALL(write_fs, GP),
    WALL(write_gs, GP), WALL(write_ss, SS), WALL(write_cs, GP), WALL(across, GP),
    WALL(far_off, GP), WALL(sum, GP), WALL(operand_16, GP), WALL(prefix_64, GP), WALL(locked, GP),
    WALL(exchange_8, GP), WALL(save_state, GP), WALL(save_old, GP), WALL(translate, GP),
    WALL(store_up, GP), WALL(store_words_up, GP), WALL(load_up, GP), WALL(copy_up, GP),
    WALL(scan_up, GP), WALL(compare_up, GP), WALL(copy_down, GP), WALL(store_down, GP),
    WALL(store_around, GP), WALL(copy_around, GP), WALL(push_past, SS), WALL(push_across, SS),
    WALL(push_below, SS), WALL(push_all, SS), WALL(pop_past, SS), WALL(call_past, SS),
    WALL(frame_past, SS), WALL(return_past, SS), WALL(code_past, GP),
    {"address_16", address_16, GP, LIMITS | ARENA},
    {"last_byte", last_byte, OK, ARENA},
    {"push_inside", push_inside, OK, ARENA},
    {"code_inside", code_inside, OK, ARENA},
    {"code_across", code_across, GP, LIMITS | ARENA},
    {"code_last_byte", code_last_byte, GP, LIMITS | ARENA},
    {"code_behind", code_behind, GP, LIMITS | ARENA},
    {"code_near", code_near, GP, LIMITS | ARENA},
    {"frame_past_limit", frame_past_limit, GP, 0},
    {"frame_local", frame_local, OK, ARENA},
    {"jump_past", jump_past, GP, LIMITS | REGION},
    {"port", port, GP, ARENA},
    {"far_jump", far_jump, GP | NP, SELECTORS},
    {"far_call", far_call, GP | NP, SELECTORS},
    {"far_return", far_return, GP | NP, SELECTORS | LIMITS},
    {"far_return_pop", far_return_pop, GP | NP, SELECTORS | LIMITS},
    {"far_return_16", far_return_16, GP | NP, SELECTORS | LIMITS},
    {"interrupt_return", interrupt_return, GP | NP, SELECTORS | LIMITS},
    {"load_ds", load_ds, GP | NP, SELECTORS},
    {"load_es", load_es, GP | NP, SELECTORS},
    {"load_ss", load_ss, GP | NP | SS, SELECTORS},
    {"load_far", load_far, GP | NP, SELECTORS},
    {"is_visible", is_visible, GP, SELECTORS},
    {"has_limit", has_limit, GP, SELECTORS},
    {"frame_cs", frame_cs, GP, SELECTORS},
    {"frame_ss", frame_ss, GP, SELECTORS},
    {"frame_ds", frame_ds, GP, SELECTORS | LIMITS},
    {"frame_flags", frame_flags, GP, ARENA},
    {"data_16", data_16, NO, ARENA},
    {"code_16", code_16, NO, ARENA},
    {"gate", gate, NO, ARENA},
    {"absent", absent, NP, ARENA},
    {"down_below", down_below, GP, LIMITS | ARENA},
    {"down_above", down_above, OK, ARENA},
    {"one_byte", one_byte, GP, LIMITS | ARENA},
    {"wide", wide, PF | GP, ARENA},
    {"long_code", long_code, OK, ARENA},
    {"emptied", emptied, GP, LIMITS | ARENA},
    {"number_segment", number_segment, GP, ARENA},
    {"beyond_thread", beyond_thread, GP | PF | NO, REGION},
    {"beyond_local", beyond_local, GP | PF | NO, REGION},
    {"beyond_down", beyond_down, GP | PF | NO, REGION},
    {"system_call", system_call, UD, ARENA},
    {"system_enter", system_enter, UD | GP, ARENA},
    {"system_return", system_return, UD | GP, ARENA},
    {"swap_gs", swap_gs, UD, ARENA},
    {"write_base", write_base, UD, ARENA},
    {"load_table", load_table, GP, ARENA},
    {"load_local", load_local, GP, ARENA},
    {"load_task", load_task, GP, ARENA},
    {"load_root", load_root, GP, ARENA},
    {"write_register", write_register, GP, ARENA},
    {"old_gate", old_gate, GP | NP, ARENA},
};

// Neighbours: programs beside this one, whose memory no attack may change.
enum { NEIGHBOURS = 3, THEIRS = 64 * PAGE, FIRST = PAGE };
static u8 theirs[THEIRS];

static void be_neighbour(int until) {
    u8 byte, *first = map_at(FIRST, PAGE);
    memset(theirs, PATTERN, THEIRS);
    // What is reached by a limit that is too wide: code that says so, which is read as well.
    memset(first, PATTERN, PAGE);
    memcpy(first, through, sizeof through);
    call(READ, until, (u32)&byte, 1);
    for (u32 n = 0; n < THEIRS; n++)
        if (theirs[n] != PATTERN)
            leave(1);
    for (u32 n = 0; n < PAGE; n++)
        if (first[n] != (n < sizeof through ? through[n] : PATTERN))
            leave(1);
    leave(0);
}

static u32 failures;
static int is_in_region;

static void attack(const struct attack *it, const char *where) {
    int child = call(FORK, 0, 0, 0);
    if (child == 0) {
        handle_faults();
        it->run();
        leave(94);
    }
    u32 status = wait_for(child);
    u32 end = status == THROUGH ? OK : status == REFUSED ? NO
            : status >= OF_TRAP && status < OF_TRAP + 32 ? 1u << (status - OF_TRAP) : 0;
    u32 changed = 0;
    for (u32 n = INSIDE; n < INSIDE + OUTSIDE; n++)
        changed += arena[n] != PATTERN;
    memset(arena + INSIDE, PATTERN, OUTSIDE);
    int writes_there = it->run == code_across || it->run == code_last_byte;
    // Without a region, nothing is mapped there.
    u32 ends = it->ends | (is_in_region ? PF : 0);
    if (end & ends && (!changed || writes_there))
        return;
    failures++;
    say(it->name);
    if (it->when & SELECTORS)
        say(" to selector "), say_number(target);
    say(" "), say(where), say(" ended with "), say_number(status);
    say(", bytes changed: "), say_number(changed), say("\n");
}

// Whether a selector is none that the program has: those attacks must fail.
static int is_foreign(u16 selector) {
    // A far jump and a load of data ask for no certain privilege in the selector.
    selector |= 3;
    return selector > 3 && selector != CODE_32 && selector != DATA && selector != CPU_NUMBER
        && selector != (L_DATA << 3 | 7) && selector != (L_CODE << 3 | 7);
}

static void attack_all(const char *where, u32 kinds, u32 also) {
    for (u32 n = 0; n < sizeof attacks / sizeof *attacks; n++) {
        const struct attack *it = &attacks[n];
        if (it->when & LIMITS && !(also & LIMITS))
            continue;
        if (it->when & (ARENA | REGION | SELECTORS) & ~kinds)
            continue;
        if (!(it->when & SELECTORS)) {
            attack(it, where);
            continue;
        }
        // The places with something in them, of both tables and privileges, and some past the end.
        for (u32 index = 0; index < 20; index++)
            for (u32 low = 0; low < 8; low++)
                if ((low == 0 || low == 3 || low == 7) && is_foreign(target = index << 3 | low))
                    attack(it, where);
    }
}

static u32 limit_of(u16 selector) {
    u32 limit = 0;
    asm volatile("lsll %1, %0" : "+r"(limit) : "r"((u32)selector) : "cc");
    return limit;
}

static int is(const char *word, const char *other) {
    while (*word && *word == *other)
        word++, other++;
    return *word == *other;
}

// The number behind `region=`, in bytes; 0 for another word.
static u32 region_of(const char *word) {
    u32 mib = 0;
    for (const char *name = "region="; *name; name++, word++)
        if (*word != *name)
            return 0;
    for (; *word >= '0' && *word <= '9'; word++)
        mib = mib * 10 + *word - '0';
    return mib << 20;
}

static u32 walls(int count, char **words) {
    u32 limits = 0, region = 0, more = 0;
    for (int n = 1; n < count; n++) {
        limits |= is(words[n], "limits") ? LIMITS : 0;
        region |= region_of(words[n]);
        more |= is(words[n], "wide") ? PAGE : 0;
    }
    arena = map(INSIDE + OUTSIDE);
    memset(arena + INSIDE, PATTERN, OUTSIDE);
    int ends[2], neighbours[NEIGHBOURS], gap = -1;
    if (call(PIPE, (u32)ends, 0, 0))
        leave(95);
    // A child takes the first free region. So this one's is between its parent's and those of the
    // neighbours, and when it has ended, each attack is made from there.
    u8 byte;
    if (region && (gap = call(FORK, 0, 0, 0)) == 0) {
        call(CLOSE, ends[1], 0, 0);
        call(READ, ends[0], (u32)&byte, 1);
        leave(0);
    }
    for (u32 n = 0; n < NEIGHBOURS; n++) {
        neighbours[n] = call(FORK, 0, 0, 0);
        if (neighbours[n] == 0) {
            call(CLOSE, ends[1], 0, 0);
            be_neighbour(ends[0]);
        }
    }
    // The segments that the kernel gives.
    if (region) {
        call(WRITE, ends[1], (u32)&byte, 1);
        wait_for(gap);
        u32 limit = limit_of(DATA), code = limit_of(CODE_32);
        if (limit != region - 1 || code != limit)
            failures++, say("the program's segments end at "), say_number(limit), say("\n");
        ground = (struct ground){DATA, CODE_32, region - 1, region + FIRST};
        is_in_region = 1;
        attack_all("in its region", REGION, limits);
        is_in_region = 0;
    }
    // Local ones.
    ground = (struct ground){
        local(L_DATA, (u32)arena, INSIDE - 1 + more, BITS_32),
        local(L_CODE, (u32)arena, INSIDE - 1 + more, BITS_32 | CODE),
        INSIDE - 1, INSIDE,
    };
    if (!ground.data || !ground.code)
        failures++, say("no local segments\n");
    else
        attack_all("in local segments", more ? ARENA : ARENA | SELECTORS, limits);
    // The same limit in pages.
    u32 last = (INSIDE + more) / PAGE - 1;
    local(L_DATA, (u32)arena, last, BITS_32 | IN_PAGES);
    local(L_CODE, (u32)arena, last, BITS_32 | IN_PAGES | CODE);
    attack_all("in segments counted in pages", ARENA, limits);
    call(CLOSE, ends[1], 0, 0);
    for (u32 n = 0; n < NEIGHBOURS; n++)
        if (wait_for(neighbours[n]))
            failures++, say("a neighbour's memory has changed\n");
    return failures < 100 ? failures : 100;
}

// The words stand on the stack.
static __attribute__((used)) void start(u32 *stack) {
    leave(walls(stack[0], (char **)(stack + 1)));
}

asm(".globl _start\n _start: movl %esp, %eax\n pushl %eax\n call start\n hlt");
