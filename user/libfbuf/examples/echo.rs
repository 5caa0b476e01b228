//! A child sends each message back with a header before it, and copies none of it.
//!
//! The child is this program started again: it has nothing of the parent but a socket.

use std::env;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use libfbuf::{Aggregate, Channel, Contents, Domain, Mode, Path, lines};

/// Receives until the other end closes the channel.
fn serve(socket: OwnedFd) -> io::Result<()> {
    let domain = Domain::enter_any()?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let mut channel = Channel::connect(&domain, &path, socket)?;
    while let Some(request) = channel.receive()? {
        channel.send(&path.forward(&request).prepend(b"echo: ")?)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    if let Some(socket) = env::args().nth(1) {
        let socket = socket.parse().map_err(io::Error::other)?;
        // SAFETY: the parent left it open for this program alone.
        return serve(unsafe { OwnedFd::from_raw_fd(socket) });
    }
    let (here, there) = UnixStream::pair()?;
    // SAFETY: takes numbers. The child inherits this end.
    unsafe { libc::fcntl(there.as_raw_fd(), libc::F_SETFD, 0) };
    let mut child = Command::new(env::current_exe()?)
        .arg(there.as_raw_fd().to_string())
        .spawn()?;
    drop(there);

    let domain = Domain::enter_any()?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let mut channel = Channel::connect(&domain, &path, here.into())?;
    // Pages of this process, in which the child reads the message.
    let mut fbuf = path.allocate(100_000)?;
    fbuf[..100_000].fill(b'x');
    fbuf[..13].copy_from_slice(b"first\nsecond\n");
    let answer = channel.call(&Aggregate::new(fbuf, 100_000)?)?;
    assert_eq!(answer.len(), 100_006);
    let mut lines = lines(&answer, 1000).map(|line| line.to_vec());
    assert_eq!(lines.next().as_deref(), Some(&b"echo: first\n"[..]));
    assert_eq!(lines.next().as_deref(), Some(&b"second\n"[..]));
    drop(lines);
    // The child sees the end.
    drop((answer, channel));
    assert!(child.wait()?.success());
    println!("echo: done");
    Ok(())
}
