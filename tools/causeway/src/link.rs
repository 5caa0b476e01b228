//! `causeway link`: a bad link between two guests, each of which has one end of it as its network.
//!
//! ```text
//! guest ─ --net socket=A ─ End ─ badlink::Direction ─ Queue ─ End ─ --net socket=B ─ guest
//! ```
//!
//! QEMU puts frames into a connection, each behind its length. An end takes one connection at a
//! time; when a guest ends, the next one may take its place. What a guest sends is always read, so
//! that no guest holds up the other: frames for a guest that reads too slowly, or is not there, are
//! dropped and counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use badlink::{Counts, Direction, Trouble};

use crate::signals;

/// Bytes of the longest frame that QEMU takes: its `NET_BUFSIZE`.
const LONGEST: usize = 4096 + 65536;
/// Bytes that may be under way in a direction, with what each frame takes beside its own: a second
/// of a fast guest's.
const MOST_BYTES: usize = 64 << 20;
/// Bytes that are written at once.
const BATCH: usize = 256 << 10;

/// A chance in percent, of which a tenth is the least.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Percent(u64);

impl FromStr for Percent {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_right = is_number(whole) && is_number(tenths) && tenths.len() == 1;
        let whole: Option<u64> = whole.parse().ok().filter(|_| is_right);
        let all = whole.zip(tenths.parse::<u64>().ok());
        let all = all.and_then(|(whole, tenths)| Some(whole.checked_mul(10)? + tenths));
        let all = all.filter(|&it| it <= 1000);
        Ok(Self(all.with_context(|| {
            format!("{text:?} is no percentage, as in 5 or 0.5")
        })?))
    }
}

/// Options of `causeway link`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// The addresses of the ends, which the guests have as `--net socket=ADDRESS:PORT`; with port 0
    /// any that is free
    #[arg(value_name = "ADDRESS:PORT", num_args = 2, required = true)]
    ends: Vec<SocketAddr>,
    /// Lose so many of the frames
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    loss: Percent,
    /// Deliver so many of the frames twice
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    duplicate: Percent,
    /// Let so many of the frames arrive later than those behind them
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    reorder: Percent,
    /// The longest time by which reordered frames are late
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(..=60_000))]
    reorder_by: u64,
    /// Change a bit in so many of the frames of IP
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    corrupt: Percent,
    /// The time that a frame takes
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=60_000))]
    delay: u64,
    /// Cut the link for so long, then leave it whole for as long, again and again
    #[arg(long, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    cut: Option<u64>,
    /// The seed of what happens to which frame
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Options {
    /// Returns how bad the link is.
    fn trouble(&self) -> Trouble {
        const MS: u64 = 1_000_000;
        Trouble {
            lost: self.loss.0,
            doubled: self.duplicate.0,
            late: self.reorder.0,
            lateness: self.reorder_by * MS,
            damaged: self.corrupt.0,
            delay: self.delay * MS,
            cut: self.cut.unwrap_or(0) * MS,
        }
    }

    /// Stands between the guests until a signal ends this program, and prints what has happened.
    ///
    /// # Errors
    /// When an address can't be listened at.
    pub fn run(&self) -> Result<u8> {
        signals::watch()?;
        let ends = [self.ends[0], self.ends[1]];
        let link = Link::start(ends, self.trouble(), self.seed)?;
        let [a, b] = link.addresses();
        println!("a link between --net socket={a} and --net socket={b}; Ctrl-C ends it");
        let (tell, hear) = mpsc::channel();
        signals::ask(move || {
            let _ = tell.send(());
        });
        // The action is gone when it has run.
        let _ = hear.recv();
        print!("{link}");
        Ok(0)
    }
}

/// A frame under way, in the order of arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Instant,
    number: u64,
    frame: Vec<u8>,
}

/// Returns the bytes that a frame takes while it is under way.
fn size(frame: &[u8]) -> usize {
    size_of::<Flying>() + frame.len()
}

/// One direction of the link.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    direction: Direction,
    flying: BinaryHeap<Reverse<Flying>>,
    /// What those under way take, at most [`MOST_BYTES`].
    bytes: usize,
    /// Frames that were put into the queue.
    number: u64,
    /// Frames that found no room or no guest.
    dropped: u64,
    is_over: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame on its way, at a time after the link's start.
    fn send(&self, start: Instant, mut frame: Vec<u8>) {
        let mut state = self.state();
        let now = start.elapsed();
        let times = state.direction.send(now.as_nanos() as u64, &mut frame);
        for at in times.into_iter().flatten() {
            let bytes = state.bytes + size(&frame);
            if bytes > MOST_BYTES {
                state.dropped += 1;
                continue;
            }
            state.bytes = bytes;
            state.number += 1;
            let flying = Flying {
                at: start + Duration::from_nanos(at),
                number: state.number,
                frame: frame.clone(),
            };
            state.flying.push(Reverse(flying));
        }
        self.changed.notify_one();
    }

    /// Waits for frames that have arrived, and puts them into `batch` as QEMU wants them; returns
    /// their number, 0 at the link's end.
    fn receive(&self, batch: &mut Vec<u8>) -> u64 {
        batch.clear();
        let mut state = self.state();
        let mut count = 0;
        loop {
            if state.is_over {
                return 0;
            }
            let now = Instant::now();
            let due = state.flying.peek().map(|Reverse(first)| first.at);
            let wait = |state| {
                self.changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner)
            };
            match due {
                Some(at) if at <= now && batch.len() < BATCH => {
                    if let Some(Reverse(Flying { frame, .. })) = state.flying.pop() {
                        state.bytes -= size(&frame);
                        batch.extend((frame.len() as u32).to_be_bytes());
                        batch.extend(frame);
                        count += 1;
                    }
                }
                _ if count > 0 => return count,
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at - now);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = wait(state),
            }
        }
    }
}

/// Where a guest is connected.
struct End {
    address: SocketAddr,
    guest: Mutex<Option<TcpStream>>,
}

impl End {
    fn guest(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one guest after the other, and sends their frames.
    fn serve(&self, listener: &TcpListener, to: &Queue, start: Instant, is_over: &AtomicBool) {
        while let Ok((guest, _)) = listener.accept() {
            if is_over.load(SeqCst) {
                return;
            }
            // A small frame is no reason to wait for more.
            let other = guest.set_nodelay(true).and_then(|()| guest.try_clone());
            let Ok(other) = other else { continue };
            *self.guest() = Some(other);
            let mut from = BufReader::with_capacity(BATCH, guest);
            while let Ok(frame) = read_frame(&mut from) {
                to.send(start, frame);
            }
            *self.guest() = None;
            // It ends a delivery that waits for this guest.
            let _ = from.get_ref().shutdown(Shutdown::Both);
        }
    }

    /// Hands what arrives to the guest.
    fn deliver(&self, from: &Queue) {
        let mut batch = Vec::new();
        loop {
            let count = from.receive(&mut batch);
            if count == 0 {
                return;
            }
            // A guest may come and go meanwhile.
            let guest = self.guest().as_ref().map(TcpStream::try_clone);
            let written = match guest {
                Some(Ok(mut guest)) => guest.write_all(&batch).is_ok(),
                _ => false,
            };
            if !written {
                from.state().dropped += count;
            }
        }
    }
}

/// Reads a frame behind its length.
fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len) as usize;
    if len > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; len];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

/// A link at work, which ends when this is dropped.
pub struct Link {
    ends: [Arc<End>; 2],
    /// To the end of the same number.
    queues: [Arc<Queue>; 2],
    is_over: Arc<AtomicBool>,
}

impl Link {
    /// Listens at both addresses, and begins.
    ///
    /// # Errors
    /// When an address can't be listened at.
    pub fn start(addresses: [SocketAddr; 2], trouble: Trouble, seed: u64) -> Result<Self> {
        let start = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let queues = [0, 1].map(|number| {
            let state = State {
                direction: Direction::new(seed.wrapping_mul(2).wrapping_add(number), trouble),
                flying: BinaryHeap::new(),
                bytes: 0,
                number: 0,
                dropped: 0,
                is_over: false,
            };
            Arc::new(Queue {
                state: Mutex::new(state),
                changed: Condvar::new(),
            })
        });
        let listen = |address: SocketAddr| {
            ensure!(
                address.is_ipv4() && !address.ip().is_multicast(),
                "{address} is no IPv4 address of this host's, as 127.0.0.1:7000"
            );
            let listener = TcpListener::bind(address);
            let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
            let end = End {
                address: listener.local_addr()?,
                guest: Mutex::new(None),
            };
            Ok((listener, Arc::new(end)))
        };
        let (a, b) = (listen(addresses[0])?, listen(addresses[1])?);
        let ends = [a.1.clone(), b.1.clone()];
        for (at, (listener, end)) in [a, b].into_iter().enumerate() {
            let (to, from) = (queues[1 - at].clone(), queues[at].clone());
            let (sender, is_over) = (end.clone(), is_over.clone());
            thread::spawn(move || sender.serve(&listener, &to, start, &is_over));
            thread::spawn(move || end.deliver(&from));
        }
        Ok(Self {
            ends,
            queues,
            is_over,
        })
    }

    /// Returns where the guests connect.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        [self.ends[0].address, self.ends[1].address]
    }

    /// Returns what has happened to the frames to each end.
    pub fn counts(&self) -> [Counts; 2] {
        [0, 1].map(|at| self.queues[at].state().direction.counts())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses();
        for (at, queue) in self.queues.iter().enumerate() {
            let state = queue.state();
            let Counts {
                sent,
                lost,
                doubled,
                late,
                damaged,
            } = state.direction.counts();
            writeln!(
                f,
                "to {}: {sent} frames, {lost} lost, {doubled} duplicated, {late} late, \
                 {damaged} corrupted, {} without room",
                addresses[at], state.dropped
            )?;
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        for queue in &self.queues {
            queue.state().is_over = true;
            queue.changed.notify_all();
        }
        for end in &self.ends {
            if let Some(guest) = &*end.guest() {
                // It ends the thread that reads from it.
                let _ = guest.shutdown(Shutdown::Both);
            }
            // It wakes the thread that waits for a guest.
            let _ = TcpStream::connect(end.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: &str = "127.0.0.1:0";

    /// Connects a guest, and waits until the link has it.
    fn join(link: &Link, at: usize) -> TcpStream {
        let guest = TcpStream::connect(link.addresses()[at]).unwrap();
        let own = guest.local_addr().unwrap();
        let is_it = |it: &TcpStream| it.peer_addr().is_ok_and(|it| it == own);
        while !link.ends[at].guest().as_ref().is_some_and(is_it) {
            thread::yield_now();
        }
        guest
    }

    fn link(trouble: Trouble) -> (Link, [TcpStream; 2]) {
        let link = Link::start([ANY.parse().unwrap(); 2], trouble, 1).unwrap();
        let guests = [0, 1].map(|at| join(&link, at));
        (link, guests)
    }

    fn send(to: &mut TcpStream, frame: &[u8]) {
        let len = (frame.len() as u32).to_be_bytes();
        to.write_all(&[&len, frame].concat()).unwrap();
    }

    const AT_ONCE: Trouble = Trouble {
        delay: 0,
        ..badlink::GOOD
    };

    #[test]
    fn frames_arrive_in_order_and_guests_take_turns() {
        let (link, [mut a, mut b]) = link(AT_ONCE);
        send(&mut b, b"hello");
        assert_eq!(read_frame(&mut a).unwrap(), b"hello");
        for n in 0..1000u32 {
            send(&mut a, &n.to_be_bytes());
        }
        for n in 0..1000u32 {
            assert_eq!(read_frame(&mut b).unwrap(), n.to_be_bytes());
        }
        drop(a);
        let mut a = join(&link, 0);
        send(&mut a, b"again");
        assert_eq!(read_frame(&mut b).unwrap(), b"again");
        drop(link);
        assert!(read_frame(&mut b).is_err(), "the link is over");
    }

    #[test]
    fn a_guest_that_sends_nonsense_is_left() {
        let (link, [mut a, mut b]) = link(AT_ONCE);
        a.write_all(&[255; 4]).unwrap();
        assert!(a.read_exact(&mut [0]).is_err());
        let mut a = join(&link, 0);
        send(&mut b, b"before");
        send(&mut a, b"after");
        assert_eq!(read_frame(&mut b).unwrap(), b"after");
    }

    #[test]
    fn frames_under_way_are_bounded_by_their_bytes() {
        let trouble = Trouble {
            delay: 3_600_000_000_000,
            ..AT_ONCE
        };
        let (link, [mut a, _b]) = link(trouble);
        let count = 2 * (MOST_BYTES / LONGEST) as u64;
        for _ in 0..count {
            send(&mut a, &[0; LONGEST]);
        }
        while link.counts()[1].sent < count {
            thread::yield_now();
        }
        let state = link.queues[1].state();
        assert!(state.flying.len() * LONGEST <= MOST_BYTES);
        assert_eq!(state.flying.len() as u64 + state.dropped, count);
    }

    #[test]
    fn what_happens_is_counted() {
        let trouble = Trouble {
            lost: 500,
            doubled: 100,
            ..AT_ONCE
        };
        let (link, [mut a, mut b]) = link(trouble);
        for _ in 0..1000 {
            send(&mut a, b"frame");
        }
        while link.counts()[1].sent < 1000 {
            thread::yield_now();
        }
        let Counts {
            sent,
            lost,
            doubled,
            ..
        } = link.counts()[1];
        for _ in 0..sent - lost + doubled {
            read_frame(&mut b).unwrap();
        }
        assert!(lost > 400 && doubled > 30, "{link}");
    }

    #[test]
    fn percentages() {
        for (text, wanted) in [("0", 0), ("5", 50), ("0.5%", 5), ("100", 1000)] {
            assert_eq!(text.parse::<Percent>().unwrap(), Percent(wanted));
        }
        for text in [
            "",
            "x",
            "-1",
            "+5",
            "101",
            "5.55",
            "0.05",
            "5.",
            "99999999999999999999",
            "%",
        ] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }
}
