//! `causeway root debian`: a folder with Debian's own packages, installed as Debian installs them.
//!
//! Debian's `mmdebstrap` does the work: apt resolves the packages with the sources of this
//! machine, dpkg unpacks it, and every package's own scripts configure it inside the new root. So
//! the users, alternatives, caches and dpkg's database in it are those of a real Debian. It runs as
//! root, or as an ordinary user in a user namespace.
//!
//! The user's cache folder keeps the packages, and the finished root of each set of packages as one
//! tar file, so that the same root again is only unpacked, without a network.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{MARK, cache};

/// The packages of a root when the user names none.
pub const DEFAULT: [&str; 12] = [
    "bash",
    "coreutils",
    "findutils",
    "grep",
    "mount",
    "sed",
    "gawk",
    "tar",
    "gzip",
    "procps",
    "python3",
    "sqlite3",
];

/// Debian 12.
const SUITE: &str = "bookworm";
/// The program that installs the packages, and its package's name.
const INSTALLER: &str = "mmdebstrap";
/// The last step of making a root, after the packages' own scripts.
const FINISH: &str = include_str!("debian-finish.sh");
/// The scripts of packages that care about the machine look here.
const APT_FOLDER: &str = "/var/cache/apt/archives/";

/// Makes `folder` a root with `packages` and all that Debian calls essential.
///
/// A folder that is there already must be empty, or, with `replace`, a root that this made. With
/// `fresh`, the packages are looked up anew although this set was installed before.
///
/// # Errors
/// A sentence with the reason: a package that does not exist, no network, a folder that
/// is something else.
pub fn make(folder: &Path, packages: &[String], replace: bool, fresh: bool) -> Result<()> {
    check_place(folder, replace)?;
    let packages = checked_names(packages)?;
    let cache = cache::folder("debian")?;
    let _lock = cache::lock(&cache)?;
    let recipe = Recipe::new(packages)?;
    let tar = cache.join(recipe.name());
    if fresh || !tar.is_file() {
        recipe.install(&cache, &tar)?;
    }
    unpack(&tar, folder)?;
    println!(
        "{}: Debian {SUITE} with {}",
        folder.display(),
        recipe.packages.join(" ")
    );
    Ok(())
}

/// Refuses a folder that holds something that is not to be lost.
fn check_place(folder: &Path, replace: bool) -> Result<()> {
    let Ok(there) = fs::symlink_metadata(folder) else {
        return Ok(());
    };
    if !there.is_dir() {
        bail!("{} is there and is not a folder", folder.display());
    }
    let cannot = || format!("cannot read {}", folder.display());
    if folder.join(MARK).is_file() {
        if replace {
            return Ok(());
        }
        bail!(
            "{} is a root already; --replace makes it anew",
            folder.display()
        );
    }
    if fs::read_dir(folder).with_context(cannot)?.next().is_some() {
        bail!(
            "{} is there and is not a root that causeway made; name a new or an empty folder",
            folder.display()
        );
    }
    Ok(())
}

/// The packages, sorted, each once; the default ones if none are named.
fn checked_names(packages: &[String]) -> Result<Vec<String>> {
    let mut names: Vec<String> = if packages.is_empty() {
        DEFAULT.iter().map(ToString::to_string).collect()
    } else {
        packages.to_vec()
    };
    for name in &names {
        let (package, architecture) = name.split_once(':').unwrap_or((name, "amd64"));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
        let starts_well = package.starts_with(|c: char| c.is_ascii_alphanumeric());
        if package.len() < 2 || !starts_well || !package.chars().all(plain) {
            bail!("`{name}` is not the name of a Debian package");
        }
        if !["amd64", "i386"].contains(&architecture) {
            bail!("`{name}`: only packages for amd64 and i386 can run");
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The packages to install, and their source.
struct Recipe {
    packages: Vec<String>,
    /// Files that name apt's sources; none for Debian's usual ones.
    sources: Vec<PathBuf>,
}

impl Recipe {
    /// The packages from this machine's own sources if it runs the same Debian.
    fn new(packages: Vec<String>) -> Result<Self> {
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let same = system
            .lines()
            .any(|line| line == format!("VERSION_CODENAME={SUITE}"));
        let mut sources = Vec::new();
        if same {
            sources.extend(list(Path::new("/etc/apt/sources.list.d"))?);
            sources.push("/etc/apt/sources.list".into());
            sources.retain(|file| names_suite(file));
        }
        Ok(Self { packages, sources })
    }

    /// The name of the finished root in the cache: another one for each thing that may change it.
    fn name(&self) -> String {
        let mut hash = DefaultHasher::new();
        (&self.packages, SUITE, FINISH).hash(&mut hash);
        for file in &self.sources {
            fs::read(file).unwrap_or_default().hash(&mut hash);
        }
        format!("{:016x}.tar", hash.finish())
    }

    /// Installs the packages and writes the root to `tar`.
    fn install(&self, cache: &Path, tar: &Path) -> Result<()> {
        let packages = cache.join("packages");
        fs::create_dir_all(&packages)
            .with_context(|| format!("cannot make {}", packages.display()))?;
        let settings = cache.join("apt.conf");
        fs::write(&settings, apt_settings()?)?;
        let new = tar.with_extension("tar.new");
        let mut install = Command::new(INSTALLER);
        install.args(["--variant=essential", "--format=tar", "--components=main"]);
        if self.packages.iter().any(|name| name.ends_with(":i386")) {
            install.arg("--architectures=amd64,i386");
        }
        install.arg(format!("--include={}", self.packages.join(",")));
        install.arg(word("--aptopt=", &settings));
        // The packages of earlier times go in, all of them come out; the guest has a /dev of its
        // own.
        install.arg("--skip=download/empty,essential/unlink,output/dev");
        install.arg(format!("--setup-hook=mkdir -p \"$1\"{APT_FOLDER}"));
        let quoted = format!(
            "'{}'",
            packages.display().to_string().replace('\'', "'\\''")
        );
        install.arg(format!("--setup-hook=sync-in {quoted} {APT_FOLDER}"));
        install.arg(format!("--customize-hook=sync-out {APT_FOLDER} {quoted}"));
        install.arg(format!("--customize-hook={FINISH}"));
        install.arg(SUITE).arg(&new).args(&self.sources);
        install
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = install.spawn().with_context(|| {
            format!(
                "cannot run {INSTALLER}: install Debian's package {INSTALLER} \
                 (`make setup-debian` does)"
            )
        })?;
        let mut said = Vec::new();
        for line in child.stderr.take().into_iter().flat_map(|pipe| {
            BufReader::new(pipe)
                .split(b'\n')
                .map_while(std::result::Result::ok)
        }) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if let Some(step) = progress(&line) {
                eprintln!("causeway: {step}");
            }
            said.push(line);
        }
        if !child.wait()?.success() {
            let _ = fs::remove_file(&new);
            bail!("{}", explain(&said));
        }
        fs::rename(&new, tar).with_context(|| format!("cannot write {}", tar.display()))
    }
}

/// The step that a line of the installer's announces, if it takes long enough to be told.
fn progress(line: &str) -> Option<&str> {
    const STEPS: [&str; 4] = [
        "running apt-get update...",
        "downloading packages with apt...",
        "installing essential packages...",
        "installing remaining packages inside the chroot...",
    ];
    let step = line.strip_prefix("I: ")?;
    STEPS.contains(&step).then(|| step.trim_end_matches('.'))
}

/// The reason of the installer's failure, from its output: a sentence where the cause is known, and
/// its own errors else.
fn explain(said: &[String]) -> String {
    let find = |text: &str| said.iter().find(|line| line.contains(text));
    let unknown: Vec<&str> = said
        .iter()
        .filter_map(|line| {
            let missing = line.split_once("Unable to locate package ");
            let absent = || line.split_once("has no installation candidate");
            missing
                .map(|(_, name)| name.trim())
                .or_else(|| absent().and_then(|(start, _)| start.split('\'').nth(1)))
        })
        .collect();
    if !unknown.is_empty() {
        return format!("Debian {SUITE} has no package {}", unknown.join(", "));
    }
    let unreachable = [
        "Temporary failure resolving",
        "Could not resolve",
        "Could not connect",
        "Cannot initiate the connection",
        "Failed to fetch",
    ];
    if let Some(line) = unreachable.iter().find_map(|text| find(text)) {
        return format!(
            "the package server cannot be reached, and this set of packages has not been \
             installed here before: {}",
            line.trim()
        );
    }
    if find("newuidmap").is_some() || find("subuid").is_some() {
        return "this needs root, or a user with subordinate ids: install Debian's package uidmap \
                and add a line for this user to /etc/subuid and /etc/subgid (`usermod \
                --add-subuids 100000-165535 --add-subgids 100000-165535 USER`)"
            .into();
    }
    let own: Vec<&str> = said
        .iter()
        .map(|line| line.trim_end())
        .filter(|line| !line.is_empty() && !line.starts_with("I: "))
        .collect();
    let last = &own[own.len().saturating_sub(12)..];
    format!("{INSTALLER} failed:\n  {}", last.join("\n  "))
}

/// How apt on this machine fetches (proxies, checks of dates), for the apt that installs.
fn apt_settings() -> Result<String> {
    let output = Command::new("apt-config")
        .args(["dump", "--format", "%F \"%v\";%n", "Acquire"])
        .stderr(Stdio::null())
        .output()
        .context("there is no apt here: a Debian root is made of packages that apt fetches")?;
    let settings = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(settings
        .lines()
        // The machine's other settings for packages do not apply to a root.
        .filter(|line| {
            !["::IndexTargets", "::Changelogs", "::cdrom"]
                .iter()
                .any(|of| line.contains(of))
        })
        .filter(|line| !line.ends_with(" \"\";"))
        .flat_map(|line| [line, "\n"])
        .collect())
}

/// The files of a folder in order; none if there is no such folder.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// Whether apt would read this file, and finds the suite in it.
fn names_suite(file: &Path) -> bool {
    let known = file
        .extension()
        .is_some_and(|extension| extension == "list" || extension == "sources");
    let text = fs::read_to_string(file).unwrap_or_default();
    let words = || {
        text.lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .flat_map(str::split_ascii_whitespace)
    };
    known && words().any(|word| word == SUITE || word.starts_with(&format!("{SUITE}-")))
}

/// Unpacks a finished root beside `folder`, and puts it in its place.
fn unpack(tar: &Path, folder: &Path) -> Result<()> {
    let absolute = std::path::absolute(folder)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        bail!("{} cannot be a root", folder.display());
    };
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let beside = |suffix: &str| {
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{suffix}.{}", std::process::id()));
        parent.join(new)
    };
    let new = beside("new");
    fs::create_dir(&new).with_context(|| format!("cannot make {}", new.display()))?;
    let output = Command::new("tar")
        .args(["--extract", "--preserve-permissions", "--numeric-owner"])
        .arg("--file")
        .arg(tar)
        .arg("--directory")
        .arg(&new)
        .stdin(Stdio::null())
        .output()
        .context("cannot run tar")?;
    if !output.status.success() {
        let _ = fs::remove_dir_all(&new);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!(
            "cannot unpack the root into {}: {}",
            folder.display(),
            why.trim()
        );
    }
    let old = beside("old");
    let cannot = || format!("cannot put the root into {}", folder.display());
    let was_there = absolute.is_dir();
    if was_there {
        fs::rename(&absolute, &old).with_context(cannot)?;
    }
    fs::rename(&new, &absolute).with_context(cannot)?;
    if was_there {
        fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    // The tar file's time says when the root was last used.
    let _ = File::open(tar).and_then(|file| file.set_modified(std::time::SystemTime::now()));
    Ok(())
}

/// An option with a path as its value.
fn word(option: &str, path: &Path) -> OsString {
    let mut word = OsString::from(option);
    word.push(path);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            checked_names(&names)
        };
        assert_eq!(names(&["git", "g++", "git"]).unwrap(), ["g++", "git"]);
        assert_eq!(names(&[]).unwrap().len(), DEFAULT.len());
        names(&["busybox-static:i386"]).unwrap();
        for bad in ["-o", "a b", "?essential", "x", "Git", "git:arm64", ""] {
            assert!(names(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn failures_are_explained() {
        let said = |text: &str| explain(&text.lines().map(Into::into).collect::<Vec<_>>());
        assert_eq!(
            said("I: x\nE: Unable to locate package foo\nE: apt-get failed"),
            "Debian bookworm has no package foo"
        );
        assert!(said("E: Package 'bar' has no installation candidate").ends_with("package bar"));
        assert!(said("W: Temporary failure resolving 'x'").contains("cannot be reached"));
        assert!(said("I: a\nE: something else").ends_with("E: something else"));
    }

    #[test]
    fn only_roots_and_empty_folders_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert!(check_place(&at.join("none"), false).is_ok());
        assert!(check_place(at, false).is_ok());
        fs::write(at.join("file"), "mine").unwrap();
        assert!(check_place(at, true).is_err());
        assert!(check_place(&at.join("file"), true).is_err());
        fs::write(at.join(MARK), "causeway-root 1\n").unwrap();
        assert!(check_place(at, false).is_err());
        assert!(check_place(at, true).is_ok());
    }
}
