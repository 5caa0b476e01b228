# The first step of `causeway root debian`, run by mmdebstrap in its own namespace with the new root
# as $1, before a package is fetched: Debian's lists, whether they have all the packages in
# $packages, and how many will be installed. Its caller reads the lines that start with "causeway:".
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" LC_ALL=C
cd "$1"
echo "I: running apt-get update..." >&2
if ! said=$(apt-get update --error-on=any 2>&1); then
    echo "$said" >&2
    case $said in
        *"File has unexpected size"* | *"Hash Sum mismatch"*)
            # The server has changed a list and not yet the other ones: those that fit together
            # have the packages, if perhaps not the newest versions.
            echo "causeway: warning a list of the package server is out of step with its others" >&2
            apt-get update >&2 || true
            ;;
        *) exit 1 ;;
    esac
fi
if chosen=$(apt-get --simulate install $essential $packages 2>&1); then
    echo "causeway: packages $(echo "$chosen" | grep -c '^Inst ' || true)" >&2
else
    echo "$chosen" >&2
    apt-cache dumpavail | sed -n 's/^Package: /causeway: name /p' >&2
    exit 1
fi
