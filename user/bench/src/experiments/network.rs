//! The network card, and a peer behind it: `causeway peer`, a program of the host's.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::web_server::{FEW_LARGE, NASA, NASA_SHORT, SEED, Site, answer_with};
use crate::draws::Draws;
use crate::limits::allow_files;
use crate::movement::{Buffer, send_file, size_name, stamp, wrong};
use crate::partner::Program;
use crate::{Bench, Experiment, Failure, Meter, Row, Unit, memory};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "network",
    title: "TCP, UDP and web servers over the network card",
    help: "\
One program here, and a peer outside of the machine. The peer's work is not measured where
instructions are counted; where time is, it has a processor of its own if the host has one left.

send-SIZE       writes of SIZE bytes, which the peer takes: MiB/s. The bytes stay as they are, as
                netperf's do; -stamped: the program writes into each page before each write
sendfile-64KiB  the same of a file, by sendfile
receive-SIZE    reads of up to SIZE bytes of what the peer sends: MiB/s
latency         one byte there and one back: ns a round trip
connect-close   connect, a word, its end, close: connections a second; -accept: the peer connects,
                and the program here accepts and closes
udp-latency, udp-send-64B, udp-receive-64B
                datagrams, of which the last of each 32 is answered, or asks for the next 32
web-64KiB       files of 64 KiB by HTTP 1.0 and sendfile, a connection each, for 8 clients at once
web-nasa, web-rice
                the same with files of 1 to 40 KiB by popularity, 259 MiB and 1.1 GiB in all
                (ephemeral-mappings.txt 6.5.2); the short set has an eighth of them
nginx-64KiB     Debian's nginx, if the root has it, and 8 connections that stay
idle            10,000 connections that the peer holds: bytes of memory for each (short: 1,000)",
    run,
};

/// The port of this machine's servers.
const PORT: u16 = 8080;

/// Bytes that a batch of a stream moves.
const BATCH_BYTES: usize = 4 << 20;

/// Round trips, connections and requests of a batch.
const TRIPS: u64 = 200;
const CONNECTIONS: u64 = 64;
const REQUESTS: u64 = 64;

/// Clients at once.
const WIDTH: u64 = 8;

/// Bytes of a small datagram, datagrams until the next answer, and such windows in a batch.
const DATAGRAM: usize = 64;
const WINDOW: u8 = 32;
const WINDOWS: u64 = 32;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The workload of Rice University's computer science department, of which the paper gives the
/// footprint only.
const RICE: Site = Site {
    name: "rice",
    files: 54_900,
    ..NASA
};
const RICE_SHORT: Site = Site {
    files: RICE.files / 8,
    batch: NASA_SHORT.batch,
    ..RICE
};

/// What a stream does with its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Write,
    Stamp,
    SendFile,
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let peer = match bench.peer() {
        Ok(peer) => peer,
        Err(why) => return bench.row("network/latency").value(Err(why)),
    };
    let folder = PathBuf::from(format!("/tmp/bench-network-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = streams(bench, peer, &folder)
        .and_then(|()| exchanges(bench, peer))
        .and_then(|()| servers(bench, peer, &folder));
    // Files that cannot be removed vanish with the guest.
    let _ = fs::remove_dir_all(&folder);
    outcome
}

fn streams(bench: &mut Bench, peer: SocketAddr, folder: &Path) -> Result<(), Failure> {
    for (name, size, way) in [
        ("send", 64 << 10, Way::Write),
        ("send", 16 << 10, Way::Write),
        ("send", 64 << 10, Way::Stamp),
        ("sendfile", 64 << 10, Way::SendFile),
    ] {
        let stamped = if way == Way::Stamp { "-stamped" } else { "" };
        stream(bench, &format!("{name}-{}{stamped}", size_name(size)), size)
            .run(|meter| send(meter, peer, size, way, folder))?;
    }
    for size in [64 << 10, 16 << 10] {
        stream(bench, &format!("receive-{}", size_name(size)), size)
            .run(|meter| receive(meter, peer, size))?;
    }
    Ok(())
}

fn stream<'b, 'a>(bench: &'b mut Bench<'a>, name: &str, size: usize) -> Row<'b, 'a> {
    let row = bench.row(format!("network/{name}"));
    row.bytes(size as u64).batch((BATCH_BYTES / size) as u64)
}

fn exchanges(bench: &mut Bench, peer: SocketAddr) -> Result<(), Failure> {
    let rate = |bench: &mut Bench, name: &str, batch, body: &dyn Fn(&mut Meter) -> _| {
        let row = bench.row(format!("network/{name}"));
        row.unit(Unit::OperationsPerSecond).batch(batch).run(body)
    };
    let row = bench.row("network/latency").batch(TRIPS);
    row.run(|meter| latency(meter, peer))?;
    rate(bench, "connect-close", CONNECTIONS, &|meter| {
        connect(meter, peer)
    })?;
    rate(bench, "connect-close-accept", CONNECTIONS, &|meter| {
        accept(meter, peer)
    })?;
    let row = bench.row("network/udp-latency").batch(TRIPS);
    row.run(|meter| {
        let (_control, socket) = datagrams(peer)?;
        meter.measure(|count| {
            for _ in 0..count {
                socket.send(&[1])?;
                socket.recv(&mut [0])?;
            }
            Ok(())
        })
    })?;
    let batch = WINDOWS * u64::from(WINDOW);
    rate(bench, "udp-send-64B", batch, &|meter| {
        let (_control, socket) = datagrams(peer)?;
        meter.measure(|count| {
            for number in 1..=count {
                let mut datagram = [0; DATAGRAM];
                let is_last = number % u64::from(WINDOW) == 0;
                datagram[0] = u8::from(is_last);
                socket.send(&datagram)?;
                if is_last {
                    socket.recv(&mut datagram)?;
                }
            }
            Ok(())
        })
    })?;
    rate(bench, "udp-receive-64B", batch, &|meter| {
        let (_control, socket) = datagrams(peer)?;
        meter.measure(|count| {
            for _ in 0..count / u64::from(WINDOW) {
                let mut datagram = [0; DATAGRAM];
                datagram[0] = WINDOW;
                socket.send(&datagram)?;
                for _ in 0..WINDOW {
                    socket.recv(&mut datagram)?;
                }
            }
            Ok(())
        })
    })
}

fn servers(bench: &mut Bench, peer: SocketAddr, folder: &Path) -> Result<(), Failure> {
    let (nasa, rice) = match bench.is_full() {
        true => (NASA, RICE),
        false => (NASA_SHORT, RICE_SHORT),
    };
    for site in [FEW_LARGE, nasa, rice] {
        let row = bench.row(format!("network/web-{}", site.name));
        row.unit(Unit::OperationsPerSecond)
            .batch(site.batch.min(nasa.batch))
            .run(|meter| web(meter, peer, site, &folder.join(site.name)))?;
    }
    let row = bench.row("network/nginx-64KiB");
    row.unit(Unit::OperationsPerSecond)
        .batch(REQUESTS)
        .pinned(None)
        .run(|meter| nginx(meter, peer, folder))?;
    let many = if bench.is_full() { 10_000 } else { 1_000 };
    let row = bench.row("network/idle").unit(Unit::Bytes);
    row.run(|meter| idle(meter, peer, many))
}

/// Connects to the peer and asks for a service.
fn service(peer: SocketAddr, line: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(peer)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    Ok(stream)
}

fn send(
    meter: &mut Meter,
    peer: SocketAddr,
    size: usize,
    way: Way,
    folder: &Path,
) -> Result<(), Failure> {
    let mut buffer = Buffer::new(size, 0)?;
    let path = folder.join("sent");
    fs::write(&path, vec![b'c'; size])?;
    let file = File::open(&path)?;
    let mut stream = service(peer, &format!("sink {BATCH_BYTES}"))?;
    meter.measure(|count| {
        for turn in 0..count {
            match way {
                Way::Write => stream.write_all(buffer.bytes())?,
                Way::Stamp => {
                    stamp(buffer.bytes_mut(), turn);
                    stream.write_all(buffer.bytes())?;
                }
                Way::SendFile => send_file(&stream, &file, size)?,
            }
        }
        Ok(stream.read_exact(&mut [0])?)
    })
}

fn receive(meter: &mut Meter, peer: SocketAddr, size: usize) -> Result<(), Failure> {
    let mut buffer = Buffer::new(size, 0)?;
    let mut stream = service(peer, "source")?;
    meter.measure(|count| {
        let mut left = count as usize * size;
        stream.write_all(&(left as u64).to_le_bytes())?;
        while left > 0 {
            let most = left.min(size);
            match stream.read(&mut buffer.bytes_mut()[..most])? {
                0 => return Err("the peer went".into()),
                read => left -= read,
            }
        }
        Ok(())
    })
}

fn latency(meter: &mut Meter, peer: SocketAddr) -> Result<(), Failure> {
    let mut stream = service(peer, "echo")?;
    stream.set_nodelay(true)?;
    meter.measure(|count| {
        for _ in 0..count {
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])?;
        }
        Ok(())
    })
}

fn connect(meter: &mut Meter, peer: SocketAddr) -> Result<(), Failure> {
    meter.measure(|count| {
        for _ in 0..count {
            let mut stream = TcpStream::connect(peer)?;
            stream.write_all(b"close\n")?;
            if stream.read(&mut [0])? > 0 {
                return Err("the peer did not close".into());
            }
        }
        Ok(())
    })
}

fn accept(meter: &mut Meter, peer: SocketAddr) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let mut orders = Orders::new(peer)?;
    meter.measure(|count| {
        orders.give(&format!("connect {PORT} {count}"))?;
        for _ in 0..count {
            drop(listener.accept()?);
        }
        orders.done().map(drop)
    })
}

/// Asks for a socket of the peer's; the connection keeps it.
fn datagrams(peer: SocketAddr) -> Result<(TcpStream, UdpSocket), Failure> {
    let control = service(peer, "udp")?;
    let mut line = String::new();
    BufReader::new(&control).read_line(&mut line)?;
    let port: u16 = line.trim().parse().map_err(|_| wrong("no port"))?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((peer.ip(), port))?;
    Ok((control, socket))
}

/// A connection by which the peer is told to be a client.
struct Orders(BufReader<TcpStream>);

impl Orders {
    fn new(peer: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(peer)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn give(&mut self, order: &str) -> io::Result<()> {
        self.0.get_ref().write_all(format!("{order}\n").as_bytes())
    }

    /// Waits until an order is done; returns the bytes that the peer got.
    fn done(&mut self) -> Result<u64, Failure> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let bytes = line.trim().strip_prefix("done ");
        let bytes = bytes.and_then(|number| number.parse().ok());
        bytes.ok_or_else(|| format!("the peer: {}", line.trim()).into())
    }
}

fn web(meter: &mut Meter, peer: SocketAddr, site: Site, folder: &Path) -> Result<(), Failure> {
    site.make(folder)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let mut orders = Orders::new(peer)?;
    let mut draws = Draws(SEED);
    meter.measure(|count| {
        orders.give(&format!("get {PORT} {count} {WIDTH} /"))?;
        for turn in 0..count {
            let number = site.next(turn, &mut draws);
            answer_with(listener.accept()?.0, folder, number)?;
        }
        orders.done().map(drop)
    })
}

/// Where Debian has it.
const NGINX: &str = "/usr/sbin/nginx";

fn nginx(meter: &mut Meter, peer: SocketAddr, folder: &Path) -> Result<(), Failure> {
    if !Path::new(NGINX).exists() {
        let why = "nginx (a root with it: causeway bench --root DIR)";
        return Err(Failure::Missing(why.into()));
    }
    let shown = folder.display();
    let configuration = folder.join("nginx.conf");
    let text = format!(
        "user root; daemon off; master_process off; pid {shown}/pid; error_log {shown}/error;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
         server {{ listen {PORT}; root {shown}; }} }}\n"
    );
    fs::write(&configuration, text)?;
    fs::write(folder.join("file"), vec![b'c'; 64 << 10])?;
    for name in ["/var/log/nginx", "/var/lib/nginx"] {
        fs::create_dir_all(name)?;
    }
    let server = Command::new(NGINX).arg("-c").arg(&configuration).spawn();
    let mut server = Program(server?);
    while TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err() {
        if server.0.try_wait()?.is_some() {
            let why = fs::read_to_string(folder.join("error")).unwrap_or_default();
            return Err(format!("nginx ended: {why}").into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let mut orders = Orders::new(peer)?;
    meter.measure(|count| {
        orders.give(&format!("get {PORT} {count} {WIDTH} /file"))?;
        orders.done().map(drop)
    })
}

fn idle(meter: &mut Meter, peer: SocketAddr, many: u64) -> Result<(), Failure> {
    /// Connections after which the memory is looked at first: the table of descriptors and the
    /// caches have their size then.
    const FIRST: u64 = 100;
    /// The silence after which a connection is idle: this kernel frees what traffic has used one
    /// second after the last byte.
    const SILENCE: Duration = Duration::from_secs(3);
    allow_files(2 * many)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let mut orders = Orders::new(peer)?;
    let mut held = Vec::with_capacity((many + FIRST) as usize);
    let mut hold = |count: u64| -> Result<f64, Failure> {
        orders.give(&format!("hold {PORT} {count}"))?;
        for _ in 0..count {
            let mut stream = listener.accept()?.0;
            stream.write_all(b"x")?;
            held.push(stream);
        }
        orders.done()?;
        thread::sleep(SILENCE);
        Ok(memory::amount("MemFree")? as f64)
    };
    let before = hold(FIRST)?;
    let after = hold(many)?;
    meter.note(format!("{many} connections"));
    meter.value((before - after) / many as f64);
    Ok(())
}
