#!/bin/sh
# Fetches Debian's cloud kernel for Linux, unpacks it under target/linux without installing it, and
# prints the kernel's file.
set -eu
cd "$(dirname "$0")/.."
folder=target/linux
find_kernel() { find "$folder" -name 'vmlinuz-*-cloud-amd64' 2>/dev/null | sort | tail -n 1; }
if [ -z "$(find_kernel)" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "linux-kernel: needs apt-get; or name a kernel with --linux FILE" >&2
        exit 1
    fi
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: *//p' | head -n 1)
    if [ -z "$package" ]; then
        echo "linux-kernel: apt knows no linux-image-cloud-amd64: run apt-get update" >&2
        exit 1
    fi
    echo "linux-kernel: downloading $package" >&2
    mkdir -p "$folder"
    (cd "$folder" && apt-get download -q "$package" >&2 && dpkg -x "$package"_*.deb . && rm "$package"_*.deb)
fi
find_kernel
