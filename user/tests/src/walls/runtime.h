// What a 32-bit program without a C library needs here: system calls, faults, processes.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

enum {
    EXIT = 1, FORK = 2, READ = 3, WRITE = 4, CLOSE = 6, GETPID = 20, KILL = 37, PIPE = 42,
    WAIT4 = 114, MODIFY_LDT = 123, RT_SIGACTION = 174, SIGALTSTACK = 186, MMAP2 = 192,
    SET_THREAD_AREA = 243,
};
enum { SIGILL = 4, SIGTRAP = 5, SIGBUS = 7, SIGFPE = 8, SIGUSR1 = 10, SIGSEGV = 11 };
enum { PROT_ALL = 7, MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20 };
enum { PAGE = 4096 };

// The selectors that the kernel gives a program.
enum { CODE_32 = 0x23, DATA = 0x2b, CODE_64 = 0x33, CPU_NUMBER = 0x4b };

static inline int call(u32 number, u32 a, u32 b, u32 c) {
    int result;
    asm volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

static inline _Noreturn void leave(u32 status) {
    for (;;)
        call(EXIT, status, 0, 0);
}

// Memory that children share.
static u8 *map(u32 bytes) {
    struct { u32 argument[6]; } old = {{0, bytes, PROT_ALL, MAP_SHARED | MAP_ANONYMOUS, -1u, 0}};
    // `mmap` with its arguments in memory: the sixth would take ebp.
    int at = call(90, (u32)&old, 0, 0);
    if ((u32)at > -4096u)
        leave(90);
    return (u8 *)at;
}

// Memory of its own at an address.
static u8 *map_at(u32 at, u32 bytes) {
    enum { FIXED = 0x10 };
    struct { u32 argument[6]; } old = {
        {at, bytes, PROT_ALL, MAP_PRIVATE | MAP_ANONYMOUS | FIXED, -1u, 0},
    };
    if (call(90, (u32)&old, 0, 0) != (int)at)
        leave(90);
    return (u8 *)at;
}

static u32 length(const char *text) {
    u32 n = 0;
    while (text[n])
        n++;
    return n;
}

static void say(const char *text) { call(WRITE, 1, (u32)text, length(text)); }

static void say_number(u32 number) {
    char text[12], *at = text + 11;
    for (*at = 0; number || at == text + 11; number /= 10)
        *--at = '0' + number % 10;
    say(at);
}

void *memset(void *to, int byte, u32 count) {
    for (u32 n = 0; n < count; n++)
        ((volatile u8 *)to)[n] = byte;
    return to;
}

void *memcpy(void *to, const void *from, u32 count) {
    for (u32 n = 0; n < count; n++)
        ((volatile u8 *)to)[n] = ((const u8 *)from)[n];
    return to;
}

// `struct user_desc`, and its bits.
struct user_desc { u32 number, base, limit, flags; };
enum {
    BITS_32 = 1, DOWN = 2, CODE = 4, READ_ONLY = 8, IN_PAGES = 16, ABSENT = 32, LONG = 128,
};

// Sets a local segment; returns its selector, or 0 if the kernel refuses it.
static u16 local(u32 number, u32 base, u32 limit, u32 flags) {
    struct user_desc segment = {number, base, limit, flags};
    int result = call(MODIFY_LDT, 0x11, (u32)&segment, sizeof segment);
    return result == 0 ? number << 3 | 7 : 0;
}

// The machine context in a signal's frame, in words.
enum {
    R_GS, R_FS, R_ES, R_DS, R_TRAP = 12, R_ERROR, R_EIP, R_CS, R_FLAGS, R_ESP, R_SS,
    CONTEXT_AT = 5,
};

// How a child that attacks ends: by the number of its trap, or having gone through.
enum { OF_TRAP = 100, WRONG_SIGNAL = 98, REFUSED = 97, IN_64_BITS = 96, THROUGH = 77 };

static void on_fault(int signal, void *info, u32 *context) {
    (void)info;
    u32 trap = context[CONTEXT_AT + R_TRAP];
    // As on Linux.
    int right = trap == 13 || trap == 14 ? SIGSEGV : trap == 11 || trap == 12 ? SIGBUS
              : trap == 6 ? SIGILL : trap == 1 || trap == 3 ? SIGTRAP : SIGSEGV;
    leave(signal == right ? OF_TRAP + trap : WRONG_SIGNAL);
}

void back(void);
asm("back: movl $173, %eax\n int $0x80");

static void handle(u32 signal, void (*handler)(int, void *, u32 *)) {
    enum { SIGINFO = 4, RESTORER = 0x04000000, ONSTACK = 0x08000000 };
    u32 action[5] = {(u32)handler, SIGINFO | RESTORER | ONSTACK, (u32)back, 0, 0};
    register u32 size asm("esi") = 8;
    int result;
    asm volatile("int $0x80"
                 : "=a"(result) : "a"(RT_SIGACTION), "b"(signal), "c"(action), "d"(0), "r"(size)
                 : "memory");
    if (result)
        leave(91);
}

static void handle_faults(void) {
    static u8 stack[16 * PAGE];
    u32 place[3] = {(u32)stack, 0, sizeof stack};
    if (call(SIGALTSTACK, (u32)place, 0, 0))
        leave(92);
    static const u8 signals[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV};
    for (u32 n = 0; n < sizeof signals; n++)
        handle(signals[n], on_fault);
}

// The exit status of a child.
static u32 wait_for(int child) {
    int status = 0, result;
    register u32 none asm("esi") = 0;
    asm volatile("int $0x80"
                 : "=a"(result) : "a"(WAIT4), "b"(child), "c"(&status), "d"(0), "r"(none)
                 : "memory");
    // Ended by a signal: 200 and its number.
    return result != child ? 93 : status & 127 ? 200 + (status & 127) : status >> 8 & 255;
}
