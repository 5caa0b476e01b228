# Python's sqlite3 (Debian's package of Python's own tests leaves out those of this module): its interface, and what a database asks of files.
cat >t.py <<'P'
import contextlib, datetime, hashlib, os, signal, sqlite3, subprocess, sys, threading, time
from multiprocessing import get_context

def title(text): print("--", text)
def fails(f, *a, **k):
    try: print("no error", f(*a, **k))
    except Exception as e: print(type(e).__name__, getattr(e, "sqlite_errorname", ""), e)
def catch(f, *a):
    try: f(*a)
    except Exception as e: return e
def remove(name):
    for end in "", "-wal", "-shm", "-journal":
        with contextlib.suppress(FileNotFoundError): os.unlink(name + end)
def digest(db): return hashlib.sha256("\n".join(db.iterdump()).encode()).hexdigest()[:16]

title("the module")
print(sqlite3.apilevel, sqlite3.paramstyle, sqlite3.threadsafety, sqlite3.sqlite_version_info >= (3, 40))
print(sqlite3.complete_statement("select 1;"), sqlite3.complete_statement("create trigger"))
for name in "Warning", "DatabaseError", "IntegrityError", "ProgrammingError", "OperationalError", "NotSupportedError": print(name, getattr(sqlite3, name).__mro__[1].__name__)

title("values and parameters")
db = sqlite3.connect(":memory:")
values = [None, 0, -1, 2**63 - 1, -2**63, 1.5, float("inf"), "", "ü\0x", b"", bytes(range(256)), bytearray(b"ab"), memoryview(b"cd")]
for v in values: print(db.execute("select ?, typeof(?1)", (v,)).fetchone())
print(db.execute("select :a + :b, @a, $b", {"a": 3, "b": 4}).fetchone())
fails(db.execute, "select ?", (2**63,)); fails(db.execute, "select ?", ()); fails(db.execute, "select :x", {}); fails(db.execute, "selct 1"); fails(db.execute, "select 1; select 2")
fails(db.execute, "select ?", (object(),)); fails(db.execute, "select '\ud800'"); fails(db.execute, "select * from nothing")

title("cursors")
db.execute("create table t(a integer primary key, b text, c real)")
cur = db.executemany("insert into t(b, c) values (?, ?)", ((f"row {i}", i / 7) for i in range(1000)))
print(cur.rowcount, cur.lastrowid, cur.description); cur = db.execute("insert into t(b) values ('x') returning a, b"); print(cur.fetchall(), [d[0] for d in cur.description])
cur.arraysize = 3; cur.execute("select a from t order by a"); print(cur.fetchone(), cur.fetchmany(), cur.fetchmany(2), len(cur.fetchall()), cur.fetchone())
db.executescript("create table u(x); insert into u values (1); insert into u values (2); create view v as select sum(x) s from u;"); print(db.execute("select * from v").fetchall())
cur.close(); fails(cur.fetchone); fails(db.cursor, 5)

title("rows, text and types")
db.row_factory = sqlite3.Row; r = db.execute("select a, b as B from t limit 1").fetchone(); print(r.keys(), r["b"], r[0], tuple(r), len(r), "B" in r.keys(), r == db.execute("select a, b as B from t limit 1").fetchone()); fails(lambda: r["none"])
db.row_factory = lambda c, row: {d[0]: x for d, x in zip(c.description, row)}; print(db.execute("select 1 one, 'two' two").fetchone()); db.row_factory = None
db.text_factory = bytes; print(db.execute("select 'ü'").fetchone()); db.text_factory = lambda b: b.decode("latin-1"); print(db.execute("select cast(x'ff' as text)").fetchone()); db.text_factory = str
fails(lambda: db.execute("select cast(x'ff' as text)").fetchone())
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __conform__(self, protocol): return f"{self.x};{self.y}"
sqlite3.register_converter("point", lambda b: tuple(map(int, b.split(b";"))))
typed = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
typed.execute("create table p(at point, d date, t timestamp)"); typed.execute("insert into p values (?, ?, ?)", (Point(3, -4), datetime.date(2001, 2, 3), datetime.datetime(2001, 2, 3, 4, 5, 6, 7)))
print(typed.execute("select * from p").fetchone(), typed.execute('select \'5;6\' as "x [point]"').fetchone())

title("transactions")
db = sqlite3.connect("db"); db.execute("create table t(a unique)"); print(db.in_transaction)
db.execute("insert into t values (1)"); print(db.in_transaction, db.total_changes); db.rollback(); print(db.execute("select count(*) from t").fetchone(), db.in_transaction)
with db: db.execute("insert into t values (1)")
try:
    with db: db.execute("insert into t values (2)"); db.execute("insert into t values (1)")
except sqlite3.IntegrityError as e: print(e, e.sqlite_errorname, e.sqlite_errorcode)
print(db.execute("select * from t").fetchall()); db.isolation_level = None
db.execute("begin immediate"); db.execute("savepoint s"); db.execute("insert into t values (3)"); db.execute("rollback to s"); db.execute("insert into t values (4)"); db.execute("commit"); print(db.execute("select * from t").fetchall())
other = sqlite3.connect("db", timeout=0.05, isolation_level="EXCLUSIVE"); db.execute("begin exclusive"); fails(other.execute, "insert into t values (9)"); fails(other.execute, "select * from t"); db.execute("commit")
other.execute("insert into t values (5)"); fails(sqlite3.connect("db", timeout=0).execute, "select 1 from t"); other.commit(); other.close(); db.close(); fails(db.execute, "select 1")

title("functions")
db = sqlite3.connect(":memory:"); db.create_function("twice", 1, lambda x: x * 2, deterministic=True); db.create_function("many", -1, lambda *a: len(a))
print(db.execute("select twice(21), many(), many(1, 2, 3), twice('ab')").fetchone()); db.create_function("bad", 0, lambda: 1 / 0); fails(lambda: db.execute("select bad()").fetchone())
class Longest:
    def __init__(self): self.s = ""
    def step(self, s): self.s = max(self.s, s, key=len)
    def finalize(self): return self.s
db.create_aggregate("longest", 1, Longest); print(db.execute("with x(s) as (values ('a'), ('ccc'), ('bb')) select longest(s) from x").fetchone())
class Sum:
    def __init__(self): self.n = 0
    def step(self, n): self.n += n
    def inverse(self, n): self.n -= n
    def value(self): return self.n
    def finalize(self): return self.n
db.create_window_function("wsum", 1, Sum); print(db.execute("with x(n) as (values (1), (2), (3), (4)) select wsum(n) over (order by n rows between 1 preceding and 1 following) from x").fetchall())
db.create_collation("backwards", lambda a, b: (a < b) - (a > b)); print(db.execute("select * from (values ('a'), ('c'), ('b')) order by 1 collate backwards").fetchall())
seen = []; db.set_authorizer(lambda *a: sqlite3.SQLITE_DENY if a[0] == sqlite3.SQLITE_DROP_TABLE else sqlite3.SQLITE_OK); db.execute("create table g(x)"); fails(db.execute, "drop table g"); db.set_authorizer(None)
db.set_trace_callback(seen.append); db.execute("insert into g values (?)", (5,)); db.commit(); db.set_trace_callback(None); print(seen)
ticks = []; db.set_progress_handler(lambda: ticks.append(1), 1000); db.execute("with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000) select max(x) from c").fetchone(); print(len(ticks) > 10); db.set_progress_handler(lambda: 1, 1000); fails(lambda: db.execute("with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c").fetchone()); db.set_progress_handler(None, 0)
endless = sqlite3.connect(":memory:", check_same_thread=False); timer = threading.Timer(0.3, endless.interrupt); timer.start(); fails(lambda: endless.execute("with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c").fetchone()); timer.join()
t = threading.Thread(target=lambda: print("made in" in str(catch(db.execute, "select 1")))); t.start(); t.join(); print(db.getlimit(sqlite3.SQLITE_LIMIT_COLUMN), db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)); fails(db.execute, "select zeroblob(2000)")

title("blobs, copies, dumps")
db = sqlite3.connect(":memory:"); db.execute("create table b(x blob)"); db.execute("insert into b values (zeroblob(3000000))")
with db.blobopen("b", "x", 1) as blob:
    blob.write(b"start"); blob.seek(-3, os.SEEK_END); blob.write(b"end"); blob[1000] = 7; blob[2000:2004] = b"four"; print(len(blob), blob.tell(), blob[1000], blob[1999:2005]); fails(blob.write, b"x")
db.commit()
print(hashlib.sha256(db.execute("select x from b").fetchone()[0]).hexdigest()[:16]); image = db.serialize(); copy = sqlite3.connect(":memory:"); copy.deserialize(image); print(len(image), digest(copy) == digest(db))
remove("copy"); disk = sqlite3.connect("copy"); steps = []; db.backup(disk, pages=100, progress=lambda s, left, all: steps.append(left)); print(steps[:3], steps[-1], digest(disk) == digest(db), os.stat("copy").st_size); disk.close()
read_only = sqlite3.connect("file:copy?mode=ro", uri=True); fails(read_only.execute, "delete from b"); fails(sqlite3.connect, "file:none?mode=rw", uri=True); fails(sqlite3.connect, "/none/db"); read_only.close()
with open("junk", "wb") as f: f.write(b"no database at all, " * 100)
fails(sqlite3.connect("junk").execute, "select * from sqlite_master")

title("journals, sizes, memory")
for mode in "delete", "truncate", "persist", "memory", "wal", "off":
    for size, mapped in (512, 0), (4096, 1 << 20), (65536, 0):
        remove("db"); db = sqlite3.connect("db", isolation_level=None); db.execute(f"pragma page_size={size}"); db.execute(f"pragma mmap_size={mapped}"); print(db.execute(f"pragma journal_mode={mode}").fetchone()[0], end=" ")
        db.execute("pragma cache_size=20"); db.execute("pragma temp_store=file"); db.execute("create table t(a integer primary key, b blob)"); db.execute("begin")
        db.executemany("insert into t values (?, ?)", ((i, bytes([i % 256]) * (i * 37 % 2000)) for i in range(1500))); db.execute("commit"); db.execute("create index i on t(length(b), b)")
        if mode != "off": db.execute("begin"); db.execute("update t set b = zeroblob(3000) where a % 2"); db.execute("rollback")
        db.execute("delete from t where a % 3 = 0"); db.execute("vacuum"); print(size, mapped, *db.execute("pragma integrity_check").fetchone(), *db.execute("select count(*), sum(length(b)) from t").fetchone(), digest(db), os.stat("db").st_size); db.close()
print(sorted(n for n in os.listdir() if n.startswith("db")))

title("many threads")
remove("db"); setup = sqlite3.connect("db"); setup.execute("pragma journal_mode=wal"); setup.execute("create table t(who, n)"); setup.close(); sums = []
def writer(who):
    db = sqlite3.connect("db", timeout=60, isolation_level=None)
    for n in range(60): db.execute("begin immediate"); db.execute("insert into t values (?, ?)", (who, n)); db.execute("commit")
    db.close()
def reader():
    db = sqlite3.connect("db", timeout=60); last = 0
    while last < 240: count, distinct = db.execute("select count(*), count(distinct who * 1000 + n) from t").fetchone(); assert count == distinct >= last; last = count
    sums.append(last); db.close()
threads = [threading.Thread(target=writer, args=(i,)) for i in range(4)] + [threading.Thread(target=reader) for _ in range(2)]; [t.start() for t in threads]; [t.join() for t in threads]; print(sums)

title("many processes")
def work(who, mode):
    db = sqlite3.connect("db", timeout=60, isolation_level=None)
    for n in range(30): db.execute("begin immediate"); (old,) = db.execute("select n from c").fetchone(); db.execute("update c set n = ?", (old + 1,)); db.execute("commit")
for mode in "delete", "wal":
    remove("db"); db = sqlite3.connect("db", isolation_level=None); db.execute(f"pragma journal_mode={mode}"); db.execute("create table c(n)"); db.execute("insert into c values (0)"); db.close()
    context = get_context("fork"); ps = [context.Process(target=work, args=(i, mode)) for i in range(4)]; [p.start() for p in ps]; [p.join() for p in ps]
    db = sqlite3.connect("db"); print(mode, [p.exitcode for p in ps], db.execute("select n from c").fetchone(), db.execute("pragma integrity_check").fetchone()); db.close()

title("killed in the middle")
program = """
import os, sqlite3, sys
db = sqlite3.connect("db", isolation_level=None); db.execute("pragma cache_size=5"); db.execute("begin"); db.execute("update t set b = 'broken'"); db.execute("delete from t where a % 2")
print("ready", flush=True); sys.stdin.read()
"""
for mode in "delete", "persist", "wal":
    remove("db"); db = sqlite3.connect("db"); db.execute(f"pragma journal_mode={mode}"); db.execute("create table t(a, b)"); db.executemany("insert into t values (?, 'whole and long enough to fill pages')", ((i,) for i in range(3000))); db.commit(); before = digest(db); db.close()
    p = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE); p.stdout.readline(); p.send_signal(signal.SIGKILL); code = p.wait(); p.stdin.close(); p.stdout.close()
    left = sorted(n for n in os.listdir() if n.startswith("db")); db = sqlite3.connect("db"); print(mode, code, left, db.execute("pragma integrity_check").fetchone(), digest(db) == before); db.close()
P
python3 t.py; echo $?; rm -rf *
