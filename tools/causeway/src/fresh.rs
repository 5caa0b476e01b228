//! Whether a file that cargo built is up to date, without asking cargo.
//!
//! After each build a record is kept beside the product: the conditions of the build (its command
//! line and environment, the compiler), and the state of each file that it read, as cargo lists
//! them, of the manifests and configuration files that apply, and of the product itself. A state is
//! the file's size, inode and time of last change, or that it is absent. While the record holds, a
//! build would do nothing. Where it does not hold, cargo decides.
//!
//! A file that changes during a build has a time of change that is not before the build's
//! beginning, both by the file system's clock: then no record is written.

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// The line of a record between the conditions and the states of files.
const FILES: &str = "files:";

/// What a product was made of when it was last built.
pub struct Record {
    product: PathBuf,
    file: PathBuf,
    conditions: String,
}

impl Record {
    /// The record of `product`, which is now wanted by `conditions`.
    pub fn of(product: &Path, conditions: String) -> Self {
        Self {
            product: product.into(),
            file: product.with_extension("inputs"),
            conditions,
        }
    }

    /// Whether a build under the conditions would do nothing.
    pub fn holds(&self) -> bool {
        let Ok(text) = fs::read_to_string(&self.file) else {
            return false;
        };
        let Some(files) = text
            .strip_prefix(&self.conditions)
            .and_then(|rest| rest.strip_prefix(FILES)?.strip_prefix('\n'))
        else {
            return false;
        };
        files.lines().all(|line| {
            let recorded = line.split_once(' ');
            recorded.is_some_and(|(state, path)| state == State::of(Path::new(path)).text())
        })
    }

    /// Notes that a build begins.
    ///
    /// # Errors
    /// When the product's folder cannot be written.
    pub fn begin(self) -> Result<Build> {
        let folder = self.file.parent().context("a product in no folder")?;
        fs::create_dir_all(folder)?;
        let file = NamedTempFile::new_in(folder)?;
        Ok(Build { record: self, file })
    }
}

/// A build of which a record is to be made.
pub struct Build {
    record: Record,
    /// The new record, empty: its time is that of the build's beginning.
    file: NamedTempFile,
}

impl Build {
    /// Keeps the record of a build that has succeeded and read these files. The build is
    /// right without a record, which only saves time: there is none if a file changed meanwhile or
    /// has a name that a line cannot hold.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn end(self, files: &[PathBuf]) -> Result<()> {
        let begin = State::of(self.file.path()).changed;
        let mut text = self.record.conditions + FILES + "\n";
        for file in files.iter().chain([&self.record.product]) {
            let state = State::of(file);
            let may_change = *file == self.record.product;
            let name = file.to_str().filter(|name| !name.contains('\n'));
            let Some(name) = name.filter(|_| may_change || state.changed < begin) else {
                let _ = fs::remove_file(&self.record.file);
                return Ok(());
            };
            text += &format!("{} {name}\n", state.text());
        }
        self.file.as_file().write_all(text.as_bytes())?;
        self.file.persist(&self.record.file)?;
        Ok(())
    }
}

/// The state of a file: `None` if it is absent.
struct State {
    identity: Option<(u64, u64)>,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl State {
    fn of(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(it) => Self {
                identity: Some((it.len(), it.ino())),
                changed: (it.ctime(), it.ctime_nsec()),
            },
            Err(_) => Self {
                identity: None,
                changed: (0, 0),
            },
        }
    }

    fn text(&self) -> String {
        let (seconds, nanoseconds) = self.changed;
        match self.identity {
            Some((size, inode)) => format!("{size},{inode},{seconds}.{nanoseconds:09}"),
            None => "absent".into(),
        }
    }
}

/// The conditions of a build by `command`: its words, and what of this program's environment and
/// of the machine decides which compiler builds what.
pub fn conditions(words: &[String], home: &Path) -> String {
    let mut text = format!("{}\n{}\n", home.display(), words.join(" "));
    let mut variables: Vec<_> = env::vars_os()
        .filter(|(name, _)| {
            let name = name.as_bytes();
            let is_of_package = name.starts_with(b"CARGO_PKG") || name.starts_with(b"CARGO_MAN");
            (name.starts_with(b"CARGO") || name.starts_with(b"RUST")) && !is_of_package
        })
        .collect();
    variables.sort();
    for (name, value) in variables {
        text += &format!("{name:?}={value:?}\n");
    }
    for file in toolchain() {
        text += &format!("{} {}\n", State::of(&file).text(), file.display());
    }
    text
}

/// Files that change when another compiler is used: those found on the PATH, and those of rustup.
fn toolchain() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = |name: &str| {
        let mut all = env::split_paths(&path).map(|folder| folder.join(name));
        all.find(|file| file.is_file())
    };
    let mut files: Vec<PathBuf> = [("CARGO", "cargo"), ("RUSTC", "rustc"), ("", "ld.lld")]
        .into_iter()
        .filter_map(|(variable, name)| {
            let named = env::var_os(variable).filter(|it| it.as_bytes().contains(&b'/'));
            named.map(PathBuf::from).or_else(|| on_path(name))
        })
        .collect();
    let named = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let own = || Some(PathBuf::from(env::var_os("HOME")?).join(".rustup"));
    if let Some(rustup) = named.or_else(own) {
        files.push(rustup.join("settings.toml"));
        let entries = |folder: &str| {
            let all = fs::read_dir(rustup.join(folder)).into_iter().flatten();
            let mut all: Vec<_> = all.flatten().map(|entry| entry.path()).collect();
            all.sort();
            all
        };
        files.extend(entries("update-hashes"));
        files.extend(entries("toolchains").iter().map(|it| it.join("bin/rustc")));
    }
    files
}

/// Every file that a build of cargo's in `home` reads, by the list of files that cargo leaves
/// beside the product.
///
/// # Errors
/// When there is no such list.
pub fn files(product: &Path, home: &Path) -> Result<Vec<PathBuf>> {
    let list = product.with_extension("d");
    let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let sources = dependencies(&text);
    let mut files = Vec::new();
    let mut folders: Vec<&Path> = home.ancestors().collect();
    for package in sources.iter().filter_map(|source| package(source)) {
        if !folders.contains(&package) {
            folders.push(package);
        }
    }
    // Of a package and around it: cargo reads each of these where it is, so that one that is new
    // counts, too.
    for folder in folders {
        let names = [
            "Cargo.toml",
            "build.rs",
            ".cargo/config",
            ".cargo/config.toml",
        ];
        files.extend(names.map(|name| folder.join(name)));
        let names = ["Cargo.lock", "rust-toolchain", "rust-toolchain.toml"];
        files.extend(names.map(|name| folder.join(name)));
    }
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    files.extend(
        cargo
            .iter()
            .flat_map(|it| ["config", "config.toml"].map(|name| it.join(name))),
    );
    files.extend(sources);
    Ok(files)
}

/// The folder of the package that a source belongs to.
fn package(source: &Path) -> Option<&Path> {
    let mut folders = source.ancestors().skip(1);
    folders.find(|folder| folder.join("Cargo.toml").is_file())
}

/// The files on the right side of a make rule.
fn dependencies(rule: &str) -> Vec<PathBuf> {
    let Some((_, right)) = rule.split_once(": ") else {
        return Vec::new();
    };
    let right = right.lines().next().unwrap_or_default();
    let mut names = vec![String::new()];
    let mut letters = right.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('\\', Some(&next @ (' ' | '\\'))) => {
                letters.next();
                names
                    .last_mut()
                    .into_iter()
                    .for_each(|name| name.push(next));
            }
            (' ', _) => names.push(String::new()),
            _ => names
                .last_mut()
                .into_iter()
                .for_each(|name| name.push(letter)),
        }
    }
    names.retain(|name| !name.is_empty());
    names.into_iter().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// Longer than the step of a file system's clock.
    const STEP: Duration = Duration::from_millis(30);

    fn build(product: &Path, conditions: &str, files: &[PathBuf]) -> Build {
        sleep(STEP);
        let build = Record::of(product, conditions.into()).begin().unwrap();
        assert!(!files.is_empty());
        build
    }

    #[test]
    fn a_record_holds_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["product", "source"] {
            fs::write(at(name), name).unwrap();
        }
        let files = ["source", "new"].map(at);
        let holds = |conditions: &str| Record::of(&at("product"), conditions.into()).holds();
        let again = || {
            let build = build(&at("product"), "one\n", &files);
            fs::write(at("product"), "").unwrap();
            build.end(&files).unwrap();
            assert!(holds("one\n"));
        };
        assert!(!holds("one\n"));
        again();
        assert!(!holds("two\n") && !holds("on"));
        // Another text of the same size, with the old time.
        let old = fs::metadata(at("source")).unwrap().modified().unwrap();
        fs::write(at("source"), "s0urce").unwrap();
        fs::File::open(at("source"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert!(!holds("one\n"));
        again();
        fs::write(at("new"), "").unwrap();
        assert!(!holds("one\n"));
        again();
        fs::remove_file(at("product")).unwrap();
        assert!(!holds("one\n"));
    }

    #[test]
    fn a_file_that_changes_during_the_build_leaves_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("source"), "before").unwrap();
        let files = [at("source")];
        let build = build(&at("product"), "", &files);
        fs::write(at("source"), "during").unwrap();
        build.end(&files).unwrap();
        assert!(!Record::of(&at("product"), String::new()).holds());
    }

    #[test]
    fn names_are_taken_out_of_a_rule() {
        let rule = "/t/a\\ kernel: /s/a.rs /s/with\\ space.rs /s/back\\\\slash\n";
        let names = ["/s/a.rs", "/s/with space.rs", "/s/back\\slash"];
        assert_eq!(dependencies(rule), names.map(PathBuf::from));
        assert!(dependencies("").is_empty());
    }
}
