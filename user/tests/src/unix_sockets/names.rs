//! Names, the backlog, refusals, `/proc/net/unix`.

use super::{address, bind, connect, ready, socket};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("unix sockets: names", names),
    ("unix sockets: the backlog", backlog),
    ("unix sockets: refusals", refusals),
    ("unix sockets: in /proc", listed),
];

fn name_of(fd: c_int) -> Result<Vec<u8>> {
    let mut raw = [0xffu8; 128];
    let mut len = 128;
    call!(getsockname(fd, raw.as_mut_ptr().cast(), &mut len));
    equal!(raw[..2], [AF_UNIX as u8, 0]);
    Ok(raw[2..len as usize].to_vec())
}

fn names() -> Outcome {
    let folder = folder("unix-names")?;
    let path = format!("{folder}/socket");
    let listener = UnixListener::bind(&path)?;
    let shown = name_of(listener.as_raw_fd())?;
    ensure!(shown == [path.as_bytes(), b"\0"].concat(), "{shown:?}");
    // SAFETY: all zeros is a valid stat.
    let mut stat: stat = unsafe { zeroed() };
    let c_path = CString::new(path.clone()).map_err(|_| "a zero in a path")?;
    call!(stat(c_path.as_ptr(), &mut stat));
    equal!(stat.st_mode & S_IFMT, S_IFSOCK, stat.st_mode);
    refused!(ENXIO, open(c_path.as_ptr(), O_RDWR));
    // By another path, too.
    let link = format!("{folder}/link");
    fs::hard_link(&path, &link)?;
    let mut client = UnixStream::connect(&link)?;
    let (mut server, _) = listener.accept()?;
    client.write_all(b"hello")?;
    let mut buffer = [0; 8];
    let n = server.read(&mut buffer)?;
    ensure!(&buffer[..n] == b"hello", "{:?}", &buffer[..n]);
    let peer = client.peer_addr()?;
    ensure!(
        peer.as_pathname()
            .is_some_and(|p| p.to_str() == Some(&path)),
        "{peer:?}"
    );
    equal!(name_of(server.as_raw_fd())?, shown);
    ensure!(server.peer_addr().is_ok_and(|peer| peer.is_unnamed()));
    // Names in use, and names of sockets that do not listen.
    let other = socket(SOCK_STREAM)?;
    equal!(bind(other, path.as_bytes()), EADDRINUSE);
    equal!(bind(other, b"/nowhere/socket\0"), ENOENT);
    equal!(connect(other, format!("{folder}/none").as_bytes()), ENOENT);
    fs::write(format!("{folder}/file"), b"")?;
    let n = connect(other, format!("{folder}/file").as_bytes());
    ensure!(n == ECONNREFUSED, "connect to a file: {n}");
    let datagram = socket(SOCK_DGRAM)?;
    let n = connect(datagram, path.as_bytes());
    ensure!(n == EPROTOTYPE, "connect to another type: {n}");
    drop(listener);
    let n = connect(other, path.as_bytes());
    ensure!(n == ECONNREFUSED, "connect to a dead name: {n}");
    // Abstract names, which end with their sockets.
    ensure!(bind(other, b"\0causeway test") == 0, "abstract");
    ensure!(name_of(other)? == b"\0causeway test", "abstract name");
    let n = bind(other, b"\0another");
    ensure!(n == EINVAL, "bound again: {n}");
    let third = socket(SOCK_STREAM)?;
    equal!(bind(third, b"\0causeway test"), EADDRINUSE);
    equal!(connect(third, b"\0causeway test"), ECONNREFUSED);
    equal!(bind(datagram, b"\0causeway test"), 0);
    call!(close(other));
    ensure!(bind(third, b"\0causeway test") == 0, "abstract, free again");
    // A name chosen by the kernel.
    let fourth = socket(SOCK_DGRAM)?;
    ensure!(name_of(fourth)?.is_empty(), "a name of a fresh socket");
    ensure!(bind(fourth, b"") == 0, "any name");
    let name = name_of(fourth)?;
    ensure!(name.len() == 6 && name[0] == 0, "{name:?}");
    Ok(())
}

fn backlog() -> Outcome {
    let name = b"\0causeway backlog";
    let listener = socket(SOCK_STREAM)?;
    refused!(EINVAL, listen(listener, 1));
    ensure!(bind(listener, name) == 0, "bind");
    refused!(EINVAL, accept(listener, null_mut(), null_mut()));
    call!(listen(listener, 1));
    let mut clients = Vec::new();
    for _ in 0..2 {
        let client = socket(SOCK_STREAM)?;
        ensure!(connect(client, name) == 0, "connect: {}", errno());
        clients.push(client);
    }
    let full = socket(SOCK_STREAM | SOCK_NONBLOCK)?;
    let n = connect(full, name);
    ensure!(n == EAGAIN, "a full backlog: {n}");
    equal!(ready(listener)?, POLLIN as c_int);
    // A connection can be used before it is accepted.
    call!(send(clients[0], b"early".as_ptr().cast(), 5, 0));
    let child = spawn(|| {
        let late = socket(SOCK_STREAM)?;
        let n = connect(late, name);
        ensure!(n == 0, "a connect that waited: {n}");
        Ok(())
    })?;
    pause_ms(20);
    let first = call!(accept4(listener, null_mut(), null_mut(), SOCK_NONBLOCK));
    let mut buffer = [0u8; 8];
    let n = call!(recv(first, buffer.as_mut_ptr().cast(), 8, 0));
    ensure!(&buffer[..n as usize] == b"early", "{buffer:?}");
    refused!(EAGAIN, recv(first, buffer.as_mut_ptr().cast(), 8, 0));
    let end = wait(child)?;
    ensure!(end == End::Exit(0), "{end:?}");
    // A client not yet accepted is reset when the listener closes.
    call!(close(listener));
    refused! { recv(clients[1], buffer.as_mut_ptr().cast(), 8, 0) => ECONNRESET; }
    let n = connect(full, name);
    ensure!(n == ECONNREFUSED, "{n}");
    Ok(())
}

fn refusals() -> Outcome {
    refused!(EAFNOSUPPORT, socket(77, SOCK_STREAM, 0));
    refused!(EINVAL, socket(AF_UNIX, 99, 0));
    refused!(EINVAL, socket(AF_UNIX, SOCK_STREAM | 0x100, 0));
    refused!(EPROTONOSUPPORT, socket(AF_UNIX, SOCK_STREAM, 5));
    refused!(ENOTSOCK, listen(1, 1));
    refused!(EBADF, listen(99, 1));
    let stream = socket(SOCK_STREAM)?;
    let mut byte = [0u8; 4];
    refused! {
        send(stream, byte.as_ptr().cast(), 1, MSG_NOSIGNAL) => ENOTCONN;
        recv(stream, byte.as_mut_ptr().cast(), 1, 0) => EINVAL;
        lseek(stream, 0, SEEK_CUR) => ESPIPE;
        pread(stream, byte.as_mut_ptr().cast(), 1, 0) => ESPIPE;
    }
    let mut len = 4;
    refused! { getpeername(stream, byte.as_mut_ptr().cast(), &mut len) => ENOTCONN; }
    let n = bind(stream, &[b'x'; 109]);
    ensure!(n == EINVAL, "a long address: {n}");
    let n = connect(stream, b"");
    ensure!(n == EINVAL, "connect without a name: {n}");
    let (mut other, len) = address(b"/tmp/x");
    other.sun_family = AF_INET as u16;
    refused!(EINVAL, bind(stream, (&raw const other).cast(), len));
    let datagram = socket(SOCK_DGRAM)?;
    refused!(EOPNOTSUPP, listen(datagram, 1));
    refused!(EOPNOTSUPP, accept(datagram, null_mut(), null_mut()));
    refused!(EINVAL, accept4(stream, null_mut(), null_mut(), 1));
    refused!(EFAULT, socketpair(AF_UNIX, SOCK_STREAM, 0, null_mut()));
    let [a, _b] = socket_pair(SOCK_STREAM)?;
    let n = connect(a.as_raw_fd(), b"\0nobody");
    ensure!(n == ECONNREFUSED, "connect of a pair to nobody: {n}");
    let (to, len) = address(b"\0nobody");
    refused!(
        EISCONN,
        sendto(
            a.as_raw_fd(),
            byte.as_ptr().cast(),
            1,
            0,
            (&raw const to).cast(),
            len
        )
    );
    Ok(())
}

fn listed() -> Outcome {
    let folder = folder("unix-listed")?;
    let path = format!("{folder}/socket");
    let listener = UnixListener::bind(&path)?;
    let link = format!("/proc/self/fd/{}", listener.as_raw_fd());
    let text = fs::read_link(&link)?;
    let text = text.to_string_lossy().into_owned();
    let inode = text
        .strip_prefix("socket:[")
        .and_then(|text| text.strip_suffix(']'))
        .ok_or(format!("the link is {text}"))?;
    // SAFETY: all zeros is a valid stat.
    let mut stat: stat = unsafe { zeroed() };
    call!(fstat(listener.as_raw_fd(), &mut stat));
    ensure!(stat.st_ino.to_string() == inode, "inode {}", stat.st_ino);
    equal!(stat.st_mode, S_IFSOCK | 0o777);
    let list = fs::read_to_string("/proc/net/unix")?;
    let line = list
        .lines()
        .find(|line| line.ends_with(&path))
        .ok_or(format!("not listed: {list}"))?;
    ensure!(
        line.contains("00010000 0001 01") && line.contains(inode),
        "{line}"
    );
    Ok(())
}
