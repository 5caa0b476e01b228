/*
 * The Causeway kernel's requests for programs beyond Linux's calls: the device /dev/causeway, whose
 * document is docs/device.md. Needs no library. Functions return 0, or -1 with errno set.
 */
#ifndef CAUSEWAY_H
#define CAUSEWAY_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

/* The requests. */
#define CAUSEWAY_REQUEST_VERSION 0x8004ca00u
#define CAUSEWAY_REQUEST_INHERIT 0x4018ca01u
#define CAUSEWAY_REQUEST_COUNTS 0x8040ca02u
#define CAUSEWAY_REQUEST_ENTRY 0xc040ca03u
#define CAUSEWAY_REQUEST_PASS 0xc040ca04u

/* What children inherit of memory. */
enum causeway_inherit {
    CAUSEWAY_INHERIT_SHARE,
    CAUSEWAY_INHERIT_COPY,
    CAUSEWAY_INHERIT_NONE,
    CAUSEWAY_INHERIT_ZERO
};

/* How memory is passed to another process. */
enum causeway_how {
    CAUSEWAY_COPY,    /* a copy-on-write copy of the mappings */
    CAUSEWAY_MOVE,    /* the mappings; the addresses are free here */
    CAUSEWAY_SHARE,   /* the same memory for both */
    CAUSEWAY_LEND,    /* the pages, which both have until one of them writes */
    CAUSEWAY_TRANSFER /* the pages; the memory reads zero here */
};

/* Sums over the address space, in pages but for the entries. */
struct causeway_counts {
    uint64_t entries, mapped, resident, locked, peak, page_tables, reserved[2];
};

/* A mapping. */
struct causeway_entry {
    uint64_t start, end, rights, greatest_rights, flags, inherit, resident, anonymous;
};

/* Where the receiver has what was passed, and the pages that were passed and copied. */
struct causeway_passed {
    void *address;
    uint64_t passed, copied;
};

/* Opens the device; returns a descriptor. */
static inline int causeway_open(void)
{
    return open("/dev/causeway", O_RDONLY | O_CLOEXEC);
}

/* Returns the version of the requests; 2 and later versions have all of these. */
static inline int causeway_version(int device)
{
    uint32_t version = 0;
    return ioctl(device, CAUSEWAY_REQUEST_VERSION, &version) ? -1 : (int)version;
}

/* Sets what children forked from now on inherit of a range. */
static inline int causeway_set_inherit(int device, void *start, size_t length,
                                       enum causeway_inherit what)
{
    uint64_t words[3] = { (uintptr_t)start, length, (uint64_t)what };
    return ioctl(device, CAUSEWAY_REQUEST_INHERIT, words);
}

/* Gives sums over the address space. */
static inline int causeway_get_counts(int device, struct causeway_counts *counts)
{
    return ioctl(device, CAUSEWAY_REQUEST_COUNTS, counts);
}

/* Gives the mapping at an address. */
static inline int causeway_get_entry(int device, const void *address, struct causeway_entry *entry)
{
    entry->start = (uintptr_t)address;
    return ioctl(device, CAUSEWAY_REQUEST_ENTRY, entry);
}

static inline int causeway_pass_to(int device, uint64_t receiver, uint64_t flags,
                                   enum causeway_how how, const void *start, size_t length,
                                   void *address, struct causeway_passed *passed)
{
    uint64_t words[8] = { receiver, flags, (uint64_t)how, (uintptr_t)start,
                          length, (uintptr_t)address, 0, 0 };
    int result = ioctl(device, CAUSEWAY_REQUEST_PASS, words);
    if (result == 0 && passed) {
        passed->address = (void *)(uintptr_t)words[5];
        passed->passed = words[6];
        passed->copied = words[7];
    }
    return result;
}

/*
 * Passes a range to the process `pid`: to `address` there, or, if that is null, to an address of
 * the kernel's choice. `passed` may be null.
 */
static inline int causeway_pass(int device, pid_t pid, enum causeway_how how, const void *start,
                                size_t length, void *address, struct causeway_passed *passed)
{
    return causeway_pass_to(device, (uint64_t)pid, 0, how, start, length, address, passed);
}

/* As causeway_pass, to the process of a descriptor (pidfd_open). */
static inline int causeway_pass_by_pidfd(int device, int pidfd, enum causeway_how how,
                                         const void *start, size_t length, void *address,
                                         struct causeway_passed *passed)
{
    return causeway_pass_to(device, (uint64_t)pidfd, 1, how, start, length, address, passed);
}

#endif
