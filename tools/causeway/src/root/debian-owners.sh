# Run by mmdebstrap in its own namespace with an existing root as $1: files that an ordinary user
# could not give away get the owners that the root's mark names. A new owner takes the set-id bits
# away, so the mode is set again.
set -eu
cd "$1"
[ -f .causeway-root ] || exit 0
while read -r word uid gid path; do
    [ "$word" = owner ] || continue
    [ -e "$path" ] || [ -L "$path" ] || continue
    [ "$(stat -c %u:%g "$path")" = 0:0 ] || continue
    mode=$(stat -c %a "$path")
    chown -h "$uid:$gid" "$path"
    [ -L "$path" ] || chmod "$mode" "$path"
done <.causeway-root
