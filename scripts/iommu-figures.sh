#!/bin/sh
# Figures of iosup.txt, redrawn here: what docs/performance.md has of them.
#   scripts/iommu-figures.sh [DIR]    into DIR (out/iommu); some 10 minutes on 2 quiet cores
# Counts of instructions and of invalidations, which hold whatever the load of the host is.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/iommu}
causeway=target/debug/causeway
mkdir -p "$out/programs"

echo "== Figure 8, and the pools of Figures 10 and 11: invalidations while programs start and end"
cat > "$out/programs/start.sh" <<'END'
start() {
    i=0
    while [ $i -lt 100 ]; do
        sh -c 'ls /bin | wc -l >/dev/null'
        i=$((i + 1))
    done
}
show() {
    counters=$(grep -E '^iotlb_(page_table|heap|stack)' /proc/causeway/iommu)
    pools=$(awk '/^level/ { n += $6 } END { print n }' /proc/causeway/ptcache)
    echo $counters $(grep aside /proc/causeway/ptcache) pools $pools
}
show
start
show
[ "$1" = dynamic ] && echo on > /proc/causeway/ptcache
for pass in 2 3 4; do
    start
    show
done
echo drain > /proc/causeway/ptcache
show
END
for mode in off on dynamic; do
    echo "ptcache=$mode"
    $causeway run --iommu --append "iommu=open ptcache=$mode" \
        --share "$out/programs:/mnt/programs:ro" -- sh /mnt/programs/start.sh $mode
done

echo "== Figure 13: fork and exec, with the cache and without"
$causeway bench fork exec --icount --iommu --against none --out "$out/fork" \
    --append iommu=open --variant "iommu=open ptcache=off" --variant iommu=strict

echo "== A disk: instructions of 1024 requests of 64 KiB"
head -c 67108864 /dev/zero > "$out/disk"
for policy in off open strict; do
    echo "iommu=$policy"
    $causeway profile --disk "$out/disk" --iommu --append "mitigations=off iommu=$policy" \
        --accel icount --top 400 -- sh -c '
            dd if=/dev/vda of=/dev/null bs=64k iflag=direct 2>/dev/null
            grep -E "^iommu_domain|^iotlb_batch" /proc/causeway/iommu
            grep -E "^disk_requests" /proc/causeway/counters' |
        grep -E 'in all|^iommu|^iotlb|^disk'
done
rm "$out/disk"
