/* Each function of fbuf.h once, by memfds, and what they return for an error. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fbuf.h"

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)

/* Whether data has these bytes; frees it. */
static int is_text(fbuf_data *data, const char *text)
{
    char bytes[100];
    size_t length = strlen(text);
    int same = fbuf_data_length(data) == length
        && fbuf_data_read(data, 0, bytes, sizeof bytes) == length
        && memcmp(bytes, text, length) == 0;
    fbuf_data_free(data);
    return same;
}

/* Receives by poll, and then by waiting, until the other end closes. */
static void serve(int socket)
{
    fbuf_path *path;
    fbuf_channel *channel;
    fbuf_member *member;
    fbuf_data *request, *answer;
    int received;

    /* Its parent has entered, but it has not. */
    CHECK(fbuf_path_new(0, 1, &path) == -EPERM);
    CHECK(fbuf_enter(FBUF_MEMFD) == 0);
    CHECK(fbuf_path_new(FBUF_DEFAULT, 1, &path) == 0);
    CHECK(fbuf_channel_connect(path, socket, &channel) == 0);
    fbuf_channel_set_spins(channel, 10);
    while ((received = fbuf_channel_try_receive(channel, &request)) == -EAGAIN) {
        struct pollfd entry = { fbuf_channel_descriptor(channel), POLLIN, 0 };
        if (!fbuf_channel_arm(channel))
            CHECK(poll(&entry, 1, -1) == 1);
        CHECK(fbuf_channel_check(channel) == 0);
    }
    CHECK(received == 0);
    CHECK(fbuf_data_forward(path, request, &answer) == 0);
    CHECK(fbuf_channel_try_send(channel, answer) == 0);
    fbuf_data_free(request);
    fbuf_data_free(answer);
    /* A second request, which may name fbufs of this path, too. */
    CHECK(fbuf_member_attach(dup(fbuf_path_descriptor(path)), &member) == 0);
    CHECK(fbuf_channel_receive_lent(channel, member, &request) == 0);
    CHECK(fbuf_data_forward(path, request, &answer) == 0);
    fbuf_data_free(request);
    CHECK(fbuf_channel_answer(channel, answer, &request) == -EPIPE);
    fbuf_data_free(answer);
    fbuf_member_free(member);
    CHECK(fbuf_channel_receive(channel, &request) == -EPIPE);
    CHECK(fbuf_channel_finish(channel) == 0);
    fbuf_path_free(path);
}

static void edit(const fbuf_path *path)
{
    fbuf *pages;
    fbuf_data *text, *other, *both, *part, *front, *back;
    struct fbuf_fragment fragments[4], unit;
    fbuf_units *units;
    int ends[2];

    CHECK(fbuf_allocate(path, 5000, &pages) == 0);
    CHECK(fbuf_length(pages) == 8192);
    memcpy(fbuf_start(pages), "one\ntwo\n", 8);
    CHECK(fbuf_seal(pages, 8, &text) == 0);
    CHECK(fbuf_data_copy(path, "three\n", 6, &other) == 0);
    CHECK(fbuf_data_join(text, other, &both) == 0);
    CHECK(fbuf_data_fragments(both, fragments, 4) == 2);
    CHECK(fragments[0].length == 8 && fragments[1].length == 6);
    CHECK(fbuf_data_slice(both, 4, 8, &part) == 0 && is_text(part, "two\n"));
    CHECK(fbuf_data_split(both, 4, &front, &back) == 0);
    CHECK(is_text(front, "one\n") && is_text(back, "two\nthree\n"));
    CHECK(fbuf_data_clip_front(both, 8, &part) == 0 && is_text(part, "three\n"));
    CHECK(fbuf_data_clip_back(both, 10, &part) == 0 && is_text(part, "one\n"));
    CHECK(fbuf_data_prepend(other, "<", 1, &part) == 0 && is_text(part, "<three\n"));
    CHECK(fbuf_data_append(other, ">", 1, &part) == 0 && is_text(part, "three\n>"));
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK(fbuf_data_take(path, file, 1, 3, &part) == 0 && is_text(part, "ELF"));
    close(file);
    CHECK(pipe(ends) == 0 && write(ends[1], "text", 4) == 4);
    CHECK(fbuf_data_take(path, ends[0], -1, 9, &part) == 0 && is_text(part, "text"));
    close(ends[0]);
    close(ends[1]);
    CHECK(fbuf_lines(both, 100, &units) == 0);
    for (int line = 0; line < 3; line++)
        CHECK(fbuf_units_next(units, &unit) == 1 && unit.length == (line == 2 ? 6 : 4));
    CHECK(fbuf_units_next(units, &unit) == 0);
    fbuf_units_free(units);
    CHECK(fbuf_records(both, 10, &units) == 0);
    CHECK(fbuf_units_next(units, &unit) == 1 && unit.length == 10);
    CHECK(fbuf_units_next(units, &unit) == 1 && unit.length == 4);
    CHECK(fbuf_units_next(units, &unit) == 0);
    fbuf_units_free(units);
    /* Through the kernel, which memfds are not. */
    CHECK(fbuf_secure(both) == -EINVAL);
    CHECK(fbuf_send(path, 0, both) == -EOPNOTSUPP);
    CHECK(fbuf_collect(path) == 0);
    fbuf_data_free(both);
    fbuf_data_free(other);
    fbuf_data_free(text);
    CHECK(fbuf_allocate(path, (size_t)-1, &pages) == -ENOSPC);
    CHECK(fbuf_allocate(path, 1, &pages) == 0);
    fbuf_free(pages);
    fbuf_free(NULL);
    fbuf_path_trim(path);
}

int main(void)
{
    int ends[2], sockets[2], status, descriptor;
    fbuf_path *path, *none;
    fbuf_member *member;
    fbuf_channel *channel;
    fbuf_data *request, *answer;

    CHECK(fbuf_enter(9) == -EINVAL);
    CHECK(fbuf_path_new(0, 0, &path) == -EPERM);
    CHECK(fbuf_enter(FBUF_MEMFD) == 0);
    CHECK(fbuf_enter(FBUF_DEVICE) < 0);
    CHECK(fbuf_path_new(8, 0, &none) == -EINVAL);
    CHECK(fbuf_path_new(FBUF_UNCACHED | FBUF_SECURED, 0, &none) == -EOPNOTSUPP);
    CHECK(fbuf_path_new(0, 2, &path) == 0);
    edit(path);

    /* A path's descriptor by a socket, and the membership of this process. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    CHECK(fbuf_path_descriptor(path) >= 0 && fbuf_path_send(path, sockets[0]) == 0);
    descriptor = fbuf_path_receive(sockets[1]);
    CHECK(descriptor >= 0 && fbuf_member_attach(descriptor, &member) == 0);
    CHECK(fbuf_member_descriptor(member) == descriptor && fbuf_member_number(member) == 1);
    CHECK(fbuf_receive(member, &answer) == -EOPNOTSUPP);
    CHECK(fbuf_data_copy(path, "text", 4, &request) == 0);
    CHECK(fbuf_call(path, 0, request, member, &answer) == -EOPNOTSUPP);
    fbuf_member_free(member);
    close(sockets[0]);
    CHECK(fbuf_path_receive(sockets[1]) == -EPIPE);

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        serve(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    CHECK(fbuf_channel_connect(path, ends[0], &channel) == 0);
    for (int turn = 0; turn < 2; turn++)
        CHECK(fbuf_channel_call(channel, request, &answer) == 0 && is_text(answer, "text"));
    fbuf_data_free(request);
    fbuf_channel_free(channel);
    fbuf_path_free(path);
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* A channel whose peer never was. */
    CHECK(fbuf_path_new(0, 2, &path) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    close(ends[1]);
    CHECK(fbuf_channel_connect(path, ends[0], &channel) < 0);
    fbuf_frames *frames = NULL;
    CHECK(fbuf_frames_new(ends[0], 1, &frames) == -EOPNOTSUPP);
    CHECK(frames == NULL);
    fbuf_frames_free(frames);
    fbuf_path_free(path);
    return 0;
}
