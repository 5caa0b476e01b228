#!/bin/sh
# Fetches Debian's busybox-static for i386 into the user's cache folder, without a word to the
# host's dpkg, and prints the program's file. Only the first time anything is downloaded.
set -eu
cache=${CAUSEWAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/causeway}
folder=$cache/i386
program=$folder/busybox
if [ ! -x "$program" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "busybox-i386: needs apt-get" >&2
        exit 1
    fi
    work=$folder/new.$$
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    # An apt for i386 with lists and caches of its own: those of the host stay as they are, and
    # nobody needs to be root.
    apt() {
        apt-get -q -o APT::Architecture=i386 -o APT::Architectures=i386 \
            -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" \
            -o APT::Sandbox::User= -o Acquire::Languages=none \
            -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@" >&2
    }
    echo "busybox-i386: downloading busybox-static:i386" >&2
    apt update || echo "busybox-i386: the package lists could not all be updated; going on" >&2
    (cd "$work" && apt download busybox-static)
    dpkg -x "$work"/busybox-static_*_i386.deb "$work/unpacked"
    mv "$work/unpacked/bin/busybox" "$program"
fi
echo "$program"
