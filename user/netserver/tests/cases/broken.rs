//! Clients and servers that end or do not keep to the protocol.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use libfbuf::{
    Aggregate, Backend, Channel, Contents, Domain, Mode, Path, To, receive_descriptor,
    send_descriptor,
};
use netserver::{
    Limits, UdpSocket,
    protocol::{self, Header, Op},
};

use super::serving::{Served, address, bytes_of, fork_ready};
use super::{Draws, status_of, wait};

fn kill(process: libc::pid_t) {
    // SAFETY: takes numbers; the child was not waited for.
    unsafe { libc::kill(process, libc::SIGKILL) };
    status_of(process);
}

/// The port of a client that is killed is free again; its datagrams are readable.
pub fn client_killed(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    for round in 0..10u8 {
        let mut receiver = served.bind(1);
        let client = fork_ready(|ready| {
            let mut sender = served.bind(2);
            sender.connect(address(1)).expect("a peer");
            for _ in 0..20 {
                let body = sender.path().copy(&[round; 10_000]).expect("memory");
                sender.send(&body).expect("sent");
            }
            ready();
            loop {
                sender.receive().expect("nothing comes");
            }
        });
        let first = receiver.receive().expect("a datagram");
        kill(client);
        assert_eq!(bytes_of(&first), [round; 10_000]);
        // Its port is free as soon as the server has seen the end, which comes before this client's
        // request.
        let again = loop {
            let domain = Domain::enter(backend).expect("the region");
            match UdpSocket::bind(&domain, 2, served.options()) {
                Ok(socket) => break socket,
                Err(why) => assert_eq!(why.raw_os_error(), Some(libc::EADDRINUSE)),
            }
        };
        assert_eq!(again.local(), address(2));
        assert_eq!(bytes_of(&first), [round; 10_000]);
    }
}

/// Clients get an error, connect again, and go on.
pub fn server_killed(backend: Backend) {
    let mut served = Served::start(backend, Limits::default());
    let mut first = served.bind(1);
    let mut second = served.bind(2);
    first.connect(address(2)).expect("a peer");
    for round in 0..5u8 {
        let body = first.path().copy(&vec![round; 50_000]).expect("memory");
        first.send(&body).expect("sent");
        let held = second.receive().expect("a datagram");
        served.kill();
        let gone = [libc::ECONNRESET, libc::EPIPE].map(Some);
        for socket in [&mut first, &mut second] {
            let why = socket.receive().expect_err("the server is gone");
            assert!(gone.contains(&why.raw_os_error()), "{why}");
            let refused = socket.reconnect().expect_err("no server");
            let number = refused.raw_os_error();
            assert!(number == Some(libc::ECONNREFUSED) || number == Some(libc::ENOENT));
        }
        // What was received stays: its fbufs are the other client's.
        assert_eq!(bytes_of(&held), vec![round; 50_000]);
        served.again();
        first.reconnect().expect("a connection");
        second.reconnect().expect("a connection");
        // What was made before can be sent.
        first.send(&body).expect("sent");
        let datagram = second.receive().expect("a datagram");
        assert!(datagram.from() == address(1) && bytes_of(&datagram) == vec![round; 50_000]);
    }
}

/// A client that sends messages of random bytes, and of headers that are not for it to send, ends;
/// others do not notice.
pub fn hostile(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let mut first = served.bind(1);
    let mut draws = Draws(7);
    for round in 0..40u8 {
        // It does not matter how far it gets.
        let attacker = fork_ready(|ready| {
            ready();
            let _ = attack(backend, &served, round);
        });
        status_of(attacker);
        let bytes = draws.bytes(5000);
        let body = first.path().copy(&bytes).expect("memory");
        first.send_to(&body, address(1)).expect("sent");
        loop {
            // Some attackers send to everybody.
            let came = first.receive().expect("a datagram");
            if came.from() == address(1) {
                assert!(bytes_of(&came) == bytes);
                break;
            }
        }
    }
}

/// Connects to a server; returns the connection and the socket of descriptors.
fn greeted(served: &Served) -> std::io::Result<(UnixStream, OwnedFd)> {
    let socket = UnixStream::connect(served.options().server)?;
    let mut hello = [0; 8];
    let descriptors = receive_descriptor(socket.as_fd(), &mut hello)?;
    assert_eq!(hello, protocol::HELLO_RINGS);
    Ok((socket, descriptors))
}

/// Connects, and sends messages that break the rules.
fn attack(backend: Backend, served: &Served, round: u8) -> std::io::Result<()> {
    let domain = Domain::enter(backend)?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let (socket, _descriptors) = greeted(served)?;
    let mut draws = Draws(u64::from(round) + 11);
    if round % 4 == 0 {
        // Not a connection.
        let len = draws.below(100);
        let bytes = draws.bytes(len);
        std::io::Write::write_all(&mut &socket, &bytes)?;
        send_descriptor(socket.as_fd(), b"anything", socket.as_fd())?;
        return Ok(());
    }
    let by_ring = backend == Backend::Memfd || round % 8 < 4;
    let mut send: Box<dyn FnMut(&Aggregate) -> std::io::Result<()>> = match by_ring {
        true => {
            let mut channel = Channel::connect(&domain, &path, socket.into())?;
            Box::new(move |it| channel.send(it))
        }
        false => {
            send_descriptor(socket.as_fd(), b"netpath1\0\0\0\0\0\0\0\0", path.as_fd())?;
            receive_descriptor(socket.as_fd(), &mut [0; 16])?;
            let (path, socket) = (path.clone(), socket);
            Box::new(move |it| {
                let _ = &socket;
                path.send(To::All, it).map(drop)
            })
        }
    };
    for _ in 0..50 {
        let mut message: Vec<u8> = (0..64).map(|_| draws.word() as u8).collect();
        match round % 4 {
            1 => message[0] = draws.below(9) as u8,
            2 => {
                // Sends from ports that are not its own, to everybody.
                message[0] = protocol::Op::Send as u8;
                message[2..4].copy_from_slice(&1u16.to_le_bytes());
                message[4..6].copy_from_slice(&1u16.to_le_bytes());
                message[8..12].copy_from_slice(&address(1).ip().octets());
            }
            _ => {
                // Binds more ports than it may.
                message = vec![0; 32];
                message[0] = protocol::Op::Bind as u8;
            }
        }
        message.truncate(draws.below(65));
        send(&path.copy(&message)?)?;
    }
    Ok(())
}

/// Connections on which nothing comes, and those that end at once, keep no one waiting.
pub fn silent(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let open = || UnixStream::connect(served.options().server).expect("a connection");
    let mut silent: Vec<_> = (0..50).map(|_| open()).collect();
    for _ in 0..50 {
        drop(open());
    }
    let mut socket = served.bind(1);
    let body = socket.path().copy(b"x").expect("memory");
    socket.send_to(&body, address(1)).expect("sent");
    assert_eq!(bytes_of(&socket.receive().expect("a datagram")), b"x");
    for connection in &mut silent {
        // The greeting.
        let mut hello = [0; 8];
        connection.read_exact(&mut hello).expect("a greeting");
        assert_eq!(hello, protocol::HELLO_RINGS);
    }
}

/// A client names, by its ring, bytes that only another client and the server read. They are not
/// sent, whether or not the receiver may read its path.
pub fn thief(backend: Backend) {
    let served = Served::start(backend, Limits::default());
    let mut victim = served.bind(1);
    let secret = victim.path().copy(&SECRET).expect("memory");
    let at = secret.fragments().next().expect("bytes").address();
    for is_connected in [false, true] {
        wait(fork_ready(|ready| {
            ready();
            steal(backend, &served, at, is_connected).expect("a client");
        }));
    }
    // The server knows the bytes as the victim's.
    victim.send_to(&secret, address(1)).expect("sent");
    assert_eq!(bytes_of(&victim.receive().expect("a datagram")), SECRET);
}

const SECRET: [u8; 40] = *b"what no other client is allowed to read.";

/// Sends bytes with this address, and then others, to a port of this process; the others come.
fn steal(backend: Backend, served: &Served, at: usize, is_connected: bool) -> std::io::Result<()> {
    let mut receiver = served.bind(3);
    let domain = Domain::enter(backend)?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let (socket, _descriptors) = greeted(served)?;
    let mut channel = Channel::connect(&domain, &path, socket.into())?;
    let mut ask = |op| {
        let header = Header::new(op, 2, address(3));
        channel.send(&path.copy(&header.emit())?)?;
        let answer = channel.receive()?.expect("an answer");
        let mut bytes = [0; protocol::HEADER];
        answer.copy_at(0, &mut bytes);
        let answer = Header::read(&bytes).expect("a header");
        assert_eq!((answer.op, answer.error), (Op::Reply, 0));
        std::io::Result::Ok(())
    };
    ask(Op::Bind)?;
    if is_connected {
        ask(Op::Connect)?;
    }
    let header = path.copy(&Header::new(Op::Send, 2, address(3)).emit())?;
    // The first one comes by a copy, where the receiver has not joined the path.
    let honest = path.copy(b"honest")?;
    for _ in 0..3 {
        channel.send(&header.join(&honest)?)?;
        assert_eq!(bytes_of(&receiver.receive()?), b"honest");
        // The node of an fbuf's bytes lies at the fbuf's end.
        let fbuf = path.allocate(SECRET.len() + NODE)?;
        let node = fbuf.as_ptr().addr() + fbuf.len() - NODE;
        let forged = Aggregate::new(fbuf, SECRET.len())?;
        let words = [1, SECRET.len() as u64, at as u64, 0];
        // SAFETY: this process's memory, which only the server reads.
        unsafe {
            let node = std::ptr::with_exposed_provenance_mut::<[u64; 4]>(node);
            node.write_volatile(words);
        }
        channel.send(&header.join(&forged)?)?;
    }
    channel.send(&header.join(&honest)?)?;
    assert_eq!(bytes_of(&receiver.receive()?), b"honest");
    Ok(())
}

/// Bytes of a node.
const NODE: usize = 32;
