/* A 32-bit program without a C library: it looks at its own address space, and grows out of what a
   region has. Ends with 0 if everything is as in a space of its own; else it names what is not. The
   first argument says what to do, the second one is a number. */

typedef unsigned int u32;
typedef unsigned char u8;

static int call(int n, int a, int b, int c, int d, int e, int f)
{
    int result;
    /* The sixth argument is in ebp, which the compiler keeps for itself. */
    int arguments[2] = {n, f};
    __asm__ volatile("push %%ebp\n\tmov 4(%%eax), %%ebp\n\tmov (%%eax), %%eax\n\tint $0x80\n\t"
                     "pop %%ebp"
                     : "=a"(result)
                     : "a"(arguments), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                     : "memory");
    return result;
}

#define CALL0(n) call(n, 0, 0, 0, 0, 0, 0)
#define CALL1(n, a) call(n, (int)(a), 0, 0, 0, 0, 0)
#define CALL2(n, a, b) call(n, (int)(a), (int)(b), 0, 0, 0, 0)
#define CALL3(n, a, b, c) call(n, (int)(a), (int)(b), (int)(c), 0, 0, 0)
#define CALL4(n, a, b, c, d) call(n, (int)(a), (int)(b), (int)(c), (int)(d), 0, 0)

enum {
    EXIT = 1, FORK = 2, READ = 3, WRITE = 4, CLOSE = 6, WAITPID = 7, GETPID = 20, KILL = 37, PIPE = 42,
    BRK = 45, MUNMAP = 91, CLONE = 120, MPROTECT = 125, YIELD = 158, MREMAP = 163, SIGACTION = 174,
    MMAP2 = 192, GETTID = 224, FUTEX = 240, SET_THREAD_AREA = 243, EXIT_GROUP = 252,
};

static u32 length(const char *text)
{
    u32 n = 0;
    while (text[n])
        n++;
    return n;
}

static int equal(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static u32 number(const char *text)
{
    u32 n = 0;
    while (*text)
        n = n * 10 + (u32)(*text++ - '0');
    return n;
}

static void say(const char *text)
{
    CALL3(WRITE, 1, text, length(text));
}

static void fail(const char *what, u32 value)
{
    char digits[9];
    for (int i = 7; i >= 0; i--, value >>= 4)
        digits[i] = "0123456789abcdef"[value & 15];
    digits[8] = 0;
    say("program: ");
    say(what);
    say(": ");
    say(digits);
    say("\n");
    CALL1(EXIT_GROUP, 1);
}

static void check(int right, const char *what, u32 value)
{
    if (!right)
        fail(what, value);
}

void *memset(void *to, int value, u32 len)
{
    for (u32 i = 0; i < len; i++)
        ((volatile u8 *)to)[i] = (u8)value;
    return to;
}

static u8 *map(u32 at, u32 len, u32 flags)
{
    int found = call(MMAP2, (int)at, (int)len, 3, (int)(flags | 0x22), -1, 0);
    check((u32)found < 0xfffff000, "mmap", (u32)found);
    return (u8 *)found;
}

static u32 fill(u8 *at, u32 len, u32 seed)
{
    for (u32 i = 0; i < len; i += 4096)
        *(volatile u32 *)(at + i) = seed + i;
    return len;
}

static void verify(u8 *at, u32 len, u32 seed, const char *what)
{
    for (u32 i = 0; i < len; i += 4096)
        check(*(volatile u32 *)(at + i) == seed + i, what, (u32)at + i);
}

/* Signals: the address of the fault and its code are kept, and the handler leaves by the place that
   `probe` names. */
static volatile u32 fault_address, fault_code, fault_signal;
void handler_entry(void);
void restorer(void);
int probe_read(const volatile void *at);
int probe_write(volatile void *at);
extern char probe_fixup[];

__asm__(
    ".globl restorer\nrestorer:\n\tmov $173, %eax\n\tint $0x80\n"
    ".globl probe_read\nprobe_read:\n\tmov 4(%esp), %ecx\n\tmov (%ecx), %eax\n\txor %eax, %eax\n\tret\n"
    ".globl probe_write\nprobe_write:\n\tmov 4(%esp), %ecx\n\tmovl $7, (%ecx)\n\txor %eax, %eax\n\tret\n"
    ".globl probe_fixup\nprobe_fixup:\n\tmov $1, %eax\n\tret\n");

/* The words of `ucontext` up to eip: flags, link, stack (3), then the registers of `sigcontext`. */
static void on_fault(int signal, u32 *info, u32 *context)
{
    fault_signal = (u32)signal;
    fault_code = info[2];
    fault_address = info[3];
    context[5 + 14] = (u32)probe_fixup;
}

static void catch(int signal)
{
    u32 action[5] = {(u32)on_fault, 4 | 0x04000000 | 0x40000000, (u32)restorer, 0, 0};
    check(call(SIGACTION, signal, (int)action, 0, 8, 0, 0) == 0, "sigaction", (u32)signal);
}

static void faults_at(u32 at)
{
    fault_signal = 0;
    check(probe_read((void *)at) == 1, "a read went through", at);
    check(fault_signal == 11 && fault_address == at && fault_code == 1, "fault of a read", fault_address);
    check(probe_write((void *)at) == 1, "a write went through", at);
    check(fault_address == at && fault_code == 1, "fault of a write", fault_address);
}

static u8 data[64 << 10];

/* Memory of all kinds, a fork, and faults at places where nothing is. */
static void basics(u32 end)
{
    catch(11);
    fill(data, sizeof data, 1);
    u8 *block = map(0, 1 << 20, 0);
    fill(block, 1 << 20, 2);
    u32 old = (u32)CALL1(BRK, 0);
    check((u32)CALL1(BRK, old + 65536) == old + 65536, "brk", old);
    fill((u8 *)((old + 4095) & ~4095u), 61440, 3);
    faults_at(16);
    check(fault_address == 16, "address of a fault", fault_address);
    int child = CALL0(FORK);
    if (child == 0) {
        verify(data, sizeof data, 1, "a child's data");
        verify(block, 1 << 20, 2, "a child's block");
        fill(data, sizeof data, 7);
        fill(block, 1 << 20, 8);
        verify(data, sizeof data, 7, "a child's new data");
        CALL1(EXIT_GROUP, 42);
    }
    fill(block, 4096, 9);
    int status = 0;
    check(CALL3(WAITPID, child, &status, 0) == child && status == 42 << 8, "a child", (u32)status);
    verify(data, sizeof data, 1, "data after a fork");
    verify(block + 4096, (1 << 20) - 4096, 2 + 4096, "a block after a fork");
    verify(block, 4096, 9, "a page written after a fork");
    if (end) {
        /* The last address of the region, and beyond: as in a space of its own. */
        faults_at(end);
        faults_at(end + (1 << 20));
        faults_at(0xfffffff0);
        verify(data, sizeof data, 1, "data after a promotion");
        verify(block + 4096, (1 << 20) - 4096, 2 + 4096, "a block after a promotion");
    }
}

/* Grows out of a region of so many MiB: by many mappings, by one, at a fixed place, by mremap. */
static void grow(u32 mebibytes)
{
    fill(data, sizeof data, 1);
    u8 *first = map(0, 1 << 20, 0);
    fill(first, 1 << 20, 2);
    u32 step = 8u << 20;
    for (u32 sum = 0; sum <= mebibytes << 20; sum += step)
        fill(map(0, step, 0), 8192, sum);
    verify(data, sizeof data, 1, "data");
    verify(first, 1 << 20, 2, "the first block");
}

static void grow_fixed(u32 mebibytes)
{
    fill(data, sizeof data, 1);
    u8 *far = map(mebibytes << 20, 1 << 20, 0x10);
    check((u32)far == mebibytes << 20, "a fixed place", (u32)far);
    fill(far, 1 << 20, 5);
    verify(data, sizeof data, 1, "data");
    verify(far, 1 << 20, 5, "the far block");
}

static void grow_block(u32 mebibytes)
{
    u8 *block = map(0, 1 << 20, 0);
    fill(block, 1 << 20, 2);
    int moved = CALL4(MREMAP, block, 1 << 20, mebibytes << 20, 1);
    check((u32)moved < 0xfffff000, "mremap", (u32)moved);
    verify((u8 *)moved, 1 << 20, 2, "a moved block");
    fill((u8 *)moved + ((mebibytes - 1) << 20), 1 << 20, 3);
}

static u32 recurse(u32 depth)
{
    volatile u8 room[4000];
    room[0] = (u8)depth;
    u32 below = depth ? recurse(depth - 1) : 0;
    check(room[0] == (u8)depth, "the stack", depth);
    return below + 1;
}

/* Pages of the stack. */
static void stack(u32 pages)
{
    check(recurse(pages) == pages + 1, "the depth", pages);
}

/* A segment of its own, reached on both sides of its base. */
static void segments(u32 rounds)
{
    static u32 area[3 * 1024];
    u32 *base = area + 1536;
    u32 descriptor[4] = {(u32)-1, (u32)base, 0xfffff, 0x51};
    check(CALL1(SET_THREAD_AREA, descriptor) == 0, "set_thread_area", 0);
    u32 selector = descriptor[0] << 3 | 3;
    __asm__ volatile("mov %w0, %%gs" : : "r"(selector));
    for (u32 i = 0; i < rounds; i++) {
        u32 up, down;
        __asm__ volatile("mov %0, %%gs:8" : : "r"(i));
        __asm__ volatile("mov %0, %%gs:0xfffffffc" : : "r"(i + 1));
        __asm__ volatile("mov %%gs:8, %0" : "=r"(up));
        __asm__ volatile("mov %%gs:0xfffffffc, %0" : "=r"(down));
        check(up == i && base[2] == i, "above the base", up);
        check(down == i + 1 && base[-1] == i + 1, "below the base", down);
    }
}

/* Threads that go on while the space becomes large. */
static volatile u32 stop, turns[3], ended;
static u8 stacks[3][16384] __attribute__((aligned(16)));
static u32 words[3][1024];

static void thread(u32 me)
{
    int ends[2];
    check(CALL1(PIPE, ends) == 0, "pipe", me);
    u32 from[256], to[256];
    for (u32 round = 1; !stop; round++) {
        for (u32 i = 0; i < 256; i++)
            from[i] = round * 256 + i, to[i] = 0;
        check(CALL3(WRITE, ends[1], from, sizeof from) == (int)sizeof from, "write", me);
        check(CALL3(READ, ends[0], to, sizeof to) == (int)sizeof to, "read", me);
        for (u32 i = 0; i < 256; i++)
            check(to[i] == from[i], "what came through a pipe", to[i]);
        for (u32 i = 0; i < 1024; i++) {
            check(words[me][i] == round - 1, "a word", words[me][i]);
            words[me][i] = round;
        }
        turns[me] = round;
    }
    __sync_fetch_and_add(&ended, 1);
    CALL1(EXIT, 0);
}

int start_thread(u32 flags, void *stack, void (*body)(u32), u32 argument);
__asm__(
    ".globl start_thread\nstart_thread:\n"
    "\tpush %ebp\n\tpush %ebx\n\tpush %esi\n\tpush %edi\n"
    "\tmov 20(%esp), %ebx\n\tmov 24(%esp), %ecx\n\tmov 28(%esp), %ebp\n\tmov 32(%esp), %edi\n"
    "\txor %edx, %edx\n\txor %esi, %esi\n\tmov $120, %eax\n\tint $0x80\n"
    "\ttest %eax, %eax\n\tjz 1f\n"
    "\tpop %edi\n\tpop %esi\n\tpop %ebx\n\tpop %ebp\n\tret\n"
    "1:\tpush %edi\n\tcall *%ebp\n\thlt\n");

static void threads(u32 mebibytes)
{
    for (u32 me = 0; me < 3; me++) {
        int tid = start_thread(0x00010f00, stacks[me] + sizeof stacks[me] - 16, thread, me);
        check(tid > 0, "clone", (u32)tid);
    }
    for (u32 me = 0; me < 3; me++)
        while (turns[me] < 20)
            CALL0(YIELD);
    u32 before[3] = {turns[0], turns[1], turns[2]};
    grow_fixed(mebibytes);
    for (u32 me = 0; me < 3; me++)
        while (turns[me] < before[me] + 20)
            CALL0(YIELD);
    stop = 1;
    while (ended < 3)
        CALL0(YIELD);
}

/* So many round trips of a byte between two processes. */
static void ping_pong(u32 rounds)
{
    int there[2], back[2];
    check(CALL1(PIPE, there) == 0 && CALL1(PIPE, back) == 0, "pipe", 0);
    char byte = 0;
    int child = CALL0(FORK);
    if (child == 0) {
        for (u32 i = 0; i < rounds; i++) {
            check(CALL3(READ, there[0], &byte, 1) == 1, "read", i);
            check(CALL3(WRITE, back[1], &byte, 1) == 1, "write", i);
        }
        CALL1(EXIT_GROUP, 0);
    }
    for (u32 i = 0; i < rounds; i++) {
        byte = (char)i;
        check(CALL3(WRITE, there[1], &byte, 1) == 1, "write", i);
        check(CALL3(READ, back[0], &byte, 1) == 1 && byte == (char)i, "read", i);
    }
    int status = 0;
    check(CALL3(WAITPID, child, &status, 0) == child && status == 0, "a child", (u32)status);
}

/* Round trips of a byte between two processes, as many as each word of the input says; then a byte
   of output. */
static void serve(u32 unused)
{
    (void)unused;
    int there[2], back[2];
    check(CALL1(PIPE, there) == 0 && CALL1(PIPE, back) == 0, "pipe", 0);
    char byte = 0;
    int child = CALL0(FORK);
    if (child == 0) {
        CALL1(CLOSE, there[1]);
        while (CALL3(READ, there[0], &byte, 1) == 1)
            check(CALL3(WRITE, back[1], &byte, 1) == 1, "write", 0);
        CALL1(EXIT_GROUP, 0);
    }
    CALL1(CLOSE, there[0]);
    u32 rounds;
    while (CALL3(READ, 0, &rounds, 4) == 4) {
        for (u32 i = 0; i < rounds; i++) {
            check(CALL3(WRITE, there[1], &byte, 1) == 1, "write", i);
            check(CALL3(READ, back[0], &byte, 1) == 1, "read", i);
        }
        check(CALL3(WRITE, 1, &byte, 1) == 1, "write", rounds);
    }
}

static const struct {
    const char *name;
    void (*run)(u32);
} WAYS[] = {
    {"basics", basics}, {"grow", grow}, {"fixed", grow_fixed}, {"block", grow_block}, {"stack", stack},
    {"segments", segments}, {"threads", threads}, {"pingpong", ping_pong},
    {"serve", serve},
};

/* Fills what it has, until it is told to go on. */
static void wait_for_input(u32 unused)
{
    (void)unused;
    char byte;
    fill(data, sizeof data, 1);
    say("ready\n");
    CALL3(READ, 0, &byte, 1);
}

void start(u32 *stack_pointer)
{
    u32 count = stack_pointer[0];
    const char **arguments = (const char **)(stack_pointer + 1);
    check(count == 3, "arguments", count);
    if (equal(arguments[1], "wait")) {
        wait_for_input(0);
        CALL1(EXIT_GROUP, 0);
    }
    for (u32 i = 0; i < sizeof WAYS / sizeof *WAYS; i++)
        if (equal(arguments[1], WAYS[i].name)) {
            WAYS[i].run(number(arguments[2]));
            CALL1(EXIT_GROUP, 0);
        }
    fail("no such way", 0);
}

__asm__(".globl _start\n_start:\n\tmov %esp, %eax\n\tpush %eax\n\tcall start\n\thlt\n");
