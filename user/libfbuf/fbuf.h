/*
 * Fbufs for C: the interface of the crate libfbuf, whose document is docs/fbuf.md. Link with its
 * static library liblibfbuf.a (and -lpthread -ldl -lm where the C library has them apart).
 *
 * Functions that return int give 0 or a count, or a negative errno. Handles are made into the place
 * that the last argument names, which an error leaves as it was, and freed by the function that
 * ends in _free, in any order; NULL may be freed. A handle is used by one thread at a time.
 */
#ifndef FBUF_H
#define FBUF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What provides the region: /dev/fbuf, memfds, or memfds where there is no /dev/fbuf. */
enum { FBUF_DEVICE = 0, FBUF_MEMFD = 1, FBUF_ANY = 2 };

/* The mode of a path: a sum of the first two; 0: cached and volatile. Or the kernel's default. */
enum { FBUF_UNCACHED = 1, FBUF_SECURED = 2, FBUF_DEFAULT = 4 };

typedef struct fbuf_path fbuf_path;           /* the originator's side of a path */
typedef struct fbuf_member fbuf_member;       /* a receiver's side */
typedef struct fbuf fbuf;                     /* pages to write */
typedef struct fbuf_data fbuf_data;           /* an aggregate, or a received message */
typedef struct fbuf_channel fbuf_channel;     /* one end of a channel */
typedef struct fbuf_units fbuf_units;         /* the lines or records of data */
typedef struct fbuf_frames fbuf_frames;       /* the packets of a packet socket */

/* Contiguous bytes. Those of a message may change while they are read, unless it was secured. */
struct fbuf_fragment {
    const volatile void *start;
    size_t length;
};

/* Enters the region, before all else. A child of fork enters it by itself, and uses no handle of
 * its parent. -ENOENT: there is no /dev/fbuf. */
int fbuf_enter(int backend);

/* Makes a path of at most `chunks` chunks of 2 MiB; 0: 32. */
int fbuf_path_new(unsigned mode, size_t chunks, fbuf_path **path);
/* Returns its descriptor, the right to attach to it, which the path closes. */
int fbuf_path_descriptor(const fbuf_path *path);
/* Returns idle chunks to the kernel, and drops the contents of free pages in the others. */
void fbuf_path_trim(const fbuf_path *path);
/* Frees the handle; the path ends with the last of its pages and data. */
void fbuf_path_free(fbuf_path *path);

/* Sends a path's descriptor by a Unix socket; receives one, which is returned. */
int fbuf_path_send(const fbuf_path *path, int socket);
int fbuf_path_receive(int socket);

/* Attaches to the path of a descriptor, which belongs to the member, also after an error. */
int fbuf_member_attach(int descriptor, fbuf_member **member);
/* Returns its descriptor, which is readable when a message through the kernel waits. */
int fbuf_member_descriptor(const fbuf_member *member);
/* Returns the number by which fbuf_send sends to this member alone. */
int fbuf_member_number(const fbuf_member *member);
void fbuf_member_free(fbuf_member *member);

/* Pages to write, at least `length` bytes. -ENOSPC: the path's limit is reached. */
int fbuf_allocate(const fbuf_path *path, size_t length, fbuf **pages);
void *fbuf_start(fbuf *pages);
size_t fbuf_length(const fbuf *pages);
/* Makes data of the first bytes, which are immutable from then on. Frees `pages`, also after an
 * error. */
int fbuf_seal(fbuf *pages, size_t length, fbuf_data **data);
void fbuf_free(fbuf *pages);

/* Data is immutable; these make new data, without a copy of the old. Received messages have to be
 * forwarded first (-EINVAL). -E2BIG: more than 65536 parts. */
int fbuf_data_copy(const fbuf_path *path, const void *bytes, size_t length, fbuf_data **data);
/* At most `most` bytes of a file from an offset on, or of a pipe or a stream socket, with offset -1:
 * what one read gives, 1 MiB at most. Whole pages are not copied by /dev/fbuf. */
int fbuf_data_take(const fbuf_path *path, int file, int64_t offset, size_t most, fbuf_data **data);
int fbuf_data_join(const fbuf_data *front, const fbuf_data *back, fbuf_data **data);
int fbuf_data_slice(const fbuf_data *of, uint64_t start, uint64_t end, fbuf_data **data);
int fbuf_data_split(const fbuf_data *of, uint64_t at, fbuf_data **front, fbuf_data **back);
int fbuf_data_clip_front(const fbuf_data *of, uint64_t bytes, fbuf_data **data);
int fbuf_data_clip_back(const fbuf_data *of, uint64_t bytes, fbuf_data **data);
int fbuf_data_prepend(const fbuf_data *to, const void *bytes, size_t length, fbuf_data **data);
int fbuf_data_append(const fbuf_data *to, const void *bytes, size_t length, fbuf_data **data);
/* Frees data. A received message is free for its sender once all data made of it is freed, too. */
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

/* Sends through the kernel, to a member or all (0). What was sent is held until it is freed. */
int fbuf_send(const fbuf_path *path, unsigned member, const fbuf_data *data);
/* Waits for a message through the kernel. -EPIPE: the originator is gone, and nothing is left. */
int fbuf_receive(const fbuf_member *member, fbuf_data **data);
/* Sends, and receives the next message of `answers`, by one system call. */
int fbuf_call(const fbuf_path *path, unsigned member, const fbuf_data *request,
              const fbuf_member *answers, fbuf_data **answer);
/* Takes the originator's right to write a message that was received through the kernel, until it
 * is freed: its fragments do not change. No units of it are in use. */
int fbuf_secure(fbuf_data *message);
/* Reads what receivers have freed; returns the number of notices. Sending does it by itself. */
int fbuf_collect(const fbuf_path *path);

/*
 * Has the packets of a packet socket put into `chunks` chunks of the kernel's, which a card fills if
 * the socket is bound to its interface. -EOPNOTSUPP by memfds, and where the kernel's default mode is
 * uncached; -ENOTTY from other kernels; -EBUSY for a socket that has fbufs or a ring.
 */
enum { FBUF_MORE = 1, FBUF_OTHERS = 2 };
int fbuf_frames_new(int socket, size_t chunks, fbuf_frames **frames);
/* Tells the kernel which packets were freed, and gives those that wait to `each`, a few tens at most,
 * which frees them by fbuf_data_free, then or later. Returns a sum: FBUF_MORE, there may be more;
 * FBUF_OTHERS, some wait for which there was no fbuf, for recv. */
int fbuf_frames_take(fbuf_frames *frames, int socket,
                     void (*each)(void *context, fbuf_data *packet), void *context);
/* Returns the descriptor of their path, the right to read all packets of the card. */
int fbuf_frames_descriptor(const fbuf_frames *frames);
/* Makes a packet data of a path, as fbuf_data_forward does what came by a path. */
int fbuf_frames_forward(const fbuf_path *path, const fbuf_data *packet, fbuf_data **data);
void fbuf_frames_free(fbuf_frames *frames);

/* Makes a channel with the other end of a Unix socket, which does the same. The socket belongs to
 * the channel, also after an error. The path is cached and volatile (-EINVAL). */
int fbuf_channel_connect(const fbuf_path *path, int socket, fbuf_channel **channel);
/* Returns its descriptor, to poll for reading after fbuf_channel_arm. */
int fbuf_channel_descriptor(const fbuf_channel *channel);
/* -EPIPE: the peer has closed the channel; -ECONNRESET: it is gone; -EPROTO: it breaks the rules;
 * -EAGAIN from a try: it would have to wait. */
int fbuf_channel_send(fbuf_channel *channel, const fbuf_data *data);
int fbuf_channel_try_send(fbuf_channel *channel, const fbuf_data *data);
int fbuf_channel_receive(fbuf_channel *channel, fbuf_data **data);
int fbuf_channel_try_receive(fbuf_channel *channel, fbuf_data **data);
/* By memfds: receives messages, too, that name fbufs of the lender's path, which the peer may read
 * (-EFAULT else). */
int fbuf_channel_receive_lent(fbuf_channel *channel, const fbuf_member *lender, fbuf_data **data);
int fbuf_channel_call(fbuf_channel *channel, const fbuf_data *request, fbuf_data **answer);
/* Sends an answer, and receives the next request: the other side of fbuf_channel_call. */
int fbuf_channel_answer(fbuf_channel *channel, const fbuf_data *answer, fbuf_data **request);
/* Prepares for waiting at the descriptor; returns 1 if something is there already. */
int fbuf_channel_arm(fbuf_channel *channel);
/* Looks whether the peer is still there (-ECONNRESET), after the descriptor was readable. */
int fbuf_channel_check(fbuf_channel *channel);
/* Sends the end, waits until the peer has freed all, and frees the channel. */
int fbuf_channel_finish(fbuf_channel *channel);
/* How often calls look before they sleep; 0, the default, suits one CPU. */
void fbuf_channel_set_spins(fbuf_channel *channel, unsigned spins);
/* Sends the end, and frees the channel. What the peer has not freed may be written anew. */
void fbuf_channel_free(fbuf_channel *channel);

#ifdef __cplusplus
}
#endif
#endif
