//! Another state of this source, built to be held against (`--against REV`).
//!
//! Its source stands in a git worktree for as long as the build takes; the kernel stays, so that
//! the next comparison with it starts at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::project::{self, Profile};

/// A revision's kernel.
#[derive(Debug)]
pub struct Revision {
    /// The commit, abbreviated.
    pub commit: String,
    /// The kernel's file.
    pub kernel: PathBuf,
}

impl Revision {
    /// Whether its command line has `mitigations=`: older ones have none, and refuse the option.
    pub fn has_mitigations(&self, home: &Path) -> bool {
        self.has(home, "nucleus/src/switches.rs", "\"mitigations\"")
    }

    /// Whether its command line has `md=`, likewise.
    pub fn has_memory_disks(&self, home: &Path) -> bool {
        self.has(home, "kernel/src/start/command_line.rs", "\"md\"")
    }

    fn has(&self, home: &Path, file: &str, word: &str) -> bool {
        let file = format!("{}:{file}", self.commit);
        git(home, &["show", &file]).is_ok_and(|text| text.contains(word))
    }
}

/// The kernel of a revision as git names it (`HEAD~3`, a tag, a commit), built if it is not there
/// yet.
///
/// # Errors
/// When git knows no such revision, or it does not build.
pub fn kernel(home: &Path, name: &str) -> Result<Revision> {
    let commit = commit_of(home, name)?;
    let folder = home.join("target/revisions");
    let kernel = folder.join(format!("causeway-kernel-{commit}"));
    if !kernel.is_file() {
        let source = folder.join(&commit);
        eprintln!("causeway: building the kernel of {commit} ({name})");
        let worktree = Worktree::add(home, &source, &commit)?;
        let built = project::kernel_of(&source, &folder.join("target"), Profile::Release)
            .with_context(|| format!("the kernel of {name} ({commit})"))?;
        // A copy that is there whole or not at all.
        let new = kernel.with_extension("new");
        fs::copy(&built, &new).with_context(|| format!("cannot copy {}", built.display()))?;
        fs::rename(&new, &kernel)?;
        drop(worktree);
    }
    Ok(Revision { commit, kernel })
}

/// Returns the commit of this program's source, with `+` behind it when the source was changed
/// since, or `None` outside of git.
pub fn current(home: &Path) -> Option<String> {
    let commit = commit_of(home, "HEAD").ok()?;
    let changed = git(home, &["status", "--porcelain", "--untracked-files=no"]).ok()?;
    Some(if changed.is_empty() {
        commit
    } else {
        commit + "+"
    })
}

fn commit_of(home: &Path, name: &str) -> Result<String> {
    let commit = format!("{name}^{{commit}}");
    git(
        home,
        &[
            "rev-parse",
            "--verify",
            "--quiet",
            "--short=12",
            "--end-of-options",
            &commit,
        ],
    )
    .with_context(|| {
        format!("--against {name}: neither causeway, linux, none nor a revision that git knows")
    })
}

/// A checked-out source, which goes when this is dropped.
struct Worktree<'a> {
    home: &'a Path,
    at: &'a Path,
}

impl<'a> Worktree<'a> {
    fn add(home: &'a Path, at: &'a Path, commit: &str) -> Result<Self> {
        let path = at.to_string_lossy();
        // One that an interrupted build left behind.
        if at.exists() {
            git(home, &["worktree", "remove", "--force", &path])
                .or_else(|_| fs::remove_dir_all(at).map(|()| String::new()))?;
        }
        git(home, &["worktree", "prune"])?;
        git(
            home,
            &["worktree", "add", "--detach", "--force", &path, commit],
        )?;
        Ok(Self { home, at })
    }
}

impl Drop for Worktree<'_> {
    fn drop(&mut self) {
        // A worktree that stays behind is removed by the next build.
        let _ = git(
            self.home,
            &["worktree", "remove", "--force", &self.at.to_string_lossy()],
        );
    }
}

/// Returns git's output without its last newline.
fn git(home: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(home)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {} {}", words[0], output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_comes_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let run = |words: &[&str]| git(&home, words).unwrap();
        run(&["init", "--quiet"]);
        assert_eq!(current(&home), None, "nothing is committed");
        let commit = |text: &str| {
            fs::write(home.join("file"), text).unwrap();
            run(&["add", "file"]);
            run(&[
                "-c",
                "user.name=n",
                "-c",
                "user.email=e@x",
                "commit",
                "--quiet",
                "-m",
                "m",
            ]);
        };
        commit("old");
        commit("new");
        assert!(current(&home).is_some_and(|commit| commit.len() == 12));
        fs::write(home.join("file"), "changed").unwrap();
        assert!(current(&home).is_some_and(|commit| commit.ends_with('+')));

        let old = commit_of(&home, "HEAD~1").unwrap();
        let at = folder.path().join("old");
        for _ in 0..2 {
            let worktree = Worktree::add(&home, &at, &old).unwrap();
            assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "old");
            std::mem::forget(worktree); // As when the program is killed.
        }
        drop(Worktree::add(&home, &at, &old).unwrap());
        assert!(!at.exists());
        let error = format!("{:#}", kernel(&home, "--output=x").unwrap_err());
        assert!(error.contains("a revision that git knows"), "{error}");
    }
}
