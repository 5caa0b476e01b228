//! The archive that the kernel unpacks as its root: cpio in the "newc" format (`cpio(5)`).
//!
//! An archive is a sequence of entries, each a header of ASCII hexadecimal fields, the name and the
//! contents, padded to four bytes, and ends with an entry named `TRAILER!!!`. Files that are hard
//! links to one another carry the same inode number; the last of them carries the contents.

use std::io::{self, Read, Write};

/// What one entry's header says, except its name and size.
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
}

/// The end of the archive.
const TRAILER: &[u8] = b"TRAILER!!!";

impl<W: Write> Archive<W> {
    /// An archive that is written to `out`.
    pub fn new(out: W) -> Self {
        Self { out }
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
        self.header(name, header, size)?;
        let copied = io::copy(&mut contents.take(size.into()), &mut self.out)?;
        if copied != u64::from(size) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        self.pad(size as usize)
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
        self.header(TRAILER, &header, 0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn header(&mut self, name: &[u8], header: &Header, size: u32) -> io::Result<()> {
        let name_size = name.len() as u32 + 1;
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
            name_size,
            0,
        ] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name)?;
        self.out.write_all(&[0])?;
        // The header proper is 110 bytes long.
        self.pad(110 + name_size as usize)
    }

    fn pad(&mut self, length: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..length.wrapping_neg() % 4])
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
        assert_eq!(&bytes[116..124], b"world\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
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
