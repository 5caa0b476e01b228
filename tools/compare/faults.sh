# Map entries and page faults of programs (`uvm.txt`, Tables 1 and 2): for
#   causeway compare-linux --pairs 1 --mem 2G --root DIR --append faultahead=0,0 --script tools/compare/faults.sh
# The root has bash, coreutils, gcc, git, libc6-dev, musl-tools, perl, python3, sqlite3.

# The entries of a program that waits for its input.
entries() {
    local name=$1 fifo=/tmp/input
    shift
    mkfifo $fifo
    "$@" <$fifo >/dev/null &
    exec 3>$fifo
    # It has loaded what it needs when it sleeps in its read.
    sleep 1
    until read -r _ _ state _ </proc/$!/stat && [ "$state" = S ]; do sleep 0.1; done
    echo "COUNT entries-$name $(wc -l </proc/$!/maps)"
    exec 3>&-
    wait
    rm $fifo
}

# All faults that a command and its children take, from fork to end, once everything is in memory.
faults() {
    local name=$1
    shift
    "$@" >/dev/null
    python3 - "$name" "$@" <<'PYTHON'
import resource, subprocess, sys
before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, check=True)
print("COUNT faults-" + sys.argv[1], resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before)
PYTHON
}

cd /tmp || exit
printf '#include <stdio.h>\nint main(void) { printf("hello, world\\n"); return 0; }\n' >hello.c

# Programs of the paper's shape: two segments, and a C library (musl) that is its own loader.
cat >cat.c <<'C'
#include <unistd.h>
int main(void)
{
    char bytes[4096];
    ssize_t count;
    while ((count = read(0, bytes, sizeof bytes)) > 0)
        write(1, bytes, count);
    return 0;
}
C
cat >od.c <<'C'
#include <stdio.h>
int main(void)
{
    unsigned char bytes[16];
    size_t count, at = 0;
    while ((count = fread(bytes, 1, sizeof bytes, stdin)) > 0) {
        printf("%07zo", at);
        for (size_t i = 0; i < count; i++)
            printf(" %03o", bytes[i]);
        putchar('\n');
        at += count;
    }
    return 0;
}
C
segments="-O2 -no-pie -Wl,-z,noseparate-code -Wl,-z,norelro"
# shellcheck disable=SC2086 # A list of words.
musl-gcc $segments -static cat.c -o cat-two && gcc $segments -static cat.c -o cat-glibc && musl-gcc $segments od.c -o od-two
printf 'a line\n' | ./od-two

entries cat-two-segments ./cat-two
entries cat-two-segments-glibc ./cat-glibc
entries od-two-segments ./od-two
entries cat-static /busybox cat
entries cat-dynamic cat
entries od-dynamic od
entries bash bash
entries python3 python3 -c 'import sys; sys.stdin.read()'

faults ls ls /
faults gcc gcc hello.c -o hello
faults bash bash -c :
faults perl perl -e 1
faults python3 python3 -c pass
faults git git --version
faults sqlite3 sqlite3 :memory: 'select 1'
./hello
