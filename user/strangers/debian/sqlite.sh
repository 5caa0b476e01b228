# sqlite3: a database in memory, on the file system with each kind of journal, two processes at once.
sqlite3 :memory: "create table t(a integer primary key, b text); with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000) insert into t select x, 'row ' || (x * 7919 % 20000) from c; create index i on t(b); select count(*), sum(a), min(b), max(b) from t; select a from t where b = 'row 77'; select substr(b, 1, 5) p, count(*) from t group by p order by 2 desc, 1 limit 3;"
for mode in delete truncate persist memory wal; do
    rm -f db*; sqlite3 db "pragma journal_mode=$mode; create table t(a, b); begin; insert into t select value, hex(value * 31) from generate_series(1, 3000); commit; update t set b = 'x' where a % 3 = 0; delete from t where a % 5 = 0; pragma integrity_check; select count(*), total(a) from t;"
    sqlite3 db "begin; insert into t values (-1, 'gone'); rollback; select count(*) from t where a < 0;"; ls | grep -c '^db'
done
rm -f db*; sqlite3 db 'pragma journal_mode=wal; create table t(a);'
for p in 1 2 3; do (for i in $(seq 20); do sqlite3 -cmd '.timeout 20000' db "insert into t values ($p * 1000 + $i)"; done) & done; wait; sqlite3 db 'select count(*), sum(a) from t; pragma integrity_check; vacuum;'
seq 1 500 | sed 's/$/,a line/' >in.csv; sqlite3 db '.mode csv' '.import in.csv c' '.headers on' 'select count(*) as n from c' '.dump c' | tail -n 3; sqlite3 db '.backup copy' && sqlite3 copy 'select count(*) from c'
sqlite3 -json db "select json_object('a', 1, 'b', json_array(1, 2)) as j, strftime('%Y', 0, 'unixepoch') as y, round(exp(1), 6) as e;"; sqlite3 db 'select * from none' 2>&1 | head -n 1; rm -f db* copy
