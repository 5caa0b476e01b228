//! An archive from a guest that may be hostile, unpacked on this machine.
//!
//! The `tar` of this machine unpacks into a new folder that only this user can enter, beside the
//! place that the copy is for. No link of an earlier copy is there, so nothing that the archive
//! says leads out of it. What has come then loses what only the guest's users are to have, and is
//! moved to its place by names that are not looked up through links.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, Mode, OFlags, openat, renameat};
use rustix::io::Errno;
use tempfile::TempDir;

/// Mode bits that give a file's user the rights of its owner or group.
const SET_ID: u32 = 0o6000;

/// How a folder is opened.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// What a user needs to read and change a folder.
const OWN: u32 = 0o700;

/// An archive that is being unpacked.
pub struct Unpacking {
    folder: TempDir,
    tar: Child,
    archive: Option<ChildStdin>,
}

/// What has come of it.
pub struct Unpacked {
    folder: TempDir,
    /// Whether `tar` found nothing wrong.
    pub is_whole: bool,
}

impl Unpacking {
    /// Starts this machine's `tar` in a new folder beside the place of the copy.
    ///
    /// # Errors
    /// When there is no such folder, or no `tar`.
    pub fn start(beside: &Path) -> Result<Self> {
        let shown = || beside.display().to_string();
        let folder = tempfile::Builder::new()
            .prefix(".causeway-")
            .tempdir_in(beside)
            .with_context(shown)?;
        fs::create_dir(copy(&folder)).with_context(shown)?;
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(copy(&folder));
        tar.args(["-xf", "-", "--no-same-owner", "--no-same-permissions"]);
        let mut tar = tar
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run tar on this machine")?;
        let archive = tar.stdin.take();
        Ok(Self {
            folder,
            tar,
            archive,
        })
    }

    /// The stream that the archive is written to.
    ///
    /// # Errors
    /// When there is none.
    pub fn archive(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.archive.as_ref().context("no pipe to tar")?.as_fd())
    }

    /// Waits until all is unpacked, and takes away set-id bits, devices, and the guest's owners.
    ///
    /// # Errors
    /// When what has come can't be read.
    pub fn finish(mut self) -> Result<Unpacked> {
        drop(self.archive.take());
        let is_whole = self.tar.wait()?.success();
        clean(&copy(&self.folder))?;
        Ok(Unpacked {
            folder: self.folder,
            is_whole,
        })
    }
}

impl Unpacked {
    /// Moves the one file, or link, of this name to its place.
    ///
    /// # Errors
    /// When the archive did not have it, or the place is a folder.
    pub fn move_file(self, name: &OsStr, to: &Path) -> Result<()> {
        let from = copy(&self.folder).join(name);
        let is_file = fs::symlink_metadata(&from).is_ok_and(|is| !is.is_dir());
        ensure!(is_file, "the guest sent no file {}", name.display());
        fs::rename(from, to).with_context(|| to.display().to_string())
    }

    /// Moves all to a folder, into what is there already, or makes the folder.
    ///
    /// # Errors
    /// When a file is to replace a folder, or a folder something else, or the place can't be
    /// written.
    pub fn move_folder(self, to: &Path) -> Result<()> {
        let shown = || to.display().to_string();
        let from = copy(&self.folder);
        match openat(CWD, to, FOLDER, Mode::empty()) {
            Err(Errno::NOENT) => rename_folder(&from, CWD, to.as_os_str()),
            Err(error) => Err(error.into()),
            Ok(to) => merge(&from, &to),
        }
        .with_context(shown)
    }
}

/// The folder that is unpacked into. The archive decides on its mode.
fn copy(folder: &TempDir) -> PathBuf {
    folder.path().join("copy")
}

/// Takes set-id bits and devices away, below a folder and from itself.
fn clean(path: &Path) -> Result<()> {
    let is = fs::symlink_metadata(path)?;
    let kind = is.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        let name = path.file_name().unwrap_or_default().display();
        eprintln!("causeway: leaves out {name}: a device");
        return Ok(fs::remove_file(path)?);
    }
    if kind.is_symlink() {
        return Ok(());
    }
    let mode = is.permissions().mode() & 0o7777;
    if kind.is_dir() {
        set_mode(path, mode | OWN)?;
        for entry in fs::read_dir(path)? {
            clean(&entry?.path())?;
        }
        set_mode(path, mode & !SET_ID)?;
    } else if mode & SET_ID != 0 {
        set_mode(path, mode & !SET_ID)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

/// Moves what is in one folder into another one.
fn merge(from: &Path, to: &OwnedFd) -> Result<()> {
    set_mode(from, OWN)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let shown = || name.display().to_string();
        if !entry.file_type()?.is_dir() {
            renameat(CWD, &path, to, &name).with_context(shown)?;
            continue;
        }
        match openat(to, &name, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(below) => merge(&path, &below).with_context(shown)?,
            Err(Errno::NOENT) => rename_folder(&path, to.as_fd(), &name).with_context(shown)?,
            Err(Errno::NOTDIR | Errno::LOOP) => bail!("{} is not a folder here", shown()),
            Err(error) => return Err(error).with_context(shown),
        }
    }
    Ok(())
}

/// Moves a folder to where there is none. Its owner must be able to write it meanwhile.
fn rename_folder(from: &Path, to: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let mode = fs::symlink_metadata(from)?.permissions().mode() & 0o7777;
    set_mode(from, mode | OWN)?;
    let folder = File::open(from)?;
    renameat(CWD, from, to, name)?;
    Ok(folder.set_permissions(Permissions::from_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use rustix::process::getuid;

    use super::*;

    /// A member of an archive: its type, name, link, mode and bytes.
    fn member(kind: u8, name: &str, link: &str, mode: u32, bytes: &[u8]) -> Vec<u8> {
        let mut head = [0; 512];
        let mut put = |at: usize, text: &[u8]| head[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(
            100,
            format!("{mode:07o}\0{:07o}\0{:07o}\0", 1234, 1234).as_bytes(),
        );
        put(
            124,
            format!("{:011o}\0{:011o}\0", bytes.len(), 0).as_bytes(),
        );
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, b"0000001\x000000003\0");
        let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
        head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        [&head, bytes, &vec![0; padding]].concat()
    }

    fn file(name: &str, text: &str) -> Vec<u8> {
        member(b'0', name, "", 0o644, text.as_bytes())
    }

    fn unpack(beside: &Path, members: &[Vec<u8>]) -> Unpacked {
        let unpacking = Unpacking::start(beside).unwrap();
        let mut archive = File::from(unpacking.archive().unwrap().try_clone_to_owned().unwrap());
        archive.write_all(&members.concat()).unwrap();
        archive.write_all(&[0; 1024]).unwrap();
        drop(archive);
        unpacking.finish().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn set_id_bits_stay_in_the_guest() {
        let base = tempfile::tempdir().unwrap();
        let into = base.path().join("into");
        let members = [
            member(b'5', ".", "", 0o6777, b""),
            member(b'0', "root", "", 0o6755, b"x"),
            member(b'5', "group", "", 0o2775, b""),
            member(b'0', "group/file", "", 0o4711, b"x"),
            member(b'5', "closed", "", 0o555, b""),
            file("closed/file", "x"),
        ];
        unpack(base.path(), &members).move_folder(&into).unwrap();
        for name in ["", "root", "group", "group/file", "closed"] {
            let mode = mode(&into.join(name));
            assert_eq!(mode & !0o777, 0, "{name}: {mode:o}");
            assert_ne!(mode & 0o100, 0, "{name}: {mode:o}");
        }
        assert_eq!(mode(&into.join("closed")), 0o555);
        unpack(base.path(), &members[1..2])
            .move_file(OsStr::new("root"), &base.path().join("one"))
            .unwrap();
        assert_eq!(mode(&base.path().join("one")) & !0o777, 0);
    }

    #[test]
    fn nothing_of_an_archive_goes_elsewhere() {
        let base = tempfile::tempdir().unwrap();
        let (outside, into) = (base.path().join("outside"), base.path().join("into"));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&into).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        let to = outside.to_str().unwrap();
        let absolute = format!("{to}/absolute");
        let hostile = [
            file(&absolute, "x"),
            file("../outside/above", "x"),
            file("../../outside/above", "x"),
            member(b'2', "link", to, 0o777, b""),
            file("link/through", "x"),
            member(b'2', "up", "../../../outside", 0o777, b""),
            file("up/through", "x"),
            member(b'1', "hard", &format!("{to}/kept"), 0o644, b""),
            file("hard", "changed"),
        ];
        for members in [&hostile[..], &hostile[..3], &hostile[3..5], &hostile[7..]] {
            // `tar` may refuse the archive, and parts of it may come.
            let _ = unpack(&into, members).move_folder(&into);
        }
        // Through a link that an earlier copy has brought.
        symlink(&outside, into.join("earlier")).unwrap();
        let members = [file("earlier/through", "x")];
        assert!(unpack(&into, &members).move_folder(&into).is_err());
        let members = [member(b'5', "earlier", "", 0o777, b"")];
        assert!(unpack(&into, &members).move_folder(&into).is_err());
        let left: Vec<_> = fs::read_dir(&outside).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
        let left: Vec<_> = fs::read_dir(base.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn folders_that_are_there_keep_their_modes_and_other_files() {
        let base = tempfile::tempdir().unwrap();
        let into = base.path().join("into");
        fs::create_dir_all(into.join("deep")).unwrap();
        set_mode(&into, 0o700).unwrap();
        fs::write(into.join("deep/mine"), "mine").unwrap();
        fs::write(into.join("deep/old"), "old").unwrap();
        let members = [
            member(b'5', ".", "", 0o777, b""),
            member(b'5', "deep", "", 0o777, b""),
            file("deep/old", "new"),
            file("deep/other", "other"),
        ];
        unpack(&into, &members).move_folder(&into).unwrap();
        assert_eq!(mode(&into), 0o700);
        assert_eq!(fs::read(into.join("deep/mine")).unwrap(), b"mine");
        assert_eq!(fs::read(into.join("deep/old")).unwrap(), b"new");
        assert_eq!(fs::read_dir(into.join("deep")).unwrap().count(), 3);
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
    }

    #[test]
    fn only_the_file_that_was_asked_for_comes() {
        let base = tempfile::tempdir().unwrap();
        let to = base.path().join("to");
        let name = OsStr::new("asked");
        let folder = member(b'5', "asked", "", 0o755, b"");
        for members in [vec![file("other", "x")], vec![folder], vec![]] {
            assert!(unpack(base.path(), &members).move_file(name, &to).is_err());
        }
        let members = [file("other", "x"), file("asked", "y")];
        // The place is a link.
        fs::write(base.path().join("target"), "kept").unwrap();
        symlink("target", &to).unwrap();
        unpack(base.path(), &members).move_file(name, &to).unwrap();
        assert_eq!(fs::read(base.path().join("target")).unwrap(), b"kept");
        assert_eq!(fs::read(&to).unwrap(), b"y");
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 2);
    }

    #[test]
    fn devices_are_left_out() {
        if !getuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let into = base.path().join("into");
        let members = [
            member(b'3', "null", "", 0o666, b""),
            member(b'4', "disk", "", 0o666, b""),
            file("file", "x"),
        ];
        unpack(base.path(), &members).move_folder(&into).unwrap();
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1);
    }
}
