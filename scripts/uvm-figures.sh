#!/bin/sh
# The tables and figures of the UVM paper, here and on Linux: what docs/performance.md has of them.
#   scripts/uvm-figures.sh [DIR]    all of it, into DIR (out/uvm): some 25 minutes on 2 quiet cores
# Needs what `make bench` and `make run ROOT=debian` need. The root for tables 1 and 2 is made the
# first time.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/uvm}
causeway=target/debug/causeway
root=target/uvm-root
mkdir -p "$out"
[ -e $root/usr/bin/musl-gcc ] ||
    $causeway root debian --replace $root bash coreutils gcc git libc6-dev musl-tools perl python3 sqlite3 >&2

echo "== Table 3, Figure 6: instructions"
$causeway bench --icount --full map-fault-unmap fork memory-pressure --out "$out/counted"
echo "== Table 3, Figure 6, Figure 2: time"
$causeway bench --full --runs 5 map-fault-unmap fork object-cache --out "$out/time"
echo "== Figure 5: time, in a machine of 256 MiB"
$causeway bench --full --runs 3 --mem 256M memory-pressure --out "$out/pressure"
echo "== Tables 1 and 2"
$causeway compare-linux --pairs 1 --mem 2G --root $root --append faultahead=0,0 \
    --script tools/compare/faults.sh | tee "$out/faults.txt"
