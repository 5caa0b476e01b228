//! Data on its way: pipes, sockets, messages.

use super::{FOLDER, bomb, bomb_of, child_of_bomb, fill, got_one, until_refused};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: bombs: full pipes", pipes),
    ("attacks: bombs: large full pipes", large_pipes),
    ("attacks: bombs: one page in many pipes", shared_page),
    (
        "attacks: bombs: pipes of processes that have ended",
        orphans,
    ),
    ("attacks: bombs: full stream sockets", streams),
    ("attacks: bombs: full sockets of datagrams", datagrams),
    ("attacks: bombs: sockets on their way in sockets", in_flight),
    ("attacks: bombs: full TCP connections", tcp),
    ("attacks: bombs: full UDP sockets", udp),
    ("attacks: bombs: queues of messages", messages),
    ("attacks: bombs: POSIX queues", posix_queues),
    ("attacks: bombs: events that nobody reads", events),
    ("attacks: bombs: answers that nobody reads", answers),
    ("attacks: bombs: terminals", terminals),
    (
        "attacks: bombs: terminals of a single process",
        single_terminals,
    ),
];

fn pipes() -> Outcome {
    bomb(|| until_refused(|| fill(pipe(0)?.1)))
}

fn large_pipes() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let (_, to) = pipe(0)?;
            // SAFETY: asks for a size; it may be refused.
            unsafe { fcntl(to, F_SETPIPE_SZ, 1 << 20) };
            fill(to)
        })
    })
}

/// Pages are charged for each pipe that keeps them; here the kernel's memory is the pipes.
fn shared_page() -> Outcome {
    bomb(|| {
        let (from, to) = pipe(0)?;
        fill(to)?;
        until_refused(|| {
            let (_, more) = pipe(0)?;
            call!(tee(from, more, 1 << 20, SPLICE_F_NONBLOCK));
            Ok(())
        })
    })
}

/// Processes make pipes, hand them to their parent's parent, and end.
fn orphans() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            let sockets = socket_pair(SOCK_SEQPACKET)?;
            child_of_bomb(|| {
                for _ in 0..16 {
                    let (from, to) = pipe(0)?;
                    fill(to)?;
                    send_file(sockets[0].as_raw_fd(), from)?;
                }
                Ok(())
            })?;
            // The pipes stay in the socket.
            mem::forget(sockets);
            Ok(())
        })
    })
}

fn streams() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_STREAM)?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

fn datagrams() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_DGRAM)?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

/// Sends a descriptor.
fn send_file(socket: c_int, file: c_int) -> Outcome {
    let mut byte = [1_u8];
    let mut part = iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: all zeros is a valid header; the control block has room for one descriptor.
    unsafe {
        let mut message: msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CMSG_SPACE(4) as usize;
        let first = CMSG_FIRSTHDR(&message);
        (*first).cmsg_level = SOL_SOCKET;
        (*first).cmsg_type = SCM_RIGHTS;
        (*first).cmsg_len = CMSG_LEN(4) as usize;
        CMSG_DATA(first).cast::<c_int>().write_unaligned(file);
        call!(sendmsg(socket, &message, MSG_DONTWAIT));
    }
    Ok(())
}

/// Full sockets, in a chain in which each is only held by the next one.
fn in_flight() -> Outcome {
    bomb(|| {
        let mut inner: Option<c_int> = None;
        until_refused(|| {
            let [a, b] = socket_pair(SOCK_STREAM)?;
            if let Some(inner) = inner {
                send_file(a.as_raw_fd(), inner)?;
                call!(close(inner));
            }
            fill(a.as_raw_fd())?;
            inner = Some(b.into_raw_fd());
            Ok(())
        })
    })
}

fn tcp() -> Outcome {
    bomb(|| {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        until_refused(|| {
            let a = TcpStream::connect(listener.local_addr()?)?;
            let (b, _) = listener.accept()?;
            fill(a.into_raw_fd())?;
            fill(b.into_raw_fd())
        })
    })
}

fn udp() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let to = UdpSocket::bind("127.0.0.1:0")?;
            let from = UdpSocket::bind("127.0.0.1:0")?;
            from.connect(to.local_addr()?)?;
            for _ in 0..400 {
                from.send(&[1; 1200])?;
                got_one();
            }
            mem::forget((to, from));
            Ok(())
        })
    })
}

fn messages() -> Outcome {
    bomb_of(4, || {
        let message = [1_u64; 1025];
        until_refused(|| {
            let queue = call!(msgget(IPC_PRIVATE, 0o600));
            // SAFETY: sends from a buffer that is this long.
            unsafe { while msgsnd(queue, message.as_ptr().cast(), 8192, IPC_NOWAIT) == 0 {} }
            Ok(())
        })
    })
}

fn posix_queues() -> Outcome {
    bomb_of(4, || {
        let mut number = 0;
        // SAFETY: asks for the id of this process.
        let pid = unsafe { getpid() };
        until_refused(|| {
            number += 1;
            let name = c(&format!("/bomb-{pid}-{number}"));
            // SAFETY: opens by a name, and sends from a buffer that is this long.
            unsafe {
                let queue = mq_open(
                    name.as_ptr(),
                    O_RDWR | O_CREAT | O_NONBLOCK,
                    0o600,
                    null::<u8>(),
                );
                if queue == -1 {
                    return Err(Failure::of_call("mq_open", line!()));
                }
                let bytes = [1_u8; 8192];
                while mq_send(queue, bytes.as_ptr().cast(), bytes.len(), 0) == 0 {}
                // It goes with its last descriptor, whose number is free for the next one's sake.
                mq_unlink(name.as_ptr());
            }
            Ok(())
        })
    })
}

/// Each change of one folder is told to many that watch it.
fn events() -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || {
        for _ in 0..32 {
            let inotify = call!(inotify_init1(0));
            call!(inotify_add_watch(
                inotify,
                c(FOLDER).as_ptr(),
                IN_ALL_EVENTS
            ));
        }
        // SAFETY: asks for the id of this process.
        let number = unsafe { getpid() };
        let names = ["a", "b"].map(|it| format!("{FOLDER}/{number}-{}", it.repeat(240)));
        until_refused(|| {
            for name in &names {
                File::create(name)?;
            }
            Ok(())
        })
    })
}

/// Sockets that ask the kernel for its interfaces, and leave the answers where they are.
fn answers() -> Outcome {
    bomb(|| {
        until_refused(|| {
            unread_answers()?;
            Ok(())
        })
    })
}

/// A terminal whose buffers of both directions are full. It is raw: one that edits lines takes any
/// number of bytes, and drops them.
fn full_terminal() -> Outcome {
    let master = call!(posix_openpt(O_RDWR | O_NOCTTY));
    call!(unlockpt(master));
    // SAFETY: all zeros is a valid value, which the call fills.
    let mut modes: termios = unsafe { zeroed() };
    call!(tcgetattr(master, &mut modes));
    // SAFETY: changes a local.
    unsafe { cfmakeraw(&mut modes) };
    call!(tcsetattr(master, TCSANOW, &modes));
    let slave = call!(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    fill(master)?;
    fill(slave)
}

fn terminals() -> Outcome {
    bomb(|| until_refused(full_terminal))
}

/// As many terminals as one process can have, each with its buffers full.
fn single_terminals() -> Outcome {
    bomb_of(1, || {
        // SAFETY: sets a limit of this process from a local.
        unsafe { setrlimit(RLIMIT_NOFILE, &limit_of(4096)) };
        until_refused(full_terminal)
    })
}
