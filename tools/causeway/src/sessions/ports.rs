//! The sockets between this program and the guest's ports.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::set_socket_send_buffer_size;
use session::{CONTROL, data_port, error_port};

/// Bytes that a socket holds, if the system lets it: QEMU moves 4 KiB at a time, this program
/// [`super::flow::CHUNK`].
const BUFFER: usize = 1 << 20;

/// This program's ends of a guest's ports, which do not block.
pub struct Ports {
    /// The control port.
    pub control: UnixStream,
    /// The data and the error port of each session.
    pub streams: Vec<[UnixStream; 2]>,
}

/// The guest's ends, which QEMU inherits; dropped once it has.
pub struct Ends(Vec<(u32, UnixStream)>);

impl Ports {
    /// Makes the ports of a guest with `sessions` sessions.
    ///
    /// # Errors
    /// When the system gives no sockets.
    pub fn new(sessions: u8) -> Result<(Self, Ends)> {
        let mut ends = Vec::new();
        let mut port = |number| -> Result<UnixStream> {
            let (here, there) = UnixStream::pair().context("cannot make a socket")?;
            here.set_nonblocking(true)?;
            for end in [&here, &there] {
                // Less is enough, only slower.
                let _ = set_socket_send_buffer_size(end, BUFFER);
            }
            ends.push((number, there));
            Ok(here)
        };
        let control = port(CONTROL)?;
        let streams = (0..sessions)
            .map(|number| Ok([port(data_port(number))?, port(error_port(number))?]))
            .collect::<Result<_>>()?;
        Ok((Self { control, streams }, Ends(ends)))
    }
}

impl Ends {
    /// Lets programs that are started from now on inherit the ends.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn inherit(&self) -> Result<()> {
        for (_, end) in &self.0 {
            fcntl_setfd(end, FdFlags::empty()).context("cannot pass a socket on")?;
        }
        Ok(())
    }

    /// Returns QEMU's options for the device with these ports.
    pub fn qemu(&self) -> Vec<String> {
        let most = self.0.iter().map(|(number, _)| number + 1).max();
        let device = "virtio-serial-pci,id=sessions";
        let mut words = vec![
            "-device".into(),
            format!("{device},max_ports={},vectors=5", most.unwrap_or(1)),
        ];
        for (number, end) in &self.0 {
            words.extend([
                "-chardev".into(),
                format!("socket,id=port{number},fd={}", end.as_raw_fd()),
                "-device".into(),
                format!(
                    "virtserialport,bus=sessions.0,nr={number},chardev=port{number},\
                     name=causeway.{number}"
                ),
            ]);
        }
        words
    }

    /// The sockets by port, for a guest that a thread plays.
    #[cfg(test)]
    pub fn sockets(self) -> Vec<(u32, UnixStream)> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_socket() {
        let (ports, ends) = Ports::new(2).unwrap();
        assert_eq!(ports.streams.len(), 2);
        let words = ends.qemu();
        assert!(words[1].ends_with(",max_ports=6,vectors=5"), "{words:?}");
        for number in 1..=5 {
            let device = format!("nr={number},chardev=port{number},");
            let found = words.iter().filter(|word| word.contains(&device));
            assert_eq!(found.count(), 1, "{words:?}");
        }
    }
}
