# Debian's coreutils and findutils on the in-memory file systems.
export LC_ALL=C
umask 022
mkdir -p d/e/f; cd d || exit 1
seq 1 100000 >numbers; wc numbers; md5sum numbers; sha256sum <numbers; cksum numbers; b2sum numbers
sort -rn numbers | head -n 3; sort -R --random-source=numbers numbers | sort -n | cmp - numbers && echo same
shuf -i 1-1000 | sort -n | sha1sum; split -l 30000 numbers part.; ls part.*; cat part.* | cmp - numbers && echo whole
tac numbers | head -n 2; tail -c 12 numbers; head -c 9 numbers | od -An -tx1; nl -ba <<<'one line'; rev <<<abc
cut -d0 -f2 numbers | sort | uniq -c | sort -rn | head -n 3 | sed 's/^ *//'
comm -12 <(seq 1 2 20 | sort) <(seq 1 3 20 | sort); join <(printf 'a 1\nb 2\n') <(printf 'a x\nc y\n')
tr 'a-y' 'b-z' <<<"hello"; expand -t4 <<<$'a\tb'; fold -w 5 <<<"a long line"; fmt -w 20 <<<"some words to be put into lines of twenty"
basenc --base64 <<<"causeway"; base32 <<<"x"; numfmt --to=iec 123456789; factor 9223372036854775807; expr 7 '*' 6
cp -a e e2; cp --reflink=auto numbers copy; cp --sparse=always numbers sparse; cmp copy sparse && echo copied
ln numbers hard; ln -s numbers soft; ln -s nowhere dangling; stat -c '%n %F %s %a %h %U' numbers hard soft dangling d 2>/dev/null
readlink soft; readlink -f soft | sed 's|.*/||'; realpath --relative-to=e/f numbers; test soft -ef numbers && echo same file
chmod 4751 copy; stat -c '%A' copy; chmod u-s,g+w,o= copy; stat -c '%a' copy; chown 1:2 copy; stat -c '%u %g' copy
touch -d '2001-02-03 04:05:06.789 UTC' old; stat -c '%y' old | cut -c1-23; touch -r old new; [ ! new -nt old ] && [ ! new -ot old ] && echo same time
truncate -s 1M big; stat -c '%s %b' big; fallocate -l 64K big 2>/dev/null; dd if=/dev/zero of=big bs=4k count=4 seek=10 conv=notrunc 2>&1 | head -n 2
du -s --apparent-size --block-size=1 e; du -k numbers | cut -f1; dd if=numbers bs=1000 skip=3 count=1 iflag=fullblock 2>/dev/null | sha1sum
mkfifo pipe; (cat pipe | wc -l) & head -n 77 numbers >pipe; wait; rm pipe
install -D -m 640 numbers x/y/z; stat -c %a x/y/z; rmdir e2/f; mv -T x x2; ls -F; ls -l --time-style=+%s old | sed 's/  */ /g'
tee t1 t2 <<<tee | cat; cat t1 t2; rm -f t1 t2; printf 'a\0b\0' | xargs -0 -n1 echo; seq 30 | xargs -P 3 -n 7 echo | sort -n
find . -type f -size +100k | sort; find . -newer old -name 'part.*' | sort; find . -perm -4000; find . -type l -printf '%f %l\n' | sort
find . -name 'part.*' -exec sh -c 'echo "$# files"' sh {} +; find . -name 'part.*' -delete; find . -maxdepth 1 -type d -links +2 | sort
timeout -s INT 0.2 sleep 9; echo "timeout: $?"; nice -n 5 nice; env -i A=1 env; printenv NOTHING; echo $?; nohup true 2>/dev/null; echo $?
date -u -d @86400 +%FT%T; TZ=UTC date -d '2024-02-29 + 1 year' +%F; sleep 0.01; id -u; whoami; groups; logname 2>/dev/null; tty </dev/null; arch; uname -s
stdbuf -oL printf 'buffered\n' | cat; yes | head -n 2000000 | wc -l; dd if=/dev/urandom bs=1M count=3 status=none | wc -c
mktemp -d /tmp/work.XXXXXX | sed 's/\..*//'; df --output=target / | tail -n 1; pathchk -p ok; sum numbers; ptx <<<word | sed 's/  */ /g'; tsort <<<'a b b c'
cd ..; rm -rf d; ls -A
