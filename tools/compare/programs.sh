# Debian's programs: for `causeway compare-linux --root DIR --script tools/compare/programs.sh`.
# The root has bash, coreutils, python3, tar, gzip, sqlite3; the machine needs 1.5 GiB.

repeat() {
    local count=$1
    shift
    while ((count-- > 0)); do "$@"; done
}
pipeline() {
    tr a-z b-za <big | grep -v 77 | cut -d ' ' -f 2-9 | tail -n +1000 | sort -r | md5sum
}
rows() {
    sqlite3 :memory: <<'SQL'
create table t(id integer primary key, a integer, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
insert into t select i, (i * 7919) % 100003, 'row number ' || i from n;
select count(*), sum(a) from t;
select max(b) from t where a < 500;
select a % 10, count(*) from t group by a % 10 order by 1;
select count(*) from t where b like '%99%';
create index on_a on t(a);
select id from t where a = 4242;
select count(*) from t where a between 1000 and 2000;
select avg(a) from t where id % 3 = 0;
select b from t order by a desc limit 3;
select count(distinct a) from t;
select count(*) from t x join t y on x.a = y.id where y.a < 5000;
SQL
}
cd /tmp
# 50 MiB of lines, made by the shell's own means.
awk 'BEGIN { for (i = 0; i < 560000; i++) printf "%08d the quick brown fox %d jumps over the lazy dog %d and runs away %d\n", i, i * 7919 % 100003, i * 31 % 977, i * 17 }' | head -c 52428800 >big

measure python3-start repeat 5 python3 -c pass
measure bash-start repeat 20 bash -c :
measure fork-exec-true repeat 200 /bin/true
measure pipeline-50M pipeline
rm big
measure tar-30M tar -cf tree.tar -C /usr/lib python3.11
measure untar-30M tar -xf tree.tar
measure gzip-30M gzip -1 tree.tar
measure sqlite3-100k rows
