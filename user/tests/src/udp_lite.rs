//! UDP-Lite sockets: separate ports, checksums over a part of a datagram.

use support::prelude::*;

pub const TESTS: &[Test] = &[("udp-lite: datagrams and how far their sums reach", coverage)];

const IPPROTO_UDPLITE: c_int = 136;
const SEND_COVERAGE: c_int = 10;
const RECEIVE_COVERAGE: c_int = 11;

/// A socket bound on the loopback interface, to any port.
fn bound() -> Result<UdpSocket> {
    let fd = call!(socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE));
    // SAFETY: the descriptor is new, and nothing else owns it; `UdpSocket` suits any protocol.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    let name = sockaddr_in {
        sin_family: AF_INET as u16,
        sin_port: 0,
        sin_addr: in_addr {
            s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
        },
        sin_zero: [0; 8],
    };
    let len = size_of::<sockaddr_in>() as u32;
    call!(bind(fd, (&raw const name).cast(), len));
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    Ok(socket)
}

fn set(socket: &UdpSocket, name: c_int, value: c_int) -> Result<c_int> {
    let fd = socket.as_raw_fd();
    let (at, mut got, mut len) = ((&raw const value).cast(), 0, 4);
    call!(setsockopt(fd, IPPROTO_UDPLITE, name, at, 4));
    call!(getsockopt(
        fd,
        IPPROTO_UDPLITE,
        name,
        (&raw mut got).cast(),
        &mut len
    ));
    Ok(got)
}

fn coverage() -> Outcome {
    let (a, b) = (bound()?, bound()?);
    let to = b.local_addr()?;
    // UDP's port of the same number is a different one.
    let other = UdpSocket::bind(to)?;
    other.set_nonblocking(true)?;
    let mut buffer = [0; 64];
    a.send_to(b"whole", to)?;
    let (n, from) = b.recv_from(&mut buffer)?;
    ensure!(&buffer[..n] == b"whole", "{:?}", &buffer[..n]);
    ensure!(from == a.local_addr()?, "from {from}");
    ensure!(other.recv(&mut buffer).is_err());
    // Partial coverage is accepted by default, and dropped by a receiver that asks for more.
    for (asked, got) in [(3, 8), (20, 20), (70_000, 65_535), (0, 0), (12, 12)] {
        let found = set(&a, SEND_COVERAGE, asked)?;
        ensure!(found == got, "asked for {asked}, got {found}");
    }
    for (wanted, arrives) in [
        (None, true),
        (Some(0), false),
        (Some(13), false),
        (Some(12), true),
    ] {
        if let Some(wanted) = wanted {
            set(&b, RECEIVE_COVERAGE, wanted)?;
        }
        a.send_to(b"a part", to)?;
        let arrived = b.recv(&mut buffer).is_ok();
        ensure!(arrived == arrives, "{wanted:?}: arrived {arrived}");
    }
    // Coverage of all of a short datagram.
    set(&b, RECEIVE_COVERAGE, 0)?;
    a.send_to(b"1234", to)?;
    ensure!(b.recv(&mut buffer).is_ok(), "a short one was refused");
    let on = 1;
    refused!(
        ENOPROTOOPT,
        setsockopt(
            other.as_raw_fd(),
            IPPROTO_UDP,
            SEND_COVERAGE,
            (&raw const on).cast(),
            4
        )
    );
    Ok(())
}
