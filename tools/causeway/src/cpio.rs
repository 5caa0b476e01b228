//! The archive that the kernel unpacks as its root: cpio in the "newc" format (`cpio(5)`).
//!
//! An archive is a sequence of entries, each a header of ASCII hexadecimal fields, the name and the
//! contents, padded to four bytes, and ends with an entry named `TRAILER!!!`. Files that are hard
//! links to one another carry the same inode number; the last of them carries the contents.
//!
//! The contents of a file start at a page of the archive: the name before them is padded with zero
//! bytes, which every reader takes for its end. So the memory that the archive is loaded into can
//! become the file's.

use std::io::{self, Read, Write};

/// The fields of an entry's header, except its name and size.
#[derive(Clone, Debug)]
pub struct Header {
    /// The same number for all names of one file, a different one for different files.
    pub inode: u32,
    /// File type and permissions as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// How many names of this file the archive holds.
    pub links: u32,
    /// Seconds since 1970.
    pub modified: u32,
    /// Major and minor number of a device node, else zeros.
    pub device: (u32, u32),
}

/// Writes an archive entry by entry.
pub struct Archive<W: Write> {
    out: W,
    /// Bytes written.
    at: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes of a header without the name.
const HEADER: u64 = 110;
/// The longest name with the byte that ends it; Linux takes no longer ones.
const MAX_NAME: u64 = 4096;

/// The end of the archive.
const TRAILER: &[u8] = b"TRAILER!!!";

impl<W: Write> Archive<W> {
    /// An archive that is written to `out`.
    pub fn new(out: W) -> Self {
        Self { out, at: 0 }
    }

    /// Appends an entry whose contents are exactly `size` bytes read from `contents`.
    ///
    /// # Errors
    /// Those of `contents` and of the output; `UnexpectedEof` when `contents` is shorter, and
    /// `InvalidInput` when it is longer than the format can say.
    pub fn entry(
        &mut self,
        name: &[u8],
        header: &Header,
        size: u64,
        contents: impl Read,
    ) -> io::Result<()> {
        let size = u32::try_from(size)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "longer than 4 GiB"))?;
        let regular = header.mode & 0o170_000 == 0o100_000;
        self.header(name, header, size, regular && size > 0)?;
        let copied = io::copy(&mut contents.take(size.into()), &mut self.out)?;
        if copied != u64::from(size) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        self.at += copied;
        self.pad()
    }

    /// Ends the archive and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        let header = Header {
            inode: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            links: 1,
            modified: 0,
            device: (0, 0),
        };
        self.header(TRAILER, &header, 0, false)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes a header and its name. With `page`, so many zero bytes follow the name that what
    /// follows them starts at a page, unless the name becomes too long by that.
    fn header(&mut self, name: &[u8], header: &Header, size: u32, page: bool) -> io::Result<()> {
        let mut name_size = name.len() as u64 + 1;
        if page {
            let end = self.at + HEADER + name_size;
            let padded = name_size + (end.next_multiple_of(PAGE) - end);
            if padded <= MAX_NAME {
                name_size = padded;
            }
        }
        write!(self.out, "070701")?;
        let (major, minor) = header.device;
        for field in [
            header.inode,
            header.mode,
            header.uid,
            header.gid,
            header.links,
            header.modified,
            size,
            0,
            0,
            major,
            minor,
            name_size as u32,
            0,
        ] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name)?;
        let zeros = name_size as usize - name.len();
        self.out.write_all(&[0; MAX_NAME as usize][..zeros])?;
        self.at += HEADER + name_size;
        self.pad()
    }

    /// Zero bytes up to the next multiple of four.
    fn pad(&mut self) -> io::Result<()> {
        let zeros = self.at.next_multiple_of(4) - self.at;
        self.at += zeros;
        self.out.write_all(&[0; 3][..zeros as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_a_trailer() {
        let mut archive = Archive::new(Vec::new());
        let header = Header {
            inode: 7,
            mode: 0o100644,
            uid: 1,
            gid: 2,
            links: 1,
            modified: 3,
            device: (0, 0),
        };
        archive.entry(b"hello", &header, 5, &b"world"[..]).unwrap();
        let bytes = archive.finish().unwrap();
        assert!(bytes.starts_with(b"07070100000007000081a4"));
        assert_eq!(&bytes[110..116], b"hello\0");
        assert!(bytes[116..4096].iter().all(|&byte| byte == 0));
        assert_eq!(&bytes[4096..4104], b"world\0\0\0");
        assert_eq!(&bytes[4104..4110], b"070701");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
    }

    #[test]
    fn a_name_that_cannot_be_padded_is_not() {
        let mut archive = Archive::new(Vec::new());
        let header = Header {
            inode: 7,
            mode: 0o100644,
            uid: 1,
            gid: 2,
            links: 1,
            modified: 3,
            device: (0, 0),
        };
        let long = vec![b'n'; 4090];
        archive.entry(&long, &header, 4, &b"data"[..]).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[94..102], b"00000ffb");
        assert_eq!(&bytes[4204..4208], b"data");
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        let header = Header {
            inode: 1,
            mode: 0o100644,
            uid: 0,
            gid: 0,
            links: 1,
            modified: 0,
            device: (0, 0),
        };
        assert!(archive.entry(b"short", &header, 9, &b"12345"[..]).is_err());
    }
}
