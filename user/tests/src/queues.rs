//! POSIX message queues.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("queues: names, modes, sizes", names),
    ("queues: as a plain model says", model),
    (
        "queues: full and empty ones, and time limits",
        limits_of_time,
    ),
    ("queues: between processes", between),
    ("queues: notices by signal", notices),
    (
        "queues: a notice stays with a table that becomes its own",
        notice_of_own_table,
    ),
    ("queues: a notice that starts a thread", notice_by_thread),
    ("queues: poll", polling),
    ("queues: what a user may have", quotas),
    ("queues: the file system", file_system),
];

const BOTH: c_int = O_RDWR | O_CREAT;

/// A queue of this test, removed on drop.
struct Queue {
    name: String,
    fd: mqd_t,
}

impl Queue {
    fn new(word: &str, flags: c_int, messages: i64, bytes: i64) -> Result<Queue> {
        // SAFETY: takes nothing.
        let name = format!("/{word}-{}", unsafe { libc::getpid() });
        let attributes = attributes(messages, bytes);
        let fd = call!(mq_open(
            c(&name).as_ptr(),
            BOTH | flags,
            0o600,
            &raw const attributes
        ));
        Ok(Queue { name, fd })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: numbers and a string that lives.
        unsafe {
            libc::mq_close(self.fd);
            libc::mq_unlink(c(&self.name).as_ptr());
        }
    }
}

fn attributes(messages: i64, bytes: i64) -> mq_attr {
    // SAFETY: all zeros is a valid one.
    let mut attributes: mq_attr = unsafe { zeroed() };
    (attributes.mq_maxmsg, attributes.mq_msgsize) = (messages, bytes);
    attributes
}

fn status(fd: mqd_t) -> Result<mq_attr> {
    let mut found = attributes(0, 0);
    call!(mq_getattr(fd, &mut found));
    Ok(found)
}

fn send(fd: mqd_t, text: &str, priority: u32) -> c_int {
    // SAFETY: a string that lives.
    unsafe { libc::mq_send(fd, text.as_ptr().cast(), text.len(), priority) }
}

/// Receives a message and its priority, or the error number.
fn receive(fd: mqd_t) -> Result<(String, u32), c_int> {
    let mut bytes = [0u8; 8192];
    let mut priority = 77;
    // SAFETY: room that lives.
    let len =
        unsafe { libc::mq_receive(fd, bytes.as_mut_ptr().cast(), bytes.len(), &mut priority) };
    match usize::try_from(len) {
        Ok(len) => Ok((
            String::from_utf8_lossy(&bytes[..len]).into_owned(),
            priority,
        )),
        Err(_) => Err(errno()),
    }
}

fn names() -> Outcome {
    let queue = Queue::new("names", 0, 3, 100)?;
    let name = c(&queue.name);
    let found = status(queue.fd)?;
    ensure!(
        (
            found.mq_flags,
            found.mq_maxmsg,
            found.mq_msgsize,
            found.mq_curmsgs
        ) == (0, 3, 100, 0),
        "{found:?}"
    );
    let none = null::<mq_attr>();
    refused!(EEXIST, mq_open(name.as_ptr(), BOTH | O_EXCL, 0o600, none));
    refused!(ENOENT, mq_open(c("/none-at-all").as_ptr(), O_RDWR));
    refused!(ENOENT, mq_unlink(c("/none-at-all").as_ptr()));
    refused!(EACCES, mq_open(c("/a/b").as_ptr(), BOTH, 0o600, none));
    refused!(EACCES, mq_open(c("/..").as_ptr(), BOTH, 0o600, none));
    let long = format!("/{}", "n".repeat(256));
    refused!(ENAMETOOLONG, mq_open(c(&long).as_ptr(), BOTH, 0o600, none));
    for (messages, bytes) in [(0, 1), (1, 0), (-1, 1), (65_537, 1), (1, (16 << 20) + 1)] {
        let bad = attributes(messages, bytes);
        let other = c(&format!("{}-bad", queue.name));
        refused!(EINVAL, mq_open(other.as_ptr(), BOTH, 0o600, &raw const bad));
    }
    // An existing queue keeps its size.
    let other = attributes(9, 9);
    let again = call!(mq_open(
        name.as_ptr(),
        BOTH | O_NONBLOCK,
        0o600,
        &raw const other
    ));
    let found = status(again)?;
    ensure!(
        found.mq_maxmsg == 3 && found.mq_flags == i64::from(O_NONBLOCK),
        "{found:?}"
    );
    // Only that flag can be changed.
    let mut new = attributes(0, 0);
    call!(mq_setattr(again, &new, null_mut()));
    ensure!(status(again)?.mq_flags == 0, "still without waiting");
    new.mq_flags = i64::from(O_NONBLOCK | O_APPEND);
    refused!(EINVAL, mq_setattr(again, &new, null_mut()));
    equal!(call!(fcntl(again, F_GETFD)), FD_CLOEXEC);
    call!(mq_close(again));
    // Permissions.
    let reader = call!(mq_open(name.as_ptr(), O_RDONLY));
    ensure!(send(reader, "x", 0) == -1 && errno() == EBADF);
    call!(mq_close(reader));
    let writer = call!(mq_open(name.as_ptr(), O_WRONLY));
    ensure!(receive(writer) == Err(EBADF), "received by a writer");
    call!(mq_close(writer));
    ensure!(send(1, "x", 0) == -1 && errno() == EBADF);
    let child = spawn(|| {
        call!(setgid(1000));
        call!(setuid(1000));
        refused!(EACCES, mq_open(name.as_ptr(), O_RDONLY));
        refused!(EACCES, mq_unlink(name.as_ptr()));
        Ok(())
    })?;
    wait_ok(child)?;
    // One without a name lives while it is open.
    call!(mq_unlink(name.as_ptr()));
    refused!(ENOENT, mq_open(name.as_ptr(), O_RDONLY));
    ensure!(send(queue.fd, "kept", 1) == 0, "send: {}", errno());
    ensure!(receive(queue.fd) == Ok(("kept".into(), 1)), "not kept");
    Ok(())
}

fn model() -> Outcome {
    let queue = Queue::new("model", O_NONBLOCK, 10, 8192)?;
    let mut model: Vec<(u32, u64, String)> = Vec::new();
    let mut numbers = Numbers::new(5);
    for round in 0..2000u64 {
        if numbers.below(2) == 0 {
            let priority = [0, 1, 5, 32_767][numbers.below(4) as usize];
            let text = format!("{round}").repeat(1 + numbers.below(1500) as usize);
            let sent = send(queue.fd, &text, priority);
            if model.len() == 10 {
                ensure!(sent == -1 && errno() == EAGAIN, "one too many");
                continue;
            }
            ensure!(sent == 0, "send: {}", errno());
            model.push((u32::MAX - priority, round, text));
            model.sort();
        } else {
            let got = receive(queue.fd);
            let wanted = match model.is_empty() {
                true => Err(EAGAIN),
                false => {
                    let (priority, _, text) = model.remove(0);
                    Ok((text, u32::MAX - priority))
                }
            };
            ensure!(got == wanted, "{got:?} in place of {wanted:?}");
        }
        equal!(status(queue.fd)?.mq_curmsgs, model.len() as i64);
    }
    Ok(())
}

fn limits_of_time() -> Outcome {
    let queue = Queue::new("times", 0, 1, 10)?;
    let mut room = [0u8; 10];
    let text = c"x".as_ptr();
    let soon = after(CLOCK_REALTIME, 30)?;
    let bytes = room.as_mut_ptr().cast::<c_char>();
    refused! { mq_timedreceive(queue.fd, bytes, 10, null_mut(), &soon) => ETIMEDOUT; }
    // By the timeout's own clock: on a busy host any time may pass before the call.
    let now = after(CLOCK_REALTIME, 0)?;
    ensure!((now.tv_sec, now.tv_nsec) >= (soon.tv_sec, soon.tv_nsec));
    refused!(EMSGSIZE, mq_receive(queue.fd, bytes, 9, null_mut()));
    refused!(EMSGSIZE, mq_send(queue.fd, bytes.cast_const(), 11, 0));
    refused!(EINVAL, mq_send(queue.fd, text, 1, 32_768));
    call!(mq_send(queue.fd, text, 1, 0));
    let soon = after(CLOCK_REALTIME, 30)?;
    refused!(ETIMEDOUT, mq_timedsend(queue.fd, text, 1, 0, &soon));
    let past = after(CLOCK_REALTIME, -1000)?;
    refused!(ETIMEDOUT, mq_timedsend(queue.fd, text, 1, 0, &past));
    let bad = time_spec(0, 1_000_000_000);
    refused!(EINVAL, mq_timedsend(queue.fd, text, 1, 0, &bad));
    // A handler without SA_RESTART ends the wait.
    handle(SIGALRM, ignore_signal, 0)?;
    call!(setitimer(ITIMER_REAL, &timer_val(20_000, 0), null_mut()));
    refused!(EINTR, mq_send(queue.fd, text, 1, 0));
    equal!(status(queue.fd)?.mq_curmsgs, 1);
    Ok(())
}

fn between() -> Outcome {
    const MESSAGES: u32 = 300;
    let queue = Queue::new("between", 0, 2, 64)?;
    let senders: Vec<_> = (0..3)
        .map(|sender| {
            spawn(|| {
                for n in 0..MESSAGES {
                    equal!(send(queue.fd, &format!("{sender} {n}"), n % 3), 0);
                }
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    let back = Queue::new("back", 0, 10, 64)?;
    let receivers: Vec<_> = (0..2)
        .map(|_| {
            spawn(|| {
                let mut sum = 0u64;
                loop {
                    let (text, priority) = receive(queue.fd)?;
                    if text == "end" {
                        break;
                    }
                    let n: u32 = text[2..].parse().map_err(|_| format!("got {text:?}"))?;
                    ensure!(priority == n % 3, "{text:?} has priority {priority}");
                    sum += 1 + u64::from(n);
                }
                ensure!(send(back.fd, &format!("{sum}"), 0) == 0, "{}", errno());
                Ok(())
            })
        })
        .collect::<Result<_, _>>()?;
    wait_all(senders)?;
    for _ in &receivers {
        ensure!(send(queue.fd, "end", 0) == 0, "{}", errno());
    }
    let mut sum = 0;
    for receiver in receivers {
        let (text, _) = receive(back.fd)?;
        sum += text.parse::<u64>().map_err(|_| "no number")?;
        wait_ok(receiver)?;
    }
    let wanted = 3 * u64::from(MESSAGES) * u64::from(MESSAGES + 1) / 2;
    ensure!(sum == wanted, "{sum} in place of {wanted}");
    Ok(())
}

fn event(kind: c_int) -> sigevent {
    // SAFETY: all zeros is a valid one.
    let mut event: sigevent = unsafe { zeroed() };
    event.sigev_notify = kind;
    event.sigev_signo = SIGUSR1;
    event.sigev_value.sival_ptr = ptr::without_provenance_mut(0x1234);
    event
}

/// Takes a pending signal, if any: code, sender, value.
fn arrived(set: &sigset_t) -> Result<Option<(c_int, c_int, usize)>> {
    let info = take_signal(set, 0)?;
    // SAFETY: the signal has a sender and a value.
    Ok(info.map(|info| unsafe {
        (
            info.si_code,
            info.si_pid(),
            info.si_value().sival_ptr as usize,
        )
    }))
}

fn notices() -> Outcome {
    const SI_MESGQ: c_int = -3;
    let queue = Queue::new("notices", 0, 4, 64)?;
    let set = block(&[SIGUSR1])?;
    let me = call!(getpid());
    call!(mq_notify(queue.fd, &event(SIGEV_SIGNAL)));
    refused!(EBUSY, mq_notify(queue.fd, &event(SIGEV_NONE)));
    let child = spawn(|| {
        refused!(EBUSY, mq_notify(queue.fd, &event(SIGEV_NONE)));
        // Another process cannot cancel the registration.
        call!(mq_notify(queue.fd, null()));
        ensure!(send(queue.fd, "one", 0) == 0, "{}", errno());
        Ok(())
    })?;
    wait_ok(child)?;
    let found = arrived(&set)?;
    ensure!(found == Some((SI_MESGQ, child, 0x1234)), "{found:?}");
    // It is notified once, and only of a message in an empty queue.
    ensure!(send(queue.fd, "two", 0) == 0 && arrived(&set)?.is_none());
    call!(mq_notify(queue.fd, &event(SIGEV_SIGNAL)));
    ensure!(send(queue.fd, "three", 0) == 0 && arrived(&set)?.is_none());
    for _ in 0..3 {
        receive(queue.fd)?;
    }
    // A message for a waiting receiver is never queued.
    let waiting = spawn(|| {
        receive(queue.fd)?;
        Ok(())
    })?;
    pause_ms(50);
    ensure!(send(queue.fd, "four", 0) == 0, "{}", errno());
    wait_ok(waiting)?;
    ensure!(arrived(&set)?.is_none());
    ensure!(send(queue.fd, "five", 0) == 0, "{}", errno());
    let found = arrived(&set)?;
    ensure!(found == Some((SI_MESGQ, me, 0x1234)), "{found:?}");
    // Closing the descriptor cancels the registration.
    receive(queue.fd)?;
    call!(mq_notify(queue.fd, &event(SIGEV_SIGNAL)));
    let copy = call!(dup(queue.fd));
    call!(close(copy));
    ensure!(send(queue.fd, "six", 0) == 0 && arrived(&set)?.is_none());
    let mut bad = event(77);
    refused!(EINVAL, mq_notify(queue.fd, &bad));
    bad = event(SIGEV_SIGNAL);
    bad.sigev_signo = 65;
    refused!(EINVAL, mq_notify(queue.fd, &bad));
    refused!(EBADF, mq_notify(1, &event(SIGEV_NONE)));
    Ok(())
}

/// A table of files that is no other process's already stays the same.
fn notice_of_own_table() -> Outcome {
    let queue = Queue::new("own-table", 0, 4, 64)?;
    call!(mq_notify(queue.fd, &event(SIGEV_SIGNAL)));
    call!(unshare(CLONE_FILES));
    refused!(EBUSY, mq_notify(queue.fd, &event(SIGEV_NONE)));
    call!(mq_notify(queue.fd, null()));
    Ok(())
}

/// Does by hand what the C library's thread does: waits at a netlink socket for its cookie.
fn notice_by_thread() -> Outcome {
    let queue = Queue::new("thread", 0, 4, 64)?;
    let socket = call!(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0));
    let mut cookie = *b"0123456789abcdef0123456789abcde\0";
    let mut wish = event(SIGEV_THREAD);
    wish.sigev_signo = socket;
    wish.sigev_value.sival_ptr = cookie.as_mut_ptr().cast();
    let mut wrong = wish;
    wrong.sigev_signo = 1;
    let ask = |event: &sigevent| {
        // SAFETY: a structure that lives.
        unsafe { libc::syscall(libc::SYS_mq_notify, queue.fd, ptr::from_ref(event)) }
    };
    ensure!(ask(&wrong) == -1 && errno() == ENOTSOCK, errno());
    wrong.sigev_signo = 1000;
    ensure!(ask(&wrong) == -1 && errno() == EBADF, errno());
    for last in [1, 2] {
        ensure!(ask(&wish) == 0, "mq_notify: {}", errno());
        if last == 1 {
            ensure!(send(queue.fd, "x", 0) == 0, "{}", errno());
        } else {
            call!(mq_notify(queue.fd, null()));
        }
        let mut got = [0u8; 64];
        let len = call!(recv(socket, got.as_mut_ptr().cast(), 64, MSG_DONTWAIT));
        cookie[31] = last;
        ensure!(len == 32 && got[..32] == cookie, "{len}: {got:?}");
        cookie[31] = 0;
        if last == 1 {
            receive(queue.fd)?;
        }
    }
    Ok(())
}

fn polling() -> Outcome {
    let queue = Queue::new("poll", 0, 1, 64)?;
    let ready = |milliseconds| -> Result<i16> {
        let mut file = poll_entry(queue.fd, POLLIN | POLLOUT);
        call!(poll(&mut file, 1, milliseconds));
        Ok(file.revents)
    };
    ensure!(ready(0)? == POLLOUT, "empty");
    ensure!(send(queue.fd, "x", 0) == 0, "{}", errno());
    ensure!(ready(0)? == POLLIN, "full");
    let child = spawn(|| {
        pause_ms(30);
        receive(queue.fd)?;
        pause_ms(30);
        ensure!(send(queue.fd, "y", 0) == 0, "{}", errno());
        Ok(())
    })?;
    for wanted in [POLLOUT, POLLIN] {
        let mut file = poll_entry(queue.fd, wanted);
        call!(poll(&mut file, 1, 5000));
        equal!(file.revents, wanted);
    }
    wait_ok(child)?;
    Ok(())
}

fn quotas() -> Outcome {
    let child = spawn(|| {
        call!(setgid(1003));
        call!(setuid(1003));
        // Beyond the settings, which only root may exceed.
        let large = attributes(11, 8192);
        refused! { mq_open(c("/large").as_ptr(), BOTH, 0o600, &raw const large) => EINVAL; }
        let limit = limit_of(200_000);
        call!(setrlimit(RLIMIT_MSGQUEUE, &limit));
        let _one = Queue::new("quota-1", 0, 10, 8192)?;
        let two = Queue::new("quota-2", 0, 10, 8192)?;
        let usual = attributes(10, 8192);
        refused! { mq_open(c("/quota-3").as_ptr(), BOTH, 0o600, &raw const usual) => EMFILE; }
        drop(two);
        let _three = Queue::new("quota-3", 0, 10, 8192)?;
        Ok(())
    })?;
    wait_ok(child)?;
    Ok(())
}

fn file_system() -> Outcome {
    let at = folder("queues")?;
    let place = c(&at);
    let kind = c"mqueue".as_ptr();
    // SAFETY: strings that live.
    let mounted = unsafe { libc::mount(kind, place.as_ptr(), kind, 0, null()) };
    ensure!(mounted == 0, "mount: {}", errno());
    let queue = Queue::new("listed", 0, 4, 64)?;
    let path = format!("{at}{}", queue.name);
    ensure!(send(queue.fd, "12345", 0) == 0, "{}", errno());
    call!(mq_notify(queue.fd, &event(SIGEV_SIGNAL)));
    let text = fs::read_to_string(&path)?;
    // SAFETY: takes nothing.
    let me = unsafe { libc::getpid() };
    let wanted = format!("QSIZE:5          NOTIFY:0     SIGNO:10    NOTIFY_PID:{me:<6}\n");
    ensure!(text == wanted, "{text:?} in place of {wanted:?}");
    let listed = fs::read_dir(&at)?;
    let found = listed
        .flatten()
        .any(|entry| queue.name[1..] == *entry.file_name().to_string_lossy());
    ensure!(found, "not listed");
    // Files created here are queues.
    // SAFETY: takes nothing.
    let made = format!("made-{me}");
    fs::write(format!("{at}/{made}"), b"")?;
    let fd = call!(mq_open(c(&format!("/{made}")).as_ptr(), O_RDWR));
    ensure!(status(fd)?.mq_maxmsg == 10, "of another size");
    call!(mq_close(fd));
    fs::remove_file(format!("{at}/{made}"))?;
    refused!(ENOENT, mq_open(c(&format!("/{made}")).as_ptr(), O_RDWR));
    call!(umount(place.as_ptr()));
    Ok(())
}
