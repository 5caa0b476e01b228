# The last step of `causeway root debian`, run by mmdebstrap in its own namespace with the root
# as $1, when all packages are configured: what an installer would ask its user, and the mark by
# which Causeway knows its own roots.
set -eu
root=$1
export LC_ALL=C

echo causeway >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost causeway\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
# The guest has no network but its loopback device: no name server.
rm -f "$root/etc/resolv.conf"
: >"$root/etc/resolv.conf"
# A login shell's locale; C.UTF-8 is part of the C library.
echo 'export LANG=C.UTF-8' >"$root/etc/profile.d/locale.sh"
rm -rf "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/var/cache/apt/archives/"*.deb
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/tmp"

