//! Ports and their sharing.

use super::*;

pub const TESTS: &[Test] = &[("inet: ports and who may share them", ports)];

fn ports() -> Outcome {
    let open = |kind, option: c_int| -> Result<c_int> {
        let fd = call!(socket(AF_INET, kind, 0));
        if option != 0 {
            let on = 1;
            call!(setsockopt(
                fd,
                SOL_SOCKET,
                option,
                (&raw const on).cast(),
                4
            ));
        }
        Ok(fd)
    };
    let local = [127, 0, 0, 1];
    let in_use = |fd, ip, port| bind_v4(fd, ip, port) == -1 && errno() == EADDRINUSE;
    let first = open(SOCK_STREAM, SO_REUSEADDR)?;
    ensure!(bind_v4(first, local, 0) == 0, "bind: {}", errno());
    let mut name = v4([0; 4], 0);
    let mut len = 16;
    call!(getsockname(first, (&raw mut name).cast(), &mut len));
    let port = u16::from_be(name.sin_port);
    ensure!(port >= 1024, "port {port}");
    let other = open(SOCK_STREAM, 0)?;
    ensure!(in_use(other, local, port), "shared without being asked");
    ensure!(in_use(other, [0; 4], port), "all addresses");
    ensure!(bind_v4(other, [127, 0, 0, 2], port) == 0, "another address");
    ensure!(
        bind_v4(other, [127, 0, 0, 3], port) == -1 && errno() == EINVAL,
        "bound twice"
    );
    // Reuse of the address lets both bind, but only one listen.
    let second = open(SOCK_STREAM, SO_REUSEADDR)?;
    ensure!(bind_v4(second, local, port) == 0, "reuse: {}", errno());
    call!(listen(first, 1));
    refused!(EADDRINUSE, listen(second, 1));
    // Reuse of the port lets both listen.
    let (a, b) = (
        open(SOCK_STREAM, SO_REUSEPORT)?,
        open(SOCK_STREAM, SO_REUSEPORT)?,
    );
    ensure!(bind_v4(a, [127, 0, 0, 9], port) == 0, "{}", errno());
    ensure!(bind_v4(b, [127, 0, 0, 9], port) == 0, "{}", errno());
    call!(listen(a, 1));
    call!(listen(b, 1));
    // The side that closes first keeps the port in TIME_WAIT, unless it is bound for reuse.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    let client = TcpStream::connect(at)?;
    drop(listener.accept()?);
    drop(listener);
    drop(client);
    let strict = open(SOCK_STREAM, 0)?;
    ensure!(in_use(strict, local, at.port()), "no memory of it");
    drop(TcpListener::bind(at)?);
    // Datagrams have ports of their own.
    let datagram = open(SOCK_DGRAM, 0)?;
    ensure!(bind_v4(datagram, local, port) == 0, "{}", errno());
    let datagram = open(SOCK_DGRAM, SO_REUSEADDR)?;
    ensure!(in_use(datagram, local, port), "one of two reuses");
    Ok(())
}
