//! The records in a directory block: inode, record length, name length, file type, name.
//!
//! Records fill their block without gaps, each starts at a multiple of four, and a record may be
//! longer than its content: the rest is room for further ones. A removed record becomes room of the
//! one before it or, as the first of its block, refers to inode 0. So a record does not move during
//! its lifetime. Everything in a block is checked before use.
//!
//! Moving a directory sets its ".." while others change names in the directory. So [`insert`] and
//! [`remove`] preserve the inode number in the preceding record, and [`rename_to`] writes that
//! number only, unless the file type changes.

use core::ops::Range;

/// Bytes before the name.
const HEAD: usize = 8;
/// Bytes of the inode number at the start of a record.
const INODE: usize = 4;
/// The minimal length of a record.
pub(in super::super) const RECORD_MIN: usize = 12;
/// The longest name.
pub(in super::super) const NAME_MAX: usize = 255;

/// The length of a record for a name of this length.
pub(in super::super) const fn record_size(name_len: usize) -> usize {
    (HEAD + name_len).next_multiple_of(4)
}

/// A block whose records are inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Damaged {
    /// The offset where that was detected.
    pub at: usize,
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Record<'a> {
    /// Its offset in its block.
    pub at: usize,
    /// Its length, in bytes.
    pub len: usize,
    /// Its inode; 0 if it is only room.
    pub inode: u32,
    /// The file type of the inode, as `directory entries` have it; 0 if unknown.
    pub kind: u8,
    pub name: &'a [u8],
}

impl Record<'_> {
    /// The bytes that its content takes.
    pub fn used(&self) -> usize {
        match self.inode {
            0 => 0,
            _ => record_size(self.name.len()),
        }
    }

    /// The bytes after its content.
    pub fn room(&self) -> usize {
        self.len - self.used()
    }
}

/// The records of a block, in order, up to the first inconsistent one.
pub(in super::super) struct Records<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// Returns those of `block` from offset `at` on, where a record starts.
    pub fn new(block: &'a [u8], at: usize) -> Records<'a> {
        Records { block, at }
    }

    /// Returns the record at offset `at`.
    pub fn at(block: &'a [u8], at: usize) -> Result<Record<'a>, Damaged> {
        let damaged = Damaged { at };
        let bytes = block.get(at..).ok_or(damaged)?;
        let head: &[u8; HEAD] = bytes.first_chunk().ok_or(damaged)?;
        let inode = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let len = u16::from_le_bytes([head[4], head[5]]) as usize;
        let name_len = head[6] as usize;
        let fits = at.is_multiple_of(4)
            && len >= RECORD_MIN
            && len.is_multiple_of(4)
            && len >= record_size(name_len)
            && len <= bytes.len();
        let name = bytes.get(HEAD..HEAD + name_len).ok_or(damaged)?;
        if !fits || inode != 0 && !may_be_name(name) {
            return Err(damaged);
        }
        Ok(Record {
            at,
            len,
            inode,
            kind: head[7],
            name,
        })
    }
}

/// Parses a record from the bytes of its content; ignores what follows.
pub(in super::super) fn head(bytes: &[u8]) -> Option<Record<'_>> {
    let head: &[u8; HEAD] = bytes.first_chunk()?;
    let name = bytes.get(HEAD..HEAD + head[6] as usize)?;
    Some(Record {
        at: 0,
        len: bytes.len(),
        inode: u32::from_le_bytes([head[0], head[1], head[2], head[3]]),
        kind: head[7],
        name,
    })
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.block.len() {
            return None;
        }
        let record = Records::at(self.block, self.at);
        self.at = match &record {
            Ok(record) => record.at + record.len,
            Err(_) => self.block.len(),
        };
        Some(record)
    }
}

/// Returns whether a name could have been created.
fn may_be_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Returns the length of the longest record that could be added to the block.
pub(in super::super) fn room(block: &[u8]) -> Result<usize, Damaged> {
    let mut most = 0;
    for record in Records::new(block, 0) {
        most = most.max(record?.room());
    }
    Ok(most)
}

/// Writes a record.
fn put(to: &mut [u8], inode: u32, kind: u8, name: &[u8]) {
    let len = to.len() as u16;
    to[..4].copy_from_slice(&inode.to_le_bytes());
    to[4..6].copy_from_slice(&len.to_le_bytes());
    to[6] = name.len() as u8;
    to[7] = kind;
    to[HEAD..HEAD + name.len()].copy_from_slice(name);
    to[HEAD + name.len()..record_size(name.len())].fill(0);
}

/// Adds a record if there is room; returns its offset, and which bytes of the block have changed.
/// `None` without room.
pub(in super::super) fn insert(
    block: &mut [u8],
    inode: u32,
    kind: u8,
    name: &[u8],
) -> Result<Option<(usize, Range<usize>)>, Damaged> {
    let size = record_size(name.len());
    let mut found = None;
    for record in Records::new(block, 0) {
        let record = record?;
        if record.room() >= size {
            found = Some((record.at, record.len, record.used()));
            break;
        }
    }
    let Some((from, len, used)) = found else {
        return Ok(None);
    };
    let at = from + used;
    put(&mut block[at..from + len], inode, kind, name);
    if used > 0 {
        block[from + 4..from + 6].copy_from_slice(&(used as u16).to_le_bytes());
    }
    let start = if used > 0 { from + INODE } else { at };
    Ok(Some((at, start..at + size)))
}

/// Removes the record at offset `at`; returns which bytes have changed.
pub(in super::super) fn remove(block: &mut [u8], at: usize) -> Result<Range<usize>, Damaged> {
    let mut before = None;
    let mut found = None;
    for record in Records::new(block, 0) {
        let record = record?;
        if record.at == at {
            found = Some(record.len);
            break;
        }
        before = Some((record.at, record.len));
    }
    let len = found.ok_or(Damaged { at })?;
    block[at..at + 4].fill(0);
    Ok(match before {
        Some((from, own)) => {
            block[from + 4..from + 6].copy_from_slice(&((own + len) as u16).to_le_bytes());
            from + INODE..at + INODE
        }
        None => at..at + INODE,
    })
}

/// Makes the record at offset `at` refer to another inode; returns which bytes have changed.
pub(in super::super) fn rename_to(
    block: &mut [u8],
    at: usize,
    inode: u32,
    kind: u8,
) -> Result<Range<usize>, Damaged> {
    let stays = Records::at(block, at)?.kind == kind;
    block[at..at + INODE].copy_from_slice(&inode.to_le_bytes());
    block[at + 7] = kind;
    Ok(at..at + if stays { INODE } else { HEAD })
}

/// Clears a block: one record that is only room.
pub(in super::super) fn clear(block: &mut [u8]) {
    block.fill(0);
    let len = block.len() as u16;
    block[4..6].copy_from_slice(&len.to_le_bytes());
}

/// Fills the first block of a new directory with "." and "..".
pub(in super::super) fn first_block(block: &mut [u8], own: u32, parent: u32, kind: u8) {
    block.fill(0);
    put(&mut block[..RECORD_MIN], own, kind, b".");
    put(&mut block[RECORD_MIN..], parent, kind, b"..");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::Random;
    use alloc::{collections::BTreeMap, vec, vec::Vec};

    fn names(block: &[u8]) -> BTreeMap<Vec<u8>, (u32, usize)> {
        let mut names = BTreeMap::new();
        let mut end = 0;
        for record in Records::new(block, 0) {
            let record = record.expect("the block is whole");
            assert_eq!(record.at, end);
            end += record.len;
            if record.inode != 0 {
                assert!(
                    names
                        .insert(record.name.to_vec(), (record.inode, record.at))
                        .is_none()
                );
            }
        }
        assert_eq!(end, block.len());
        names
    }

    #[test]
    fn a_block_is_a_map_of_names() {
        let mut random = Random::new(1);
        let mut next = |n| random.below(n);
        for size in [1024, 2048, 4096] {
            let mut block = vec![0xff; size];
            first_block(&mut block, 2, 2, 2);
            let mut model = names(&block);
            assert_eq!(model.len(), 2);
            for inode in 10..5000 {
                let most = if next(4) == 0 { 255 } else { 9 };
                let name = vec![b'a' + next(8) as u8; 1 + next(most)];
                let before = block.clone();
                let changed;
                if let Some((_, at)) = model.get(&name).copied() {
                    if next(3) == 0 {
                        changed = rename_to(&mut block, at, inode, 1).unwrap();
                        model.insert(name, (inode, at));
                    } else {
                        changed = remove(&mut block, at).unwrap();
                        model.remove(&name);
                    }
                } else {
                    let fits = room(&block).unwrap() >= record_size(name.len());
                    let added = insert(&mut block, inode, 1, &name).unwrap();
                    assert_eq!(added.is_some(), fits);
                    let Some((at, range)) = added else { continue };
                    changed = range;
                    model.insert(name, (inode, at));
                }
                assert_eq!(names(&block), model);
                // Only the reported bytes have changed.
                assert_eq!(block[..changed.start], before[..changed.start]);
                assert_eq!(block[changed.end..], before[changed.end..]);
            }
        }
    }

    #[test]
    fn the_directory_above_may_change_while_names_do() {
        let mut before = vec![0; 1024];
        first_block(&mut before, 5, 2, 2);
        let (at, _) = insert(&mut before, 6, 1, b"first").unwrap().unwrap();
        let parent = RECORD_MIN;
        let apply = |to: &mut [u8], from: &[u8], changed: Range<usize>| {
            to[changed.clone()].copy_from_slice(&from[changed]);
        };
        for removes in [false, true] {
            // Both have seen the same bytes; either comes first.
            for moves_first in [false, true] {
                let mut block = before.clone();
                if !removes {
                    remove(&mut block, at).unwrap();
                }
                let (mut moved, mut changed) = (block.clone(), block.clone());
                let by_move = rename_to(&mut moved, parent, 9, 2).unwrap();
                let by_change = match removes {
                    true => remove(&mut changed, at).unwrap(),
                    false => insert(&mut changed, 7, 1, b"next").unwrap().unwrap().1,
                };
                if moves_first {
                    apply(&mut block, &moved, by_move.clone());
                }
                apply(&mut block, &changed, by_change);
                if !moves_first {
                    apply(&mut block, &moved, by_move);
                }
                let names = names(&block);
                assert_eq!(names[&b".."[..]], (9, parent));
                assert_eq!(names.contains_key(&b"next"[..]), !removes);
                assert!(!names.contains_key(&b"first"[..]));
            }
        }
    }

    #[test]
    fn damage_ends_the_records() {
        let mut block = vec![0; 1024];
        first_block(&mut block, 2, 2, 2);
        for len in [0_u16, 4, 8, 11, 13, 1016, 2048, 0xffff] {
            let mut damaged = block.clone();
            damaged[16..18].copy_from_slice(&len.to_le_bytes());
            let records: Vec<_> = Records::new(&damaged, 0).collect();
            assert_eq!(records.len(), 2, "{len}");
            assert_eq!(records[1], Err(Damaged { at: 12 }), "{len}");
            assert!(insert(&mut damaged, 5, 1, b"x").is_err());
            assert!(remove(&mut damaged, 12).is_err());
        }
        assert!(Records::at(&block, 1020).is_err());
        assert!(Records::at(&block, 4000).is_err());
        assert!(remove(&mut block, 16).is_err());
    }
}
