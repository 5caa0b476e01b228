# The steps of `causeway root debian --add`, run by mmdebstrap in its own namespace with the root as
# $1: the packages in $packages are installed in it, and what that leaves behind goes.
set -eu
root=$1
export LC_ALL=C
echo "I: installing more packages inside the chroot..." >&2
mv "$root/etc/resolv.conf" "$root/etc/resolv.conf.kept" 2>/dev/null || true
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" DEBIAN_FRONTEND=noninteractive apt-get --yes install \
    -oDPkg::Chroot-Directory="$root" $packages >&2
rm -f "$root/etc/resolv.conf"
mv "$root/etc/resolv.conf.kept" "$root/etc/resolv.conf" 2>/dev/null || true
