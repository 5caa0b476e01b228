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

# Who unpacks the root without being root cannot give files away: the mark lists those that
# belong to others, as numbers, for `causeway run` to pack.
cd "$root"
{
    echo "causeway-root 1"
    # What mmdebstrap has mounted for the packages' scripts is not part of the root.
    find . -xdev \( -path ./dev -o -path ./proc -o -path ./sys \) -prune -o \
        \( ! -uid 0 -o ! -gid 0 \) -printf 'owner %U %G %P\n'
} >.causeway-root.new
mv .causeway-root.new .causeway-root
chmod 644 .causeway-root
