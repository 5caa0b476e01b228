# Stressors of stress-ng by the count of instructions, which the host's other work does not change:
#   causeway root debian DIR bash coreutils stress-ng
#   causeway compare-linux --accel icount --pairs 1 --mem 1G --root DIR --script tools/compare/stress.sh

# Steps of a stressor with the same random numbers; the first run reads the program's pages.
steps() {
    stress-ng --quiet --seed 1 --"$1" 1 --"$1"-ops "$2" >/dev/null 2>&1 || echo "$1: status $?"
}

cd /tmp || exit
# A step of l1cache is a million passes over what the kernel says that the cache is.
grep . /sys/devices/system/cpu/cpu0/cache/index0/{level,type,size,ways_of_associativity,coherency_line_size,number_of_sets}
steps far-branch 1
for stressor in l1cache:1 far-branch:10; do
    name=${stressor%:*}
    measure "$name" steps "$name" "${stressor#*:}"
done
# It ends with its time, and then its chain of processes does: the steps are what is compared.
vforks() {
    stress-ng --seed 1 --vforkmany 1 --timeout 2 --metrics-brief 2>&1 |
        awk '$4 == "vforkmany" { print "COUNT vforkmany-in-2-s", $5 }'
}
measure vforkmany vforks
