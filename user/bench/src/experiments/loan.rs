//! Pages lent to a socket (`uvm.txt` 7).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::movement::{Buffer, PAGE, checked};
use crate::{Bench, Experiment, Failure, Meter};

/// Page loanout to a socket against a copy.
pub const EXPERIMENT: Experiment = Experiment {
    name: "loan",
    title: "Pages sent by a socket: lent, and copied",
    help: "\
One operation sends so many pages of a buffer by TCP to 127.0.0.1 and lets the other end drop them
(MSG_TRUNC), in one program; ns. The buffer was written before, and is left alone meanwhile. What
exceeds the sockets' buffers is sent in several pieces.

Rows, for 1, 2, 4, 8, 16, 64, 256 and 1024 pages (PAGES):
  loan/socket-PAGES        from the start of a page; Causeway lends whole pages, however few
                           (movement=loan, movement.least=1)
  loan/socket-copy-PAGES   likewise, every byte copied (movement=copy)
  loan/socket-auto-PAGES   as the kernel chooses
Linux, which has no such switches, has the last ones only.",
    run,
};

const SIZES: [usize; 8] = [1, 2, 4, 8, 16, 64, 256, 1024];

/// Settings of Causeway: a name below `/proc/causeway`, and the word.
type Settings = &'static [(&'static str, &'static str)];

const WAYS: [(&str, Settings); 3] = [
    ("socket", &[("movement", "loan"), ("movement.least", "1")]),
    ("socket-copy", &[("movement", "copy")]),
    ("socket-auto", &[]),
];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for pages in SIZES {
        for (name, settings) in WAYS {
            bench
                .row(format!("loan/{name}-{pages}"))
                .batch((1024 / pages as u64).clamp(4, 100))
                .run(|meter| {
                    let _kept = settings
                        .iter()
                        .map(|(name, word)| Setting::to(name, word))
                        .collect::<Result<Vec<_>, _>>()?;
                    send(meter, pages)
                })?;
        }
    }
    Ok(())
}

/// A setting that is changed for a row.
struct Setting {
    path: String,
    was: String,
}

impl Setting {
    fn to(name: &str, word: &str) -> Result<Setting, Failure> {
        let path = format!("/proc/causeway/{name}");
        let was =
            fs::read_to_string(&path).map_err(|why| Failure::Missing(format!("{path}: {why}")))?;
        fs::write(&path, word)?;
        Ok(Setting { path, was })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.was);
    }
}

/// Makes a connection: two ends, of which the first does not wait.
fn connection() -> Result<(File, File), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    near.set_nonblocking(true)?;
    let [near, far] = [near, far].map(|end| File::from(OwnedFd::from(end)));
    Ok((near, far))
}

fn send(meter: &mut Meter, pages: usize) -> Result<(), Failure> {
    let (near, far) = connection()?;
    let mut buffer = Buffer::new(pages * PAGE, 0)?;
    buffer.bytes_mut().fill(7);
    let bytes = buffer.bytes();
    meter.measure(|count| {
        for _ in 0..count {
            let mut sent = 0;
            while sent < bytes.len() {
                let n = match (&near).write(&bytes[sent..]) {
                    Ok(n) => n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error.into()),
                };
                sent += n;
                drop_bytes(&far, n)?;
            }
        }
        Ok(())
    })
}

/// Receives so many bytes, and drops them.
fn drop_bytes(from: &File, bytes: usize) -> Result<(), Failure> {
    let mut left = bytes;
    while left > 0 {
        // SAFETY: with this flag nothing is stored in the buffer, which may be none.
        let dropped = checked(unsafe {
            let nothing = std::ptr::null_mut();
            libc::recv(from.as_raw_fd(), nothing, left, libc::MSG_TRUNC)
        })?;
        if dropped == 0 {
            return Err("the connection has ended".to_string().into());
        }
        left -= dropped as usize;
    }
    Ok(())
}
