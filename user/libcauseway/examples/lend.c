/* A program lends a MiB to its child, overwrites it, and the child still has what was lent. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "causeway.h"

#define LENGTH (1 << 20)

int main(void)
{
    int device = causeway_open(), line[2], status;
    struct causeway_passed passed;
    char *data = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (device < 0 || data == MAP_FAILED || pipe(line))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        /* The address tells that the pages are there. */
        if (read(line[0], &data, sizeof data) != sizeof data)
            _exit(2);
        _exit(strcmp(data, "from the parent") || data[LENGTH - 1] != 'x');
    }
    memset(data, 'x', LENGTH);
    strcpy(data, "from the parent");
    if (causeway_pass(device, child, CAUSEWAY_LEND, data, LENGTH, NULL, &passed))
        return 3;
    memset(data, 'y', LENGTH);
    if (write(line[1], &passed.address, sizeof passed.address) != sizeof passed.address)
        return 4;
    if (waitpid(child, &status, 0) != child || status)
        return 5;
    close(device);
    return munmap(data, LENGTH);
}
