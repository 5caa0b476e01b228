# python3: what programs of every day use of the system.
python3 - <<'P'
import asyncio, concurrent.futures, contextlib, ctypes, hashlib, io, json, mmap, multiprocessing, os, pathlib, pickle, queue, re, select, selectors, shutil, signal, socket, sqlite3, struct, subprocess, sys, tempfile, threading, time, zlib

print(sys.version_info[:2], sys.platform, os.name, sys.byteorder, ctypes.sizeof(ctypes.c_int64))
print(hashlib.sha256(b"causeway").hexdigest()[:16], zlib.crc32(b"causeway"), json.dumps({"b": [1, None], "a": "ü"}, sort_keys=True))
with tempfile.TemporaryDirectory() as d:
    p = pathlib.Path(d, "a", "b"); p.mkdir(parents=True); (p / "f").write_text("text\n"); shutil.copytree(p.parent, pathlib.Path(d, "c"))
    print(sorted(str(x.relative_to(d)) for x in pathlib.Path(d).rglob("*")), os.stat(p / "f").st_size)
    fd = os.open(p / "m", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 8192)
    with mmap.mmap(fd, 8192) as m: m[4096:4100] = b"mmap"; m.flush(); print(os.pread(fd, 4, 4096))
    os.close(fd)
lock, counts, n = threading.Lock(), [], 0
def add():
    global n
    for _ in range(20000):
        with lock: n += 1
threads = [threading.Thread(target=add) for _ in range(4)]; [t.start() for t in threads]; [t.join() for t in threads]; print("threads", n)
q = queue.Queue(5)
t = threading.Thread(target=lambda: [q.put(i) for i in range(200)] and q.put(None)); t.start(); print("queue", sum(iter(q.get, None))); t.join()
with concurrent.futures.ThreadPoolExecutor(4) as e: print("pool", sum(e.map(lambda x: x * x, range(100))))
r = subprocess.run(["sh", "-c", "cat; echo err >&2; exit 3"], input=b"in", capture_output=True); print(r.returncode, r.stdout, r.stderr)
try: subprocess.run(["sleep", "9"], timeout=0.2)
except subprocess.TimeoutExpired: print("timed out")
s = socket.create_server(("127.0.0.1", 0)); port = s.getsockname()[1]
def serve():
    c, _ = s.accept()
    with c: c.sendall(c.recv(100).upper())
t = threading.Thread(target=serve); t.start(); c = socket.create_connection(("127.0.0.1", port)); c.sendall(b"over tcp"); print(c.recv(100)); t.join(); c.close(); s.close()
a, b = socket.socketpair(); a.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 1))]); data, anc, *_ = b.recvmsg(10, 100); print(data, len(anc)); os.close(struct.unpack("i", anc[0][2])[0]); a.close(); b.close()
async def main():
    async def echo(r, w): w.write((await r.readline())[::-1]); await w.drain(); w.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0); port = server.sockets[0].getsockname()[1]
    async def ask(i): r, w = await asyncio.open_connection("127.0.0.1", port); w.write(b"line %d\n" % i); out = await r.read(); w.close(); return out
    print("asyncio", sorted(await asyncio.gather(*map(ask, range(5)))))
    p = await asyncio.create_subprocess_exec("echo", "sub", stdout=asyncio.subprocess.PIPE); print(await p.communicate(), p.returncode)
    with contextlib.suppress(asyncio.TimeoutError): await asyncio.wait_for(asyncio.sleep(9), 0.05); print("not reached")
    server.close()
asyncio.run(main())
signal.signal(signal.SIGALRM, lambda *x: print("alarm")); signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()
p = os.fork()
if not p: os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))
poll = select.epoll(); r, w = os.pipe(); poll.register(r, select.EPOLLIN); print(poll.poll(0.01)); os.write(w, b"x"); print(poll.poll(1)[0][1])
db = sqlite3.connect(":memory:"); db.execute("create table t(x)"); db.executemany("insert into t values(?)", [(i,) for i in range(1000)]); print(db.execute("select sum(x) from t").fetchone())
P
cat >mp.py <<'P'
import multiprocessing as mp, os
def square(x): return x * x
def worker(q, l, v):
    for _ in range(100):
        with l: v.value += 1
    q.put(v.value > 0)
if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        context = mp.get_context(method)
        with context.Pool(2) as pool: print(method, sum(pool.map(square, range(50))))
        q, l, v = context.Queue(), context.Lock(), context.Value("i", 0)
        ps = [context.Process(target=worker, args=(q, l, v)) for _ in range(3)]; [p.start() for p in ps]; print([q.get() for _ in ps]); [p.join() for p in ps]; print(v.value)
    from multiprocessing import shared_memory
    m = shared_memory.SharedMemory(create=True, size=100); m.buf[:5] = b"hello"; o = shared_memory.SharedMemory(m.name); print(bytes(o.buf[:5])); o.close(); m.close(); m.unlink()
P
python3 mp.py
python3 -c 'import os, pty, sys; pid, fd = pty.fork()
if pid == 0: os.execlp("sh", "sh", "-c", "tty | sed s/[0-9]*$//; stty size; echo done")
out = b""
try:
    while d := os.read(fd, 100): out += d
except OSError: pass
print(out.decode().replace("\r", "")); print(os.waitpid(pid, 0)[1])'
echo 'print("a script", __name__)' >s.py; python3 s.py; python3 -c 'import sys; sys.exit(5)'; echo $?; python3 -m json.tool <<<'{"a":1}'; python3 -c 'raise ValueError("x")' 2>&1 | tail -n 1; python3 -m zipfile -c z.zip s.py; python3 -m zipfile -l z.zip | wc -l; python3 -c 'import signal, subprocess; p = subprocess.Popen(["python3", "-c", "import time; print(flush=True); time.sleep(9)"], stdout=-1, stderr=-1); p.stdout.readline(); p.send_signal(signal.SIGINT); print(p.communicate()[1].decode().split()[-1])'
