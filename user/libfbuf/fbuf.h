/*
 * Fbufs for C: the interface of the crate libfbuf, whose document is docs/fbuf.md. Link with its
 * static library (libfbuf.a, and -lpthread -ldl -lm where the C library has them apart).
 *
 * Functions that return int give 0 or a count, or a negative errno. Handles are made into the place
 * that the last argument names, and freed by the function that ends in _free; NULL may be freed.
 * A handle is used by one thread at a time.
 */
#ifndef FBUF_H
#define FBUF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What provides the region. */
enum { FBUF_DEVICE = 0, FBUF_MEMFD = 1, FBUF_ANY = 2 };

/* The mode of a path: a sum of these; 0: cached and volatile. */
enum { FBUF_UNCACHED = 1, FBUF_SECURED = 2, FBUF_DEFAULT = 4 };

typedef struct fbuf_path fbuf_path;           /* the originator's side of a path */
typedef struct fbuf_member fbuf_member;       /* a receiver's side */
typedef struct fbuf fbuf;                     /* pages to write */
typedef struct fbuf_data fbuf_data;           /* an aggregate, or a received message */
typedef struct fbuf_channel fbuf_channel;     /* one end of a channel */
typedef struct fbuf_units fbuf_units;         /* the lines or records of data */

/* Contiguous bytes. They may change while they are read, if they came from another process. */
struct fbuf_fragment {
    const volatile void *start;
    size_t length;
};

/* Enters the region. Children enter it themselves. */
int fbuf_enter(int backend);

/* Paths: at most `chunks` of 2 MiB; 0: the default. The descriptor belongs to the path. */
int fbuf_path_new(unsigned mode, size_t chunks, fbuf_path **path);
int fbuf_path_descriptor(const fbuf_path *path);
void fbuf_path_trim(const fbuf_path *path);
void fbuf_path_free(fbuf_path *path);

/* Sends a path's descriptor by a Unix socket; receives one, which is returned. */
int fbuf_path_send(const fbuf_path *path, int socket);
int fbuf_path_receive(int socket);

/* Attaches to the path of a descriptor, which belongs to the member, also after an error. */
int fbuf_member_attach(int descriptor, fbuf_member **member);
int fbuf_member_descriptor(const fbuf_member *member);
int fbuf_member_number(const fbuf_member *member);
void fbuf_member_free(fbuf_member *member);

/* Pages to write: at least `length` bytes. fbuf_seal makes the first bytes data, and frees it. */
int fbuf_allocate(const fbuf_path *path, size_t length, fbuf **pages);
void *fbuf_start(fbuf *pages);
size_t fbuf_length(const fbuf *pages);
int fbuf_seal(fbuf *pages, size_t length, fbuf_data **data);
void fbuf_free(fbuf *pages);

/* Data is immutable; operations make new data, without a copy of the old. */
int fbuf_data_copy(const fbuf_path *path, const void *bytes, size_t length, fbuf_data **data);
int fbuf_data_join(const fbuf_data *front, const fbuf_data *back, fbuf_data **data);
int fbuf_data_slice(const fbuf_data *of, uint64_t start, uint64_t end, fbuf_data **data);
int fbuf_data_split(const fbuf_data *of, uint64_t at, fbuf_data **front, fbuf_data **back);
int fbuf_data_clip_front(const fbuf_data *of, uint64_t bytes, fbuf_data **data);
int fbuf_data_clip_back(const fbuf_data *of, uint64_t bytes, fbuf_data **data);
int fbuf_data_prepend(const fbuf_data *to, const void *bytes, size_t length, fbuf_data **data);
int fbuf_data_append(const fbuf_data *to, const void *bytes, size_t length, fbuf_data **data);
void fbuf_data_free(fbuf_data *data);

/* Makes a received message data of a path, to be sent on, joined and cut. */
int fbuf_data_forward(const fbuf_path *path, const fbuf_data *received, fbuf_data **data);

/* Reading: copies of bytes from an offset on, and fragments. Both return how many there were. */
uint64_t fbuf_data_length(const fbuf_data *data);
size_t fbuf_data_read(const fbuf_data *data, uint64_t offset, void *to, size_t length);
size_t fbuf_data_fragments(const fbuf_data *data, struct fbuf_fragment *to, size_t most);

/*
 * Lines with their newlines, cut at `most` bytes, or records. fbuf_units_next returns 1 with the
 * next one, which is valid until the next call, or 0 after the last. The data outlives the units.
 */
int fbuf_lines(const fbuf_data *data, size_t most, fbuf_units **units);
int fbuf_records(const fbuf_data *data, size_t size, fbuf_units **units);
int fbuf_units_next(fbuf_units *units, struct fbuf_fragment *unit);
void fbuf_units_free(fbuf_units *units);

/* Messages through the kernel, to a member or all (0). fbuf_receive: -EPIPE is the end. */
int fbuf_send(const fbuf_path *path, unsigned member, const fbuf_data *data);
int fbuf_receive(const fbuf_member *member, fbuf_data **data);
int fbuf_collect(const fbuf_path *path);

/* Sends, and receives the next message of `answers`, by one system call. */
int fbuf_call(const fbuf_path *path, unsigned member, const fbuf_data *request,
              const fbuf_member *answers, fbuf_data **answer);

/* Channels; the socket belongs to the channel, also after an error. -EPIPE: the peer closed it,
 * -ECONNRESET: it is gone, -EAGAIN from a try: later. */
int fbuf_channel_connect(const fbuf_path *path, int socket, fbuf_channel **channel);
int fbuf_channel_descriptor(const fbuf_channel *channel);
int fbuf_channel_send(fbuf_channel *channel, const fbuf_data *data);
int fbuf_channel_try_send(fbuf_channel *channel, const fbuf_data *data);
int fbuf_channel_receive(fbuf_channel *channel, fbuf_data **data);
int fbuf_channel_try_receive(fbuf_channel *channel, fbuf_data **data);
int fbuf_channel_call(fbuf_channel *channel, const fbuf_data *request, fbuf_data **answer);
int fbuf_channel_arm(fbuf_channel *channel); /* 1: do not wait, something is there */
int fbuf_channel_check(fbuf_channel *channel);
int fbuf_channel_finish(fbuf_channel *channel); /* waits until all is freed; frees the channel */
void fbuf_channel_set_spins(fbuf_channel *channel, unsigned spins);
void fbuf_channel_free(fbuf_channel *channel);

#ifdef __cplusplus
}
#endif
#endif
