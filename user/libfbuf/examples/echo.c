/* A child sends each message back with a header before it, and copies none of it. */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fbuf.h"

static int serve(int socket)
{
    fbuf_path *path;
    fbuf_channel *channel;
    fbuf_data *request, *body, *answer;

    /* A child enters by itself. */
    if (fbuf_enter(FBUF_ANY) || fbuf_path_new(0, 0, &path)
        || fbuf_channel_connect(path, socket, &channel))
        return 1;
    while (fbuf_channel_receive(channel, &request) == 0) {
        if (fbuf_data_forward(path, request, &body)
            || fbuf_data_prepend(body, "echo: ", 6, &answer)
            || fbuf_channel_send(channel, answer))
            return 2;
        fbuf_data_free(answer);
        fbuf_data_free(body);
        fbuf_data_free(request);
    }
    fbuf_channel_free(channel);
    fbuf_path_free(path);
    return 0;
}

int main(void)
{
    int ends[2], status;
    fbuf_path *path;
    fbuf_channel *channel;
    fbuf *pages;
    fbuf_data *request, *answer;
    fbuf_units *lines;
    struct fbuf_fragment line;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(serve(ends[1]));
    }
    close(ends[1]);
    if (fbuf_enter(FBUF_ANY) || fbuf_path_new(0, 0, &path)
        || fbuf_channel_connect(path, ends[0], &channel))
        return 2;

    /* Pages of this process, in which the child reads the message. */
    if (fbuf_allocate(path, 100000, &pages))
        return 3;
    memset(fbuf_start(pages), 'x', 100000);
    memcpy(fbuf_start(pages), "first\nsecond\n", 13);
    if (fbuf_seal(pages, 100000, &request) || fbuf_channel_call(channel, request, &answer))
        return 4;
    fbuf_data_free(request);
    if (fbuf_data_length(answer) != 100006 || fbuf_lines(answer, 1000, &lines))
        return 5;
    /* The first line lies across two fbufs, and was copied; the second lies in one. */
    if (fbuf_units_next(lines, &line) != 1 || line.length != 12
        || memcmp((const void *)line.start, "echo: first\n", 12))
        return 6;
    if (fbuf_units_next(lines, &line) != 1 || line.length != 7
        || memcmp((const void *)line.start, "second\n", 7))
        return 7;
    fbuf_units_free(lines);
    fbuf_data_free(answer);

    /* The child sees the end. */
    fbuf_channel_free(channel);
    fbuf_path_free(path);
    return waitpid(child, &status, 0) != child || status;
}
