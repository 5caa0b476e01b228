//! The other program of an experiment.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use super::{checked, read_whole};
use crate::{Failure, Partner};

/// An order to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// The experiment's act.
    pub act: u8,
    /// Repetitions, or a seed: below 2^56.
    pub count: u64,
}

/// A [`Partner`] that executes one order after the other and answers each.
#[derive(Debug)]
pub struct Peer {
    partner: Option<Partner>,
    orders: File,
    answers: File,
}

/// Makes a pipe: the end to read, the end to write.
///
/// # Errors
/// Those of `pipe2`.
pub fn pipe() -> io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just made them, and nothing else owns them.
    let [out, into] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((out.into(), into.into()))
}

impl Peer {
    /// Forks a child on CPU `cpu` that executes orders by `serve`. The child owns everything in
    /// `serve`: its descriptors are closed in this process, so that each side sees the other's end.
    ///
    /// # Errors
    /// When there is no such CPU, or no memory for a process.
    pub fn start(
        cpu: usize,
        mut serve: impl FnMut(Order) -> io::Result<()>,
    ) -> Result<Peer, Failure> {
        let (orders_out, orders) = pipe()?;
        let (answers, answers_into) = pipe()?;
        let partner = Partner::start(cpu, move || {
            loop {
                let mut word = [0; 8];
                read_whole(&orders_out, &mut word)?;
                let word = u64::from_le_bytes(word);
                serve(Order {
                    act: word as u8,
                    count: word >> 8,
                })?;
                (&answers_into).write_all(&[1])?;
            }
        })?;
        Ok(Peer {
            partner: Some(partner),
            orders,
            answers,
        })
    }

    /// Lets the peer execute `act` `count` times while `work` runs here; returns when both are
    /// done.
    ///
    /// # Errors
    /// Those of either side; if this side failed because the peer ended, the peer's reason.
    pub fn with(
        &mut self,
        act: u8,
        count: u64,
        work: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Failure> {
        let word = count << 8 | u64::from(act);
        let done = (&self.orders)
            .write_all(&word.to_le_bytes())
            .and_then(|()| work())
            .and_then(|()| read_whole(&self.answers, &mut [0]));
        done.map_err(|error| self.blame(error))
    }

    /// Returns the cause of `error`: the peer's own failure if that closed the connection.
    fn blame(&mut self, error: io::Error) -> Failure {
        let torn = matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionRefused
                | ErrorKind::UnexpectedEof
        );
        let partner = self.partner.take_if(|_| torn);
        match partner.map(Partner::wait) {
            Some(Err(why)) => why,
            _ => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::movement::wrong;

    #[test]
    fn orders_are_carried_out_and_failures_told() {
        let (out, into) = pipe().expect("a pipe");
        let mut peer = Peer::start(0, move |order| {
            for turn in 0..order.count {
                let mut byte = [0];
                read_whole(&out, &mut byte)?;
                if byte[0] != order.act + turn as u8 {
                    return Err(wrong(format!("{} came", byte[0])));
                }
            }
            Ok(())
        })
        .expect("a peer");
        let bytes = |bytes: &[u8]| (&into).write_all(bytes);
        assert_eq!(peer.with(3, 2, || bytes(&[3, 4])), Ok(()));
        let failed = peer.with(3, 2, || bytes(&[3, 5]));
        let why = "the partner: input or output: 5 came".to_owned();
        assert_eq!(failed, Err(Failure::Error(why)));
    }
}
