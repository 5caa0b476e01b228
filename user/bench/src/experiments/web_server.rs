//! A web server and a client of this machine: small files by HTTP 1.0.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::draws::Draws;
use crate::movement::{Buffer, Peer, check_stamp, checked, stamp, wrong};
use crate::{Bench, Experiment, Failure, Meter, Unit};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "web-server",
    title: "A web server's files by loopback, sent by sendfile",
    help: "\
One program serves files in memory by HTTP 1.0, a connection each, with sendfile; another one asks
for them by 127.0.0.1. Requests a second.

web-server/SIZE            64 files of 4 KiB or of 64 KiB in turn, both programs on one CPU
web-server/nasa            12,900 files of 1 to 40 KiB, 259 MiB in all as in the paper's NASA
                           workload (ephemeral-mappings.txt 6.5.2), by popularity; the short set
                           has an eighth of them
web-server/nasa-untouched  the client drops what it receives, so that nobody looks at it
...-2cpu                   on two CPUs

A file's pages are stamped with its number, and the client looks at them.",
    run,
};

/// What is served.
#[derive(Clone, Copy)]
pub(super) struct Site {
    /// The name of the rows and of the folder.
    pub(super) name: &'static str,
    pub(super) files: u64,
    /// The bytes of all files; `None` for the sizes of [`NASA`].
    pub(super) size: Option<usize>,
    /// Requests of a batch.
    pub(super) batch: u64,
}

const FEW: u64 = 64;
const FEW_SMALL: Site = Site {
    name: "4KiB",
    files: FEW,
    size: Some(4 << 10),
    batch: FEW,
};
pub(super) const FEW_LARGE: Site = Site {
    name: "64KiB",
    size: Some(64 << 10),
    ..FEW_SMALL
};
/// Its files have 20.5 KiB on average.
pub(super) const NASA: Site = Site {
    name: "nasa",
    files: 12_900,
    size: None,
    batch: 8192,
};
pub(super) const NASA_SHORT: Site = Site {
    files: NASA.files / 8,
    batch: NASA.batch / 8,
    ..NASA
};

/// The smallest and the largest file of [`NASA`].
const LEAST: u64 = 1 << 10;
const MOST: u64 = 40 << 10;

impl Site {
    /// The bytes of a file.
    fn size(&self, number: u64) -> usize {
        let drawn = || (LEAST + Draws(number).below(MOST - LEAST + 1)) as usize;
        self.size.unwrap_or_else(drawn)
    }

    /// The file of the next request.
    pub(super) fn next(&self, turn: u64, draws: &mut Draws) -> u64 {
        match self.size {
            Some(_) => turn % self.files,
            None => draws.popular(self.files),
        }
    }

    /// Makes the files, if an earlier row has not.
    pub(super) fn make(&self, folder: &Path) -> Result<(), Failure> {
        if folder.exists() {
            return Ok(());
        }
        fs::create_dir_all(folder)?;
        let mut buffer = Buffer::new(MOST_BYTES, 0)?;
        for number in 0..self.files {
            let bytes = &mut buffer.bytes_mut()[..self.size(number)];
            stamp(bytes, number);
            fs::write(folder.join(number.to_string()), bytes)?;
        }
        Ok(())
    }
}

/// The largest file of all.
const MOST_BYTES: usize = 64 << 10;

/// The act of the server: so many requests.
const SERVE: u8 = 0;

/// The seed of all draws.
pub(super) const SEED: u64 = 42;

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
    let nasa = if bench.is_full() { NASA } else { NASA_SHORT };
    for (site, touches) in [
        (FEW_SMALL, true),
        (FEW_LARGE, true),
        (nasa, true),
        (nasa, false),
    ] {
        let untouched = if touches { "" } else { "-untouched" };
        for (cpu, suffix) in [(0, ""), (1, "-2cpu")] {
            let row = bench.row(format!("web-server/{}{untouched}{suffix}", site.name));
            row.unit(Unit::OperationsPerSecond)
                .cpus(cpu + 1)
                .batch(site.batch)
                .run(|meter| requests(meter, &folder.join(site.name), site, touches, cpu))?;
        }
    }
    Ok(())
}

fn requests(
    meter: &mut Meter,
    folder: &Path,
    site: Site,
    touches: bool,
    cpu: usize,
) -> Result<(), Failure> {
    site.make(folder)?;
    let mut buffer = Buffer::new(MOST_BYTES, 0)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let root = folder.to_owned();
    let mut server = Peer::start(cpu, move |order| {
        for _ in 0..order.count {
            answer(listener.accept()?.0, &root)?;
        }
        Ok(())
    })?;
    let mut draws = Draws(SEED);
    meter.measure(|count| {
        server.with(SERVE, count, || {
            for turn in 0..count {
                let number = site.next(turn, &mut draws);
                let body = &mut buffer.bytes_mut()[..site.size(number)];
                get(address, number, body, touches)?;
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
    send_file(&client, &root.join(name.trim_start_matches('/')))
}

/// Serves one request, whatever it asks for, with the file of this number.
pub(super) fn answer_with(mut client: TcpStream, root: &Path, number: u64) -> io::Result<()> {
    read_head(&mut client, &mut [0; HEAD])?;
    send_file(&client, &root.join(number.to_string()))
}

/// Answers with a file.
fn send_file(mut client: &TcpStream, file: &Path) -> io::Result<()> {
    let file = File::open(file)?;
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

/// Makes one request: the whole file must arrive, and nothing behind it. A client that does not
/// touch the file has it dropped by the kernel, all but what comes with the head.
fn get(server: SocketAddr, number: u64, body: &mut [u8], touches: bool) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    write!(server, "GET /{number} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut head = [0; HEAD];
    let (filled, end) = read_head(&mut server, &mut head)?;
    let early = &head[end..filled];
    if !head.starts_with(b"HTTP/1.0 200 ") || early.len() > body.len() {
        return Err(wrong("another answer than was asked for"));
    }
    body[..early.len()].copy_from_slice(early);
    let rest = &mut body[early.len()..];
    match touches {
        true => server.read_exact(rest)?,
        false => drop_bytes(&server, rest)?,
    }
    if server.read(&mut [0])? > 0 {
        return Err(wrong("more than the file"));
    }
    match touches {
        true => check_stamp(body, number),
        false => Ok(()),
    }
}

/// Lets the kernel drop as many bytes as the buffer has.
fn drop_bytes(server: &TcpStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        // SAFETY: the descriptor is open, and the buffer has room for what is asked for.
        let count = checked(unsafe {
            libc::recv(
                server.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_TRUNC,
            )
        })?;
        match count {
            0 => return Err(wrong("a file ended too early")),
            count => buffer = &mut buffer[count as usize..],
        }
    }
    Ok(())
}
