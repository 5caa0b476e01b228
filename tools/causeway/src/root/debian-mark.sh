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
