//! The guest's root: a tree of files, from a folder of the host or made of Debian's static busybox,
//! written as the archive that the kernel unpacks, or as a disk.
//!
//! [`place`] decides by which way a guest gets its root, [`stored`] keeps archives and disks of
//! large folders in the [`cache`], [`debian`] makes a folder of Debian's packages and says what
//! [`installer_output`] makes of its installer's words, [`ext2`] a disk of any folder,
//! [`inventory`] shows and empties the cache, and [`progress`] shows how far a long step is.

mod cache;
pub mod debian;
pub mod ext2;
mod installer_output;
pub mod inventory;
pub mod place;
mod progress;
mod stored;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cpio::{Archive, Header};

use progress::Step;

/// Where Debian's `busybox-static` puts its program.
pub const BUSYBOX: &str = "/bin/busybox";

/// The file in a root's top folder that marks it as made by `causeway`: a line with the format,
/// then one for each file that does not belong to root: `owner UID GID PATH`.
const MARK: &str = ".causeway-root";

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// The contents of a file of the tree.
#[derive(Clone, Hash, Debug)]
enum Contents {
    /// A directory, a device or a FIFO.
    Nothing,
    /// These bytes: a small file, or the target of a symbolic link.
    Bytes(Vec<u8>),
    /// The contents of this file of the host.
    HostFile(PathBuf),
}

#[derive(Clone, Hash, Debug)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    modified: u32,
    device: (u32, u32),
    contents: Contents,
    /// Device and inode on the host of a file with several names.
    identity: Option<(u64, u64)>,
    /// Identifies the state of a file of the host: its bytes, its inode, and the seconds and
    /// nanoseconds of its last change.
    host: (u64, u64, i64, i64),
}

/// A tree of files by their paths, which have no leading slash.
#[derive(Default, Debug)]
pub struct Root {
    nodes: BTreeMap<PathBuf, Node>,
    /// The sockets of the folder, which are not part of the tree: a socket is nothing without the
    /// process that listens on it.
    sockets: Vec<PathBuf>,
}

impl Root {
    /// The root that is used when the user names none: Debian's busybox with a link for each of
    /// its applets, and the few files that it expects.
    ///
    /// # Errors
    /// When there is no static busybox on this machine.
    pub fn busybox() -> Result<Self> {
        let applets = Command::new(BUSYBOX)
            .arg("--list")
            .output()
            .with_context(|| {
                format!(
                    "cannot run {BUSYBOX}: install Debian's package busybox-static \
                 (`make setup` does), or name a root with --root DIR"
                )
            })?;
        if !fs::read(BUSYBOX).is_ok_and(|elf| is_static(&elf)) {
            bail!(
                "{BUSYBOX} is not a static program: install Debian's package busybox-static in \
                 place of busybox, or name a root with --root DIR"
            );
        }
        let mut root = Self::default();
        for folder in [
            "", "bin", "dev", "etc", "home", "mnt", "proc", "sys", "usr", "var", "var/log", "run",
        ] {
            root.directory(folder, 0o755);
        }
        root.directory("root", 0o700);
        root.directory("tmp", 0o1777);
        root.host_file("bin/busybox", Path::new(BUSYBOX), 0o755)?;
        for applet in applets
            .stdout
            .split(|&b| b == b'\n')
            .filter(|name| !name.is_empty())
        {
            if applet != b"busybox" {
                root.symlink(Path::new("bin").join(OsStr::from_bytes(applet)), "busybox");
            }
        }
        for (link, target) in [
            ("sbin", "bin"),
            ("usr/bin", "../bin"),
            ("usr/sbin", "../bin"),
            ("var/tmp", "../tmp"),
        ] {
            root.symlink(link, target);
        }
        root.file(
            "etc/passwd",
            0o644,
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        );
        root.file(
            "etc/group",
            0o644,
            "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
        );
        root.file("etc/hostname", 0o644, "causeway\n");
        root.file("etc/hosts", 0o644, "127.0.0.1 localhost\n");
        root.file("etc/shells", 0o644, "/bin/sh\n/bin/ash\n");
        root.file(
            "etc/profile",
            0o644,
            "export PATH=/bin:/sbin:/usr/bin:/usr/sbin\n[ \"$PS1\" ] && PS1='causeway:\\w\\$ '\n",
        );
        Ok(root)
    }

    /// Everything below `folder`, with its permissions, links, hard links and devices. Files that
    /// belong to the user who runs this, if that is not root, belong to root in the guest.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn folder(folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            bail!("the root {} is not a folder", folder.display());
        }
        let mut root = Self::default();
        root.host_folder(Path::new(""), folder)?;
        if root.nodes.remove(Path::new(MARK)).is_some() {
            root.give_away(&fs::read(folder.join(MARK))?);
        }
        Ok(root)
    }

    /// Gives files to the owners that a root's mark names, where unpacking could not.
    fn give_away(&mut self, mark: &[u8]) {
        for line in mark.split(|&byte| byte == b'\n') {
            let mut words = line.splitn(4, |&byte| byte == b' ');
            let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<u32>().ok();
            if !line.starts_with(b"owner ") {
                continue;
            }
            number(); // "owner"
            if let (Some(uid), Some(gid), Some(path)) = (number(), number(), words.next())
                && let Some(node) = self.nodes.get_mut(Path::new(OsStr::from_bytes(path)))
                && (node.uid, node.gid) == (0, 0)
            {
                (node.uid, node.gid) = (uid, gid);
            }
        }
    }

    /// How many bytes the files of the host have that are in it.
    pub fn bytes(&self) -> u64 {
        self.nodes.values().map(|node| node.host.0).sum()
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: impl Into<PathBuf>, permissions: u32) {
        self.add(path, DIRECTORY | permissions, Contents::Nothing);
    }

    /// Adds a file with these bytes.
    pub fn file(&mut self, path: impl Into<PathBuf>, permissions: u32, bytes: impl Into<Vec<u8>>) {
        self.add(path, REGULAR | permissions, Contents::Bytes(bytes.into()));
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: impl Into<PathBuf>, target: &str) {
        self.add(path, SYMLINK | 0o777, Contents::Bytes(target.into()));
    }

    /// Adds a copy of a file of the host.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn host_file(
        &mut self,
        path: impl Into<PathBuf>,
        host: &Path,
        permissions: u32,
    ) -> Result<()> {
        if !host.is_file() {
            bail!("{} is not a file", host.display());
        }
        self.add(path, REGULAR | permissions, Contents::HostFile(host.into()));
        Ok(())
    }

    fn add(&mut self, path: impl Into<PathBuf>, mode: u32, contents: Contents) {
        let node = Node {
            mode,
            uid: 0,
            gid: 0,
            modified: 0,
            device: (0, 0),
            contents,
            identity: None,
            host: (0, 0, 0, 0),
        };
        self.nodes.insert(path.into(), node);
    }

    fn host_folder(&mut self, path: &Path, host: &Path) -> Result<()> {
        let cannot = || format!("cannot read {}", host.display());
        let metadata = fs::symlink_metadata(host).with_context(cannot)?;
        let kind = metadata.file_type();
        let contents = if kind.is_symlink() {
            let target = fs::read_link(host).with_context(cannot)?;
            Contents::Bytes(target.as_os_str().as_bytes().to_vec())
        } else if kind.is_file() {
            Contents::HostFile(host.into())
        } else if kind.is_socket() {
            self.sockets.push(path.into());
            return Ok(());
        } else {
            Contents::Nothing
        };
        let device = metadata.rdev();
        let me = rustix::process::geteuid().as_raw();
        let owner = |id: u32, mine: u32| if me != 0 && id == mine { 0 } else { id };
        let node = Node {
            mode: metadata.mode(),
            uid: owner(metadata.uid(), me),
            gid: owner(metadata.gid(), rustix::process::getegid().as_raw()),
            modified: u32::try_from(metadata.mtime()).unwrap_or(0),
            device: if kind.is_char_device() || kind.is_block_device() {
                (rustix::fs::major(device), rustix::fs::minor(device))
            } else {
                (0, 0)
            },
            contents,
            identity: (!kind.is_dir() && metadata.nlink() > 1)
                .then_some((metadata.dev(), metadata.ino())),
            host: (
                if kind.is_file() { metadata.len() } else { 0 },
                metadata.ino(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ),
        };
        self.nodes.insert(path.into(), node);
        if kind.is_dir() {
            for entry in fs::read_dir(host).with_context(cannot)? {
                let name = entry.with_context(cannot)?.file_name();
                self.host_folder(&path.join(&name), &host.join(&name))?;
            }
        }
        Ok(())
    }

    /// Writes the tree as an archive.
    ///
    /// # Errors
    /// When a file of the host cannot be read or `to` cannot be written.
    pub fn write(&self, to: &Path) -> Result<()> {
        self.write_each(to, |_| ())
    }

    /// As [`write`](Root::write), with a step over [`bytes`](Root::bytes).
    ///
    /// # Errors
    /// As it.
    fn write_with(&self, to: &Path, step: &Step) -> Result<()> {
        self.write_each(to, |bytes| step.reach(bytes))
    }

    /// Writes the tree as an archive, and tells `reach` how many bytes of files are in it.
    fn write_each(&self, to: &Path, reach: impl Fn(u64)) -> Result<()> {
        let mut bytes = 0;
        let output = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
        let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, output));
        let mut names = HashMap::new();
        for identity in self.nodes.values().filter_map(|node| node.identity) {
            *names.entry(identity).or_insert(0u32) += 1;
        }
        // How many names of a file are still to come, and its number.
        let mut pending: HashMap<(u64, u64), (u32, u32)> = HashMap::new();
        for ((path, node), number) in self.nodes.iter().zip(1u32..) {
            let (mut inode, mut links, mut last) = (number, 1, true);
            if let Some(identity) = node.identity {
                links = names[&identity];
                let (left, first) = pending.entry(identity).or_insert((links, number));
                *left -= 1;
                (inode, last) = (*first, *left == 0);
            }
            let header = Header {
                inode,
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
                links,
                modified: node.modified,
                device: node.device,
            };
            let name = match path.as_os_str().as_bytes() {
                b"" => b".",
                name => name,
            };
            match &node.contents {
                Contents::HostFile(host) if last => {
                    let file = File::open(host)
                        .with_context(|| format!("cannot read {}", host.display()))?;
                    let size = file.metadata()?.len();
                    archive.entry(name, &header, size, file)
                }
                Contents::Bytes(bytes) => {
                    archive.entry(name, &header, bytes.len() as u64, &bytes[..])
                }
                _ => archive.entry(name, &header, 0, io::empty()),
            }
            .with_context(|| format!("cannot pack {} into {}", path.display(), to.display()))?;
            bytes += node.host.0;
            reach(bytes);
        }
        archive
            .finish()
            .with_context(|| format!("cannot write {}", to.display()))?;
        Ok(())
    }
}

/// Whether these bytes are a program for x86-64 that names no interpreter.
fn is_static(elf: &[u8]) -> bool {
    const PROGRAM_INTERPRETER: u32 = 3;
    let field = |at: usize, size: usize| {
        let bytes = elf.get(at..at + size)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0usize, |value, &byte| value << 8 | usize::from(byte)),
        )
    };
    let headers = || {
        let (start, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
        (0..count)
            .map(|index| field(start + index * size, 4))
            .collect::<Option<Vec<usize>>>()
    };
    elf.starts_with(b"\x7fELF\x02")
        && headers().is_some_and(|kinds| !kinds.contains(&(PROGRAM_INTERPRETER as usize)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_keeps_links_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/a"), "one file").unwrap();
        fs::hard_link(at("d/a"), at("b")).unwrap();
        symlink("d/a", at("s")).unwrap();
        fs::set_permissions(at("d/a"), fs::Permissions::from_mode(0o4711)).unwrap();
        let archive = folder
            .path()
            .join("../")
            .join(format!("{}.cpio", std::process::id()));
        Root::folder(folder.path())
            .unwrap()
            .write(&archive)
            .unwrap();

        let bytes = fs::read(&archive).unwrap();
        fs::remove_file(&archive).unwrap();
        let entries = entries(&bytes);
        let find = |name: &str| entries.iter().find(|entry| entry.0 == name).unwrap();
        assert_eq!(find("b").1, find("d/a").1, "one inode for both names");
        assert_eq!(find("b").3, "", "the contents come with the last name");
        assert_eq!(find("d/a").3, "one file");
        assert_eq!(find("d/a").2 & 0o7777, 0o4711);
        assert_eq!(find("s").3, "d/a");
    }

    /// Name, inode, mode and contents of each entry.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, u32, String)> {
        let mut found = Vec::new();
        loop {
            let field = |index: usize| {
                let text = &bytes[6 + index * 8..14 + index * 8];
                u32::from_str_radix(std::str::from_utf8(text).unwrap(), 16).unwrap()
            };
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size].to_vec()).unwrap();
            let name = name.trim_end_matches('\0').to_owned();
            if name == "TRAILER!!!" {
                return found;
            }
            let start = (110 + name_size).next_multiple_of(4);
            let contents = String::from_utf8(bytes[start..start + size].to_vec()).unwrap();
            found.push((name, field(0), field(1), contents));
            bytes = &bytes[start + size.next_multiple_of(4)..];
        }
    }
}
