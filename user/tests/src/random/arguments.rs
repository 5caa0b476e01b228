//! Arguments: plausible ones of each kind, structures built in memory, and absurd ones.

use crate::Numbers;

/// Kind of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Anything at all.
    Any,
    Zero,
    /// A descriptor.
    Fd,
    /// A directory's descriptor, mostly the working directory.
    At,
    Path,
    /// A mount point.
    MountPoint,
    /// A program to execute.
    Program,
    /// A short word: a kind of file system, an attribute's name.
    Word,
    /// A message queue's name.
    Queue,
    /// Memory to write to or read from.
    Memory,
    /// Small numbers in memory.
    Structure,
    /// A short time in memory, or none.
    Time,
    /// Two times in memory.
    Times,
    /// A set of signals in memory.
    SignalSet,
    /// Pieces of memory.
    Pieces,
    /// A message with its address, pieces and control data.
    Message,
    /// A socket's address.
    Address,
    /// Bytes that may be moved.
    Length,
    /// A length in memory.
    LengthAt,
    /// A file's position or size.
    Offset,
    Small,
    Signal,
    Mode,
    /// This process or thread, or 0.
    Me,
    /// The id of a System V object.
    Id,
    /// A System V key.
    Key,
    /// A page that may be unmapped.
    Page,
    /// Bytes of several pages.
    Pages,
    /// Some of these bits.
    Bits(u64),
    /// One of these.
    One(&'static [i64]),
}

/// Bytes of the memory that arguments point into, and of the pages that calls map and unmap.
pub const ARENA: usize = 64 * 4096;
pub const PLAYGROUND: usize = 64 * 4096;

const PATHS: &[&str] = &[
    "f0",
    "f1",
    "f2",
    "f3",
    "d0",
    "d1",
    "d0/f4",
    "d1/f5",
    "l0",
    "l1",
    ".",
    "..",
    "/",
    "",
    "none/f",
    "/tmp/random/f1",
    "/tmp/random/s0",
    "/tmp/random/p0",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/urandom",
    "/dev/ptmx",
    "/dev/pts/0",
    "/dev/shm/s0",
    "/dev/shm/s1",
    "/proc/self/maps",
    "/proc/self/status",
    "/proc/self/stat",
    "/proc/self/fd",
    "/proc/self/mem",
    "/proc/self/smaps",
    "/proc/self/environ",
    "/proc/self/mountinfo",
    "/proc/self/limits",
    "/proc/self/task",
    "/proc/meminfo",
    "/proc/net/unix",
    "/proc/net/tcp",
    "/proc/sysvipc/shm",
    "/proc/locks",
    "/proc/causeway/unsupported",
    "/sys",
    "/etc/passwd",
];
const WORDS: &[&str] = &[
    "tmpfs",
    "proc",
    "ramfs",
    "devpts",
    "mqueue",
    "sysfs",
    "user.a",
    "user.b",
    "trusted.c",
    "security.d",
    "system.posix_acl_access",
    "name",
    "",
    "size=1m",
    "mode=700",
];
const PROGRAMS: &[&str] = &[
    "/bin/busybox",
    "/bin/true",
    "/tmp/random/f0",
    "/etc/passwd",
    "",
    "/",
];
const QUEUES: &[&str] = &["q0", "q1", "/q0", "", "none"];

/// Makes arguments for one thread.
pub struct Arguments {
    pub numbers: Numbers,
    /// Start of the memory that arguments point into: below 2 GiB, followed by an inaccessible
    /// page.
    pub arena: u64,
    pub playground: u64,
    /// Whether structures are those of 32-bit programs.
    pub narrow: bool,
}

impl Arguments {
    /// Returns an address in the arena for `len` bytes, aligned to 8.
    fn place(&mut self, len: usize) -> u64 {
        self.arena + (self.numbers.below((ARENA - len) as u64) & !7)
    }

    /// Writes bytes into the arena; returns their address.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.place(bytes.len());
        // SAFETY: inside the arena, which only these calls use; if a call unmapped it, the fault
        // ends the process.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        at
    }

    /// Numbers of the size of a pointer.
    fn words(&mut self, words: &[u64]) -> u64 {
        let mut bytes = Vec::new();
        for word in words {
            match self.narrow {
                true => bytes.extend((*word as u32).to_le_bytes()),
                false => bytes.extend(word.to_le_bytes()),
            }
        }
        self.put(&bytes)
    }

    fn text(&mut self, texts: &[&str]) -> u64 {
        let text = texts[self.numbers.below(texts.len() as u64) as usize];
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.put(&bytes)
    }

    /// Seconds and a fraction: mostly a moment, at times nonsense.
    fn time(&mut self) -> [u64; 2] {
        match self.numbers.below(12) {
            0 => [self.numbers.next(), self.numbers.next()],
            1 => [0, 0],
            2 => [1 << 40, 0],
            _ => [0, self.numbers.below(3_000_000)],
        }
    }

    /// Pieces of memory, and how many they are.
    fn pieces(&mut self) -> (u64, u64) {
        let count = self.numbers.below(5);
        let mut words = Vec::new();
        for _ in 0..count {
            words.push(self.memory());
            words.push(self.numbers.below(9000));
        }
        (self.words(&words), count)
    }

    fn memory(&mut self) -> u64 {
        match self.numbers.below(24) {
            0 => 0,
            1 => self.absurd(),
            2 => self.playground + self.numbers.below(PLAYGROUND as u64),
            _ => self.place(16384),
        }
    }

    /// A socket's address, and its length.
    fn address(&mut self) -> (u64, u64) {
        let port = (20_000 + self.numbers.below(8) as u16).to_be_bytes();
        match self.numbers.below(6) {
            0 | 1 => {
                let mut bytes = vec![2, 0, port[0], port[1], 127, 0, 0, 1];
                bytes.resize(16, 0);
                (self.put(&bytes), 16)
            }
            2 => {
                let mut bytes = vec![10, 0, port[0], port[1], 0, 0, 0, 0];
                bytes.resize(23, 0);
                bytes.push(1);
                bytes.resize(28, 0);
                (self.put(&bytes), 28)
            }
            3 => {
                let bytes = [1, 0, 0, b'a', b'0' + self.numbers.below(4) as u8];
                (self.put(&bytes), 5)
            }
            4 => (self.put(b"\x01\0/tmp/random/s0\0"), 17),
            _ => (self.put(&[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 12),
        }
    }

    fn message(&mut self) -> u64 {
        let (name, name_len) = match self.numbers.below(2) {
            0 => (0, 0),
            _ => self.address(),
        };
        let (pieces, count) = self.pieces();
        let (control, control_len) = match self.numbers.below(3) {
            0 => (0, 0),
            1 => (self.place(256), self.numbers.below(256)),
            _ => {
                let kind = 1 + self.numbers.below(2);
                let fd = self.numbers.below(20);
                match self.narrow {
                    true => (self.words(&[16, 1, kind, fd]), 16),
                    false => (self.words(&[20, 1 | kind << 32, fd]), 24),
                }
            }
        };
        let flags = self.numbers.below(4);
        self.words(&[name, name_len, pieces, count, control, control_len, flags])
    }

    /// Returns a plausible argument of a kind. `last` is the length of the structure built last.
    pub fn plausible(&mut self, kind: Kind, last: &mut u64) -> u64 {
        let n = &mut self.numbers;
        match kind {
            Kind::Any => self.absurd(),
            Kind::Zero => 0,
            Kind::Fd => match n.below(4) {
                0 => n.below(64),
                _ => n.below(20),
            },
            Kind::At => match n.below(3) {
                0 => n.below(20),
                _ => (-100i64) as u64,
            },
            Kind::Path => self.text(PATHS),
            Kind::MountPoint => self.text(&["m0", "m1", "m2", "m0/d", "none"]),
            Kind::Program => self.text(PROGRAMS),
            Kind::Word => self.text(WORDS),
            Kind::Queue => self.text(QUEUES),
            Kind::Memory => self.memory(),
            Kind::Structure => {
                let mut words = [0u64; 16];
                for word in &mut words {
                    *word = match self.numbers.below(6) {
                        0 => self.absurd(),
                        1 => self.memory(),
                        2 => 0,
                        _ => self.numbers.below(32),
                    };
                }
                self.words(&words)
            }
            Kind::Time => match n.below(5) {
                0 => 0,
                _ => {
                    let time = self.time();
                    self.words(&time)
                }
            },
            Kind::Times => {
                let (one, two) = (self.time(), self.time());
                self.words(&[one, two].concat())
            }
            Kind::SignalSet => {
                let set = n.next() & n.next() & n.next();
                self.put(&set.to_le_bytes())
            }
            Kind::Pieces => {
                let (at, count) = self.pieces();
                *last = count;
                at
            }
            Kind::Message => self.message(),
            Kind::Address => {
                let (at, len) = self.address();
                *last = len;
                at
            }
            Kind::Length => match n.below(8) {
                0 => 0,
                1 => n.below(1 << 17),
                2 => *last,
                _ => n.below(5000),
            },
            Kind::LengthAt => {
                let len = n.below(300) as u32;
                self.put(&len.to_le_bytes())
            }
            Kind::Offset => match n.below(8) {
                0 => n.next(),
                1 => n.below(1 << 24),
                _ => n.below(40_000),
            },
            Kind::Small => match n.below(4) {
                0 => *last,
                _ => n.below(8),
            },
            Kind::Signal => n.below(66),
            Kind::Mode => n.below(0o10000),
            Kind::Me => match n.below(3) {
                0 => 0,
                // SAFETY: takes nothing.
                1 => unsafe { libc::syscall(libc::SYS_gettid) as u64 },
                // SAFETY: takes nothing.
                _ => unsafe { libc::syscall(libc::SYS_getpid) as u64 },
            },
            Kind::Id => match n.below(8) {
                0 => n.below(1 << 31),
                _ => n.below(12) | n.below(4) << 15,
            },
            Kind::Key => n.below(6),
            Kind::Page => self.playground + n.below(PLAYGROUND as u64 / 4096) * 4096,
            Kind::Pages => (1 + n.below(8)) * 4096,
            Kind::Bits(mask) => match n.below(16) {
                0 => n.next(),
                1 => mask,
                2..6 => 0,
                _ => mask & n.next() & n.next(),
            },
            Kind::One(values) => values[n.below(values.len() as u64) as usize] as u64,
        }
    }

    /// Returns a number of a kind that some call takes: small, a descriptor, a good or bad pointer,
    /// anything.
    pub fn absurd(&mut self) -> u64 {
        let n = &mut self.numbers;
        match n.below(16) {
            0 => 0,
            1 => u64::MAX,
            2 | 3 => n.below(8),
            4 => n.below(300),
            5 => 1 << n.below(64),
            6 => n.next(),
            7 => 0xffff_8000_0000_0000 | n.below(1 << 40),
            8 => (-100i64) as u64, // AT_FDCWD
            9 => n.below(1 << 22) & !0xfff,
            10 => n.next() >> n.below(64),
            11 => self.arena + ARENA as u64 - n.below(16),
            _ => self.arena + n.below(ARENA as u64),
        }
    }
}
