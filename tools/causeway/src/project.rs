//! The project's own folder and the builds in it: the kernel, the guest programs.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::fresh::{self, Record};
use crate::relocations;

/// The kernel's target.
pub const TARGET: &str = "x86_64-unknown-none";

/// Which build of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Profile {
    /// Optimised as a whole.
    Release,
    /// `release` with assertions and the lock-order checker.
    Checked,
    /// Little optimised, with assertions: built again in seconds after a change.
    Develop,
}

impl Profile {
    /// The name that cargo knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Checked => "checked",
            Self::Develop => "develop",
        }
    }
}

/// The project's folder: the one that this program was built in, else one that the current
/// folder stands in.
///
/// # Errors
/// When neither holds the project.
pub fn home() -> Result<PathBuf> {
    let is_home = |folder: &Path| folder.join("kernel/Cargo.toml").is_file();
    let program = env::current_exe().ok();
    let current = env::current_dir().ok();
    [program, current]
        .iter()
        .flatten()
        .flat_map(|path| path.ancestors())
        .find(|folder| is_home(folder))
        .map(Path::to_path_buf)
        .context("this needs Causeway's source: run it inside the source folder")
}

/// Builds the kernel and returns its file. Cargo's progress goes to standard error.
///
/// # Errors
/// When there is no toolchain for it, or when it does not compile.
pub fn kernel(profile: Profile) -> Result<PathBuf> {
    let home = home()?;
    let folder = env::var_os("CARGO_TARGET_DIR").map_or(home.join("target"), PathBuf::from);
    kernel_of(&home, &folder, profile)
}

/// Builds the kernel of the source in `home` with cargo's files in `folder`, and returns its file.
/// Cargo is not called if nothing has changed since the last build.
///
/// # Errors
/// As [`kernel`].
pub fn kernel_of(home: &Path, folder: &Path, profile: Profile) -> Result<PathBuf> {
    let product = folder
        .join(TARGET)
        .join(profile.name())
        .join("causeway-kernel");
    let record = Record::of(&product, fresh::conditions(&[profile.name().into()], home));
    if !record.holds() {
        let build = record.begin()?;
        compile_kernel(home, folder, profile)?;
        build.end(&fresh::files(&product, home)?)?;
    }
    relocations::with_table(&product)
}

fn compile_kernel(home: &Path, folder: &Path, profile: Profile) -> Result<()> {
    let mut build = cargo(home);
    build.env("CARGO_TARGET_DIR", folder);
    build.args(["build", "--package", "kernel", "--bin", "causeway-kernel"]);
    build.args(["--profile", profile.name(), "--target", TARGET]);
    match library()? {
        Library::Installed => {}
        Library::Source => {
            // The library's source needs features that a stable compiler allows only so.
            build.env("RUSTC_BOOTSTRAP", "1");
            build.env("CARGO_TARGET_X86_64_UNKNOWN_NONE_LINKER", "ld.lld");
            build.arg("-Zbuild-std=core,alloc,compiler_builtins");
            build.arg("-Zbuild-std-features=compiler-builtins-mem");
        }
    }
    let time = match profile {
        Profile::Release | Profile::Checked => "about a minute",
        Profile::Develop => "half a minute, later seconds",
    };
    run_quiet_when_fresh(&mut build, &format!("the {} kernel", profile.name()), time)
}

/// Builds all guest programs and returns the folder that they are in.
///
/// # Errors
/// When they do not compile.
pub fn guest_programs() -> Result<PathBuf> {
    guest_build(&["--workspace"], "the guest programs")
}

/// Builds the guest program of this name, which is that of its package, too, and returns its file.
///
/// # Errors
/// When it does not compile.
pub fn guest_program(name: &str) -> Result<PathBuf> {
    let what = format!("the guest's program {name}");
    Ok(guest_build(&["--package", name], &what)?.join(name))
}

/// Builds the guest program of the experiments, with the crates that they measure fbufs against,
/// and returns its file.
///
/// # Errors
/// When it does not compile.
pub fn guest_bench() -> Result<PathBuf> {
    let words = ["--package", "bench", "--features", "iceoryx2"];
    Ok(guest_build(&words, "the guest's program bench")?.join("bench"))
}

fn guest_build(words: &[&str], what: &str) -> Result<PathBuf> {
    let user = home()?.join("user");
    let mut build = cargo(&user);
    build.args(["build", "--release", "--target", "x86_64-unknown-linux-gnu"]);
    run_quiet_when_fresh(build.args(words), what, "half a minute")?;
    let folder = env::var_os("CARGO_TARGET_DIR").map_or(user.join("target"), PathBuf::from);
    Ok(folder.join("x86_64-unknown-linux-gnu/release"))
}

/// Cargo in `folder`.
pub fn cargo(folder: &Path) -> Command {
    cargo_by(Command::new(cargo_name()), folder)
}

/// Cargo in `folder` at a low priority: it uses idle processors, and a tenth of a busy one.
pub fn cargo_at_low_priority(folder: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(cargo_name());
    cargo_by(command, folder)
}

fn cargo_name() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Cargo in `folder`, started by this command.
fn cargo_by(mut cargo: Command, folder: &Path) -> Command {
    // Variables of the cargo that started this program are not meant for this one.
    cargo
        .env_remove("CARGO_MANIFEST_DIR")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(folder);
    cargo
}

/// Runs a build, and says what it is, how long it takes at most and how it goes on, unless there is
/// nothing to build.
fn run_quiet_when_fresh(build: &mut Command, what: &str, time: &str) -> Result<()> {
    if io::stderr().is_terminal() {
        build.args(["--color", "always"]);
    }
    let mut child = build
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| {
            format!("cannot build {what}: no cargo here; `make setup` installs what is missing")
        })?;
    let mut is_told = false;
    for line in child
        .stderr
        .take()
        .into_iter()
        .flat_map(|pipe| BufReader::new(pipe).lines())
    {
        let line = line?;
        if !line.contains("Finished") {
            if !is_told && !line.contains("Blocking") {
                eprintln!("causeway: building {what} ({time})");
                is_told = true;
            }
            eprintln!("{line}");
        }
    }
    if !child.wait()?.success() {
        bail!("{what} did not build; cargo's messages above say why");
    }
    Ok(())
}

/// Whether the compiler brought the library for the kernel's target along, built.
pub fn has_target() -> bool {
    matches!(library(), Ok(Library::Installed))
}

/// Where `core` and `alloc` for the kernel's target come from.
enum Library {
    /// The compiler brought them along, built.
    Installed,
    /// The compiler brought their source along.
    Source,
}

fn library() -> Result<Library> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .context("no Rust compiler here; `make setup` installs one")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let rustlib = sysroot.join("lib/rustlib");
    if rustlib.join(TARGET).join("lib").is_dir() {
        Ok(Library::Installed)
    } else if rustlib.join("src/rust/library/alloc/Cargo.toml").is_file() {
        Ok(Library::Source)
    } else {
        bail!(
            "the Rust compiler in {} has neither the target {TARGET} nor the library's source; \
             `make setup` installs one of them",
            sysroot.display()
        )
    }
}
