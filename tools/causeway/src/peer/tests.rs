//! The peer's services, by this host's loopback.

use std::net::UdpSocket;

use super::*;

/// A client that has asked for a service.
fn client(line: &str) -> TcpStream {
    let at = start(Ipv4Addr::LOCALHOST, None).unwrap();
    let stream = TcpStream::connect(at).unwrap();
    writeln!(&stream, "{line}").unwrap();
    stream
}

fn line(of: &TcpStream) -> String {
    let mut line = String::new();
    BufReader::new(of).read_line(&mut line).unwrap();
    line
}

#[test]
fn bytes_are_taken_sent_and_sent_back() {
    let mut sink = client("sink 1000");
    sink.write_all(&[7; 2500]).unwrap();
    let mut acknowledged = [0; 2];
    sink.read_exact(&mut acknowledged).unwrap();
    let mut source = client("source");
    for wanted in [5, 300_000_u64] {
        source.write_all(&wanted.to_le_bytes()).unwrap();
        let mut bytes = vec![0; wanted as usize];
        source.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == b'c'));
    }
    let mut echo = client("echo");
    echo.write_all(b"x").unwrap();
    let mut byte = [0];
    echo.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
    for line in ["close", "nonsense 1 2", ""] {
        assert_eq!(client(line).read(&mut byte).unwrap(), 0, "{line}");
    }
}

#[test]
fn a_datagram_says_how_many_answers_it_wants() {
    let control = client("udp");
    let port: u16 = line(&control).trim().parse().unwrap();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.send(&[0, 1]).unwrap();
    socket.send(&[3, 2]).unwrap();
    for _ in 0..3 {
        let mut answer = [9; 8];
        assert_eq!(socket.recv(&mut answer).unwrap(), 2);
        assert_eq!(&answer[..2], [0, 2]);
    }
}

#[test]
fn servers_are_called() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let control = client(&format!("connect {port} 3"));
    for _ in 0..3 {
        server.accept().unwrap().0.write_all(b"ab").unwrap();
    }
    assert_eq!(line(&control), "done 6\n");
    writeln!(&control, "hold {port} 2").unwrap();
    let mut held = [(); 2].map(|()| {
        let mut stream = server.accept().unwrap().0;
        stream.write_all(b"x").unwrap();
        stream
    });
    assert_eq!(line(&control), "done 0\n");
    writeln!(&control, "get {port} 4 2 /file").unwrap();
    let answers =
        |keeps: &str| format!("HTTP/1.1 200 OK\r\nX:\r\n{keeps}Content-Length: 3\r\n\r\nabc");
    for turn in 0..4 {
        let (mut stream, _) = server.accept().unwrap();
        let mut request = [0; 100];
        let count = stream.read(&mut request).unwrap();
        assert!(
            request[..count].starts_with(b"GET /file HTTP/1.1\r\n"),
            "{turn}"
        );
        write!(stream, "{}", answers("Connection: close\r\n")).unwrap();
    }
    assert_eq!(line(&control), "done 12\n");
    writeln!(&control, "get {port} 2 1 /file").unwrap();
    let (mut stream, _) = server.accept().unwrap();
    for answer in [answers(""), "HTTP/1.1 404 Not Found\r\n\r\n".into()] {
        assert!(stream.read(&mut [0; 100]).unwrap() > 0);
        write!(stream, "{answer}").unwrap();
    }
    assert!(line(&control).contains("404"));
    // What is held ends with the client.
    drop(control);
    for stream in &mut held {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_datagram_of_another_address_is_not_answered() {
    let control = client("udp");
    let port: u16 = line(&control).trim().parse().unwrap();
    let [other, own] = [2, 1].map(|last| {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.send(&[1]).unwrap();
        socket
    });
    own.recv(&mut [9]).unwrap();
    other.set_nonblocking(true).unwrap();
    assert!(other.recv(&mut [9]).is_err());
}

#[test]
fn a_socket_for_datagrams_ends_with_its_client() {
    let control = client("udp");
    let port: u16 = line(&control).trim().parse().unwrap();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    drop(control);
    while socket.send(&[0]).is_ok() {
        thread::yield_now();
    }
}

#[test]
fn a_server_that_sends_without_end_is_left() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let control = client(&format!("get {port} 1 1 /file"));
    let (mut stream, _) = server.accept().unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\n").unwrap();
    while stream.write_all(&[b'x'; 4096]).is_ok() {}
    assert!(line(&control).contains("head"));
    writeln!(&control, "hold {port} {}", u64::MAX).unwrap();
    assert!(line(&control).contains("more than"));
}

#[test]
fn clients_beyond_the_most_are_refused() {
    let at = start(Ipv4Addr::LOCALHOST, None).unwrap();
    let open = || {
        let mut stream = TcpStream::connect(at).unwrap();
        let asked = stream.write_all(b"echo\nx");
        let is_there = asked.is_ok() && stream.read(&mut [0]).is_ok_and(|count| count == 1);
        (stream, is_there)
    };
    let mut clients: Vec<_> = (0..MOST_CLIENTS).map(|_| open()).collect();
    assert!(clients.iter().all(|(_, is_there)| *is_there));
    assert!(!open().1);
    // One that goes makes room.
    clients.pop();
    while !open().1 {
        thread::yield_now();
    }
}
