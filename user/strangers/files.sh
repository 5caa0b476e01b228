# ls, find, cp, mv, ln, rm, stat, tar, gzip and their like.
umask 022
mkdir -p tree/a/b tree/c; echo one > tree/a/1; echo two > tree/a/b/2; seq 1 10000 > tree/c/3
ln tree/a/1 tree/hard; ln -s a/1 tree/soft; ln -s nowhere tree/dangling; mkfifo tree/fifo
chmod 640 tree/a/1; chmod u+s,o-r tree/c/3; chmod 1777 tree/c; touch -d '2020-02-03 04:05:06' tree/a/b/2
ls tree; ls -A tree/a; ls -R tree; ls -p tree | tail -n 3; ls -1 tree | wc -l
ls -l tree | awk '{print $1, $2}' | tail -n +2; ls -ld tree/c | cut -c 1-10; ls -l tree/soft | sed 's/.*soft/soft/'
find tree | sort; find tree -type f -name '[12]' | sort; find tree -type l | sort; find tree -size +10k
find tree -perm -4000; find tree -links 2 -type f | sort; find tree -newer tree/a/b/2 -type f | sort; find tree -empty
find tree -type f -exec wc -c {} \; | sort; find tree -type f -print0 | xargs -0 -n 2 echo | wc -l; find tree -mindepth 2 -maxdepth 2 | sort
stat -c '%n %A %h %s %F' tree/a/1 tree/soft tree/fifo; stat -c '%n %A %h %F' tree/c; stat -c %Y tree/a/b/2; readlink tree/soft
cp -a tree copy; find copy | sort | md5sum; stat -c '%A %s' copy/c/3; cat copy/soft; [ copy/a/1 -nt copy/a/b/2 ] && echo newer
cp tree/c/3 plain; cmp plain tree/c/3 && echo equal; mv plain moved; ls moved plain 2>&1
mv copy/a copy/renamed; ls copy; rm -r copy/renamed; rmdir copy 2>&1; rm -rf copy; ls -d copy 2>&1
rm tree/dangling tree/fifo; tar cf all.tar tree; tar tf all.tar | sort; mkdir out; tar xf all.tar -C out
diff -r tree out/tree && echo unpacked; stat -c '%A %h' out/tree/a/b/2 out/tree/hard; stat -c %Y out/tree/a/b/2
tar czf all.tgz -C tree a c; gzip -dc all.tgz | tar tf - | sort; tar cf - tree | tar xf - -C out && echo piped
gzip -k tree/c/3 && gunzip -c tree/c/3.gz | cmp - tree/c/3 && echo gzip; bzip2 -k tree/c/3 2>/dev/null; bunzip2 -c tree/c/3.bz2 | md5sum
gzip -9 < tree/c/3 | wc -c; zcat tree/c/3.gz | tail -n 1; printf 'x%.0s' $(seq 1 100) | gzip | gunzip; echo
(cd tree && find a | sort | cpio -o -H newc 2>/dev/null) | cpio -t 2>/dev/null
dd if=/dev/zero of=zeros bs=1k count=100 2>/dev/null; wc -c zeros; md5sum zeros; dd if=tree/c/3 bs=7 skip=3 count=2 2>/dev/null; echo
truncate -s 1000000 sparse; wc -c < sparse; truncate -s 5 tree/a/b/2; cat tree/a/b/2
du -s zeros | awk '{print ($1 >= 100)}'; df . | wc -l; touch new; [ -s new ]; echo $?; [ -x tree/c ] && [ ! -e none ] && echo tests
basename /a/b.c .c; dirname /a/b.c; realpath tree/../tree/a | sed 's,.*/tree,tree,'; pwd -P | grep -c /; mktemp -d -p . | wc -c
echo data | tee one two; cat one two; ls -i tree/hard tree/a/1 | awk '{print $1}' | uniq | wc -l
cat /etc/none 2>&1; mkdir tree 2>&1; cd none 2>&1; rm none 2>&1; ls -l none 2>&1; cat tree 2>&1; rmdir tree 2>&1
