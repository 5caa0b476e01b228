"""Types at an interactive bash on a terminal of its own, and prints what comes back.

Each step waits for what it needs (a prompt, a word, who is in the foreground), never for a time, so that the whole
transcript is the same at each run. Process numbers in it are written as PID.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PROMPT = b"ready> "
PATIENCE = 60


class Terminal:
    """A bash on a new terminal."""

    def __init__(self, options=(), term="dumb"):
        self.seen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, PS1=PROMPT.decode(), PS2="more> ", HISTFILE="/dev/null", INPUTRC="/dev/null")
            for number in range(1, signal.NSIG):
                if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                    signal.signal(number, signal.SIG_DFL)
            os.execvp("bash", ["bash", "--norc", "--noprofile", *options, "-i"])
        self.resize(24, 80)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, limit):
        """More of what comes; false if nothing comes in this many seconds, or the terminal has ended."""
        ready, _, _ = select.select([self.master], [], [], limit)
        try:
            data = os.read(self.master, 4096) if ready else b""
        except OSError:
            data = b""
        self.seen += data
        return bool(data)

    def until(self, what=PROMPT):
        """Prints all up to and with `what`."""
        end = time.monotonic() + PATIENCE
        while what not in self.seen:
            if not self.read(end - time.monotonic()):
                self.show(self.seen)
                raise SystemExit(f"\nno {what!r}")
        at = self.seen.index(what) + len(what)
        self.show(self.seen[:at])
        self.seen = self.seen[at:]

    def show(self, data):
        text = data.decode(errors="backslashreplace").replace("\r\n", "\n")
        text = re.sub(r"(\[\d+\][+-]?\s+)\d+\b", r"\1PID", text)
        # Whether bash still calls a job the current one when it ends depends on how fast it ends.
        text = re.sub(r"(\[\d+\])[+-] ( +(Terminated|Killed))", r"\1  \2", text)
        text = "".join(c if c == "\n" or " " <= c else f"<{ord(c):02x}>" for c in text)
        sys.stdout.write(text)
        sys.stdout.flush()

    def type(self, text):
        os.write(self.master, text if isinstance(text, bytes) else text.encode())

    def line(self, text, until=PROMPT):
        self.type(text + "\n")
        self.until(until)

    def foreground(self, name):
        """Waits until the program `name` leads the foreground, asleep."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            group = os.tcgetpgrp(self.master)
            try:
                with open(f"/proc/{group}/stat") as file:
                    found, state = re.search(r"\((.*)\) (.)", file.read()).groups()
                if found == name and state == "S":
                    return
            except OSError:
                pass
            time.sleep(0.01)
        raise SystemExit(f"\n{name} is not in the foreground")

    def silent(self):
        """Waits until what is typed is not shown."""
        while termios.tcgetattr(self.master)[3] & termios.ECHO:
            time.sleep(0.01)

    def start(self, command, name):
        """Starts a command that stays in the foreground."""
        self.type(command + "\n")
        self.until(b"\r\n")
        self.foreground(name)


def written(name):
    """What is in a file, as soon as there is something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if os.path.exists(name):
            with open(name) as file:
                text = file.read()
            if text:
                return text
        time.sleep(0.01)
    raise SystemExit(f"\nnothing is in {name}")


def title(text):
    sys.stdout.write(f"\n-- {text}\n")


t = Terminal(["--noediting"])
t.until()

title("stop, continue behind, fetch, interrupt")
t.start("sleep 1000", "sleep")
t.type("\x1a")
t.until()
t.line("jobs")
t.line("bg")
t.line("jobs")
t.type("fg\n")
t.until(b"fg\r\nsleep 1000\r\n")
t.foreground("sleep")
t.type("\x03")
t.until()
t.line("echo $?")

title("several jobs")
t.line("sleep 1001 &")
t.line("sleep 1002 | cat &")
t.start("sleep 1003", "sleep")
t.type("\x1a")
t.until()
t.line("jobs")
t.line("kill %1; wait %1; echo $?")
t.line("kill %2; wait %2; echo $?")
t.line("jobs")
t.line("kill -CONT %3; jobs %3")
t.line("kill -9 %3; wait %3; echo $?")
t.line("kill %7")

title("quit")
t.start("sleep 1000", "sleep")
t.type("\x1c")
t.until()
t.line("echo $?")

title("stopping a shell's function and a pipeline")
t.start("sleep 1000 | sleep 1001", "sleep")
t.type("\x1a")
t.until()
t.line("jobs -l | sed 's/  *[0-9][0-9]* / PID /'")
t.line("kill -CONT %1; kill %1; wait %1; echo $?")
t.line("(exit 3) & wait $!; echo $?")

title("reading behind")
t.line("cat >copy & while ! grep -q 'T (stopped)' /proc/$!/status; do sleep 0.01; done; jobs")
t.type("fg\n")
t.until(b"cat > copy\r\n")
t.foreground("cat")
t.type("a line\n")
t.until(b"a line\r\n")
t.type("\x04")
t.until()
t.line("cat copy")

title("writing behind")
t.line("stty tostop; stty -a | grep -o -- '-*tostop'")
t.line("(echo from behind; exit 4) & while ! grep -q 'T (stopped)' /proc/$!/status; do sleep 0.01; done; jobs")
t.line("stty -tostop; fg; echo $?")

title("the kernel edits the line")
t.start("cat -A", "cat")
for text in ["abc\x7f\x7fd\n", "two words\x17more\n", "gone\x15kept\n", "\x16\x03 quoted\n", "caf\xc3\xa9\x7f\n".encode("latin1"), "tab\there\n", "\x1bescape\x01\n"]:
    t.type(text)
    t.until(b"$\r\n")
t.type("again\x12")
t.until(b"again^R\r\nagain")
t.type("\x04")
t.until(b"again")
t.type("\n")
t.until(b"$\r\n")
t.type("\x04")
t.until()
t.line("stty -echo; read word; stty echo; echo", b"\r\n")
t.silent()
t.type("secret\n")
t.until()
t.line("echo $word")
t.line("stty -icanon min 3 time 0; echo waiting", b"waiting\r\n")
t.until()
t.line("head -c 3 | od -An -c; stty icanon", b"icanon^J")
t.foreground("head")
t.type("xyz")
t.until()
t.line("stty -a")
t.line("stty -g | tr ':' '\\n' | wc -l; stty erase ^H; stty -a | grep -o 'erase = ..'; stty sane; stty -a | grep -o 'erase = ..'")
t.line("stty raw; stty -a | grep -o -- '-icanon'; stty cooked; stty iuclc olcuc; echo Case; stty -iuclc -olcuc")

title("flow control")
t.line("stty -echo")
t.type("\x13")
time.sleep(0.1)
t.type("echo let go\n")
print("quiet" if not t.read(0.3) else "not quiet")
t.type("\x11")
t.until()
t.type("stty echo\n")
t.until()

title("the window's size")
t.resize(30, 100)
t.line("stty size; echo $LINES $COLUMNS")
t.line("stty size; echo $LINES $COLUMNS")
t.line("stty rows 33 cols 120; stty size")
rows, columns = struct.unpack("HHHH", fcntl.ioctl(t.master, termios.TIOCGWINSZ, bytes(8)))[:2]
print("\nseen by the other side:", rows, columns)
t.line("python3 -c 'import os, signal; signal.signal(signal.SIGWINCH, lambda *x: None); print(\"waiting\"); signal.sigwait([signal.SIGWINCH]) if signal.pthread_sigmask(0, [signal.SIGWINCH]) is None else signal.sigwait([signal.SIGWINCH]); print(os.get_terminal_size())'", b"\r\nwaiting\r\n")
t.foreground("python3")
t.resize(40, 90)
t.until()

title("sessions and groups")
t.line("ps -o stat=,comm= -t \"$(tty)\" | sort")
t.line("sleep 1000 &")
t.line("[ $(ps -o pgid= -p $!) = $! ] && [ $(ps -o sid= -p $!) = $$ ] && [ $(ps -o tpgid= -p $!) != $! ] && echo its own group in our session")
t.line("disown %1; jobs; kill $!; set +m; sleep 1000 & [ $(ps -o pgid= -p $!) = $$ ] && echo our group; kill $!; wait $! 2>/dev/null; set -m")
t.line("setsid sh -c 'exec 2>&1; (: </dev/tty) || echo no terminal' | sed 's/.*: //'")
t.line("bash -c 'kill -STOP $$; echo went on'")
t.line("fg")
t.line("trap 'echo caught it' INT; sleep 1000", b"sleep 1000\r\n")
t.foreground("sleep")
t.type("\x03")
t.until()
t.line("trap - INT; read -t 0.1 nothing; echo; [ $? = 0 ]")

title("the end")
t.line("sleep 1000", b"sleep 1000\r\n")
t.foreground("sleep")
t.type("\x1a")
t.until()
t.line("exit")
t.line("bash -c 'trap \"echo hung up >behind; exit\" HUP; echo $$ >started; while :; do sleep 0.01; done'", b"done'\r\n")
written("started")
os.close(t.master)
print()
print("status", os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1]))
print(written("behind"), end="")

title("with readline")
t = Terminal(term="vt100")
t.until()
t.line("echo $TERM")
t.type("ehco typo\x01\x1bd" + "echo\x05s")
t.line("")
t.line("echo first")
t.type("\x1b[A\x1b[A\x0e")
t.line("")
t.type("echo never")
t.until(b"never")
t.foreground("bash")
t.type("\x03")
t.until()
t.line("seq 100 | less", b":")
t.type(" ")
t.until(b":")
t.type("/77\n")
t.until(b"99")
t.type("q")
t.until()
t.type("\x04")
t.until(b"exit\r\n")
print("status", os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1]))
