//! One process sends the same pages to three workers, each of which sums a part. The descriptor of
//! the path goes to them by a socket; what they read is there once.

use std::io;
use std::os::unix::net::UnixStream;

use libfbuf::{Aggregate, Channel, Contents, Domain, Mode, Path, records};

const NUMBERS: u64 = 100_000;
const WORKERS: u64 = 3;

/// Sums the numbers of each message, and sends the sum.
fn work(socket: UnixStream) -> io::Result<()> {
    let domain = Domain::enter_any()?;
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 1)?;
    let mut channel = Channel::connect(&domain, &path, socket.into())?;
    while let Some(message) = channel.receive()? {
        let number = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_le_bytes);
        let sum: u64 = records(&message, 8).map(|it| number(it.to_vec())).sum();
        channel.send(&path.copy(&sum.to_le_bytes())?)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let mut sockets = Vec::new();
    for _ in 0..WORKERS {
        let (here, there) = UnixStream::pair()?;
        // SAFETY: this program has one thread.
        if unsafe { libc::fork() } == 0 {
            // The ends of earlier workers would keep them from seeing that this process is gone.
            drop((here, sockets));
            let is_done = work(there).is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_done)) };
        }
        sockets.push(here);
    }
    let domain = Domain::enter_any()?;
    // One path, of which all workers become receivers.
    let path = Path::new(&domain, Mode::CACHED_VOLATILE, 0)?;
    let connect = |socket: UnixStream| Channel::connect(&domain, &path, socket.into());
    let mut channels = sockets
        .into_iter()
        .map(connect)
        .collect::<io::Result<Vec<_>>>()?;
    let mut fbuf = path.allocate(8 * NUMBERS as usize)?;
    for (number, word) in fbuf.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number as u64 % NUMBERS).to_le_bytes());
    }
    let all = Aggregate::new(fbuf, 8 * NUMBERS as usize)?;
    let share = NUMBERS.div_ceil(WORKERS) * 8;
    for (index, channel) in channels.iter_mut().enumerate() {
        let start = index as u64 * share;
        channel.send(&all.slice(start..start + share)?)?;
    }
    let mut total = 0;
    for channel in &mut channels {
        let sum = channel.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let sum = sum.to_vec(8)?.try_into().map_or(0, u64::from_le_bytes);
        total += sum;
    }
    assert_eq!(total, NUMBERS * (NUMBERS - 1) / 2);
    drop(channels);
    for _ in 0..WORKERS {
        let mut status = 0;
        // SAFETY: the status lives across the call.
        unsafe { libc::wait(&raw mut status) };
        assert_eq!(status, 0);
    }
    println!("fan-out: {total}");
    Ok(())
}
