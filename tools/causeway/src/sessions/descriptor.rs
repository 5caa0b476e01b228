//! A stream of the host's that is read and written without blocking, and without changing it for
//! the other processes that have it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use rustix::termios::isatty;

use super::relay::Relay;

/// The direction in which bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Out of the descriptor.
    Read,
    /// Into it.
    Write,
}

/// How the descriptor is kept from blocking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It is an open file of its own, for which that is set.
    Own,
    /// Each call says so.
    Socket,
    /// It never blocks for long: a file.
    File,
    /// It is read only when it is ready; a [`Relay`] writes.
    Shared,
}

/// A stream of the host's.
#[derive(Debug)]
pub struct Descriptor {
    stream: Stream,
    kind: Kind,
}

#[derive(Debug)]
enum Stream {
    Direct(OwnedFd),
    Relayed(Relay),
}

impl Descriptor {
    /// Takes a descriptor to read from.
    pub fn source(descriptor: OwnedFd) -> Self {
        Self::of(descriptor, Direction::Read)
    }

    /// Takes a descriptor to write to.
    pub fn sink(descriptor: OwnedFd) -> Self {
        Self::of(descriptor, Direction::Write)
    }

    fn of(mut descriptor: OwnedFd, direction: Direction) -> Self {
        let kind = match fstat(&descriptor) {
            Err(_) => Kind::Shared,
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::Socket => Kind::Socket,
                FileType::RegularFile | FileType::BlockDevice | FileType::Directory => Kind::File,
                FileType::CharacterDevice if !isatty(&descriptor) => Kind::File,
                // Opened again, the master's side of a terminal would be another terminal's.
                FileType::CharacterDevice
                    if (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2) =>
                {
                    Kind::Shared
                }
                _ => {
                    if let Ok(own) = reopen(&descriptor, direction) {
                        descriptor = own;
                        Kind::Own
                    } else {
                        Kind::Shared
                    }
                }
            },
        };
        let is_relayed = kind == Kind::Shared && direction == Direction::Write;
        let relay = is_relayed.then(|| descriptor.try_clone().and_then(Relay::new));
        let stream = match relay {
            Some(Ok(relay)) => Stream::Relayed(relay),
            _ => Stream::Direct(descriptor),
        };
        Self { stream, kind }
    }

    /// Reads; 0 at the end.
    ///
    /// # Errors
    /// `EAGAIN` when there is nothing now. A shared one must be ready.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.kind {
            Kind::Socket => recv(self, buffer, RecvFlags::DONTWAIT)?.0,
            _ => rustix::io::read(self, buffer)?,
        };
        Ok(count)
    }

    /// Writes a part.
    ///
    /// # Errors
    /// `EAGAIN` when nothing fits now.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Stream::Relayed(relay) = &self.stream {
            return relay.write(bytes);
        }
        let count = match self.kind {
            Kind::Socket => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                send(self, bytes, flags)?
            }
            // The host refused a relay, and this program is not to wait.
            Kind::Shared => return Err(Errno::NOMEM.into()),
            Kind::Own | Kind::File => rustix::io::write(self, bytes)?,
        };
        Ok(count)
    }

    /// Whether it is a file, or a device that is no terminal: its errors are no reader's wish.
    pub fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    /// What is ready to be read when all bytes have left this program; `None` when they have.
    pub fn under_way(&self) -> Option<BorrowedFd<'_>> {
        match &self.stream {
            Stream::Relayed(relay) if !relay.is_idle() => Some(relay.idle()),
            _ => None,
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Direct(descriptor) => descriptor.as_fd(),
            Stream::Relayed(relay) => relay.as_fd(),
        }
    }
}

/// Opens the same pipe or terminal again: others' descriptors go on to block.
fn reopen(descriptor: &OwnedFd, direction: Direction) -> Result<OwnedFd, Errno> {
    let mode = match direction {
        Direction::Read => OFlags::RDONLY,
        Direction::Write => OFlags::WRONLY,
    };
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let flags = mode | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Gives up this program's standard input and output where they are no terminals: a guest that has
/// copies of them can then close them for good.
///
/// # Errors
/// When the host has no `/dev/null`.
pub fn give_up(terminals: [bool; 3]) -> io::Result<()> {
    let null = null()?;
    if !terminals[0] {
        dup2_stdin(&null)?;
    }
    if !terminals[1] {
        dup2_stdout(&null)?;
    }
    Ok(())
}

/// Returns `/dev/null`.
///
/// # Errors
/// When the host has none.
pub fn null() -> io::Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/null")?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_pipe_does_not_block_and_its_other_descriptors_do() {
        let (mut reader, writer) = io::pipe().unwrap();
        let sink = Descriptor::sink(writer.try_clone().unwrap().into());
        let chunk = [7; 1 << 16];
        let mut written = 0;
        let error = loop {
            match sink.write(&chunk) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        let mut all = vec![0; written];
        reader.read_exact(&mut all).unwrap();
        drop((sink, writer));
        assert_eq!(reader.read(&mut all).unwrap(), 0);
    }

    #[test]
    fn a_source_has_nothing_or_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let source = Descriptor::source(reader.into());
        let mut buffer = [0; 8];
        let error = source.read(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        writer.write_all(b"ab").unwrap();
        drop(writer);
        assert_eq!(source.read(&mut buffer).unwrap(), 2);
        assert_eq!(source.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn files_keep_their_place() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before ").unwrap();
        let sink = Descriptor::sink(file.try_clone().unwrap().into());
        assert_eq!(sink.write(b"after").unwrap(), 5);
        use std::io::Seek;
        file.rewind().unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "before after");
    }
}
