//! Files and folders, to a guest and back.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, ensure};

use super::named::Detached;
use super::{Bench, is, of_guest};
use crate::outcome;
use crate::test::boot::shown;

/// A guest whose files are copied, and a folder here.
struct Copies<'a> {
    bench: &'a Bench,
    guest: &'a Detached<'a>,
}

impl Copies<'_> {
    fn there(&self, path: &str) -> OsString {
        format!("{}:{path}", self.guest.name).into()
    }

    fn copy(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Result<()> {
        let ended = of_guest(self.bench, &["cp"]).arg(from).arg(to).output()?;
        is(&ended, 0, "")
    }

    fn refuse(&self, from: &str, to: &Path, why: &str) -> Result<()> {
        let mut copy = of_guest(self.bench, &["cp"]);
        let ended = copy.arg(self.there(from)).arg(to).output()?;
        is(&ended, outcome::FAILURE, "")?;
        ensure!(shown(&ended).contains(why), "{}", shown(&ended));
        Ok(())
    }

    fn sh(&self, line: &str, output: &str) -> Result<()> {
        is(&self.guest.exec(line).output()?, 0, output)
    }
}

/// The permissions of a file, with the bits for set-id.
fn mode(path: impl AsRef<Path>) -> Result<u32> {
    Ok(fs::symlink_metadata(path)?.permissions().mode() & 0o7777)
}

/// Copies of all kinds.
pub fn all(bench: &Bench) -> Result<()> {
    let guest = Detached::start(bench, &[], "sleep 999")?;
    let copies = Copies {
        bench,
        guest: &guest,
    };
    let folder = bench.fresh_folder("copied")?;
    let from = folder.join("from");
    fs::create_dir_all(from.join("deep"))?;
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
    let file = from.join("deep/file");
    fs::write(&file, &bytes)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
    // A folder, to one that is there and to one that is not.
    copies.copy(&from, copies.there("/tmp"))?;
    copies.copy(copies.there("/tmp/from"), folder.join("back"))?;
    ensure!(
        fs::read(folder.join("back/deep/file"))? == bytes,
        "a folder"
    );
    ensure!(mode(folder.join("back/deep/file"))? == 0o640, "a mode");
    copies.copy(copies.there("/tmp/from"), folder.join("back"))?;
    ensure!(
        fs::read(folder.join("back/from/deep/file"))? == bytes,
        "into"
    );
    // What is in a folder, beside and over what is there.
    copies.sh(
        "echo more >/tmp/from/more; echo new >/tmp/from/deep/file",
        "",
    )?;
    copies.copy(copies.there("/tmp/from/."), folder.join("back"))?;
    ensure!(fs::read(folder.join("back/more"))? == b"more\n", "contents");
    ensure!(fs::read(folder.join("back/deep/file"))? == b"new\n", "over");
    ensure!(
        fs::read(folder.join("back/from/deep/file"))? == bytes,
        "kept"
    );
    copies.copy(from.join("."), copies.there("/tmp/made/new"))?;
    copies.sh(
        "ls /tmp/made/new; stat -c %a /tmp/made/new/deep/file",
        "deep\n640\n",
    )?;
    // A file, to a name and into a folder.
    copies.copy(&file, copies.there("/tmp/other"))?;
    copies.copy(copies.there("/tmp/other"), folder.join("file"))?;
    ensure!(fs::read(folder.join("file"))? == bytes, "a file");
    copies.copy(&file, copies.there("/tmp/made"))?;
    copies.copy(copies.there("/tmp/made/file"), &folder)?;
    copies.copy(copies.there("/tmp/made/file"), folder.join("back"))?;
    ensure!(
        fs::read(folder.join("back/file"))? == bytes,
        "into a folder"
    );
    copies.refuse("/tmp/absent", &folder, "tar ended with status")?;
    let controlling = copies.there("/tmp/absent\x1b[2J");
    let ended = of_guest(bench, &["cp"])
        .arg(controlling)
        .arg(&folder)
        .output()?;
    ensure!(!ended.stderr.contains(&b'\x1b'), "{}", shown(&ended));
    ensure!(shown(&ended).contains("absent?[2J"), "{}", shown(&ended));
    // Rights that only the guest's users are to have.
    copies.sh(
        "echo x >/tmp/made/root; chmod 6755 /tmp/made/root; chmod 2777 /tmp/made",
        "",
    )?;
    copies.copy(copies.there("/tmp/made/root"), folder.join("one"))?;
    copies.copy(copies.there("/tmp/made"), &folder)?;
    for path in ["one", "made/root", "made"] {
        let mode = mode(folder.join(path))?;
        ensure!(mode == 0o755, "{path}: {mode:o}");
    }
    // A link that an earlier copy left, where a folder of that name is to go.
    let outside = folder.join("outside");
    fs::create_dir(&outside)?;
    let line = format!(
        "mkdir /tmp/planted; ln -s {} /tmp/planted/link",
        outside.display()
    );
    copies.sh(&line, "")?;
    copies.copy(copies.there("/tmp/planted"), &folder)?;
    copies.sh(
        "cd /tmp/planted; rm link; mkdir link; echo x >link/file",
        "",
    )?;
    let planted = folder.join("planted");
    copies.refuse("/tmp/planted/link", &planted, "is a link here")?;
    copies.refuse("/tmp/planted", &folder, "is not a folder here")?;
    ensure!(!outside.join("file").exists(), "a copy left its place");
    // A guest without tar.
    copies.sh("rm -f $(which tar)", "")?;
    copies.refuse("/tmp/other", &folder, "no tar")?;
    // One whose tar sends another file.
    copies.sh(
        "cd /bin; printf '#!/bin/sh\\nbusybox tar -C /etc -cf - passwd\\n' >tar; chmod +x tar",
        "",
    )?;
    copies.refuse("/tmp/other", &folder.join("passwd"), "sent no file")?;
    ensure!(!folder.join("passwd").exists(), "another file came");
    Ok(())
}
