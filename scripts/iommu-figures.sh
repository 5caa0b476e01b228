#!/bin/sh
# Figures of iosup.txt, redrawn here: what docs/performance.md has of them.
#   scripts/iommu-figures.sh [DIR [PART…]]    into DIR (out/iommu)
# The parts are `invalidations` (Figures 8, 10 and 11), `levels` (9), `programs` (12), `processes`
# (13), `thresholds`, `disk` and `card` (14); without any, all: some 25 minutes on
# 2 quiet cores. All but the times of `processes` are counts, which depend little on the load of the
# host.
# Needs what `make run` needs, and for `disk` apt-get, which fetches Linux.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/iommu}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- invalidations levels programs processes thresholds disk card
[ -e target/toolchain.sh ] || scripts/setup.sh
. target/toolchain.sh
cargo build --quiet --package causeway
causeway=target/debug/causeway
mkdir -p "$out/programs"
out=$(cd "$out" && pwd)
open() {
    options=$1
    shift
    $causeway run --iommu --append "iommu=open $options" \
        --share "$out/programs:/mnt/programs:ro" "$@"
}

# counted OPTION…: instructions of the kernel and of programs, and what the command prints
counted() {
    $causeway profile --accel icount --top 0 "$@" 2>&1 >"$out/printed" |
        awk '/programs, in all/ { programs = $2 } /the kernel, in all/ { kernel = $2 }
            END { print kernel, programs }'
}

cat >"$out/programs/start.sh" <<'END'
start() {
    i=0
    while [ $i -lt 100 ]; do
        sh -c 'ls /bin | wc -l >/dev/null'
        i=$((i + 1))
    done
}
# By words of the shell's own: another program would take tables.
show() {
    invalidations= heap= stacks= aside= pools=0
    while read -r name value _; do
        case $name in
            iotlb_page_table) invalidations=$value ;;
            iotlb_heap) heap=$value ;;
            iotlb_stack) stacks=$value ;;
        esac
    done </proc/causeway/iommu
    while read -r name value _ _ _ pool _; do
        case $name in
            aside) aside=$value ;;
            level) pools=$((pools + pool * (value == 1 ? 2 : 1))) ;;
        esac
    done </proc/causeway/ptcache
    echo "$1: page tables $invalidations, heap $heap, stacks $stacks; kept aside $aside, in pools $pools"
}
show start
start
show first
[ "$1" = dynamic ] && echo on >/proc/causeway/ptcache
for pass in second third fourth; do
    start
    show $pass
done
echo drain >/proc/causeway/ptcache
show drained
END

invalidations() {
    echo "== Figures 8, 10 and 11: invalidations, and pages kept, while programs start and end"
    for mode in off on dynamic; do
        echo "ptcache=$mode"
        open ptcache=$mode -- sh /mnt/programs/start.sh $mode
    done
}

levels() {
    echo "== Figure 9: instructions to allocate and to release a table, by level"
    open "mitigations=off fault_injection=tables" --accel icount --log -- true 2>&1 |
        sed -n 's/.*\] tables: //p'
}

programs() {
    echo "== Figure 12: programs that compute: instructions of the kernel and of the program"
    set -- \
        'dd if=/dev/zero bs=64k count=64 2>/dev/null | gzip -9' \
        'dd if=/dev/zero bs=64k count=256 2>/dev/null | sha512sum' \
        'seq 60000 | sort -r | md5sum' \
        'awk "BEGIN { for (i = 0; i < 200000; i++) n += i % 7; print n }"'
    for program in "$@"; do
        for mode in off on; do
            echo "ptcache=$mode: $(counted --iommu --append "mitigations=off iommu=open ptcache=$mode" \
                -- sh -c "$program"): $program"
        done
    done
}

cat >"$out/programs/time.sh" <<'END'
now() {
    read -r up _ </proc/uptime
    # A zero before digits would make them octal.
    now=$((${up%.*} * 100 + 1${up#*.} - 100))
}
measure() {
    now
    begin=$now
    i=0
    while [ $i -lt 300 ]; do
        eval "$2"
        i=$((i + 1))
    done
    now
    echo "$1 $(((now - begin) * 10000 / 300)) us"
}
for pass in 1 2 3; do
    measure fork+exit '(:)'
    measure fork+exec /bin/true
    measure fork+sh 'sh -c :'
done
END

processes() {
    echo "== Figure 13: instructions of 100 of each, the kernel's and the program's"
    for what in '(:)' /bin/true 'sh -c :'; do
        for mode in off on; do
            for count in 20 120; do
                counted --iommu --append "mitigations=off iommu=open ptcache=$mode" -- \
                    sh -c "i=0; while [ \$i -lt $count ]; do $what; i=\$((i + 1)); done"
            done | awk -v name="ptcache=$mode $what" '
                { kernel = $1 - kernel; programs = $2 - programs }
                END { print name ": " kernel / 100, programs / 100 }'
        done
    done
    echo "== Figure 13: rows of the bench, in instructions"
    # fork/0MiB, exec/fork-least and exec/fork-shell are lmbench's.
    $causeway bench fork exec --icount --iommu --against none --out "$out/fork" \
        --append iommu=open --variant "iommu=open ptcache=off" --variant iommu=strict
    echo "== Figure 13: time of each; the least of six"
    for turn in 1 2; do
        for mode in off on; do
            open ptcache=$mode -- sh /mnt/programs/time.sh | sed "s/^/ptcache=$mode /"
        done
    done | awk '
        { key = $1 " " $2; if (!(key in least) || $3 < least[key]) least[key] = $3 }
        END { for (key in least) print key, least[key], "us" }' | sort -k2
}

cat >"$out/programs/thresholds.sh" <<'END'
burst() {
    i=0
    while [ $i -lt 60 ]; do
        sleep 1 &
        i=$((i + 1))
    done
    wait
}
show() {
    while read -r name value _; do
        [ $name = iotlb_page_table ] && invalidations=$value
    done </proc/causeway/iommu
    kept=0 given=0
    while read -r name value _ _ _ pool _ _ _ back _; do
        case $name in
            aside) kept=$((kept + value)) ;;
            level) kept=$((kept + pool * (value == 1 ? 2 : 1))) given=$((given + back)) ;;
        esac
    done </proc/causeway/ptcache
}
for total in 16 32 64 128 256 512; do
    for ratio in 100 200 400 800; do
        echo "ratio=$ratio total=$total" >/proc/causeway/ptcache
        burst
        show
        before=$invalidations tables=$given
        burst
        burst
        show
        echo "total=$total ratio=$ratio: in two bursts, invalidations $((invalidations - before)), tables given back $((given - tables)); pages kept $kept"
    done
done
END

thresholds() {
    echo "== Thresholds: bursts of 60 programs"
    open ptcache=on -- sh /mnt/programs/thresholds.sh
}

# requests NAME OPTION…: instructions of the kernel and invalidations for a request, by the
# difference of two runs. Each is the one of three with the fewest instructions: interrupts of timers,
# which count as well, come the more often the slower the host is.
requests() {
    name=$1
    shift
    for count in 1024 3072 1024 3072 1024 3072; do
        words="$(counted --disk "$out/disk.img" --iommu \
            --qemu -trace --qemu 'vtd_inv_desc_iotlb*' --qemu -D --qemu "$out/trace" "$@" -- sh -c "
            dd if=/dev/vda of=/dev/null bs=64k iflag=direct count=$count 2>/dev/null")"
        echo "$count $words $(grep -c vtd_inv_desc_iotlb "$out/trace" || true)"
    done | awk -v name="$name" '
        !($1 in kernel) || $2 < kernel[$1] { kernel[$1] = $2; seen[$1] = $4 }
        END {
            printf "%s: %.0f instructions, %.3f invalidations\n", name,
                (kernel[3072] - kernel[1024]) / 2048, (seen[3072] - seen[1024]) / 2048
        }'
}

disk() {
    echo "== A disk: requests of 64 KiB past the page cache"
    truncate -s 256M "$out/disk.img"
    for policy in off open strict; do
        requests "iommu=$policy" --append "mitigations=off iommu=$policy"
    done
    requests "Linux, without" --linux --append "mitigations=off intel_iommu=off"
    requests "Linux, strict" --linux --append "mitigations=off intel_iommu=on iommu.strict=1"
    requests "Linux, lazy" --linux --append "mitigations=off intel_iommu=on iommu.strict=0"
    rm "$out/disk.img" "$out/trace"
}

# A rate stands for instructions: where one takes a nanosecond, 1 MiB/s is 953.7 of them a byte.
card() {
    echo "== Figure 14: a TCP stream over the card, by instructions that the CPU executes"
    $causeway bench network --busy --iommu --runs 3 --out "$out/card" --against none \
        --rows send-64KiB --rows send-16KiB --rows receive-64KiB --rows receive-16KiB \
        --events iotlb --events iommu \
        --append "iommu=off" --variant "iommu=open ptcache=off" --variant "iommu=open" \
        --variant "iommu=strict ptcache=off" --variant "iommu=strict"
}

for part; do
    $part
done
