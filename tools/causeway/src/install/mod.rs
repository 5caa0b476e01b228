//! Installing: this program, a kernel for it, its manual and its completion scripts, below a
//! prefix; and finding that kernel again without the source.
//!
//! `make install` calls the hidden subcommand `install` of a program that it has built. The manual
//! ([`manual`]) and the completion scripts ([`completion`]) are made from the option definitions
//! at that moment. The list of installed files is kept beside the kernel: `make uninstall` removes
//! the files in it, and the next installation those that are no longer part of it.

mod completion;
mod manual;

use std::env;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory};
#[cfg(test)]
pub use manual::for_each;

use crate::options::Options;
use crate::project::{self, Profile};

/// The program's name.
const NAME: &str = "causeway";
/// The installed kernel below a prefix, and below each folder for data.
const KERNEL: &str = "share/causeway/kernel";
const DATA_KERNEL: &str = "causeway/kernel";
/// The list of installed files below a prefix: one path a line, below the same prefix.
const LIST: &str = "share/causeway/installed";

/// The options of `causeway install`.
#[derive(Args, Debug)]
pub struct Install {
    /// The folder with bin and share
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Put the files below this folder, for a package that is unpacked elsewhere
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Install this kernel and build none
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

/// Installs this program with everything that belongs to it.
///
/// # Errors
/// When the kernel does not build or a file cannot be written.
pub fn install(options: &Install) -> Result<()> {
    let kernel = match &options.kernel {
        Some(kernel) => kernel.clone(),
        None => project::kernel(Profile::Release)?,
    };
    let program = env::current_exe().context("this program has no file")?;
    let prefix = std::path::absolute(&options.prefix)?;
    let place = match &options.destdir {
        Some(folder) => folder.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix.clone(),
    };
    let read =
        |file: &Path| fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    let mut files = vec![
        File::new("bin/causeway", read(&program)?).executable(),
        File::new(KERNEL, read(&kernel)?),
    ];
    let command = Options::command();
    files.extend(manual::pages(&command)?);
    files.extend(completion::scripts(&command));
    put(&place, &files)?;
    eprintln!("installed {}", prefix.join("bin/causeway").display());
    Ok(())
}

/// A file to install.
#[derive(Debug)]
struct File {
    /// Where, below the prefix.
    path: PathBuf,
    bytes: Vec<u8>,
    is_executable: bool,
}

impl File {
    fn new(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Self {
            path: path.into(),
            bytes,
            is_executable: false,
        }
    }

    fn executable(self) -> Self {
        Self {
            is_executable: true,
            ..self
        }
    }
}

/// Writes the files and their list below `place`, and removes the files of the list that was there
/// before and is replaced.
fn put(place: &Path, files: &[File]) -> Result<()> {
    let old = fs::read_to_string(place.join(LIST)).unwrap_or_default();
    for file in files {
        write(place, file)?;
    }
    let mut paths: Vec<&str> = files.iter().filter_map(|file| file.path.to_str()).collect();
    paths.push(LIST);
    for path in old.lines().filter(|path| !paths.contains(path)) {
        // A file that the user removed is gone already.
        let _ = fs::remove_file(place.join(path));
    }
    let list = paths.join("\n") + "\n";
    write(place, &File::new(LIST, list.into_bytes()))
}

/// Writes one file, in one step: a program may run while it is replaced.
fn write(place: &Path, file: &File) -> Result<()> {
    let path = place.join(&file.path);
    let folder = path.parent().unwrap_or(place);
    let cannot = || {
        format!(
            "cannot write into {}: install as root, or elsewhere: make install PREFIX=$HOME/.local",
            folder.display()
        )
    };
    fs::create_dir_all(folder).with_context(cannot)?;
    let mut new = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    new.write_all(&file.bytes).with_context(cannot)?;
    let mode = if file.is_executable { 0o755 } else { 0o644 };
    fs::set_permissions(new.path(), Permissions::from_mode(mode)).with_context(cannot)?;
    new.persist(&path).with_context(cannot)?;
    Ok(())
}

/// The kernel for a guest whose user names none: the one that was installed with this program; else
/// the source's, built if need be, where there is the source; else one that was installed for
/// the user or the machine.
///
/// # Errors
/// When there is none, or when the source's does not build.
pub fn kernel(profile: Profile) -> Result<PathBuf> {
    let program = env::current_exe().unwrap_or_default();
    match place(profile, &program, project::home().is_ok(), &data_folders())? {
        Some(installed) => Ok(installed),
        None => project::kernel(profile),
    }
}

/// The file of the installed kernel, or none if the source's is to be used.
fn place(
    profile: Profile,
    program: &Path,
    has_source: bool,
    data: &[PathBuf],
) -> Result<Option<PathBuf>> {
    // Only the release kernel is ever installed.
    let is_installed = |kernel: &PathBuf| profile == Profile::Release && kernel.is_file();
    let prefix = program.parent().and_then(Path::parent);
    if let Some(kernel) = prefix.map(|it| it.join(KERNEL)).filter(is_installed) {
        return Ok(Some(kernel));
    }
    if has_source {
        return Ok(None);
    }
    let mut elsewhere = data.iter().map(|folder| folder.join(DATA_KERNEL));
    if let Some(kernel) = elsewhere.find(is_installed) {
        return Ok(Some(kernel));
    }
    if profile != Profile::Release {
        bail!(
            "the {} kernel is built from Causeway's source: run this in its folder, or name a \
             kernel with --kernel FILE",
            profile.name()
        );
    }
    bail!(
        "there is no kernel: `make install` in Causeway's source folder installs one; or name one \
         with --kernel FILE"
    )
}

/// The folders in which programs look for their data: the user's, then the machine's.
fn data_folders() -> Vec<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let own = named("XDG_DATA_HOME").map(PathBuf::from);
    let own = own.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/share")));
    let shared = named("XDG_DATA_DIRS").unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    own.into_iter().chain(env::split_paths(&shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_longer_installed_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let file = |path: &str| File::new(path, b"text".to_vec());
        put(
            folder.path(),
            &[file("bin/causeway").executable(), file("share/old")],
        )
        .unwrap();
        fs::write(at("share/other"), "not ours").unwrap();
        put(
            folder.path(),
            &[file("bin/causeway").executable(), file("share/new")],
        )
        .unwrap();
        assert!(at("share/new").is_file() && at("share/other").is_file());
        assert!(!at("share/old").exists());
        assert_eq!(
            fs::read_to_string(at(LIST)).unwrap(),
            format!("bin/causeway\nshare/new\n{LIST}\n")
        );
        let mode = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("bin/causeway"), mode("share/new")), (0o755, 0o644));
    }

    #[test]
    fn a_kernel_beside_the_program_comes_first_then_the_source_then_the_data_folders() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let make = |path: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "").unwrap();
            at(path)
        };
        let program = at("prefix/bin/causeway");
        let data = [at("user"), at("machine")];
        let found = |profile, has_source| {
            let place = place(profile, &program, has_source, &data);
            place.map_err(|why| why.to_string())
        };
        let release = |has_source| found(Profile::Release, has_source);
        assert!(release(false).unwrap_err().contains("make install"));
        assert_eq!(release(true), Ok(None));
        let machine = make("machine/causeway/kernel");
        assert_eq!(release(false), Ok(Some(machine)));
        let user = make("user/causeway/kernel");
        assert_eq!(release(false), Ok(Some(user)));
        assert_eq!(release(true), Ok(None));
        let beside = make("prefix/share/causeway/kernel");
        assert_eq!(release(true), Ok(Some(beside)));
        let checked = found(Profile::Checked, false).unwrap_err();
        assert!(checked.contains("the checked kernel"), "{checked}");
        assert_eq!(found(Profile::Develop, true), Ok(None));
    }
}
