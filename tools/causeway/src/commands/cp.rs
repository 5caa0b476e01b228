//! `causeway cp`: files and folders between this machine and a running guest, by `tar` on both.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::unpack::{Unpacked, Unpacking};
use crate::log::each_line;
use crate::sessions::{self, Event, Program};
use crate::supervisor::client::Client;
use crate::supervisor::place::check_name;

/// Copy a file or folder between this machine and a running guest
///
/// As by `docker cp`, it goes into DEST if that is a folder, else to that name. Owners become those
/// who unpack; what comes from a guest has no set-id bits and no devices. Both machines need `tar`.
#[derive(Args, Debug)]
pub struct Cp {
    /// What to copy: PATH here, or NAME:PATH in the guest; a folder with `/.` behind it means what
    /// is in it
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Where to: the other of both
    #[arg(value_name = "DEST")]
    to: OsString,
}

/// A path in a guest.
struct There<'a> {
    name: &'a str,
    path: &'a OsStr,
}

impl Cp {
    /// Copies.
    ///
    /// # Errors
    /// When not exactly one side is in a guest, or `tar` is missing or fails.
    pub fn run(&self) -> Result<u8> {
        match (there(&self.from)?, there(&self.to)?) {
            (Some(from), None) => from.copy_out(Path::new(&self.to))?,
            (None, Some(to)) => to.copy_in(Path::new(&self.from))?,
            _ => bail!("one of SRC and DEST is NAME:PATH, the other one a path of this machine"),
        }
        Ok(0)
    }
}

/// The path in a guest that a word means, if it does not mean one here.
fn there(word: &OsStr) -> Result<Option<There<'_>>> {
    let bytes = word.as_bytes();
    let Some(colon) = bytes.iter().position(|&byte| byte == b':') else {
        return Ok(None);
    };
    let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
    let name = std::str::from_utf8(name).unwrap_or("/");
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Ok(None);
    }
    check_name(name)?;
    ensure!(!path.is_empty(), "{name}: has no path behind it");
    let path = OsStr::from_bytes(path);
    Ok(Some(There { name, path }))
}

impl There<'_> {
    /// Copies a file or folder of this machine's into the guest.
    fn copy_in(&self, from: &Path) -> Result<()> {
        let shown = from.display();
        let is = fs::metadata(from).with_context(|| shown.to_string())?;
        let real = fs::canonicalize(from)?;
        let is_contents = has_dot(from.as_os_str());
        let name = real.file_name().unwrap_or(OsStr::new("root"));
        let is_folder = self.is_folder()?;
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let mut tar = Command::new("tar");
        let into = if is.is_dir() {
            tar.arg("-C").arg(&real).args(["-cf", "-", "."]);
            let path = Path::new(self.path);
            let into = if is_folder && !is_contents {
                path.join(name)
            } else {
                path.into()
            };
            self.sh("mkdir -p -- \"$1\"", &into)?;
            into
        } else {
            // A link with the name that the file gets.
            let (into, name) = self.place(is_folder, name)?;
            symlink(&real, folder.path().join(&name)).context("cannot name the file")?;
            tar.arg("-C").arg(folder.path()).args(["-chf", "-", "--"]);
            tar.arg(&name);
            into
        };
        let mut tar = spawn(tar.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let archive = tar.stdout.take().context("no pipe from tar")?;
        let words = ["tar", "-C"].map(OsString::from).into_iter();
        let words = words.chain([into.into(), "-xof".into(), "-".into()]);
        let null = sessions::null()?;
        let unpacked = self.exec(words, archive.as_fd(), null.as_fd());
        // The pipe is closed here, so that a `tar` that still writes ends.
        drop(archive);
        let packed = tar.wait()?;
        self.passed(unpacked?)?;
        ensure!(packed.success(), "the tar of this machine failed");
        Ok(())
    }

    /// Copies a file or folder of the guest's to this machine.
    fn copy_out(&self, to: &Path) -> Result<()> {
        let from = Path::new(self.path);
        let is_folder = self.is_folder()?;
        let is_contents = has_dot(self.path);
        let name = from.file_name().unwrap_or(OsStr::new("root"));
        let words = ["tar", "-C"].map(OsString::from).into_iter();
        if is_folder {
            let into = if to.is_dir() && !is_contents {
                let into = to.join(name);
                // An earlier copy may have left it, and the guest has chosen where it leads.
                ensure!(!into.is_symlink(), "{} is a link here", into.display());
                into
            } else {
                to.into()
            };
            let beside = if into.is_dir() {
                &into
            } else {
                let parent = parent(&into);
                fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
                parent
            };
            let tail = ["-cf", "-", "."].map(OsString::from);
            let words = words.chain([self.path.into()]).chain(tail);
            let (packed, unpacked) = self.unpack(words, beside)?;
            let is_whole = unpacked.is_whole;
            // What has come of an archive with faults is kept, as `tar` keeps it.
            unpacked.move_folder(&into)?;
            self.passed(packed)?;
            ensure!(is_whole, "the tar of this machine failed");
            return Ok(());
        }
        let target = if to.is_dir() {
            to.join(name)
        } else {
            to.into()
        };
        let tail = ["-cf".into(), "-".into(), "--".into(), name.into()];
        let words = words.chain([parent(from).into()]).chain(tail);
        let (packed, unpacked) = self.unpack(words, parent(&target))?;
        self.passed(packed)?;
        ensure!(unpacked.is_whole, "the tar of this machine failed");
        unpacked.move_file(name, &target)
    }

    /// Runs a packer in the guest, and unpacks here what it writes; returns its end and that.
    fn unpack(
        &self,
        words: impl Iterator<Item = OsString>,
        beside: &Path,
    ) -> Result<((u8, Option<String>), Unpacked)> {
        let unpacking = Unpacking::start(beside)?;
        let null = sessions::null()?;
        let packed = self.exec(words, null.as_fd(), unpacking.archive()?);
        let unpacked = unpacking.finish()?;
        Ok((packed?, unpacked))
    }

    /// The folder and the name of a file that is to be copied to the path.
    fn place(&self, is_folder: bool, name: &OsStr) -> Result<(PathBuf, OsString)> {
        let path = Path::new(self.path);
        if is_folder {
            return Ok((path.into(), name.into()));
        }
        ensure!(
            !self.path.as_bytes().ends_with(b"/"),
            "the guest has no folder {}",
            path.display()
        );
        let name = path
            .file_name()
            .context("the path in the guest has no name")?;
        Ok((parent(path).into(), name.into()))
    }

    /// Whether the path is a folder of the guest's.
    fn is_folder(&self) -> Result<bool> {
        let line = "test -d \"$1\" && exit 0; exit 3";
        let (status, _) = self.run_sh(line, Path::new(self.path))?;
        match status {
            0 => Ok(true),
            3 => Ok(false),
            status => bail!("the guest's sh ended with {status}"),
        }
    }

    /// Runs a line of the guest's shell about a path, which must succeed.
    fn sh(&self, line: &str, path: &Path) -> Result<()> {
        let (status, _) = self.run_sh(line, path)?;
        ensure!(status == 0, "the guest can't make {}", path.display());
        Ok(())
    }

    fn run_sh(&self, line: &str, path: &Path) -> Result<(u8, Option<String>)> {
        let null = sessions::null()?;
        let words = ["sh", "-c", line, "sh"].map(OsString::from).into_iter();
        let words = words.chain([path.as_os_str().to_os_string()]);
        let (status, why) = self.exec(words, null.as_fd(), null.as_fd())?;
        match why {
            Some(why) => bail!("the guest {} can't run sh: {why}", self.name),
            None => Ok((status, why)),
        }
    }

    /// Runs a program in the guest; returns its status, and why it has none of its own.
    fn exec(
        &self,
        words: impl Iterator<Item = OsString>,
        input: BorrowedFd<'_>,
        output: BorrowedFd<'_>,
    ) -> Result<(u8, Option<String>)> {
        let client = Client::connect(self.name)?;
        let mut program = Program::new(&words.collect::<Vec<_>>());
        program.set_directory(Some(OsStr::new("/")));
        // What the guest says is shown here, and not to the terminal itself.
        let (messages, errors) = io::pipe().context("no pipe for the guest's messages")?;
        let shown = thread::spawn(move || {
            // Where they can't be shown, nothing is left to say.
            each_line(messages, |line| drop(writeln!(io::stderr(), "{line}")));
        });
        client.exec(&program, [input, output, errors.as_fd()], None)?;
        drop(errors);
        let last: Event = client.last()?;
        // If it panicked, it has said so.
        let _ = shown.join();
        client.status(last, &program)
    }

    /// Checks the end of the guest's `tar`.
    fn passed(&self, (status, why): (u8, Option<String>)) -> Result<()> {
        match why {
            Some(_) if status == 127 => bail!(
                "the guest {} has no tar, by which files are copied",
                self.name
            ),
            Some(why) => bail!("the guest {} can't run tar: {why}", self.name),
            None => {
                ensure!(status == 0, "the guest's tar ended with status {status}");
                Ok(())
            }
        }
    }
}

/// The folder that a path is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn spawn(tar: &mut Command) -> Result<Child> {
    tar.spawn().context("cannot run tar on this machine")
}

/// Whether a path means what is in the folder, and not the folder.
fn has_dot(path: &OsStr) -> bool {
    path == "." || path.as_bytes().ends_with(b"/.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_path_has_its_name_in_front() {
        let split = |word| {
            let there = there(OsStr::new(word)).unwrap();
            there.map(|there| (there.name.to_string(), there.path.to_os_string()))
        };
        let is = |name: &str, path: &str| Some((name.into(), path.into()));
        assert_eq!(split("web:/etc/x:y"), is("web", "/etc/x:y"));
        assert_eq!(split("web:x"), is("web", "x"));
        for here in ["/etc/passwd", "./a:b", "a/b:c", ":x", "x"] {
            assert_eq!(split(here), None, "{here}");
        }
        assert!(there(OsStr::new("web:")).is_err());
        assert!(there(OsStr::new("a b:/c")).is_err());
    }
}
