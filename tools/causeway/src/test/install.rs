//! Installing: `make install` below a folder, a guest by the installed program where neither the
//! source nor a compiler can be found, its manual and completion scripts, `make uninstall`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, shown, text};
use crate::outcome;
use crate::project;
use crate::qemu::QEMU;

/// Where the user wants it, and a folder that stands for the machine's root.
const PREFIX: &str = "/opt/cause way";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("install") {
        return;
    }
    let staged = match staged(bench) {
        Ok(staged) => staged,
        Err(why) => return report.note("install: make install", Err(why)),
    };
    report.note("install: make install", Ok(()));
    report.run("install: a guest without the source", || guest(&staged));
    report.run("install: what needs the source says so", || {
        needs_source(&staged)
    });
    report.run("install: completion scripts", || completion(&staged));
    report.run("install: manual", || manual(&staged));
    report.run("install: make uninstall", || uninstall(&staged));
}

/// An installed program.
struct Staged {
    source: PathBuf,
    /// The folder that stands for the machine's root.
    root: PathBuf,
    /// The prefix in it.
    prefix: PathBuf,
    /// The only folder on the PATH.
    path: PathBuf,
}

impl Staged {
    /// Calls make for the prefix in the folder that stands for the machine's root, or for another
    /// prefix as it is.
    fn make(&self, target: &str, other: Option<&Path>) -> Result<()> {
        let mut make = Command::new("make");
        match other {
            Some(prefix) => make.arg(format!("PREFIX={}", prefix.display())),
            None => make
                .arg(format!("PREFIX={PREFIX}"))
                .arg(format!("DESTDIR={}", self.root.display())),
        };
        let output = make
            .args([target, "BUILD=debug"])
            .current_dir(&self.source)
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .stdin(Stdio::null())
            .output()
            .context("cannot run make")?;
        ensure!(output.status.success(), "{}", shown(&output));
        Ok(())
    }

    /// The program as a user calls it who has neither the source nor a compiler. Where the system
    /// lets us, an empty folder hides the source from it.
    fn run(&self, words: &[&str]) -> Result<Output> {
        let program = self.prefix.join("bin/causeway");
        let hide = "mount -t tmpfs none \"$0\" && exec \"$@\"";
        let unshare = ["--user", "--map-root-user", "--mount", "sh", "-c", hide];
        let may_hide = Command::new("unshare")
            .args(unshare)
            .arg(&self.source)
            .arg("true")
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        let mut command = if may_hide {
            let mut command = Command::new("unshare");
            command.args(unshare).arg(&self.source).arg("env");
            command
        } else {
            println!("  the source cannot be hidden here");
            Command::new("env")
        };
        command
            .arg("-i")
            .arg(format!("PATH={}", self.path.display()))
            .arg(format!("HOME={}", self.root.display()))
            .arg(program)
            .args(words)
            .current_dir("/")
            .stdin(Stdio::null());
        Ok(command.output()?)
    }
}

/// Installs it.
fn staged(bench: &Bench) -> Result<Staged> {
    let root = bench.fresh_folder("staged")?;
    let path = bench.fresh_folder("staged-path")?;
    for program in [QEMU, "setpriv"] {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&folders).map(|folder| folder.join(program));
        if let Some(found) = found.into_iter().find(|file| file.is_file()) {
            symlink(found, path.join(program))?;
        }
    }
    let staged = Staged {
        source: project::home()?,
        prefix: root.join(PREFIX.trim_start_matches('/')),
        root,
        path,
    };
    staged.make("install", None)?;
    Ok(staged)
}

fn guest(staged: &Staged) -> Result<()> {
    let output = staged.run(&["run", "--", "sh", "-c", "uname; exit 7"])?;
    let ended = output.status.code() == Some(7);
    ensure!(
        ended && output.stdout == b"Linux\n" && output.stderr.is_empty(),
        "{}",
        shown(&output)
    );
    Ok(())
}

fn needs_source(staged: &Staged) -> Result<()> {
    for words in [
        &["test"][..],
        &["test", "starts"],
        &["check"],
        &["bench"],
        &["build"],
        &["compare-linux"],
        &["run", "--profile", "checked"],
    ] {
        let output = staged.run(words)?;
        let errors = text(&output.stderr);
        let told = errors.contains("source") && errors.lines().count() == 1;
        let failed = output.status.code() == Some(outcome::FAILURE.into());
        ensure!(told && failed, "{words:?}: {}", shown(&output));
    }
    Ok(())
}

/// Each shell that is here reads its script, and bash completes by it.
fn completion(staged: &Staged) -> Result<()> {
    let share = staged.prefix.join("share");
    let bash = share.join("bash-completion/completions/causeway");
    let zsh = share.join("zsh/site-functions/_causeway");
    let fish = share.join("fish/vendor_completions.d/causeway.fish");
    for (shell, check, script) in [
        ("bash", "-n", &bash),
        ("zsh", "-n", &zsh),
        ("fish", "--no-execute", &fish),
    ] {
        ensure!(script.is_file(), "no {}", script.display());
        match Command::new(shell).arg(check).arg(script).output() {
            Ok(output) => ensure!(output.status.success(), "{shell}: {}", shown(&output)),
            Err(_) => println!("  no {shell} here to check its script"),
        }
    }
    let complete = "source \"$0\"; COMP_WORDS=(causeway \"$@\"); COMP_CWORD=$#
        _causeway causeway \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"
        echo \"${COMPREPLY[@]}\"";
    for (words, wanted) in [
        (&["imag"][..], "image\n"),
        (&["run", "--sha"], "--share\n"),
        (&["root", "debian", "--fr"], "--fresh\n"),
        (&["run", "--accel", "ic"], "icount\n"),
        (&["instal"], "\n"),
    ] {
        let mut command = Command::new("bash");
        let output = command
            .args(["-c", complete])
            .arg(&bash)
            .args(words)
            .output()?;
        let given = text(&output.stdout);
        ensure!(given == wanted, "{words:?}: {}", shown(&output));
    }
    Ok(())
}

/// Each page is set without a warning where there is groff, and shows its options.
fn manual(staged: &Staged) -> Result<()> {
    let folder = staged.prefix.join("share/man/man1");
    for entry in fs::read_dir(&folder)? {
        let page = entry?.path();
        let Some(shown) = set(&page)? else {
            println!("  no groff here to set the manual");
            return Ok(());
        };
        ensure!(shown.contains("SYNOPSIS"), "{}: {shown}", page.display());
    }
    let run = set(&folder.join("causeway-run.1"))?.unwrap_or_default();
    for part in ["--root", "EXIT STATUS", "\n       122 "] {
        ensure!(run.contains(part), "no {part:?} in {run}");
    }
    Ok(())
}

/// A page as groff sets it, if there is one.
fn set(page: &Path) -> Result<Option<String>> {
    let mut groff = Command::new("groff");
    groff
        .args(["-man", "-Tascii", "-P-cbou", "-wall"])
        .arg(page);
    let Ok(output) = groff.output() else {
        return Ok(None);
    };
    let is_clean = output.status.success() && output.stderr.is_empty();
    ensure!(is_clean, "{}: {}", page.display(), shown(&output));
    Ok(Some(text(&output.stdout)))
}

fn uninstall(staged: &Staged) -> Result<()> {
    let other = staged.prefix.join("share/man/man1/other.1");
    fs::write(&other, "")?;
    staged.make("uninstall", None)?;
    let left = files(&staged.root)?;
    ensure!(left == [other], "left: {left:?}");
    let plain = staged.root.join("plain");
    staged.make("install", Some(&plain))?;
    ensure!(plain.join("bin/causeway").is_file());
    staged.make("uninstall", Some(&plain))?;
    let left = files(&plain)?;
    ensure!(left.is_empty(), "left: {left:?}");
    ensure!(staged.make("uninstall", Some(&plain)).is_err());
    Ok(())
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}
