//! Offsets in two halves, buffers in several pieces, locks, directories, mappings. A position that
//! does not fit into 32 bits comes back without its upper half, as on Linux.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user, user::compat_scratch};

use super::{
    row::{Row, differs, shim},
    translate::Difference::{self, Join, Move, Set, Signed, Vector},
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    differs(19, raw::__NR_lseek, &[Signed(1)]),
    differs(22, raw::__NR_umount2, &[Set(1, 0)]),
    shim(55, raw::__NR_fcntl, fcntl),
    shim(89, raw::__NR_getdents, readdir),
    shim(90, raw::__NR_mmap, old_mmap),
    differs(92, raw::__NR_truncate, &[Signed(1)]),
    differs(93, raw::__NR_ftruncate, &[Signed(1)]),
    shim(140, raw::__NR_lseek, llseek),
    shim(141, raw::__NR_getdents, getdents),
    differs(145, raw::__NR_readv, &[Vector(1, 2)]),
    differs(146, raw::__NR_writev, &[Vector(1, 2)]),
    differs(180, raw::__NR_pread64, &[Join(3, 3, 4)]),
    differs(181, raw::__NR_pwrite64, &[Join(3, 3, 4)]),
    shim(187, raw::__NR_sendfile, sendfile),
    shim(192, raw::__NR_mmap, mmap2),
    differs(193, raw::__NR_truncate, &[Join(1, 1, 2)]),
    differs(194, raw::__NR_ftruncate, &[Join(1, 1, 2)]),
    shim(221, raw::__NR_fcntl, fcntl64),
    differs(225, raw::__NR_readahead, &[Join(1, 1, 2), Move(2, 3)]),
    differs(
        250,
        raw::__NR_fadvise64,
        &[Join(1, 1, 2), Move(2, 3), Move(3, 4)],
    ),
    differs(
        272,
        raw::__NR_fadvise64,
        &[Join(1, 1, 2), Join(2, 3, 4), Move(3, 5)],
    ),
    differs(
        314,
        raw::__NR_sync_file_range,
        &[Join(1, 1, 2), Join(2, 3, 4), Move(3, 5)],
    ),
    differs(316, raw::__NR_vmsplice, &[Vector(1, 2)]),
    differs(324, raw::__NR_fallocate, &[Join(2, 2, 3), Join(3, 4, 5)]),
    differs(333, raw::__NR_preadv, &VECTOR_AT),
    differs(334, raw::__NR_pwritev, &VECTOR_AT),
    differs(
        347,
        raw::__NR_process_vm_readv,
        &[Vector(1, 2), Vector(3, 4)],
    ),
    differs(
        348,
        raw::__NR_process_vm_writev,
        &[Vector(1, 2), Vector(3, 4)],
    ),
    differs(378, raw::__NR_preadv2, &VECTOR_AT),
    differs(379, raw::__NR_pwritev2, &VECTOR_AT),
    differs(440, raw::__NR_process_madvise, &[Vector(1, 2)]),
];

/// A vector and an offset in two halves, of which a 64-bit program's upper one counts for nothing.
const VECTOR_AT: [Difference; 3] = [Vector(1, 2), Join(3, 3, 4), Set(4, 0)];

/// `_llseek`: the position goes to where the fourth argument points.
fn llseek(call: &mut Call<'_>) -> Result<usize> {
    let to = call.address(3);
    let offset = call.joined(2, 1);
    let args = [call.args[0], offset, call.args[4], 0, 0, 0];
    let position = call.native_with(raw::__NR_lseek, args)?;
    user::write(to, &(position as u64))?;
    Ok(0)
}

/// `mmap` with its arguments in memory.
fn old_mmap(call: &mut Call<'_>) -> Result<usize> {
    let words: [u32; 6] = call.read(0)?;
    call.native_with(raw::__NR_mmap, words.map(u64::from))
}

/// `mmap2`: the offset is in pages.
fn mmap2(call: &mut Call<'_>) -> Result<usize> {
    call.args[5] <<= nucleus::PAGE_SHIFT;
    call.native(raw::__NR_mmap)
}

/// `sendfile` with an offset of 32 bits.
fn sendfile(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(2);
    if at.0 == 0 {
        return call.native(raw::__NR_sendfile);
    }
    let offset: i32 = user::read(at)?;
    call.lay(2, &i64::from(offset))?;
    let sent = call.native(raw::__NR_sendfile)?;
    let offset: i64 = call.read(2)?;
    user::write(at, &i32::try_from(offset).map_err(|_| Errno::EOVERFLOW)?)?;
    Ok(sent)
}

/// A lock as a 64-bit program gives it: kind and whence, start, length, process.
type Lock = [u64; 4];

/// From `struct flock`: kind, whence, start, length, process.
fn from_narrow(words: [u32; 4]) -> Lock {
    let [kind, start, len, pid] = words;
    let wide = |word: u32| i64::from(word as i32) as u64;
    [u64::from(kind), wide(start), wide(len), u64::from(pid)]
}

fn to_narrow([kind, start, len, pid]: Lock) -> Result<[u32; 4]> {
    let fits = |word: u64| match i32::try_from(word as i64) {
        Ok(word) => Ok(word as u32),
        // As on Linux, a length that is too great is cut, a start is not.
        Err(_) => Err(Errno::EOVERFLOW),
    };
    let len = fits(len).unwrap_or(i32::MAX as u32);
    Ok([kind as u32, fits(start)?, len, pid as u32])
}

/// From `struct flock64`, which has no holes.
fn from_packed(words: [u32; 6]) -> Lock {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [kind, start, start_high, len, len_high, pid] = words;
    [
        u64::from(kind),
        pair(start, start_high),
        pair(len, len_high),
        u64::from(pid),
    ]
}

fn to_packed([kind, start, len, pid]: Lock) -> [u32; 6] {
    let high = |word: u64| (word >> 32) as u32;
    [
        kind as u32,
        start as u32,
        high(start),
        len as u32,
        high(len),
        pid as u32,
    ]
}

/// `F_GETLK64`, `F_SETLK64` and `F_SETLKW64`.
const LOCKS_64: core::ops::RangeInclusive<u32> = 12..=14;

fn fcntl(call: &mut Call<'_>) -> Result<usize> {
    match call.unsigned(1) {
        command if LOCKS_64.contains(&command) => Err(Errno::EINVAL),
        raw::F_OFD_GETLK | raw::F_OFD_SETLK | raw::F_OFD_SETLKW => Err(Errno::EINVAL),
        _ => fcntl64(call),
    }
}

fn fcntl64(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(2);
    let command = call.unsigned(1);
    match command {
        raw::F_GETLK | raw::F_SETLK | raw::F_SETLKW => {
            call.lay(2, &from_narrow(user::read(at)?))?;
            let result = call.native(raw::__NR_fcntl)?;
            if command == raw::F_GETLK {
                user::write(at, &to_narrow(call.read(2)?)?)?;
            }
            Ok(result)
        }
        12..=14 | raw::F_OFD_GETLK | raw::F_OFD_SETLK | raw::F_OFD_SETLKW => {
            call.lay(2, &from_packed(user::read(at)?))?;
            if LOCKS_64.contains(&command) {
                call.args[1] = u64::from(command - LOCKS_64.start() + raw::F_GETLK);
            }
            let result = call.native(raw::__NR_fcntl)?;
            if matches!(command, 12 | raw::F_OFD_GETLK) {
                user::write(at, &to_packed(call.read(2)?))?;
            }
            Ok(result)
        }
        raw::F_SETOWN => {
            // A negative number names a group.
            call.args[2] = i64::from(call.int(2)) as u64;
            call.native(raw::__NR_fcntl)
        }
        _ => call.native(raw::__NR_fcntl),
    }
}

/// The most bytes of directory entries that are translated at once.
const LISTING_MAX: usize = 32 << 10;
/// Bytes of a 64-bit `struct linux_dirent` before the name, and of a 32-bit one.
const WIDE_NAME: usize = 18;
const NARROW_NAME: usize = 10;

/// One entry of a listing that a body wrote.
struct Name {
    inode: u64,
    next: u64,
    /// With the bytes behind it; the last is the kind.
    name: [u8; 280],
    /// Bytes of the name.
    len: usize,
    kind: u8,
}

/// The entry at `at`, and where the next one is.
fn name(at: VirtAddr) -> Result<(Name, VirtAddr)> {
    let [inode, next]: [u64; 2] = user::read(at)?;
    let len: u16 = user::read(at + 16)?;
    let len = usize::from(len);
    let mut name = [0; 280];
    let room = len
        .checked_sub(WIDE_NAME)
        .filter(|room| *room <= name.len())
        .ok_or(Errno::EINVAL)?;
    user::copy_in(&mut name[..room], at + WIDE_NAME)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(room);
    let entry = Name {
        inode,
        next,
        kind: name[room.max(1) - 1],
        name,
        len: end,
    };
    Ok((entry, at + len))
}

/// Writes an entry of at most `room` bytes; gives its length.
fn put_name(to: VirtAddr, room: usize, entry: &Name) -> Result<usize> {
    let len = (NARROW_NAME + entry.len + 2).next_multiple_of(4);
    if len > room {
        return Err(Errno::EINVAL);
    }
    let inode = u32::try_from(entry.inode).map_err(|_| Errno::EOVERFLOW)?;
    let mut bytes = [0; 300];
    bytes[..4].copy_from_slice(&inode.to_le_bytes());
    // As on Linux, a position that does not fit loses its upper half.
    bytes[4..8].copy_from_slice(&(entry.next as u32).to_le_bytes());
    bytes[8..10].copy_from_slice(&(len as u16).to_le_bytes());
    bytes[NARROW_NAME..NARROW_NAME + entry.len].copy_from_slice(&entry.name[..entry.len]);
    bytes[len - 1] = entry.kind;
    user::copy_out(to, &bytes[..len])?;
    Ok(len)
}

fn getdents(call: &mut Call<'_>) -> Result<usize> {
    let to = call.address(1);
    let room = call.size(2).min(LISTING_MAX);
    // The longer head of a single entry must not keep it from coming.
    call.args[2] = room as u64 + 8;
    let from = compat_scratch::reserve(room + 8)?;
    call.args[1] = from.0 as u64;
    let end = from + call.native(raw::__NR_getdents)?;
    let (mut from, mut done) = (from, 0);
    while from < end {
        let (entry, next) = name(from)?;
        done += put_name(to + done, room - done, &entry)?;
        from = next;
    }
    Ok(done)
}

/// `readdir`: one entry, its length in the place of the next one's, and 1; 0 at the end.
fn readdir(call: &mut Call<'_>) -> Result<usize> {
    let to = call.address(1);
    // Room for one of the longest, and never for two of any: entries have 24 bytes at least.
    let room = WIDE_NAME + 256 + 8;
    let from = compat_scratch::reserve(room)?;
    let before = call.native_with(
        raw::__NR_lseek,
        [call.args[0], 0, u64::from(raw::SEEK_CUR), 0, 0, 0],
    )?;
    let fd = call.args[0];
    let args = [fd, from.0 as u64, room as u64, 0, 0, 0];
    if call.native_with(raw::__NR_getdents, args)? == 0 {
        return Ok(0);
    }
    let (entry, _) = name(from)?;
    let seek = [fd, entry.next, u64::from(raw::SEEK_SET), 0, 0, 0];
    call.native_with(raw::__NR_lseek, seek)?;
    let mut head = [0u8; 10];
    head[..4].copy_from_slice(&(entry.inode as u32).to_le_bytes());
    head[4..8].copy_from_slice(&(before as u32).to_le_bytes());
    head[8..].copy_from_slice(&(entry.len as u16).to_le_bytes());
    user::write(to, &head)?;
    user::copy_out(to + head.len(), &entry.name[..entry.len + 1])?;
    Ok(1)
}
