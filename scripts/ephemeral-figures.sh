#!/bin/sh
# Figures of the paper on ephemeral mappings, redrawn here: what docs/performance.md has of them.
#   scripts/ephemeral-figures.sh [DIR [PART…]]    into DIR (out/ephemeral)
# The parts are `figures`, `instructions`, `network`, and `causes`, the counters of which hold
# whatever the load of the host is; without any, all: some 60 minutes on 2 quiet cores. `network`
# wants to be run by root, who can make an interface of the host's.
# Each table of the first two shows a row on the direct map first, beside the kernel without options,
# and then with each variant: the paper's original kernel, its sf_buf kernel (a window of 256 MiB)
# with private and with shared mappings, this kernel's window, and pages outside the direct map.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/ephemeral}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- figures instructions network causes
causeway=target/debug/causeway
paper="ephemeral=window ephemeral.parts=off ephemeral.late=off ephemeral.ahead=1 ephemeral.flushes=off"
mkdir -p "$out"

# bench NAME OPTIONS WORD…: the variants, each with OPTIONS
bench() {
    name=$1 options=$2
    shift 2
    # A row of the original kernel on 4 CPUs may take longer than a row may.
    $causeway bench --against none --out "$out/$name" --events ephemeral_ --events tlb_remote "$@" \
        --append "$options" \
        --variant "$options ephemeral=uncached" \
        --variant "$options $paper ephemeral.entries=65536" \
        --variant "$options $paper ephemeral.entries=65536 ephemeral.private=off" \
        --variant "$options ephemeral=window ephemeral.entries=65536" \
        --variant "$options $paper ephemeral.entries=6144" \
        --variant "$options directmap=kernel" || true
}

figures() {
    for cpus in 1 2 4; do
        echo "== Figures 2 and 3: bw_pipe, $cpus CPUs: bytes copied twice, and once"
        for movement in copy once; do
            bench "pipe-$movement-$cpus" movement=$movement --smp $cpus --runs 3 pipe --rows bw-pipe
        done
        echo "== Figures 4 to 7: disk dump, $cpus CPUs"
        bench "disk-$cpus" "" --smp $cpus --runs 1 --full --mem 1536M disk-dump --rows direct
        echo "== Figures 8 to 10: PostMark, $cpus CPUs: a fiftieth of the transactions"
        bench "postmark-$cpus" "" --smp $cpus --runs 1 postmark --rows disk
        echo "== Figures 11 and 13: TCP, $cpus CPUs, bytes copied"
        bench "tcp-$cpus" movement=copy --smp $cpus --runs 3 tcp-loopback --rows 64KiB
        echo "== Figures 15, 17, 19, 20: web server, $cpus CPUs"
        bench "web-$cpus" "" --smp $cpus --runs 1 --full --mem 1536M web-server --rows nasa
    done
}

instructions() {
    echo "== Instructions, one CPU"
    bench counted "" --icount pipe postmark disk-dump tcp-loopback web-server \
        --rows bw-pipe --rows disk --rows 64KiB --rows nasa
    echo "== The whole bench without programs' pages in the direct map"
    $causeway bench --icount --against causeway --append directmap=kernel --out "$out/directmap"
}

# What a card leaves to the kernel: nothing, to cut segments, to sum them as well.
uncut="host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off"
uncut="$uncut,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
plain="csum=off,guest_csum=off,gso=off,$uncut"

network() {
    for mtu in 1500 16384; do
        for card in event_idx=on "$uncut" "$plain"; do
            case $card in
                csum*) left=sums ;;
                host*) left=cuts ;;
                *) left=nothing ;;
            esac
            echo "== Figures 11 to 14: a stream over the card, MTU $mtu, left to the kernel: $left"
            bench "net-$mtu-$left" "" --busy --mtu $mtu --card "$card" \
                network --rows send-64KiB --rows receive-64KiB
            bench "net-$mtu-$left-2" "" --smp 2 --runs 1 --mtu $mtu --card "$card" \
                network --rows send-64KiB
        done
    done
    for card in "$uncut" "$plain"; do
        echo "== Figures 15 to 20: web servers over the card, an eighth of the files; ${card%%,*}"
        bench "net-web-${card%%=*}" "" --busy --card "$card" network --rows nasa --rows rice
    done
}

# Local and remote invalidations by cause, with 64K and with 6K entries.
causes() {
    for cpus in 2 4; do
        echo "== Invalidations by cause, $cpus CPUs"
        $causeway bench --against none --out "$out/causes-$cpus" --events ephemeral_ \
            --smp $cpus --runs 1 --mem 1536M \
            disk-dump web-server --rows direct-128 --rows nasa \
            --append "$paper ephemeral.entries=65536" \
            --variant "$paper ephemeral.entries=6144" \
            --variant "$paper ephemeral.entries=65536 ephemeral.private=off" \
            --variant "$paper ephemeral.entries=6144 ephemeral.private=off" \
            --variant "ephemeral=window ephemeral.entries=65536 ephemeral.private=off" \
            --variant "ephemeral=window ephemeral.entries=65536" \
            --variant "ephemeral=window ephemeral.entries=6144" || true
    done
}

for part; do
    $part | tee "$out/$part.txt"
done
