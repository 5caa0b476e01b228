# sed, gawk, grep.
export LC_ALL=C.UTF-8
seq 1 20000 | gawk '{ sum += $1; n[$1 % 7]++ } END { print sum; for (i = 0; i < 7; i++) printf "%d ", n[i]; print "" }'
gawk 'BEGIN { print length("größe"), toupper("straße"), substr("añb", 2, 1); printf "%.3f %e %s\n", atan2(0, -1), 12345.678, strftime("%F", 0, 1) }'
gawk 'BEGIN { while (("seq 3" | getline line) > 0) print "got " line; close("seq 3"); print "b\na" | "sort"; close("sort"); "date -u -d @0 +%Y" | getline y; print y }'
gawk 'BEGIN { cmd = "cat"; print "to a coprocess" |& cmd; close(cmd, "to"); cmd |& getline x; print x; print system("exit 3") }'
gawk 'BEGIN { n = split("c a b", w); asort(w); for (i = 1; i <= n; i++) print w[i]; print gensub(/(a+)(b+)/, "\\2\\1", "g", "aabb ab"); print and(12, 10), lshift(1, 10) }'
printf 'k=v\nx=y\n' | gawk -F= -v OFS=: '{ $1 = $1; print > "/dev/stderr"; print NR, NF }' 2>&1 | sort
gawk 'BEGIN { srand(42); a = rand(); srand(42); print (a == rand()); print (PROCINFO["pid"] > 0) }'
printf '%s\n' alpha beta gamma delta | sed -n '/be/,/ga/{s/a/A/g;p}'
printf '%s\n' one two three | sed -e '1!G;h;$!d'
printf 'x1y22z333\n' | sed -E 's/([a-z])([0-9]+)/\2\1/g; y/xyz/XYZ/'
printf 'a\nb\nc\n' >file; sed -i.bak -e '2s/.*/B &/' -e '$a end' file; cat file file.bak; sed -n '$=' file
seq 10 | sed -n '0~3p'; seq 5 | sed '2q5'; echo $?; sed 's/x/echo run/e' <<<x; printf 'a\nb\n' | sed 'N;s/\n/+/'
seq 1 50000 | grep -c 7; seq 1 50000 | grep -E '^(12|34)+$' | head; grep -o '[0-9]\+' <<<'a12b345'; grep -P '(?<=a)\d+' -o <<<'a12b345'
printf 'foo\nbar\nfoobar\n' >g; grep -n -w foo g; grep -v foo g; grep -A1 -m1 foo g; grep -q none g; echo $?; grep -i GRÖSSE <<<größe; echo $?
mkdir -p t/u; echo needle >t/u/f; grep -r needle t; grep -rl needle t; printf 'a\0b' >t/bin; grep -c a t/bin; grep -F -f g g | wc -l; zgrep -c foo <(gzip -c g)
yes 'the quick brown fox' | head -n 100000 | sed 's/quick/slow/' | gawk '{ print $2 }' | sort | uniq -c | sed 's/^ *//'
