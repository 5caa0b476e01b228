//! Exchanges bytes with its like on another machine, both ways at once, and checks each of them.
//!
//! usage: `exchange listen PORT SEND RECEIVE` prints `ready` and waits for
//! `exchange ADDRESS:PORT SEND RECEIVE`. Each sends SEND bytes and wants RECEIVE of the other's,
//! and prints how many came and how fast. With `leave` before it, it does not wait until the other
//! one has what it has sent. It needs nothing of the kernel but sockets, so that it
//! runs on Linux, too.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are sent and read at once; a number of words.
const BLOCK: usize = 64 << 10;

/// How long the other machine may take to say that it has everything.
const LAST_WORD: Duration = Duration::from_secs(10);

/// Fills a block with the bytes of a side's stream that stand at a multiple of [`BLOCK`]. No two
/// words of a stream are the same, nor those of both at one place.
fn fill(block: &mut [u8], side: u64, at: u64) {
    for (n, word) in block.chunks_exact_mut(8).enumerate() {
        let place = (at / 8 + n as u64) << 1 | side;
        word.copy_from_slice(&place.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
}

fn send(mut to: &TcpStream, side: u64, total: u64) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    while at < total {
        fill(&mut block, side, at);
        let len = BLOCK.min((total - at) as usize);
        to.write_all(&block[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Waits until the other machine has all that was sent: this one may go with this program. If its
/// last word is lost with the other machine, not for ever.
fn wait_for_acknowledgements(stream: &TcpStream) {
    let start = Instant::now();
    let mut left: libc::c_int = 1;
    while left > 0 && start.elapsed() < LAST_WORD {
        // SAFETY: the request writes a number.
        let status = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut left) };
        if status != 0 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn receive(mut from: &TcpStream, side: u64, total: u64) -> Result<(), String> {
    let (mut wanted, mut block) = (vec![0; BLOCK], vec![0; BLOCK]);
    let (mut at, mut begun) = (0, 0);
    fill(&mut wanted, side, 0);
    while at < total {
        // Up to the end of a block, so that the wanted bytes are in one.
        let place = (at - begun) as usize;
        let count = from.read(&mut block[place..]);
        let count = count.map_err(|why| format!("after {at} bytes: {why}"))?;
        if count == 0 {
            return Err(format!("{at} bytes in place of {total}"));
        }
        let (came, right) = (&block[place..place + count], &wanted[place..place + count]);
        if came != right {
            let same = came.iter().zip(right).take_while(|(a, b)| a == b).count();
            return Err(format!("byte {} is wrong", at + same as u64));
        }
        at += count as u64;
        if at - begun == BLOCK as u64 {
            begun = at;
            fill(&mut wanted, side, at);
        }
    }
    Ok(())
}

fn exchange(words: &[&str]) -> Result<(), String> {
    let (leaves, words) = match words {
        ["leave", words @ ..] => (true, words),
        _ => (false, words),
    };
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    let (stream, side, sent, received) = match words {
        ["listen", port, sent, received] => {
            let port = number(port)? as u16;
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
            let listener = listener.map_err(|why| format!("bind: {why}"))?;
            println!("ready");
            (listener.accept().map(|it| it.0), 0, *sent, *received)
        }
        [address, sent, received] => (TcpStream::connect(address), 1, *sent, *received),
        _ => return Err("usage: exchange listen PORT|ADDRESS:PORT SEND RECEIVE".into()),
    };
    let stream = stream.map_err(|why| format!("connection: {why}"))?;
    let (sent, received) = (number(sent)?, number(received)?);
    let start = Instant::now();
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&stream, side, sent));
        let outcome = receive(&stream, 1 - side, received);
        if outcome.is_err() {
            // It ends the sender.
            let _ = stream.shutdown(Shutdown::Both);
        }
        outcome?;
        let outcome = sender
            .join()
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        outcome.map_err(|why| format!("send: {why}"))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if !leaves {
        wait_for_acknowledgements(&stream);
    }
    println!("{sent} bytes out and {received} in are right");
    let rate = (sent + received) as f64 / seconds / 1e6;
    println!("rate: {rate:.2} MB/s, {seconds:.1} s");
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match exchange(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("exchange: {why}");
            ExitCode::FAILURE
        }
    }
}
