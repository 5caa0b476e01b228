#!/bin/sh
# The first program of both kernels: prepares what a program expects, runs the experiments and powers off.
# usage: init NAME,NAME… [OPTION…]
export PATH=/bin:/usr/bin:/sbin:/usr/sbin HOME=/root USER=root
# A root of Debian's packages need not have these.
if [ -x /busybox ]; then
    for applet in mount mkdir grep ip insmod dd poweroff; do
        eval "$applet() { /busybox $applet \"\$@\"; }"
    done
fi
[ -e /proc/self ] || mount -t proc proc /proc
[ -e /sys/kernel ] || mount -t sysfs sys /sys
[ -e /dev/null ] || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mounted() { grep -q " $1 " /proc/mounts; }
mounted /dev/pts || mount -t devpts devpts /dev/pts
mounted /dev/shm || mount -t tmpfs shm /dev/shm
mounted /tmp || mount -t tmpfs tmp /tmp
ip link set lo up 2>/dev/null
# Linux's drivers are modules, in the order of their names; Causeway has its own inside.
if [ -d /linux-modules ] && ! [ -e /proc/causeway ]; then
    for module in /linux-modules/*; do
        case $module in
            *brd*) insmod "$module" rd_nr=1 rd_size="$memory_disk" ;;
            *) insmod "$module" ;;
        esac
    done
    # Its pages are there once they are written.
    [ -b /dev/ram0 ] && dd if=/dev/zero of=/dev/ram0 bs=1M 2>/dev/null
fi
if [ -n "$address" ] && ! [ -e /proc/causeway ]; then
    ip address add "$address" dev eth0
    ip link set eth0 up
fi
names=$1
shift
cd /tmp || exit
IFS=,
# shellcheck disable=SC2086 # A list of names.
/bench $names "$@"
echo "{\"end\":$?}"
poweroff -f
