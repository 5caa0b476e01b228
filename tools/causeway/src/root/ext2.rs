//! A root as an image with an ext2 file system, which the guest changes and keeps: made by
//! e2fsprogs, without mounting anything.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::progress::Step;
use super::{Contents, DIRECTORY, MARK, Node, Root};

/// The free space of an image when no size is given.
const ROOM: u64 = 256 << 20;
const MEBIBYTE: u64 = 1 << 20;
/// The bytes of a block.
const BLOCK: u64 = 4096;
/// The smallest image, in bytes: the file system's own tables fit.
const LEAST: u64 = MEBIBYTE;

/// Makes an image with the files of `folder`, else of the root made of busybox, in a file system of
/// `size` bytes; without a size it has room for as much again as the files take, and more.
///
/// # Errors
/// When the folder can't be read, the files don't fit, `to` is there already, or e2fsprogs is not.
pub fn make(folder: Option<&Path>, to: &Path, size: Option<u64>) -> Result<()> {
    let root = folder.map_or_else(Root::busybox, Root::folder)?;
    let size = size.unwrap_or_else(|| root.size_with_room());
    let size = size.div_ceil(MEBIBYTE) * MEBIBYTE;
    if size < LEAST.max(root.bytes()) {
        bail!(
            "the files take {} MiB: an image of {} MiB has no room for them",
            root.bytes().div_ceil(MEBIBYTE),
            size / MEBIBYTE
        );
    }
    let file = File::create_new(to).with_context(|| format!("cannot create {}", to.display()))?;
    let made = file
        .set_len(size)
        .context("the image is too large")
        .and_then(|()| root.fill(folder, to, size, &[]));
    if made.is_err() {
        // Half an image is of no use to anybody.
        let _ = fs::remove_file(to);
    }
    made
}

/// Makes the image `to` with the tree of `folder` for guests whose changes are dropped: with the
/// same files as the folder's archive, and no others.
///
/// # Errors
/// As [`make`].
pub fn make_private(root: &Root, folder: &Path, to: &Path) -> Result<()> {
    let size = root.size_with_room().div_ceil(MEBIBYTE) * MEBIBYTE;
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    file.set_len(size).context("the image is too large")?;
    let what = format!("copying the root {} to a disk", folder.display());
    let step = Step::bytes(&what, root.bytes());
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The blocks that are written are holes no longer.
            while !is_done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(50));
                let written = file.metadata().map_or(0, |about| about.blocks() * 512);
                step.reach(written.min(root.bytes()));
            }
        });
        // An archive has no extended attributes, and no blocks that only root may use.
        let made = root.fill(Some(folder), to, size, &["-m", "0", "-E", "no_copy_xattrs"]);
        is_done.store(true, Ordering::Relaxed);
        made
    })?;
    let mut changes = Vec::new();
    if !root.nodes.contains_key(Path::new("lost+found")) {
        writeln!(changes, "rmdir /lost+found")?;
    }
    if let Some(top) = root.nodes.get(Path::new("")) {
        writeln!(changes, "sif / mode 0{:o}", top.mode)?;
    }
    edit(to, &changes)
}

/// Whether this machine has e2fsprogs.
pub fn is_there() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |name: &str| std::env::split_paths(&path).any(|at| at.join(name).exists());
    ["mke2fs", "debugfs"]
        .iter()
        .all(|name| installed(name).is_some() || on_path(name))
}

/// Has `e2fsck` look at an image, without a change to it.
///
/// # Errors
/// Its message, if the file system is damaged.
pub fn check(image: &Path) -> Result<()> {
    run(tool("e2fsck").arg("-fn").arg(image)).map(drop)
}

/// Has `debugfs` change an image by these commands, a line each.
///
/// # Errors
/// Its message, if it fails.
pub fn edit(image: &Path, commands: &[u8]) -> Result<()> {
    let mut script = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    script.write_all(commands)?;
    let mut debugfs = tool("debugfs");
    run(debugfs.arg("-w").arg("-f").arg(script.path()).arg(image)).map(drop)
}

/// The bytes of a size in words: a number of M or G.
///
/// # Errors
/// A sentence with the reason.
pub fn size(text: &str) -> Result<u64, String> {
    let kibibytes = crate::qemu::kibibytes(text);
    let bytes = kibibytes.ok().and_then(|size| size.checked_mul(1024));
    bytes
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| format!("the size {text:?} is not a number of M or G"))
}

impl Root {
    /// The bytes of an image with as much free space as its files take, and more.
    fn size_with_room(&self) -> u64 {
        let blocks = |node: &Node| node.host.0.div_ceil(BLOCK).max(1) * BLOCK;
        self.nodes.values().map(blocks).sum::<u64>() * 2 + ROOM
    }

    /// Makes the file system in `image`, which has `size` bytes, with `how`, which are words of
    /// `mke2fs`.
    fn fill(&self, folder: Option<&Path>, image: &Path, size: u64, how: &[&str]) -> Result<()> {
        let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
        let from = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                let stage = temporary.path().join("root");
                self.stage(&stage)?;
                stage
            }
        };
        let mut mke2fs = tool("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext2", "-b", "4096", "-L", "root"]);
        // Small files need more inodes than mke2fs makes by the size.
        let usual = size
            / if size < 512 * MEBIBYTE {
                4 << 10
            } else {
                16 << 10
            };
        let wanted = self.nodes.len() as u64 * 2;
        if wanted > usual {
            mke2fs.arg("-N").arg(wanted.to_string());
        }
        run(mke2fs.args(how).arg("-d").arg(&from).arg(image))?;
        edit(image, &self.owners(folder.is_some())?)
    }

    /// Writes the tree into a folder that is not there yet. Owners are left to
    /// [`owners`](Root::owners).
    fn stage(&self, to: &Path) -> Result<()> {
        for (path, node) in &self.nodes {
            let place = to.join(path);
            let cannot = || format!("cannot write {}", place.display());
            match &node.contents {
                Contents::Nothing if node.mode & 0o170_000 == DIRECTORY => {
                    fs::create_dir_all(&place).with_context(cannot)?;
                }
                Contents::Nothing => bail!("{} is a device", path.display()),
                Contents::Bytes(bytes) if node.mode & 0o170_000 == super::SYMLINK => {
                    let target = std::ffi::OsStr::from_bytes(bytes);
                    symlink(target, &place).with_context(cannot)?;
                    continue;
                }
                Contents::Bytes(bytes) => fs::write(&place, bytes).with_context(cannot)?,
                Contents::HostFile(host) => {
                    fs::copy(host, &place).with_context(cannot)?;
                }
            }
            let permissions = fs::Permissions::from_mode(node.mode & 0o7777);
            fs::set_permissions(&place, permissions).with_context(cannot)?;
        }
        Ok(())
    }

    /// The commands by which `debugfs` sets the owners of all files, and removes what is not part
    /// of the tree.
    fn owners(&self, marked: bool) -> Result<Vec<u8>> {
        let me = rustix::process::geteuid().as_raw();
        let mut script = Vec::new();
        for (path, node) in &self.nodes {
            // Root's own are as they must be, where root makes the image.
            if me == 0 && (node.uid, node.gid) == (0, 0) {
                continue;
            }
            let name = quoted(path)?;
            for (field, id) in [("uid", node.uid), ("gid", node.gid)] {
                script.extend_from_slice(b"sif ");
                script.extend_from_slice(&name);
                writeln!(script, " {field} {id}")?;
            }
        }
        // mke2fs has copied them.
        for socket in &self.sockets {
            script.extend_from_slice(b"rm ");
            script.extend_from_slice(&quoted(socket)?);
            script.push(b'\n');
        }
        if marked {
            writeln!(script, "rm /{MARK}")?;
        }
        Ok(script)
    }
}

/// A path as `debugfs` takes it.
///
/// # Errors
/// When the path has a newline, which ends a command.
fn quoted(path: &Path) -> Result<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&b'\n') {
        bail!(
            "{}: debugfs has no way to name this; try --root-by memory",
            path.display()
        );
    }
    // Two quotes are one, inside of quotes.
    let pieces: Vec<&[u8]> = bytes.split(|&byte| byte == b'"').collect();
    Ok([b"\"/", &pieces.join(&b"\"\""[..])[..], b"\""].concat())
}

/// The file of a program of e2fsprogs, if it is where Debian keeps it.
fn installed(name: &str) -> Option<PathBuf> {
    let known = ["/usr/sbin", "/sbin"].map(|folder| PathBuf::from(folder).join(name));
    known.into_iter().find(|path| path.exists())
}

/// A program of e2fsprogs, which Debian keeps where users don't look.
fn tool(name: &str) -> Command {
    let mut command = Command::new(installed(name).unwrap_or_else(|| name.into()));
    command.stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}: install Debian's package e2fsprogs"))?;
    if !output.status.success() {
        // e2fsck writes its complaints to its standard output.
        let why = [&output.stdout[..], &output.stderr].concat();
        bail!("{name} failed: {}", String::from_utf8_lossy(&why).trim());
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_folders_files_and_owners() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        fs::create_dir_all(from.join("a b")).unwrap();
        fs::write(from.join("a b/file"), "words").unwrap();
        fs::write(from.join(MARK), "owner 7 9 a b/file\n").unwrap();
        let image = folder.path().join("image");
        make(Some(&from), &image, Some(4 << 20)).unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), 4 << 20);
        assert!(make(Some(&from), &image, None).is_err(), "it is there");
        let ask = |what: &str| {
            let output = tool("debugfs").args(["-R", what]).arg(&image).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert_eq!(ask("cat \"/a b/file\""), "words");
        let file = ask("stat \"/a b/file\"");
        assert!(file.contains("User:     7   Group:     9"), "{file}");
        assert!(ask("stat /").contains("User:     0"));
        assert!(!ask("ls /").contains(MARK));
        check(&image).unwrap();
    }

    #[test]
    fn sizes_are_read_and_checked() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2G"), Ok(2 << 30));
        for wrong in ["0M", "x", "", "99999999999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("large"), vec![1; 3 << 20]).unwrap();
        let image = folder.path().join("image");
        let error = make(Some(folder.path()), &image, Some(2 << 20)).unwrap_err();
        assert!(error.to_string().contains("3 MiB"), "{error}");
        assert!(!image.exists());
    }
}
