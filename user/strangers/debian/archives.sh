# tar, gzip and the other compressors, over a tree with every kind of file.
export LC_ALL=C
umask 022
mkdir -p tree/deep/er tree/empty
seq 1 30000 >tree/numbers; head -c 300000 /dev/zero >tree/zeros; truncate -s 5M tree/sparse
cp /bin/bash tree/deep/program; chmod 4755 tree/deep/program; ln tree/numbers tree/deep/hard; ln -s ../numbers tree/deep/soft
mkfifo tree/fifo; mknod tree/null c 1 3; printf 'a name\n' >"tree/with a space"; chown 3:4 tree/zeros; touch -d @1000000000 tree/numbers tree/empty
for i in $(seq 1 200); do echo "$i" >"tree/deep/er/file-$i-with-a-name-that-is-longer-than-the-hundred-bytes-that-the-oldest-format-had-room-for-so-that-it-needs-more"; done
tar -cf all.tar --sort=name tree; tar -tvf all.tar --utc | grep -v '/er/' | sed 's/20[0-9-]* [0-9:]*/when/;s/  */ /g'
mkdir out; tar -xpf all.tar -C out; diff -r --no-dereference tree/deep out/tree/deep && echo same
stat -c '%F %a %u %g %s %h %t,%T' out/tree/* | sort; [ out/tree/numbers -ef out/tree/deep/hard ] && echo hard link
stat -c %Y out/tree/numbers out/tree/empty; tar -df all.tar && echo no difference
tar -cSf sparse.tar tree/sparse; [ "$(stat -c %s sparse.tar)" -lt 100000 ] && echo sparse; rm -rf out
for how in gzip bzip2 xz; do
    $how -k -c all.tar >all.$how; $how -dc all.$how | cmp - all.tar && echo "$how round trip"
    tar -xf all.$how -O tree/numbers | md5sum
done
gzip -9 -c tree/zeros | wc -c; gzip -l all.gzip 2>/dev/null | wc -l; zcat all.gzip | md5sum | wc -c
tar -c tree | tar -x --transform 's/^tree/copy/' -f -; diff -r --no-dereference --exclude=fifo --exclude=null tree copy && echo piped
tar -rf all.tar "tree/with a space"; tar -tf all.tar | tail -n 1; tar --delete -f all.tar tree/zeros; tar -tf all.tar | grep -c zeros
echo more >>tree/numbers; tar -cf new.tar -g snapshot tree; sleep 0.01; echo x >tree/new; tar -cf inc.tar -g snapshot tree; tar -tf inc.tar | grep -v '/$'
gzip -t all.gzip && echo sound; head -c 1000 all.gzip | gzip -t 2>/dev/null; echo $?; rm -rf tree copy
