//! The ways by which a folder becomes a root: the guest sees the same files by each, its changes
//! reach the folder only where the user asks for it, and the cache holds what was made.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, makedev, mknodat};

use super::Report;
use super::boot::{Bench, causeway, shown, text};

/// Prints each file of the root: kind, mode, owner, device, links, bytes and time of those that are
/// no directories, the targets of links and the contents.
const LOOK: &str = r#"
cd /; find . -xdev | sort | while read -r name; do
    case $name in ./proc*|./sys*|./dev*|./tmp*|./run*) continue;; esac
    if [ -d "$name" ] && [ ! -L "$name" ]; then stat -c '%n %F %a %u:%g' "$name"
    else stat -c '%n %F %a %u:%g %t,%T %h %s %Y' "$name"; readlink "$name"; fi
done
md5sum sparse 'it is "odd"' hard; [ one -ef hard ] && echo same; find /run; exit 0"#;

/// Some of the lines of [`LOOK`].
const SEEN: [&str; 7] = [
    ". directory 750 0:0",
    "./it is \"odd\" regular file 640 7:9 ",
    "./set-id regular empty file 4751 0:0 ",
    "./shared directory 3775 0:50",
    "/run/kept",
    "same",
    "./pipe fifo ",
];

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("roots") {
        return;
    }
    report.run(
        "roots: a folder is the same in memory and on a disk",
        || same_files(bench),
    );
    report.run("roots: changes end with the guest", || changes_end(bench));
    report.run("roots: a folder by 9P is changed", || shared(bench));
    report.run("roots: a large folder becomes a disk", || large(bench));
    report.run("roots: the holder of the cache's lock is named", || {
        waits(bench)
    });
}

/// A folder with a shell in it.
fn folder(bench: &Bench, name: &str) -> Result<PathBuf> {
    let folder = bench.fresh_folder(name)?;
    for name in ["bin", "proc", "dev", "tmp", "run"] {
        fs::create_dir(folder.join(name))?;
    }
    fs::copy(crate::root::BUSYBOX, folder.join("bin/busybox"))?;
    for name in [
        "sh", "cat", "echo", "find", "md5sum", "readlink", "sort", "stat", "sync",
    ] {
        symlink("busybox", folder.join("bin").join(name))?;
    }
    Ok(folder)
}

/// `causeway` with a cache of its own.
fn cached(bench: &Bench, words: &[&str]) -> Command {
    let mut command = causeway(words);
    command.env("CAUSEWAY_CACHE", bench.path("roots-cache"));
    command
}

/// `causeway run` of a line of shell with a folder as root.
fn guest(bench: &Bench, root: &str, way: &[&str], line: &str) -> Command {
    let mut command = cached(
        bench,
        &["run", "--timeout", "60", "--root", root, "--kernel"],
    );
    command.arg(&bench.checked).args(way);
    command.args(["--", "/bin/sh", "-c", line]);
    command
}

/// What such a guest prints, and what stands on standard error.
fn printed(bench: &Bench, root: &Path, way: &[&str], line: &str) -> Result<(String, String)> {
    let output = guest(bench, &root.display().to_string(), way, line).output()?;
    ended_well(&output)?;
    Ok((text(&output.stdout), text(&output.stderr)))
}

fn ended_well(output: &Output) -> Result<()> {
    ensure!(output.status.success(), "{}", shown(output));
    Ok(())
}

fn same_files(bench: &Bench) -> Result<()> {
    let folder = folder(bench, "roots-same")?;
    let at = |name: &str| folder.join(name);
    let mode = |name: &str, mode| fs::set_permissions(at(name), PermissionsExt::from_mode(mode));
    fs::write(at("it is \"odd\""), "words\n")?;
    mode("it is \"odd\"", 0o640)?;
    fs::write(at("set-id"), "")?;
    mode("set-id", 0o4751)?;
    fs::create_dir(at("shared"))?;
    mode("shared", 0o3775)?;
    fs::write(at("one"), "two names\n")?;
    fs::hard_link(at("one"), at("hard"))?;
    fs::create_dir(at("run/kept"))?;
    symlink("x".repeat(200), at("far"))?;
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0)?;
    // An ordinary user makes none.
    let device = makedev(1, 7);
    let _ = mknodat(
        CWD,
        at("node"),
        FileType::CharacterDevice,
        Mode::RUSR,
        device,
    );
    // A socket is in no root.
    drop(UnixListener::bind(at("socket"))?);
    let sparse = fs::File::create(at("sparse"))?;
    sparse.set_len(9 << 20)?;
    fs::write(at("far-away"), [7; 5000])?;
    let mark = "causeway-root 1\nowner 7 9 it is \"odd\"\nowner 0 50 shared\n";
    fs::write(at(".causeway-root"), mark)?;
    mode("", 0o750)?;
    let (memory, _) = printed(bench, &folder, &["--root-by", "memory"], LOOK)?;
    let (disk, _) = printed(bench, &folder, &["--root-by", "ext2"], LOOK)?;
    for seen in SEEN {
        ensure!(memory.contains(seen), "no {seen:?} in {memory}");
    }
    if let Some((one, other)) = memory.lines().zip(disk.lines()).find(|(a, b)| a != b) {
        bail!("{one:?} in memory, {other:?} on a disk");
    }
    ensure!(memory == disk, "{memory:?} and {disk:?}");
    Ok(())
}

fn changes_end(bench: &Bench) -> Result<()> {
    let folder = folder(bench, "roots-private")?;
    fs::write(folder.join("file"), "old\n")?;
    let way = ["--root-by", "ext2"];
    let line = "cat /file; echo new >/file; echo more >/more; sync; cat /file";
    for _ in 0..2 {
        let (said, _) = printed(bench, &folder, &way, line)?;
        ensure!(said == "old\nnew\n", "{said:?}");
    }
    let kept = fs::read(folder.join("file"))?;
    ensure!(kept == b"old\n" && !folder.join("more").exists());
    // A folder that has changed is copied anew.
    fs::write(folder.join("file"), "changed here\n")?;
    let (said, _) = printed(bench, &folder, &way, "cat /file")?;
    ensure!(said == "changed here\n", "{said:?}");
    Ok(())
}

fn shared(bench: &Bench) -> Result<()> {
    let folder = folder(bench, "roots-shared")?;
    fs::write(folder.join("file"), "old\n")?;
    let way = ["--root-by", "9p"];
    let line = "cat /file; echo new >/file; [ -e /proc/self ] && echo proc";
    let (said, _) = printed(bench, &folder, &way, line)?;
    ensure!(said == "old\nproc\n", "{said:?}");
    ensure!(fs::read(folder.join("file"))? == b"new\n");
    let root = format!("{}:ro", folder.display());
    let line = "cat /file; (echo no >/file) 2>/dev/null || echo refused";
    let output = guest(bench, &root, &way, line).output()?;
    ended_well(&output)?;
    ensure!(output.stdout == b"new\nrefused\n", "{}", shown(&output));
    ensure!(fs::read(folder.join("file"))? == b"new\n");
    Ok(())
}

fn large(bench: &Bench) -> Result<()> {
    let folder = folder(bench, "roots-large")?;
    fs::File::create(folder.join("large"))?.set_len(150 << 20)?;
    let line = "stat -f -c %t /; stat -c %s /large";
    let (said, errors) = printed(bench, &folder, &["--mem", "64M"], line)?;
    ensure!(said == "ef53\n157286400\n", "{said:?}");
    ensure!(errors.contains("is a private disk"), "{errors:?}");
    // The disk is in the cache, and goes on demand.
    let cache = |words: &[&str]| -> Result<String> {
        let output = cached(bench, &[&["cache"][..], words].concat()).output()?;
        ended_well(&output)?;
        Ok(text(&output.stdout))
    };
    let name = format!("the root {}, as a disk", folder.display());
    ensure!(cache(&[])?.contains(&name), "{}", cache(&[])?);
    let kept = cache(&["--prune", "--older", "1"])?;
    ensure!(!kept.contains(&name), "{kept}");
    let removed = cache(&["--prune"])?;
    ensure!(removed.contains(&name), "{removed}");
    ensure!(!cache(&[])?.contains(&name));
    Ok(())
}

fn waits(bench: &Bench) -> Result<()> {
    let folder = folder(bench, "roots-wait")?;
    let images = bench.path("roots-cache/images");
    fs::create_dir_all(&images)?;
    let lock = fs::File::create(images.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let root = folder.display().to_string();
    let mut child = guest(bench, &root, &["--root-by", "ext2"], "echo up").spawn()?;
    let errors = child.stderr.take().context("no pipe")?;
    let mut line = String::new();
    // It stays open: more lines follow.
    let mut errors = BufReader::new(errors);
    errors.read_line(&mut line)?;
    drop(lock);
    let mut said = String::new();
    let mut output = child.stdout.take().context("no pipe")?;
    output.read_to_string(&mut said)?;
    let ended = child.wait()?;
    let me = format!("process {} (", std::process::id());
    ensure!(
        line.contains(&me) && line.contains("waiting"),
        "{line:?}, {ended}"
    );
    ensure!(said == "up\n", "{said:?}");
    Ok(())
}
