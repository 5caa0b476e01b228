//! Plain requests to `/dev/fbuf`, and nodes of aggregates.

use support::prelude::*;

const ENTER: u32 = 0x00;
const PATH: u32 = 0x01;
const ATTACH: u32 = 0x10;
const GROW: u32 = 0x11;
const SHRINK: u32 = 0x12;
const SEND: u32 = 0x13;
const RECEIVE: u32 = 0x14;
const FREE: u32 = 0x15;
const NOTICES: u32 = 0x16;
const SECURE: u32 = 0x17;
const CALL: u32 = 0x18;
const LEAVE: u32 = 0x19;
const IDLE: u32 = 0x1a;
const RANGES: u32 = 0x1b;
const WAIT: u32 = 0x1c;
const TAKE: u32 = 0x1d;
const WHOSE: u32 = 0x22;
const PASS: u32 = 0x23;
const RING: u32 = 0x24;

/// Modes of paths.
pub const CACHED: u64 = 0;
pub const UNCACHED: u64 = 1;
pub const SECURED: u64 = 2;
pub const ALL_MODES: [u64; 4] = [0, 1, 2, 3];

pub const START: usize = 0x6000_0000_0000;
pub const SIZE: usize = 64 << 30;
pub const CHUNK: usize = 2 << 20;

/// An error number, or what the request gave.
pub type Answer<T> = std::result::Result<T, c_int>;

fn request(file: &impl AsRawFd, number: u32, first: &[u64]) -> Answer<(usize, [u64; 8])> {
    let mut words = [0; 8];
    words[..first.len()].copy_from_slice(first);
    let command = 0xc040_fb00 | number;
    // SAFETY: the kernel reads and writes the eight words.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command.into(), words.as_mut_ptr()) };
    match result {
        -1 => Err(errno()),
        result => Ok((result as usize, words)),
    }
}

/// Enters the region; returns the device and the number of the domain.
pub fn enter() -> Result<(File, u64)> {
    let device = File::options().read(true).write(true).open("/dev/fbuf")?;
    let (_, words) = request(&device, ENTER, &[])?;
    equal!(words[..4], [1, START as u64, SIZE as u64, CHUNK as u64]);
    Ok((device, words[4]))
}

/// A path's descriptor.
pub struct Path(pub OwnedFd);

/// What a receiver gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub root: usize,
    pub id: u64,
    pub sender: u64,
    pub bytes: u64,
    pub notices: u64,
}

impl From<[u64; 8]> for Message {
    fn from([root, id, sender, bytes, notices, ..]: [u64; 8]) -> Message {
        Message {
            root: root as usize,
            id,
            sender,
            bytes,
            notices,
        }
    }
}

impl AsRawFd for Path {
    fn as_raw_fd(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

impl Path {
    pub fn make(device: &File, mode: u64, limit: u64) -> Answer<Path> {
        let (fd, _) = request(device, PATH, &[mode, limit])?;
        // SAFETY: a new descriptor that nothing else closes.
        Ok(Path(unsafe { OwnedFd::from_raw_fd(fd as c_int) }))
    }

    /// Enters the region and makes a path.
    pub fn new(mode: u64) -> Result<Path> {
        Ok(Path::make(&enter()?.0, mode, 0)?)
    }

    pub fn attach(&self) -> Answer<[u64; 8]> {
        Ok(request(self, ATTACH, &[])?.1)
    }

    /// Enters the region and attaches.
    pub fn join(&self) -> Result<u64> {
        enter()?;
        Ok(self.attach()?[3])
    }

    pub fn grow(&self, chunks: u64) -> Answer<*mut u8> {
        Ok(request(self, GROW, &[chunks])?.1[0] as *mut u8)
    }

    pub fn shrink(&self, start: *mut u8) -> Answer<()> {
        request(self, SHRINK, &[start as u64]).map(drop)
    }

    /// Sends to all; returns the message's number and how many notices wait.
    pub fn send(&self, root: *const u8) -> Answer<(u64, u64)> {
        self.send_to(0, root as usize)
    }

    pub fn send_to(&self, member: u64, root: usize) -> Answer<(u64, u64)> {
        let (_, words) = request(self, SEND, &[member, root as u64])?;
        Ok((words[0], words[1]))
    }

    pub fn receive(&self) -> Answer<Message> {
        Ok(request(self, RECEIVE, &[])?.1.into())
    }

    pub fn free(&self, id: u64) -> Answer<()> {
        request(self, FREE, &[id]).map(drop)
    }

    pub fn notices(&self) -> Answer<Vec<[usize; 2]>> {
        let mut pairs = vec![[0; 2]; 100];
        let (_, words) = request(self, NOTICES, &[pairs.as_mut_ptr() as u64, 100])?;
        pairs.truncate(words[0] as usize);
        Ok(pairs)
    }

    /// The first `most` ranges of a message's pages, and how many there are.
    pub fn ranges(&self, id: u64, most: usize) -> Answer<(u64, Vec<[usize; 2]>)> {
        let mut pairs = vec![[0; 2]; most];
        let count = self.ranges_at(id, pairs.as_mut_ptr() as u64, most)?;
        pairs.truncate(count as usize);
        Ok((count, pairs))
    }

    /// As `ranges`, put at an address.
    pub fn ranges_at(&self, id: u64, at: u64, most: usize) -> Answer<u64> {
        Ok(request(self, RANGES, &[id, at, most as u64])?.1[0])
    }

    pub fn secure(&self, start: usize, len: usize) -> Answer<()> {
        request(self, SECURE, &[start as u64, len as u64]).map(drop)
    }

    /// Sends to the first receiver and waits for its answer on another path.
    pub fn call(&self, root: *const u8, answers: &Path) -> Answer<Message> {
        let words = [1, root as u64, answers.as_raw_fd() as u64];
        Ok(request(self, CALL, &words)?.1.into())
    }

    pub fn idle(&self, start: *const u8, len: usize) -> Answer<()> {
        request(self, IDLE, &[start as u64, len as u64]).map(drop)
    }

    /// Reads from a file into fbufs; returns how many bytes.
    pub fn take(&self, from: c_int, offset: u64, at: *mut u8, len: usize) -> Answer<usize> {
        let words = [from as u64, offset, at as u64, len as u64];
        let (_, words) = request(self, TAKE, &words)?;
        Ok(words[0] as usize)
    }

    /// Sleeps while the word has this value and the originator is there.
    pub fn wait(&self, word: *const u8, value: u32) -> Answer<()> {
        request(self, WAIT, &[word as u64, value.into()]).map(drop)
    }

    /// Wakes those that wait for a word.
    pub fn ring(&self, word: *const u8) -> Answer<()> {
        request(self, RING, &[word as u64]).map(drop)
    }

    /// Rings for a word of another path, and waits.
    pub fn pass(&self, other: &Path, rung: *const u8, word: *const u8, value: u32) -> Answer<()> {
        let words = [
            other.as_raw_fd() as u64,
            rung as u64,
            word as u64,
            value.into(),
        ];
        request(self, PASS, &words).map(drop)
    }

    /// Returns the addresses and the number of the path that has this one.
    pub fn whose(&self, address: usize) -> Answer<[u64; 4]> {
        let (_, words) = request(self, WHOSE, &[address as u64])?;
        Ok([words[0], words[1], words[2], words[3]])
    }

    pub fn leave(&self) -> Answer<()> {
        request(self, LEAVE, &[]).map(drop)
    }

    pub fn set_nonblocking(&self) -> Outcome {
        call!(fcntl(self.as_raw_fd(), F_SETFL, O_NONBLOCK));
        Ok(())
    }
}

/// Writes a node, whose `len` is a hint only for pairs.
pub fn set_node(at: *mut u8, kind: u32, len: u64, a: usize, b: usize) {
    let words = [u64::from(kind), len, a as u64, b as u64];
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: callers name nodes in chunks of theirs.
        unsafe { at.cast::<u64>().add(i).write_volatile(word) };
    }
}

pub fn set_leaf(at: *mut u8, data: *const u8, len: usize) {
    set_node(at, 1, len as u64, data as usize, 0);
}

pub fn set_pair(at: *mut u8, left: *const u8, right: *const u8) {
    set_node(at, 2, 0, left as usize, right as usize);
}

/// Fills bytes of a chunk.
pub fn fill(at: *mut u8, len: usize, value: u8) {
    // SAFETY: callers name memory of theirs.
    unsafe { at.write_bytes(value, len) };
}

/// Whether all bytes have this value.
pub fn is_filled(at: *const u8, len: usize, value: u8) -> bool {
    // SAFETY: callers name memory that they can read.
    (0..len).all(|i| unsafe { at.add(i).read_volatile() } == value)
}

/// Checks that a leaf at `root` has `len` bytes of this value; returns their address.
pub fn check_leaf(root: usize, len: usize, value: u8) -> Result<usize> {
    let words: [u64; 4] = std::array::from_fn(|i| {
        // SAFETY: the node was received.
        unsafe { (root as *const u64).add(i).read_volatile() }
    });
    equal!((words[0], words[1]), (1, len as u64));
    ensure!(is_filled(words[2] as *const u8, len, value), "other bytes");
    Ok(words[2] as usize)
}
