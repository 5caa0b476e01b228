//! A web server and a client of this machine: small files by HTTP 1.0.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::movement::{Buffer, Peer, check_stamp, checked, size_name, stamp, wrong};
use crate::{Bench, Experiment, Failure, Meter, Unit};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "web-server",
    title: "A web server's files by loopback, sent by sendfile",
    help: "\
One program serves 64 files in memory by HTTP 1.0, a connection each, with sendfile; another one
asks for them in turn by 127.0.0.1. Requests a second.

web-server/SIZE        files of 4 KiB and of 64 KiB, both programs on one CPU
web-server/SIZE-2cpu   on two CPUs

A file's pages are stamped with its number, and the client looks at them.",
    run,
};

/// Files of the server.
const FILES: u64 = 64;

/// The act of the server: so many requests.
const SERVE: u8 = 0;

/// The longest head of a request or an answer, in bytes.
const HEAD: usize = 1024;

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let folder = PathBuf::from(format!("/tmp/bench-web-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = rows(bench, &folder);
    // Files that cannot be removed vanish with the guest.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn rows(bench: &mut Bench, folder: &Path) -> Result<(), Failure> {
    for size in [4 << 10, 64 << 10] {
        for (cpu, suffix) in [(0, ""), (1, "-2cpu")] {
            let row = bench.row(format!("web-server/{}{suffix}", size_name(size)));
            row.unit(Unit::OperationsPerSecond)
                .cpus(cpu + 1)
                .batch(FILES)
                .run(|meter| requests(meter, folder, size, cpu))?;
        }
    }
    Ok(())
}

fn requests(meter: &mut Meter, folder: &Path, size: usize, cpu: usize) -> Result<(), Failure> {
    let mut buffer = Buffer::new(size, 0)?;
    for number in 0..FILES {
        stamp(buffer.bytes_mut(), number);
        fs::write(folder.join(number.to_string()), buffer.bytes())?;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let root = folder.to_owned();
    let mut server = Peer::start(cpu, move |order| {
        for _ in 0..order.count {
            answer(listener.accept()?.0, &root)?;
        }
        Ok(())
    })?;
    meter.measure(|count| {
        server.with(SERVE, count, || {
            for number in 0..count {
                get(address, number % FILES, buffer.bytes_mut())?;
            }
            Ok(())
        })
    })
}

/// Reads up to the end of a head; returns the bytes and the length of the head.
fn read_head(from: &mut TcpStream, head: &mut [u8; HEAD]) -> io::Result<(usize, usize)> {
    let mut filled = 0;
    loop {
        match from.read(&mut head[filled..])? {
            0 => return Err(wrong("a head without an end")),
            count => filled += count,
        }
        let found = head[..filled].windows(END.len()).position(|at| at == END);
        if let Some(at) = found {
            return Ok((filled, at + END.len()));
        }
    }
}

/// Serves one request.
fn answer(mut client: TcpStream, root: &Path) -> io::Result<()> {
    let mut head = [0; HEAD];
    let (_, end) = read_head(&mut client, &mut head)?;
    let words = String::from_utf8_lossy(&head[..end]);
    let name = words.split_whitespace().nth(1).unwrap_or_default();
    let file = File::open(root.join(name.trim_start_matches('/')))?;
    let mut left = file.metadata()?.len() as usize;
    write!(client, "HTTP/1.0 200 OK\r\nContent-Length: {left}\r\n\r\n")?;
    while left > 0 {
        // SAFETY: the descriptors are open; a null place means the file's own.
        let moved = checked(unsafe {
            libc::sendfile(
                client.as_raw_fd(),
                file.as_raw_fd(),
                std::ptr::null_mut(),
                left,
            )
        })?;
        match moved {
            0 => return Err(wrong("a file ended too early")),
            moved => left -= moved as usize,
        }
    }
    Ok(())
}

/// Makes one request: the whole file must arrive, and nothing behind it.
fn get(server: SocketAddr, number: u64, body: &mut [u8]) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    write!(server, "GET /{number} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut head = [0; HEAD];
    let (filled, end) = read_head(&mut server, &mut head)?;
    let early = &head[end..filled];
    if !head.starts_with(b"HTTP/1.0 200 ") || early.len() > body.len() {
        return Err(wrong("another answer than was asked for"));
    }
    body[..early.len()].copy_from_slice(early);
    server.read_exact(&mut body[early.len()..])?;
    if server.read(&mut [0])? > 0 {
        return Err(wrong("more than the file"));
    }
    check_stamp(body, number)
}
