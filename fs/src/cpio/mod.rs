//! The root archive: cpio in the "newc" format, unpacked into a file system.
//!
//! As Linux takes it: several archives may follow each other with zero bytes between; entries with
//! the same inode in one archive are names of one file; a later entry replaces an earlier one.
//! Names lead nowhere outside of the root. Any damage is an error that says what is wrong and
//! where. Data that starts at a page of the archive need not be copied: see [`Adoptions`].

mod adopt;

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::{fmt, time::Duration};

use abi::Errno;
pub use adopt::Adoptions;
use fbuf::BytesSource;
use nucleus::PAGE_SIZE;

use crate::{
    Credentials, Kind, Location, Vnode, Walk, device,
    namespace::PATH_MAX,
    vnode::{Change, Make},
};

/// Why an archive could not be unpacked. What came before is unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Damage {
    /// Byte of the archive at which it shows.
    pub offset: usize,
    pub what: What,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// No archive at all.
    Empty,
    /// Compressed data; the name of the format.
    Compressed(&'static str),
    /// No entry starts here.
    BadMagic,
    /// A field that is no hexadecimal number.
    BadNumber,
    /// The archive ends inside of an entry, or without the entry that ends it.
    Truncated,
    /// A name that is empty, too long, not terminated, or has ".." in it.
    BadName,
    /// A mode without a known file type.
    BadMode,
    /// The data does not add up to the checksum (format 070702).
    BadChecksum,
    /// The file system refused the entry.
    Refused(Errno),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Empty => write!(f, "the archive is empty")?,
            What::Compressed(format) => write!(f, "the archive is compressed ({format})")?,
            What::BadMagic => write!(f, "no cpio entry (magic 070701)")?,
            What::BadNumber => write!(f, "a header field is not hexadecimal")?,
            What::Truncated => write!(f, "the archive is cut off")?,
            What::BadName => write!(f, "a bad file name")?,
            What::BadMode => write!(f, "an unknown file type")?,
            What::BadChecksum => write!(f, "a wrong checksum")?,
            What::Refused(error) => write!(f, "an entry can't be made: {}", error.name())?,
        }
        write!(f, " at byte {}", self.offset)
    }
}

/// What was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Unpacked {
    pub entries: usize,
    /// Of data.
    pub bytes: usize,
}

/// Unpacks `archive` into the directory `root`.
///
/// # Errors
/// The first [`Damage`].
pub fn unpack(archive: &[u8], root: &Location) -> Result<Unpacked, Damage> {
    unpack_with(archive, root, None)
}

/// As [`unpack`] for an archive that starts at a page of memory: the files whose data starts at a
/// page stay empty until they [adopt](Adoptions::adopt) their pages.
///
/// # Errors
/// The first [`Damage`].
pub fn unpack_pages(archive: &[u8], root: &Location) -> Result<(Unpacked, Adoptions), Damage> {
    let mut later = Adoptions::default();
    let unpacked = unpack_with(archive, root, Some(&mut later))?;
    Ok((unpacked, later))
}

fn unpack_with(
    archive: &[u8],
    root: &Location,
    later: Option<&mut Adoptions>,
) -> Result<Unpacked, Damage> {
    let who = Credentials::default();
    let mut unpacker = Unpacker {
        archive,
        walk: Walk {
            root,
            start: root,
            who: &who,
        },
        links: BTreeMap::new(),
        directories: Vec::new(),
        later,
        done: Unpacked::default(),
    };
    unpacker.run()?;
    Ok(unpacker.done)
}

/// Bytes of a header.
const HEADER: usize = 110;
/// Bytes of its magic number.
const MAGIC: usize = 6;
/// The name of the entry that ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";

/// The fields of a header.
struct Header {
    inode: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    modified: u32,
    size: u32,
    major: u32,
    minor: u32,
    device_major: u32,
    device_minor: u32,
    name_size: u32,
    checksum: Option<u32>,
}

/// The data of an entry.
#[derive(Clone, Copy)]
struct Data<'a> {
    bytes: &'a [u8],
    /// Byte of the archive at which it starts.
    at: usize,
}

/// A file that may get more names: device and inode in the archive.
type Identity = (u32, u32, u32);

struct Unpacker<'a> {
    archive: &'a [u8],
    walk: Walk<'a>,
    /// Files of this archive that have more names.
    links: BTreeMap<Identity, Location>,
    /// Directories and the times they get when nothing more is made in them.
    directories: Vec<(Arc<dyn Vnode>, Duration)>,
    /// Takes note of files that can adopt their pages; without, all data is copied.
    later: Option<&'a mut Adoptions>,
    done: Unpacked,
}

impl<'a> Unpacker<'a> {
    fn run(&mut self) -> Result<(), Damage> {
        let mut at = 0;
        let mut archives = 0;
        loop {
            at += self.archive[at..].iter().take_while(|&&b| b == 0).count();
            if at == self.archive.len() {
                break;
            }
            at = self.unpack_one(at)?;
            archives += 1;
        }
        if archives == 0 {
            return Err(damage(0, What::Empty));
        }
        for (directory, modified) in self.directories.drain(..) {
            let change = Change {
                modified: Some(modified),
                ..Change::default()
            };
            directory
                .set_attributes(change)
                .map_err(|error| damage(at, What::Refused(error)))?;
        }
        Ok(())
    }

    /// One archive from `at` on; returns where it ends.
    fn unpack_one(&mut self, start: usize) -> Result<usize, Damage> {
        let mut at = start;
        loop {
            let header = self.header(at)?;
            let name_at = at + HEADER;
            let name = self.bytes(name_at, header.name_size as usize, name_at)?;
            let name = checked_name(name).ok_or(damage(name_at, What::BadName))?;
            let data_at = self.aligned(start, name_at + header.name_size as usize);
            let data = self.bytes(data_at, header.size as usize, at)?;
            if name == TRAILER {
                self.links.clear();
                return Ok((data_at + data.len()).min(self.archive.len()));
            }
            if let Some(sum) = header.checksum {
                let add = |sum: u32, &byte: &u8| sum.wrapping_add(byte as u32);
                if data.iter().fold(0, add) != sum {
                    return Err(damage(data_at, What::BadChecksum));
                }
            }
            let make = header
                .make(data)
                .ok_or(damage(at + MAGIC + 8, What::BadMode))?;
            let data = Data {
                bytes: data,
                at: data_at,
            };
            self.entry(&header, name, make, data)
                .map_err(|error| damage(at, What::Refused(error)))?;
            self.done.entries += 1;
            self.done.bytes += data.bytes.len();
            at = self.aligned(start, data_at + data.bytes.len());
        }
    }

    /// `at` rounded up as the format does, counted from the archive's start; not beyond the end.
    fn aligned(&self, start: usize, at: usize) -> usize {
        (start + (at - start).next_multiple_of(4)).min(self.archive.len())
    }

    /// `len` bytes at `at`, or the damage that they are not there, which shows at `offset`.
    fn bytes(&self, at: usize, len: usize, offset: usize) -> Result<&'a [u8], Damage> {
        let end = at.checked_add(len);
        end.and_then(|end| self.archive.get(at..end))
            .ok_or(damage(offset, What::Truncated))
    }

    fn header(&self, at: usize) -> Result<Header, Damage> {
        let rest = &self.archive[at..];
        let with_sum = match rest.get(..MAGIC) {
            Some(b"070701") => false,
            Some(b"070702") => true,
            None if b"070701".starts_with(rest) || rest.is_empty() => {
                return Err(damage(at, What::Truncated));
            }
            _ => {
                let what = compression(rest).map_or(What::BadMagic, What::Compressed);
                return Err(damage(at, what));
            }
        };
        let raw = self.bytes(at, HEADER, at)?;
        let mut fields = [0; 13];
        for (i, field) in fields.iter_mut().enumerate() {
            let from = MAGIC + i * 8;
            *field = hexadecimal(&raw[from..from + 8]).ok_or(damage(at + from, What::BadNumber))?;
        }
        let [inode, mode, uid, gid, links, modified, size, rest @ ..] = fields;
        let [major, minor, device_major, device_minor, name_size, sum] = rest;
        Ok(Header {
            inode,
            mode,
            uid,
            gid,
            links,
            modified,
            size,
            major,
            minor,
            device_major,
            device_minor,
            name_size,
            checksum: with_sum.then_some(sum),
        })
    }

    /// Makes what an entry describes.
    fn entry(
        &mut self,
        header: &Header,
        name: &[u8],
        make: Make,
        data: Data<'_>,
    ) -> abi::Result<()> {
        if name.is_empty() {
            // The root itself.
            return match make {
                Make::Directory => self.finish(header, self.walk.root),
                _ => Err(Errno::EISDIR),
            };
        }
        let identity = (header.major, header.minor, header.inode);
        let regular = matches!(make, Make::Regular);
        let several = header.links > 1 && !matches!(make, Make::Directory);
        if several
            && let Some(first) = self.links.get(&identity).cloned()
            && Some(first.vnode().kind()) == Kind::of_mode(header.mode)
        {
            if !self.is_named(&first, name) {
                self.clear_way(name, false)?;
                self.walk.link(&first, name)?;
            }
            // The data may come with any of the names.
            self.finish(header, &first)?;
            return self.fill(&first, regular, data);
        }
        let place = match self.clear_way(name, matches!(make, Make::Directory))? {
            Some(directory) => directory,
            None => self.make(name, make, header.mode & 0o7777)?,
        };
        if several {
            self.links.insert(identity, place.clone());
        }
        self.finish(header, &place)?;
        self.fill(&place, regular, data)
    }

    /// Gives a regular file its data, now or later. The time of its last change stays.
    fn fill(&mut self, place: &Location, regular: bool, data: Data<'_>) -> abi::Result<()> {
        if !regular || data.bytes.is_empty() {
            return Ok(());
        }
        let file = place.vnode();
        match &mut self.later {
            Some(later) if data.at.is_multiple_of(PAGE_SIZE) => {
                later.add(file, data.at, data.bytes.len())
            }
            _ => copy(&**file, data.bytes),
        }
    }

    /// Makes an entry, with the directories above it if they are missing.
    fn make(&self, name: &[u8], make: Make, mode: u32) -> abi::Result<Location> {
        match self.walk.make(name, make.clone(), mode) {
            Err(Errno::ENOENT) => {}
            made => return made,
        }
        let slashes = name.iter().enumerate().filter(|(_, b)| **b == b'/');
        for (end, _) in slashes {
            match self.walk.make(&name[..end], Make::Directory, 0o755) {
                Ok(_) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        self.walk.make(name, make, mode)
    }

    /// Whether `file` has this name already.
    fn is_named(&self, file: &Location, name: &[u8]) -> bool {
        let there = self.walk.resolve(name, false);
        there.is_ok_and(|there| there.same(file))
    }

    /// Removes what has the name, unless it is a directory that is to be one; then returns it.
    fn clear_way(&self, name: &[u8], directory: bool) -> abi::Result<Option<Location>> {
        let there = match self.walk.resolve(name, false) {
            Ok(there) => there,
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_directory = there.vnode().kind() == Kind::Directory;
        if is_directory && directory {
            return Ok(Some(there));
        }
        self.walk.remove(name, is_directory)?;
        Ok(None)
    }

    /// Owner, mode and time.
    fn finish(&mut self, header: &Header, place: &Location) -> abi::Result<()> {
        let modified = Duration::from_secs(header.modified as u64);
        place.vnode().set_attributes(Change {
            mode: (place.vnode().kind() != Kind::Link).then_some(header.mode & 0o7777),
            uid: Some(header.uid),
            gid: Some(header.gid),
            modified: Some(modified),
            ..Change::default()
        })?;
        if place.vnode().kind() == Kind::Directory {
            self.directories.try_reserve(1)?;
            self.directories.push((place.vnode().clone(), modified));
        }
        Ok(())
    }
}

impl Header {
    /// What the entry is to be; `None` if the mode says nothing known.
    fn make(&self, data: &[u8]) -> Option<Make> {
        let number = device::number(self.device_major, self.device_minor);
        Some(match Kind::of_mode(self.mode)? {
            Kind::Fifo => Make::Fifo,
            Kind::CharDevice => Make::CharDevice(number),
            Kind::Directory => Make::Directory,
            Kind::BlockDevice => Make::BlockDevice(number),
            Kind::Regular => Make::Regular,
            Kind::Link => Make::Link(data.into()),
            Kind::Socket => Make::Socket,
            Kind::Anonymous => return None,
        })
    }
}

/// Writes a file's data; the time of its last change stays.
fn copy(file: &dyn Vnode, data: &[u8]) -> abi::Result<()> {
    let modified = file.attributes()?.modified;
    file.truncate(0)?;
    let mut source = BytesSource::new(data);
    let mut at = 0;
    while !source.from.is_empty() {
        // What is left over after a write that fell short brings the error.
        (_, at) = file.write(at, false, &mut source)?;
    }
    file.set_attributes(Change {
        modified: Some(modified),
        ..Change::default()
    })
}

/// The name without slashes around it and "." in front, empty for the root; `None` if it is bad.
/// Any number of zero bytes ends it: with them an archiver moves the data that follows to where it
/// wants it.
fn checked_name(raw: &[u8]) -> Option<&[u8]> {
    let end = raw.iter().position(|&byte| byte == 0)?;
    let (name, padding) = raw.split_at(end);
    if name.is_empty() || raw.len() > PATH_MAX || padding.iter().any(|&byte| byte != 0) {
        return None;
    }
    if name.split(|&b| b == b'/').any(|part| part == b"..") {
        return None;
    }
    let mut name = name;
    loop {
        name = match name {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            [rest @ .., b'/'] | [rest @ .., b'/', b'.'] => rest,
            b"." => b"",
            _ => return Some(name),
        }
    }
}

/// Eight hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value: u32, &digit| {
        let digit = (digit as char).to_digit(16)?;
        Some(value << 4 | digit)
    })
}

/// The name of a compression that data starts with.
fn compression(data: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x02\x21\x4c\x18", "lz4"),
        (b"\x5d\0\0", "lzma"),
    ];
    let known = KNOWN.iter().find(|(start, _)| data.starts_with(start));
    known.map(|(_, name)| *name)
}

fn damage(offset: usize, what: What) -> Damage {
    Damage { offset, what }
}
