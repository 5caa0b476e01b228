//! The layouts of structures of 32-bit programs.
//!
//! A layout lists the fields in order. A field names its value by the index of a 32-bit word in the
//! 64-bit structure that a body wrote: the low half of the long word `n` is `2 * n`.

use abi::Result;
use nucleus::{VirtAddr, user};

use Field::{Half, Id, Short, Word, Words, Zero};

/// A field of a structure.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// 32 bits.
    Word(usize),
    /// So many fields of 32 bits with neighbouring values.
    Words(usize, usize),
    /// The lower 16 bits.
    Half(usize),
    /// 16 bits, the largest number where the value does not fit.
    Short(usize),
    /// 16 bits, the overflow id where the value does not fit.
    Id(usize),
    /// Unused bytes.
    Zero(usize),
}

/// `struct stat64`: device, inode, mode, links, user, group, special device, size, block size,
/// blocks, three times, inode.
#[rustfmt::skip]
pub(super) const STAT: &[Field] = &[
    Word(0), Word(1), Zero(4), Word(2), Word(6), Word(4), Word(7), Word(8), Word(10), Word(11),
    Zero(4), Word(12), Word(13), Word(14), Word(16), Word(17),
    Word(18), Word(20), Word(22), Word(24), Word(26), Word(28), Word(2), Word(3),
];

/// The `struct stat` of old.
#[rustfmt::skip]
pub(super) const OLD_STAT: &[Field] = &[
    Word(0), Word(2), Half(6), Half(4), Id(7), Id(8), Word(10), Word(12), Word(14), Word(16),
    Word(18), Word(20), Word(22), Word(24), Word(26), Word(28), Zero(8),
];

/// `struct statfs`: type, block size, five counts, the file system's id, longest name, fragment
/// size, flags.
#[rustfmt::skip]
pub(super) const STATFS: &[Field] = &[
    Word(0), Word(2), Word(4), Word(6), Word(8), Word(10), Word(12), Word(14), Word(15),
    Word(16), Word(18), Word(20), Zero(16),
];

/// `struct statfs64`, whose counts have 64 bits.
#[rustfmt::skip]
pub(super) const STATFS_64: &[Field] = &[
    Word(0), Word(2), Word(4), Word(5), Word(6), Word(7), Word(8), Word(9), Word(10), Word(11),
    Word(12), Word(13), Word(14), Word(15), Word(16), Word(18), Word(20), Zero(16),
];

/// A structure of System V in its two forms: of now, and of old.
pub(super) struct Forms {
    /// Behind a `struct ipc64_perm`.
    pub wide: &'static [Field],
    /// Behind a `struct ipc_perm`.
    pub old: &'static [Field],
}

/// `struct ipc64_perm`, `struct ipc_perm`: key, user, group, maker and its group, mode, sequence.
pub(super) const PERM: Forms = Forms {
    wide: &[Words(0, 5), Half(5), Zero(2), Half(6), Zero(10)],
    old: &[Word(0), Id(1), Id(2), Id(3), Id(4), Half(5), Half(6)],
};

/// `struct semid64_ds`, `struct semid_ds`: times of operation and change, count.
pub(super) const SEM: Forms = Forms {
    wide: &[Word(12), Word(13), Word(16), Word(17), Word(20), Zero(8)],
    // The times are followed by four pointers into the kernel of old.
    old: &[Word(12), Word(16), Zero(16), Half(20), Zero(2)],
};

/// `struct shmid64_ds`, `struct shmid_ds`: size, three times, maker, last user, attachments.
#[rustfmt::skip]
pub(super) const SHM: Forms = Forms {
    wide: &[Word(12), Words(14, 9), Zero(8)],
    old: &[
        Word(12), Word(14), Word(16), Word(18), Half(20), Half(21), Half(22), Zero(10),
    ],
};

/// `struct msqid64_ds`, `struct msqid_ds`: three times, bytes, messages, most bytes, last sender
/// and receiver.
#[rustfmt::skip]
pub(super) const MSG: Forms = Forms {
    wide: &[Words(12, 7), Word(20), Word(22), Words(24, 2), Zero(8)],
    old: &[
        Zero(8), Word(12), Word(14), Word(16), Word(18), Word(22), Zero(8),
        Short(18), Short(20), Short(22), Short(24), Short(25), Zero(2),
    ],
};

/// Bytes of the longest structure.
const LONGEST: usize = 96;

/// Returns the bytes of a part of a structure.
const fn len(fields: &[Field]) -> usize {
    let (mut at, mut sum) = (0, 0);
    while at < fields.len() {
        sum += match fields[at] {
            Word(_) => 4,
            Words(_, count) => 4 * count,
            Half(_) | Short(_) | Id(_) => 2,
            Zero(len) => len,
        };
        at += 1;
    }
    sum
}

// The sizes of the C structures.
const _: () = {
    assert!(len(STAT) == 96 && len(OLD_STAT) == 64);
    assert!(len(STATFS) == 64 && len(STATFS_64) == 84);
    let (wide, old) = (len(PERM.wide), len(PERM.old));
    assert!(wide + len(SEM.wide) == 64 && old + len(SEM.old) == 44);
    assert!(wide + len(SHM.wide) == 84 && old + len(SHM.old) == 48);
    assert!(wide + len(MSG.wide) == 88 && old + len(MSG.old) == 64);
};

/// Writes the parts of a structure, one behind the other, from the 64-bit one.
///
/// # Errors
/// `EFAULT`.
pub(super) fn write(parts: &[&[Field]], wide: &[u64], to: VirtAddr) -> Result<()> {
    let mut bytes = [0; LONGEST];
    let mut at = 0;
    let word = |n: usize| (wide[n / 2] >> (n % 2 * 32)) as u32;
    for field in parts.iter().copied().flatten() {
        let (value, len) = match *field {
            Word(n) => (word(n), 4),
            Words(first, count) => {
                for n in first..first + count {
                    bytes[at..at + 4].copy_from_slice(&word(n).to_le_bytes());
                    at += 4;
                }
                continue;
            }
            Half(n) => (word(n), 2),
            Short(n) => (word(n).min(u32::from(u16::MAX)), 2),
            Id(n) => (u16::try_from(word(n)).unwrap_or(OVERFLOW_ID).into(), 2),
            Zero(len) => {
                at += len;
                continue;
            }
        };
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        at += len;
    }
    Ok(user::copy_out(to, &bytes[..at])?)
}

/// The user and group of 16 bits that stands for one that does not fit.
pub(super) const OVERFLOW_ID: u16 = 65_534;
