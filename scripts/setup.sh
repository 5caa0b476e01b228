#!/bin/sh
# Installs what is missing to build and run Causeway, and nothing when all is there.
#
# usage: scripts/setup.sh [test|bench|debian]
#     test     also what `make test` and `make image` need
#     bench    also Debian's kernel for Linux, which `make bench` compares with: unpacked, not installed
#     debian   also what makes a root of Debian's packages (`causeway root debian`)
#
# Programs come from the system's packages by apt-get, as root or through sudo. Rust is the one on
# the PATH if it can build for x86_64-unknown-none, or can be made to by rustup; else Debian's own,
# which builds the kernel's `core` and `alloc` from their source. Which one it is stands in
# target/toolchain.sh afterwards, for the Makefile to read. Everything is said on standard error.
set -eu
cd "$(dirname "$0")/.."

target=x86_64-unknown-none
oldest=88 # Rust 1.88, the rust-version of Cargo.toml.

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- Programs -----------------------------------------------------------------------------------

packages=
need() { packages="$packages $1"; }

PATH="$PATH:/usr/sbin:/sbin"
have qemu-system-x86_64 || need qemu-system-x86
have cc || need gcc
[ -e /usr/lib/x86_64-linux-gnu/libc.a ] || [ -e /usr/lib/libc.a ] || [ -e /usr/lib64/libc.a ] || need libc6-dev
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/ssl/cert.pem ] || need ca-certificates
# The guest has no dynamic linker: its busybox must be the static one.
if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then need busybox-static; fi
# Makes and checks file systems of disks: for roots, and for the tests of `cargo test -p fs`.
have mke2fs && have e2fsck && have debugfs || need e2fsprogs
case ${1:-} in test|debian)
    have mmdebstrap || need mmdebstrap
    # An ordinary user's root is made in a user namespace.
    [ "$(id -u)" = 0 ] || have newuidmap || need uidmap
esac
if [ "${1:-}" = test ]; then
    have grub-mkrescue || need grub-common
    [ -d /usr/lib/grub/i386-pc ] || need grub-pc-bin
    have xorriso || need xorriso
    have mformat || need mtools
    # An emulator with what QEMU's lacks: address-space tags, limits of segments.
    have bochs || need bochs
    [ -e /usr/share/bochs/BIOS-bochs-latest ] || need bochsbios
    [ -e /usr/share/vgabios/vgabios.bin ] || need vgabios
    # Logs in to guests.
    have ssh && have ssh-keygen || need openssh-client
    # A browser for the bench's page. Elsewhere than on Debian the package may be an empty one.
    if grep -q '^ID=debian$' /etc/os-release 2>/dev/null; then have chromium || need chromium; fi
fi

# --- Rust ---------------------------------------------------------------------------------------

# Whether the compiler that the PATH given as the first argument finds is new enough.
recent() {
    minor=$(PATH=$1 rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge $oldest ] && PATH=$1 command -v cargo >/dev/null 2>&1
}

# Whether it can build for the kernel's target: with its library built, or from source.
builds() {
    recent "$1" || return 1
    rustlib=$(PATH=$1 rustc --print sysroot)/lib/rustlib
    [ -d "$rustlib/$target/lib" ] && return 0
    [ -e "$rustlib/src/rust/library/alloc/Cargo.toml" ] && have ld.lld &&
        PATH=$1 command -v rustc | grep -q '^/usr/bin/'
}

own=$PATH
have cargo || [ ! -x "${HOME:-/}/.cargo/bin/cargo" ] || own=$HOME/.cargo/bin:$PATH
debian=/usr/bin:$PATH
rust=
if builds "$own"; then
    rust=$own
elif recent "$own" && PATH=$own command -v rustup >/dev/null 2>&1; then
    say "adding the target $target to your Rust (rustup target add $target)"
    if PATH=$own rustup target add $target >&2 && builds "$own"; then rust=$own; fi
fi
if [ -z "$rust" ] && builds "$debian"; then rust=$debian; fi
if [ -z "$rust" ]; then
    have ld.lld || need lld
    if ! have apt-cache || apt-cache show rustc-web 2>/dev/null | grep -q . || [ -z "$(ls /var/lib/apt/lists 2>/dev/null | grep _Packages)" ]; then
        need rustc-web; need cargo-web; need rust-web-src
    else
        need rustc; need cargo; need rust-src
    fi
fi

# --- Installing ---------------------------------------------------------------------------------

if [ "$(id -u)" = 0 ]; then as_root=
elif have sudo; then as_root=sudo
else as_root=none
fi

if [ -n "$packages" ]; then
    if ! have apt-get; then
        say "missing:$packages (by their names in Debian)"
        say "there is no apt-get here: install them by your system's means, and for Rust 1.$oldest or"
        say "later, with the target $target, use rustup; then try again"
        exit 1
    fi
    if [ "$as_root" = none ]; then
        say "missing:$packages"
        say "run as root: apt-get install --no-install-recommends$packages"
        exit 1
    fi
    say "installing with apt-get (a minute or more):$packages"
    say "updating the package lists"
    $as_root apt-get update -q >&2 || say "the package lists could not all be updated; going on"
    # shellcheck disable=SC2086 # A list of words.
    if ! $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends $packages >&2; then
        say "apt-get could not install them; its messages above say why"
        exit 1
    fi
    if [ -z "$rust" ]; then
        if ! builds "$debian"; then
            say "the Rust from the packages cannot build for $target; install Rust 1.$oldest or later"
            say "with rustup, then try again"
            exit 1
        fi
        rust=$debian
    fi
fi

mkdir -p target
printf "PATH='%s'\nexport PATH\n" "$(printf %s "$rust" | sed "s/'/'\\\\''/g")" >target/toolchain.sh.new
if cmp -s target/toolchain.sh.new target/toolchain.sh; then
    rm target/toolchain.sh.new
else
    mv target/toolchain.sh.new target/toolchain.sh
    say "Rust: $(PATH=$rust command -v rustc), $(PATH=$rust rustc --version)"
fi

# --- Linux, to compare with ----------------------------------------------------------------------

if [ "${1:-}" = bench ]; then
    if [ -z "$(find target/linux -name 'vmlinuz-*' 2>/dev/null)" ] && [ "$as_root" != none ] && have apt-cache &&
        ! apt-cache depends linux-image-cloud-amd64 2>/dev/null | grep -q Depends; then
        say "updating the package lists"
        $as_root apt-get update -q >&2 || say "the package lists could not all be updated; going on"
    fi
    scripts/linux-kernel.sh >/dev/null
fi
