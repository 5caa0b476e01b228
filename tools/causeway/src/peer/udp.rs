//! Datagrams: the first byte of each says how many of the same size come back, the first byte of
//! which is zero. So zeros are sent to a sink, a one asks for an echo, and the last datagram of a
//! window for an acknowledgement.

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

/// The longest datagram.
const LONGEST: usize = 64 << 10;

/// Opens a socket, tells the client its port, and answers the client's address until the client
/// ends or sends anything more.
///
/// # Errors
/// When the host gives none, or the client has ended.
pub fn serve(own: IpAddr, far: IpAddr, mut client: &TcpStream) -> io::Result<()> {
    let socket = UdpSocket::bind((own, 0))?;
    socket.set_nonblocking(true)?;
    let port = format!("{}\n", socket.local_addr()?.port());
    client.write_all(port.as_bytes())?;
    let mut buffer = vec![0; LONGEST];
    loop {
        let mut both = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(client, PollFlags::IN),
        ];
        retry_on_intr(|| poll(&mut both, None))?;
        if !both[1].revents().is_empty() {
            return Ok(());
        }
        let (count, from) = match socket.recv_from(&mut buffer) {
            // One with a wrong checksum is gone when it is read.
            Err(why) if why.kind() == ErrorKind::WouldBlock => continue,
            other => other?,
        };
        // Others could have this host send many datagrams to an address that is not theirs.
        if from.ip() != far || count == 0 {
            continue;
        }
        let answers = std::mem::take(&mut buffer[0]);
        for _ in 0..answers {
            // One that cannot be sent is lost, as any may be.
            let _ = socket.send_to(&buffer[..count], from);
        }
    }
}
