//! Datagrams: the first byte of each says how many of the same size come back, the first byte of
//! which is zero. So zeros are sent to a sink, a one asks for an echo, and the last datagram of a
//! window for an acknowledgement.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

/// How long a socket waits for a datagram before it ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest datagram.
const LONGEST: usize = 64 << 10;

/// Opens a socket, which answers until nothing comes for a while.
///
/// # Errors
/// When the host gives none.
pub fn start(own: IpAddr) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind((own, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let at = socket.local_addr()?;
    thread::spawn(move || serve(&socket));
    Ok(at)
}

fn serve(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = vec![0; LONGEST];
    loop {
        let (count, from) = socket.recv_from(&mut buffer)?;
        let Some(first) = buffer.first_mut().filter(|_| count > 0) else {
            continue;
        };
        let answers = std::mem::take(first);
        for _ in 0..answers {
            // One that cannot be sent is lost, as any may be.
            let _ = socket.send_to(&buffer[..count], from);
        }
    }
}
