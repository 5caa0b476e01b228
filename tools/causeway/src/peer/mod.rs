//! `causeway peer`, and the other end of the network in a bench: what a guest's experiments send
//! to, receive from, and are called by.
//!
//! It is a server of TCP. Each line that a client sends asks for a service; numbers are decimal:
//!
//! | line | service |
//! |---|---|
//! | `sink N` | takes bytes until the client's end, and answers one after each N |
//! | `source` | for each 8 bytes, a number with the least byte first, sends so many bytes |
//! | `echo` | sends back what comes, at once |
//! | `close` | closes |
//! | `udp` | answers the port of a UDP socket, which lives as long as the connection: see [`udp`] |
//! | `connect PORT COUNT` | connects COUNT times to the client's port, each time until its end |
//! | `hold PORT COUNT` | makes COUNT connections, waits for a byte of each, and keeps them as long |
//! | | as this one |
//! | `get PORT COUNT WIDTH PATH` | fetches a path by HTTP COUNT times, WIDTH connections at once |
//!
//! The last three answer with a line when they are done: `done BYTES`, or why not; then the next
//! line may come. Each client has a thread, which ends with it; during one of the last three, when
//! that is done or fails.
//!
//! A guest may be hostile: clients, connections and the bytes that are kept have bounds.

mod client;
mod udp;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::sockopt;

/// The bytes that a stream moves at once.
const CHUNK: usize = 256 << 10;

/// The longest line of a client.
const LONGEST: u64 = 1024;

/// Clients at once; more are refused. With two descriptors each they fit into the usual limit.
const MOST_CLIENTS: usize = 256;

/// How long a client is silent before it is asked whether it is there still: one whose machine was
/// killed is not.
const SILENCE: Duration = Duration::from_secs(60);

/// Options of `causeway peer`.
#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Where to listen. A guest with `--net user` reaches 127.0.0.1 as 10.0.2.2
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7077")]
    listen: SocketAddr,
    /// The port of this host that leads to the guest's servers (`causeway run --port`), in place of
    /// the ports that its programs name
    #[arg(long, value_name = "PORT")]
    forward: Option<u16>,
}

/// Serves until the program is ended.
///
/// # Errors
/// When the address can't be had, or clients can't be accepted any more.
pub fn peer(options: &Options) -> Result<()> {
    let listener = TcpListener::bind(options.listen)
        .with_context(|| format!("cannot listen at {}", options.listen))?;
    println!("serving at {}", listener.local_addr()?);
    Ok(serve(&listener, options.forward)?)
}

/// Starts a peer at a free port of this address, in threads that end with this program.
///
/// # Errors
/// When the address can't be had.
pub fn start(address: Ipv4Addr, forward: Option<u16>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))
        .with_context(|| format!("the peer cannot listen at {address}"))?;
    let at = listener.local_addr()?;
    thread::spawn(move || serve(&listener, forward));
    Ok(at)
}

/// Serves each client in a thread of its own.
fn serve(listener: &TcpListener, forward: Option<u16>) -> io::Result<()> {
    // Each client's thread has a reference.
    let clients = Arc::new(());
    loop {
        let (client, _) = listener.accept()?;
        if Arc::strong_count(&clients) > MOST_CLIENTS {
            continue;
        }
        let counted = clients.clone();
        // A guest that ends breaks its connections, which is no error here.
        thread::spawn(move || {
            let _counted = counted;
            attend(client, forward)
        });
    }
}

/// Does what the lines of a client ask for.
fn attend(client: TcpStream, forward: Option<u16>) -> io::Result<()> {
    client.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&client, true)?;
    sockopt::set_tcp_keepidle(&client, SILENCE)?;
    let own = client.local_addr()?.ip();
    let far = client.peer_addr()?.ip();
    let guest = |port| guest(far, port, forward);
    let mut lines = BufReader::new(client.try_clone()?);
    let mut held = Vec::new();
    loop {
        let mut line = String::new();
        if lines.by_ref().take(LONGEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().map_err(io::Error::other);
        let port = |word: &str| word.parse::<u16>().map_err(io::Error::other);
        let done = match words[..] {
            ["sink", each] => return sink(lines, &client, number(each)?),
            ["source"] => return source(lines, &client),
            ["echo"] => return echo(lines, &client),
            ["udp"] => return udp::serve(own, far, &client),
            ["connect", at, count] => client::connect(guest(port(at)?), number(count)?),
            ["hold", at, count] => client::hold(guest(port(at)?), number(count)?, &mut held),
            ["get", at, count, width, path] => {
                // QEMU's network takes one new connection at a time, and the others late.
                let width = if forward.is_some() { 1 } else { number(width)? };
                client::get(guest(port(at)?), path, number(count)?, width)
            }
            _ => return Ok(()),
        };
        let answer = match done {
            Ok(bytes) => format!("done {bytes}\n"),
            Err(why) => format!("{why}\n"),
        };
        (&client).write_all(answer.as_bytes())?;
    }
}

/// Where a guest's port is reached.
fn guest(far: IpAddr, port: u16, forward: Option<u16>) -> SocketAddr {
    match forward {
        Some(forward) => (Ipv4Addr::LOCALHOST, forward).into(),
        None => (far, port).into(),
    }
}

fn sink(mut from: impl Read, mut to: &TcpStream, each: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut owed = 0;
    loop {
        match from.read(&mut buffer)? as u64 {
            0 => return Ok(()),
            count => owed += count,
        }
        while owed >= each.max(1) {
            owed -= each.max(1);
            to.write_all(&[1])?;
        }
    }
}

fn source(mut from: impl Read, mut to: &TcpStream) -> io::Result<()> {
    let buffer = vec![b'c'; CHUNK];
    loop {
        let mut number = [0; 8];
        from.read_exact(&mut number)?;
        let mut left = u64::from_le_bytes(number);
        while left > 0 {
            let count = left.min(CHUNK as u64);
            to.write_all(&buffer[..count as usize])?;
            left -= count;
        }
    }
}

fn echo(mut from: impl Read, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => to.write_all(&buffer[..count])?,
        }
    }
}

#[cfg(test)]
mod tests;
