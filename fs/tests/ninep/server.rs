//! A 9P2000.L server made of code, with a tree in memory.
#![allow(dead_code, reason = "two test programs use it")]

use std::collections::BTreeMap;

use abi::Errno;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const ROOT: u64 = 1;

/// A file, directory or link.
struct Inode {
    mode: u32,
    links: u64,
    data: Vec<u8>,
    /// Of a directory: the number behind each name, and its place in listings.
    entries: BTreeMap<Vec<u8>, (u64, u64)>,
}

/// The server's state.
pub struct Server {
    inodes: BTreeMap<u64, Inode>,
    fids: BTreeMap<u32, u64>,
    next: u64,
    /// Counts changes, as times.
    clock: u64,
}

/// Takes numbers off the front of a message.
struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head
    }

    fn u8(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }

    fn string(&mut self) -> Vec<u8> {
        let len = self.u16().into();
        self.bytes(len).to_vec()
    }
}

fn put_string(to: &mut Vec<u8>, text: &[u8]) {
    to.extend((text.len() as u16).to_le_bytes());
    to.extend(text);
}

type Body = Result<Vec<u8>, Errno>;

impl Server {
    pub fn new() -> Server {
        let mut server = Server {
            inodes: BTreeMap::new(),
            fids: BTreeMap::new(),
            next: ROOT,
            clock: 0,
        };
        server.inode(DIRECTORY | 0o755);
        server
    }

    /// How many handles clients have.
    pub fn fids(&self) -> usize {
        self.fids.len()
    }

    fn inode(&mut self, mode: u32) -> u64 {
        let number = self.next;
        self.next += 1;
        let inode = Inode {
            mode,
            links: 0,
            data: Vec::new(),
            entries: BTreeMap::new(),
        };
        self.inodes.insert(number, inode);
        number
    }

    /// The answer to a message, whole.
    pub fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let mut take = Take(message);
        let (size, kind, tag) = (take.u32(), take.u8(), take.u16());
        assert_eq!(size as usize, message.len(), "a message's size");
        self.clock += 1;
        let (kind, body) = match self.serve(kind, &mut take) {
            Ok(body) => (kind + 1, body),
            Err(error) => (7, u32::from(error.number()).to_le_bytes().to_vec()),
        };
        let mut answer = ((body.len() + 7) as u32).to_le_bytes().to_vec();
        answer.push(kind);
        answer.extend(tag.to_le_bytes());
        answer.extend(body);
        answer
    }

    fn at(&self, fid: u32) -> Result<u64, Errno> {
        self.fids.get(&fid).copied().ok_or(Errno::EBADF)
    }

    fn get(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an inode")
    }

    fn directory(&mut self, number: u64) -> Result<&mut Inode, Errno> {
        let inode = self.get(number);
        match inode.mode & 0o170_000 {
            DIRECTORY => Ok(inode),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn lookup(&mut self, number: u64, name: &[u8]) -> Result<u64, Errno> {
        let entries = &self.directory(number)?.entries;
        entries.get(name).map(|it| it.0).ok_or(Errno::ENOENT)
    }

    fn qid(&self, number: u64) -> Vec<u8> {
        let kind = match self.inodes[&number].mode & 0o170_000 {
            DIRECTORY => 0x80,
            LINK => 2,
            _ => 0,
        };
        let mut qid = vec![kind];
        qid.extend(0u32.to_le_bytes());
        qid.extend(number.to_le_bytes());
        qid
    }

    fn add(&mut self, to: u64, name: &[u8], mode: u32) -> Result<u64, Errno> {
        if self.directory(to)?.links == 0 && to != ROOT {
            return Err(Errno::ENOENT);
        }
        if self.lookup(to, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let number = self.inode(mode);
        self.enter(to, name, number);
        Ok(number)
    }

    fn enter(&mut self, to: u64, name: &[u8], number: u64) {
        let place = self.next;
        self.next += 1;
        self.get(to).entries.insert(name.into(), (number, place));
        self.get(number).links += 1;
    }

    fn remove(&mut self, from: u64, name: &[u8], directory: bool) -> Result<(), Errno> {
        let number = self.lookup(from, name)?;
        let inode = self.get(number);
        match (inode.mode & 0o170_000 == DIRECTORY, directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            _ if !inode.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        inode.links -= 1;
        self.get(from).entries.remove(name);
        Ok(())
    }

    fn is_below(&self, number: u64, above: u64) -> bool {
        number == above
            || self.inodes[&above]
                .entries
                .values()
                .any(|&(child, _)| self.is_below(number, child))
    }

    fn rename(&mut self, from: u64, name: &[u8], to: u64, to_name: &[u8]) -> Result<(), Errno> {
        let number = self.lookup(from, name)?;
        if self.is_below(to, number) {
            return Err(Errno::EINVAL);
        }
        match self.lookup(to, to_name) {
            Ok(there) if there == number => return Ok(()),
            Ok(_) => {
                let directory = self.get(number).mode & 0o170_000 == DIRECTORY;
                self.remove(to, to_name, directory)?;
            }
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        self.get(from).entries.remove(name);
        self.get(number).links -= 1;
        self.enter(to, to_name, number);
        Ok(())
    }

    fn attributes(&self, number: u64) -> Vec<u8> {
        let inode = &self.inodes[&number];
        let mut body = 0x7ffu64.to_le_bytes().to_vec();
        body.extend(self.qid(number));
        for word in [inode.mode, 0, 0] {
            body.extend(word.to_le_bytes());
        }
        let size = inode.data.len() as u64;
        let links = inode.links + u64::from(inode.mode & 0o170_000 == DIRECTORY);
        for word in [links, 0, size, 4096, size.div_ceil(512)] {
            body.extend(word.to_le_bytes());
        }
        // Times: all at the last change of anything; then the unused ones.
        for word in [0, 0, self.clock, 0, self.clock, 0, 0, 0, 0, 0] {
            body.extend(word.to_le_bytes());
        }
        body
    }

    fn serve(&mut self, kind: u8, take: &mut Take<'_>) -> Body {
        let mut body = Vec::new();
        match kind {
            100 => {
                let size = take.u32();
                body.extend(size.min(64 << 10).to_le_bytes());
                put_string(&mut body, b"9P2000.L");
                self.fids.clear();
            }
            104 => {
                self.fids.insert(take.u32(), ROOT);
                body = self.qid(ROOT);
            }
            110 => {
                let (fid, new, count) = (take.u32(), take.u32(), take.u16());
                let mut number = self.at(fid)?;
                body.extend(count.to_le_bytes());
                for _ in 0..count {
                    number = self.lookup(number, &take.string())?;
                    body.extend(self.qid(number));
                }
                self.fids.insert(new, number);
            }
            120 => drop(self.fids.remove(&take.u32()).ok_or(Errno::EBADF)?),
            108 => {}
            24 => body = self.attributes(self.at(take.u32())?),
            26 => {
                let (number, valid, mode) = (self.at(take.u32())?, take.u32(), take.u32());
                take.bytes(8);
                let size = take.u64();
                let inode = self.get(number);
                if valid & 1 != 0 {
                    inode.mode = inode.mode & 0o170_000 | mode & 0o7777;
                }
                if valid & 8 != 0 {
                    inode.data.resize(size as usize, 0);
                }
            }
            12 => {
                let number = self.at(take.u32())?;
                body = self.qid(number);
                body.extend(0u32.to_le_bytes());
            }
            14 => {
                let (fid, name) = (take.u32(), take.string());
                let (_flags, mode) = (take.u32(), take.u32());
                let number = self.add(self.at(fid)?, &name, REGULAR | mode & 0o7777)?;
                self.fids.insert(fid, number);
                body = self.qid(number);
                body.extend(0u32.to_le_bytes());
            }
            16 => {
                let (number, name, text) = (self.at(take.u32())?, take.string(), take.string());
                let link = self.add(number, &name, LINK | 0o777)?;
                self.get(link).data = text;
                body = self.qid(link);
            }
            22 => {
                let number = self.at(take.u32())?;
                put_string(&mut body, &self.get(number).data);
            }
            72 => {
                let (number, name, mode) = (self.at(take.u32())?, take.string(), take.u32());
                let made = self.add(number, &name, DIRECTORY | mode & 0o7777)?;
                body = self.qid(made);
            }
            70 => {
                let (to, number, name) =
                    (self.at(take.u32())?, self.at(take.u32())?, take.string());
                if self.lookup(to, &name).is_ok() {
                    return Err(Errno::EEXIST);
                }
                self.enter(to, &name, number);
            }
            76 => {
                let (number, name, flags) = (self.at(take.u32())?, take.string(), take.u32());
                self.remove(number, &name, flags & 0x200 != 0)?;
            }
            74 => {
                let (from, name) = (self.at(take.u32())?, take.string());
                let (to, to_name) = (self.at(take.u32())?, take.string());
                self.rename(from, &name, to, &to_name)?;
            }
            116 => {
                let (number, offset, count) = (self.at(take.u32())?, take.u64(), take.u32());
                let data = &self.get(number).data;
                let start = (offset as usize).min(data.len());
                let end = (start + count as usize).min(data.len());
                body.extend(((end - start) as u32).to_le_bytes());
                body.extend(&data[start..end]);
            }
            118 => {
                let (number, offset, count) = (self.at(take.u32())?, take.u64(), take.u32());
                let bytes = take.bytes(count as usize);
                let (start, data) = (offset as usize, &mut self.get(number).data);
                data.resize(data.len().max(start + bytes.len()), 0);
                data[start..start + bytes.len()].copy_from_slice(bytes);
                body.extend(count.to_le_bytes());
            }
            40 => {
                let (number, cursor, count) = (self.at(take.u32())?, take.u64(), take.u32());
                let mut entries: Vec<_> = self
                    .directory(number)?
                    .entries
                    .clone()
                    .into_iter()
                    .collect();
                entries.sort_by_key(|(_, (_, place))| *place);
                let mut listed = Vec::new();
                for (name, (child, place)) in entries.iter().filter(|it| it.1.1 > cursor) {
                    if listed.len() + 24 + name.len() > count as usize {
                        break;
                    }
                    listed.extend(self.qid(*child));
                    listed.extend(place.to_le_bytes());
                    listed.push((self.inodes[child].mode >> 12) as u8);
                    put_string(&mut listed, name);
                }
                body.extend((listed.len() as u32).to_le_bytes());
                body.extend(listed);
            }
            8 => {
                body.extend(0x0102_1997u32.to_le_bytes());
                body.extend(4096u32.to_le_bytes());
                for word in [100u64, 50, 50, 10, 5, 0] {
                    body.extend(word.to_le_bytes());
                }
                body.extend(255u32.to_le_bytes());
            }
            50 => {}
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(body)
    }
}
