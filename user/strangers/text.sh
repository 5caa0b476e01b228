# sort, uniq, awk, sed, grep, cut, tr, head, tail, paste, comm, diff, and what goes with them.
seq 1 2000 | awk '{printf "%d line-%03d %s\n", ($1 * 7919) % 1009, $1 % 37, ($1 % 5 == 0) ? "five" : "other"}' > data
sort data | md5sum; sort -n data | md5sum; sort -k2,2 -k1,1nr data | md5sum; sort -u -k3 data
sort -rn data | head -n 5; sort data | uniq -c | sort -rn | tail -n 3 | awk '{print $1}'
cut -d' ' -f2 data | sort | uniq -c | sort -k1,1nr -k2 | head -n 4
awk '{sum[$3] += $1; n[$3]++} END {for (k in sum) print k, sum[k], n[k]}' data | sort
awk 'BEGIN {x = 1; while (x < 1e9) x *= 3; print x, sqrt(2), int(7 / 2), length("hello"), substr("abcdef", 2, 3), toupper("up")}'
awk -F- '/five/ {gsub(/e/, "E"); print $2; c++} c == 5 {exit}' data
awk 'BEGIN {while (("echo a; echo b" | getline line) > 0) print "got", line; "date +%Y" | getline y; print (y > 2000)}'
sed -n '5,8p;10q' data; sed 's/\([0-9]*\) line-\([0-9]*\)/\2:\1/;3,$d' data
sed -e '/five/!d' -e 's/five/5/g' data | wc -l; sed '$!N;s/\n/ + /' data | sed -n '1p;$p'
sed -i 's/other/another/' data; grep -c another data
grep -v five data | grep -E '^(1|2)[0-9]* ' | wc; grep -n 'line-036' data | head -n 3; grep -o '^[0-9]*' data | tail -n 2
head -c 100 data; tail -c 50 data; tail -n +1999 data; tac data | head -n 2; nl data | sed -n 3p
tr a-z A-Z < data | tr -d 0-9 | tr -s ' ' | uniq | head -n 4
seq 1 5 > a; seq 3 8 > b; paste -d, a b; diff a b; diff -u a a && echo same
join a b 2>/dev/null || true; fold -w 20 data | sed -n '1,3p'; rev a | md5sum; expand -t 4 a | md5sum
wc data a b; md5sum data; sha1sum data; sha256sum data; sha512sum data | cut -c 1-32; cmp a b
od -An -tx1 -N 16 data; hexdump -C data | sed -n '1,2p'; strings data | md5sum; base64 a; xxd a 2>/dev/null | head -n 2
expr 6 \* 7; expr length hello; seq 1 3 10; seq -s, 5; factor 1001; printf '%05d %x %s %c\n' 42 255 str ch
dc -e '2 100 ^ p' 2>/dev/null; echo '2^64 / 3' | bc 2>/dev/null
shuf -i 1-10 | sort -n | tr '\n' ' '; echo; yes abc | head -n 3; seq 1 100000 | tail -n 1
