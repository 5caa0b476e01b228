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
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::installer_output::{Progress, explain};
use super::progress::Step;
use super::{MARK, Root, cache};

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
pub(super) const SUITE: &str = "bookworm";
/// The program that installs the packages, and its package's name.
pub(super) const INSTALLER: &str = "mmdebstrap";
/// The first step: are there such packages, and how many?
const LOOK: &str = include_str!("debian-look.sh");
/// The last step of making a root, after the packages' own scripts.
const FINISH: &str = concat!(
    include_str!("debian-finish.sh"),
    include_str!("debian-mark.sh")
);
/// The mark alone, of a root that exists, and the steps before it.
const MARK_AGAIN: &str = concat!(
    "set -eu\nroot=$1\nexport LC_ALL=C\n\
     rm -rf \"$root/etc/apt/apt.conf.d/99mmdebstrap\" \"$root/var/cache/apt/archives/\"*.deb\n",
    include_str!("debian-mark.sh")
);
const OWNERS: &str = include_str!("debian-owners.sh");
const ADD: &str = include_str!("debian-add.sh");
/// The scripts of packages that care about the machine look here.
const APT_FOLDER: &str = "/var/cache/apt/archives/";

/// What to do with a folder that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum There {
    /// It must be empty.
    Refuse,
    /// A root that this made goes.
    Replace,
    /// The packages are installed in a root that this made, whose files stay.
    Add,
}

impl There {
    /// Of the options `--add` and `--replace`.
    pub fn of(add: bool, replace: bool) -> Self {
        match (add, replace) {
            (true, _) => Self::Add,
            (_, true) => Self::Replace,
            _ => Self::Refuse,
        }
    }
}

/// For which processors a root's programs are, but for packages that name another architecture.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Architecture {
    #[default]
    Amd64,
    /// 32-bit programs.
    I386,
}

impl Architecture {
    /// Debian's word for it.
    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::I386 => "i386",
        }
    }

    /// That of a root that was made.
    fn of(root: &Path) -> Self {
        let arch = fs::read_to_string(root.join("var/lib/dpkg/arch")).unwrap_or_default();
        match arch.lines().next() {
            Some("i386") => Self::I386,
            _ => Self::Amd64,
        }
    }
}

/// Makes `folder` a root with `packages` and all that Debian calls essential, or adds packages to
/// it, which has its own architecture.
///
/// With `fresh`, the packages are looked up anew although this set was installed before.
///
/// # Errors
/// A sentence with the reason: a package that does not exist, no network, a folder that
/// is something else.
pub fn make(
    folder: &Path,
    packages: &[String],
    architecture: Architecture,
    there: There,
    fresh: bool,
) -> Result<()> {
    if there == There::Add {
        return add(folder, packages);
    }
    check_place(folder, there == There::Replace)?;
    let packages = checked_names(packages, architecture)?;
    let cache = cache::folder("debian")?;
    let _lock = cache::lock(&cache)?;
    let recipe = Recipe::new(packages, architecture)?;
    let tar = cache.join(recipe.name());
    if fresh || !tar.is_file() {
        recipe.install(&cache, &tar)?;
        // What `causeway cache` shows.
        let _ = fs::write(tar.with_extension("packages"), recipe.packages.join(" "));
    }
    unpack(&tar, folder)?;
    let kind = match architecture {
        Architecture::Amd64 => "",
        Architecture::I386 => " for i386",
    };
    println!(
        "{}: Debian {SUITE}{kind} with {}",
        folder.display(),
        recipe.packages.join(" ")
    );
    Ok(())
}

/// Installs packages in a root that [`make`] made. Its other files stay as they are.
fn add(folder: &Path, packages: &[String]) -> Result<()> {
    let status = folder.join("var/lib/dpkg/status");
    if !folder.join(MARK).is_file() || !status.is_file() {
        bail!(
            "{} is no root that `causeway root debian` made: nothing can be added to it",
            folder.display()
        );
    }
    let status =
        fs::read_to_string(&status).with_context(|| format!("cannot read {}", status.display()))?;
    let architecture = Architecture::of(folder);
    let mut packages = checked_names(packages, architecture)?;
    packages.retain(|name| !is_installed(&status, name, architecture));
    if packages.is_empty() {
        println!("{}: all of these packages are installed", folder.display());
        return Ok(());
    }
    let cache = cache::folder("debian")?;
    let _lock = cache::lock(&cache)?;
    let recipe = Recipe::new(packages, architecture)?;
    let temporary = tempfile::tempdir_in(&cache).context("cannot make a temporary folder")?;
    let (old, new) = (temporary.path().join("old"), temporary.path().join("new"));
    pack(folder, &old)?;
    recipe.add(&cache, &old, &new)?;
    drop(fs::remove_file(&old));
    unpack(&new, folder)?;
    println!("{}: added {}", folder.display(), recipe.packages.join(" "));
    Ok(())
}

/// Whether the database of dpkg in a root of this architecture says that a package is installed.
fn is_installed(status: &str, name: &str, native: Architecture) -> bool {
    let (name, architecture) = name.split_once(':').unwrap_or((name, native.name()));
    status.split("\n\n").any(|package| {
        let is = |line: String| package.lines().any(|other| other == line);
        is(format!("Package: {name}"))
            && is("Status: install ok installed".into())
            && (is(format!("Architecture: {architecture}")) || is("Architecture: all".into()))
    })
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
            "{} is a root already; --add installs more packages in it, --replace makes it anew",
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

/// The packages for a root of this architecture, sorted, each once; the default ones if none are
/// named.
fn checked_names(packages: &[String], native: Architecture) -> Result<Vec<String>> {
    let mut names: Vec<String> = if packages.is_empty() {
        DEFAULT.iter().map(ToString::to_string).collect()
    } else {
        packages.to_vec()
    };
    for name in &names {
        let (package, architecture) = name.split_once(':').unwrap_or((name, native.name()));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
        let starts_well = package.starts_with(|c: char| c.is_ascii_alphanumeric());
        if package.len() < 2 || !starts_well || !package.chars().all(plain) {
            bail!("`{name}` is not the name of a Debian package");
        }
        if !["amd64", "i386"].contains(&architecture) {
            bail!("`{name}`: only packages for amd64 and i386 can run");
        }
        if native == Architecture::I386 && architecture == "amd64" {
            bail!("`{name}`: a root for i386 has no packages for amd64");
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The packages to install, and their source.
struct Recipe {
    packages: Vec<String>,
    architecture: Architecture,
    /// Files that name apt's sources; none for Debian's usual ones.
    sources: Vec<PathBuf>,
}

impl Recipe {
    /// The packages from this machine's own sources if it runs the same Debian.
    fn new(packages: Vec<String>, architecture: Architecture) -> Result<Self> {
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
        Ok(Self {
            packages,
            architecture,
            sources,
        })
    }

    /// The name of the finished root in the cache: another one for each thing that may change it.
    fn name(&self) -> String {
        let mut hash = DefaultHasher::new();
        (&self.packages, SUITE, FINISH).hash(&mut hash);
        if self.architecture != Architecture::default() {
            self.architecture.name().hash(&mut hash);
        }
        for file in &self.sources {
            fs::read(file).unwrap_or_default().hash(&mut hash);
        }
        format!("{:016x}.tar", hash.finish())
    }

    /// Installs the packages and writes the root to `tar`.
    fn install(&self, cache: &Path, tar: &Path) -> Result<()> {
        let mut install = self.installer(cache)?;
        install.arg("--variant=essential");
        install.arg(format!("--include={}", self.packages.join(",")));
        install.arg(format!("--setup-hook={}", self.script("?essential", LOOK)));
        install.arg(format!("--customize-hook={FINISH}"));
        self.run(install, tar)
    }

    /// Installs the packages in the root that is packed in `old`, and writes it to `new`.
    fn add(&self, cache: &Path, old: &Path, new: &Path) -> Result<()> {
        let mut install = self.installer(cache)?;
        install.arg("--variant=custom");
        install.arg(format!("--setup-hook=tar-in {} /", quoted(old)));
        install.arg(format!("--setup-hook={OWNERS}"));
        if self.is_mixed() {
            let i386 = "dpkg --root=\"$1\" --add-architecture i386";
            install.arg(format!("--setup-hook={i386}"));
        }
        install.arg(format!("--setup-hook={}", self.script("", LOOK)));
        install.arg(format!("--customize-hook={}", self.script("", ADD)));
        install.arg(format!("--customize-hook={MARK_AGAIN}"));
        self.run(install, new)
    }

    /// Whether there are packages for 32-bit programs beside others.
    fn is_mixed(&self) -> bool {
        self.architecture == Architecture::Amd64
            && self.packages.iter().any(|name| name.ends_with(":i386"))
    }

    /// A script with its variables set.
    fn script(&self, essential: &str, script: &str) -> String {
        let packages = self.packages.join(" ");
        format!("essential='{essential}' packages='{packages}'\n{script}")
    }

    /// The installer with the options of all its uses.
    fn installer(&self, cache: &Path) -> Result<Command> {
        let packages = cache.join("packages");
        fs::create_dir_all(&packages)
            .with_context(|| format!("cannot make {}", packages.display()))?;
        let settings = cache.join("apt.conf");
        fs::write(&settings, apt_settings()?)?;
        let mut install = Command::new(INSTALLER);
        install.args(["--verbose", "--format=tar", "--components=main"]);
        if self.is_mixed() {
            install.arg("--architectures=amd64,i386");
        } else {
            install.arg(format!("--architectures={}", self.architecture.name()));
            // Packages' scripts run on this machine's processor, which has both modes: nothing is
            // emulated, and no program need look.
            install.arg("--skip=check/qemu");
        }
        install.arg(word("--aptopt=", &settings));
        // The packages of earlier times go in, all of them come out; the guest has a /dev of its
        // own. The first step fetches the lists.
        install.arg("--skip=download/empty,essential/unlink,output/dev,update");
        install.arg(format!("--setup-hook=mkdir -p \"$1\"{APT_FOLDER}"));
        let quoted = quoted(&packages);
        install.arg(format!("--setup-hook=sync-in {quoted} {APT_FOLDER}"));
        install.arg(format!("--customize-hook=sync-out {APT_FOLDER} {quoted}"));
        Ok(install)
    }

    /// Runs the installer, which writes the root to `tar`, and shows its progress.
    fn run(&self, mut install: Command, tar: &Path) -> Result<()> {
        let new = tar.with_extension("tar.new");
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
        let (mut said, mut progress) = (Vec::new(), Progress::default());
        for line in child.stderr.take().into_iter().flat_map(|pipe| {
            BufReader::new(pipe)
                .split(b'\n')
                .map_while(std::result::Result::ok)
        }) {
            let line = String::from_utf8_lossy(&line).into_owned();
            progress.line(&line);
            said.push(line);
        }
        drop(progress);
        if !child.wait()?.success() {
            let _ = fs::remove_file(&new);
            bail!("{}", explain(&said));
        }
        fs::rename(&new, tar).with_context(|| format!("cannot write {}", tar.display()))
    }
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
    let mut extract = Command::new("tar");
    extract.args(["--extract", "--preserve-permissions", "--numeric-owner"]);
    extract.arg("--directory").arg(&new).stdin(Stdio::piped());
    let from = File::open(tar).with_context(|| format!("cannot read {}", tar.display()))?;
    let what = format!("unpacking the root into {}", folder.display());
    let step = Step::bytes(&what, from.metadata()?.len());
    let extracted = with_tar(extract, |child| {
        let to = child.stdin.take().context("no pipe to tar")?;
        copy(from, to, &step)
    });
    drop(step);
    if let Err(why) = extracted {
        let _ = fs::remove_dir_all(&new);
        bail!("cannot unpack the root into {}: {why}", folder.display());
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

/// Packs a root into `tar`. Files that belong to the user who runs this belong to root there, if
/// that is not root.
fn pack(folder: &Path, tar: &Path) -> Result<()> {
    let mut create = Command::new("tar");
    create.args(["--create", "--numeric-owner", "--one-file-system"]);
    if !rustix::process::geteuid().is_root() {
        create.args(["--owner=0", "--group=0"]);
    }
    create.arg("--directory").arg(folder).arg(".");
    create.stdin(Stdio::null()).stdout(Stdio::piped());
    let to = File::create(tar).with_context(|| format!("cannot create {}", tar.display()))?;
    let what = format!("reading the root {}", folder.display());
    let step = Step::bytes(&what, Root::folder(folder)?.bytes());
    with_tar(create, |child| {
        let from = child.stdout.take().context("no pipe from tar")?;
        copy(from, to, &step)
    })
    .with_context(|| format!("cannot pack the root {}", folder.display()))
}

/// Runs `tar`, with `move_bytes` at the other end of its pipe.
fn with_tar(mut tar: Command, move_bytes: impl FnOnce(&mut Child) -> Result<()>) -> Result<()> {
    // A file has room for any number of complaints while the bytes move.
    let complaints = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    tar.stderr(complaints.reopen()?);
    let mut child = tar.spawn().context("cannot run tar")?;
    let moved = move_bytes(&mut child);
    if !child.wait()?.success() {
        let why = fs::read(complaints.path()).unwrap_or_default();
        bail!("{}", String::from_utf8_lossy(&why).trim());
    }
    moved
}

/// Copies all bytes, and shows how many they are.
fn copy(mut from: impl Read, mut to: impl Write, step: &Step) -> Result<()> {
    let (mut buffer, mut bytes) = (vec![0; 1 << 18], 0);
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
        step.reach(bytes);
    }
}

/// A path as a word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
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
            checked_names(&names, Architecture::Amd64)
        };
        assert_eq!(names(&["git", "g++", "git"]).unwrap(), ["g++", "git"]);
        assert_eq!(names(&[]).unwrap().len(), DEFAULT.len());
        names(&["busybox-static:i386"]).unwrap();
        for bad in ["-o", "a b", "?essential", "x", "Git", "git:arm64", ""] {
            assert!(names(&[bad]).is_err(), "{bad}");
        }
        let narrow = |name: &str| checked_names(&[name.into()], Architecture::I386);
        assert!(narrow("bash").is_ok() && narrow("bash:i386").is_ok());
        assert!(narrow("bash:amd64").is_err());
    }

    #[test]
    fn installed_packages_are_known() {
        let status = "Package: git\nStatus: install ok installed\nArchitecture: amd64\n\n\
                      Package: vim\nStatus: deinstall ok config-files\nArchitecture: amd64\n\n\
                      Package: netbase\nArchitecture: all\nStatus: install ok installed\n";
        let installed = |name: &str| is_installed(status, name, Architecture::Amd64);
        assert_eq!(["git", "netbase", "git:amd64"].map(installed), [true; 3]);
        assert_eq!(["gi", "vim", "git:i386"].map(installed), [false; 3]);
        let installed = |name: &str| is_installed(status, name, Architecture::I386);
        assert_eq!(["git", "netbase"].map(installed), [false, true]);
    }

    #[test]
    fn nothing_is_added_to_other_folders() {
        let folder = tempfile::tempdir().unwrap();
        let error = add(folder.path(), &["zip".into()]).unwrap_err();
        assert!(
            error.to_string().contains("causeway root debian"),
            "{error}"
        );
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
