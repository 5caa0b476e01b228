//! Clients of the guest's servers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connections that are kept for one client, requests at once, and bytes of an answer's head.
const MOST_HELD: u64 = 1 << 16;
const MOST_WIDTH: u64 = 64;
const MOST_HEAD: u64 = 64 << 10;

/// Connects to the guest.
fn open(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Makes connections one after another, waits for the end of each, and returns the bytes that came.
///
/// # Errors
/// Those of a connection.
pub fn connect(at: SocketAddr, count: u64) -> io::Result<u64> {
    let mut all = 0;
    for _ in 0..count {
        all += io::copy(&mut open(at)?, &mut io::sink())?;
    }
    Ok(all)
}

/// Makes connections and keeps them in `held`. Each one is accepted, and a byte has come, before
/// the next begins: QEMU's user network has room for few that were not.
///
/// # Errors
/// Those of a connection; too many of them.
pub fn hold(at: SocketAddr, count: u64, held: &mut Vec<TcpStream>) -> io::Result<u64> {
    let wanted = (held.len() as u64).saturating_add(count);
    if wanted > MOST_HELD {
        return Err(io::Error::other(format!(
            "more than {MOST_HELD} are wanted"
        )));
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Where it is not allowed, a connection fails and says so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, most);
    while (held.len() as u64) < wanted {
        let mut stream = open(at)?;
        stream.read_exact(&mut [0])?;
        held.push(stream);
    }
    Ok(0)
}

/// Fetches a path so many times by so many connections at once, each of which is kept where the
/// server keeps it; returns the bytes of the bodies.
///
/// # Errors
/// Those of a connection, or an answer that is none.
pub fn get(at: SocketAddr, path: &str, count: u64, width: u64) -> io::Result<u64> {
    let width = width.clamp(1, MOST_WIDTH);
    thread::scope(|scope| {
        let shares = (0..width).map(|one| count / width + u64::from(one < count % width));
        let all: Vec<_> = shares
            .map(|share| scope.spawn(move || fetch(at, path, share)))
            .collect();
        let mut bytes = 0;
        for one in all {
            bytes += one
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a client panicked")))?;
        }
        Ok(bytes)
    })
}

fn fetch(at: SocketAddr, path: &str, count: u64) -> io::Result<u64> {
    let mut bytes = 0;
    let mut kept: Option<BufReader<TcpStream>> = None;
    for _ in 0..count {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => BufReader::with_capacity(256 << 10, open(at)?),
        };
        // In one packet: `write!` sends one for each piece.
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: guest\r\nConnection: keep-alive\r\n\r\n");
        stream.get_ref().write_all(request.as_bytes())?;
        let (length, stays) = head(&mut stream)?;
        let copied = io::copy(&mut stream.by_ref().take(length), &mut io::sink())?;
        if copied != length {
            return Err(io::Error::other(format!("{copied} bytes of {length} came")));
        }
        bytes += copied;
        kept = stays.then_some(stream);
    }
    Ok(bytes)
}

/// Reads an answer's head: the length of the body, and whether the connection stays.
fn head(stream: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut head = stream.take(MOST_HEAD);
    let mut next = || {
        let mut line = String::new();
        head.read_line(&mut line)?;
        match line.ends_with('\n') {
            true => Ok(line.trim_end().to_ascii_lowercase()),
            false => Err(io::Error::other("the server's answer ends in its head")),
        }
    };
    let status = next()?;
    if !status.starts_with("http/1.") || !status.contains(" 200") {
        return Err(io::Error::other(format!("the server said {status:?}")));
    }
    let mut stays = status.starts_with("http/1.1");
    let mut length = None;
    loop {
        let line = next()?;
        match line
            .split_once(':')
            .map(|(name, value)| (name, value.trim()))
        {
            None => break,
            Some(("content-length", number)) => length = number.parse().ok(),
            Some(("connection", "close")) => stays = false,
            Some(_) => {}
        }
    }
    let length = length.ok_or_else(|| io::Error::other("the server told no length"))?;
    Ok((length, stays))
}
