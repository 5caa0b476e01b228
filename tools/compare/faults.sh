# Map entries and page faults of programs (`uvm.txt`, Tables 1 and 2): for
#   causeway compare-linux --pairs 1 --mem 2G --root DIR --append faultahead=0,0 --script tools/compare/faults.sh
# The root has bash, coreutils, gcc, git, perl, python3, sqlite3.

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
