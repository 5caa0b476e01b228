//! The roots of Debian's packages that guests of several groups run in.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::{database, debian, network, python, servers, strangers, stress};
use crate::project;
use crate::root::debian::{Architecture, There, make};

/// One is made at a time, and by one thread.
static MAKING: Mutex<()> = Mutex::new(());

/// The folder in `target/roots` with these packages and Debian's essential ones, made if need be.
///
/// # Errors
/// When it can't be made.
pub fn folder(name: &str, packages: &[&str]) -> Result<PathBuf> {
    folder_for(Architecture::Amd64, name, packages)
}

/// As [`folder`], with packages for this architecture.
///
/// # Errors
/// When it can't be made.
pub fn folder_for(architecture: Architecture, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = project::home()?.join("target/roots").join(name);
    // Beside the folder, so that a root of other packages is made anew.
    let list = folder.with_extension("packages");
    let wanted = packages.join("\n");
    let is_made =
        || folder.exists() && fs::read_to_string(&list).is_ok_and(|packages| packages == wanted);
    if is_made() {
        return Ok(folder);
    }
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have made it meanwhile.
    if !is_made() {
        let packages: Vec<String> = packages.iter().map(ToString::to_string).collect();
        make(&folder, &packages, architecture, There::Replace, false)?;
        fs::write(&list, wanted.as_str())?;
    }
    Ok(folder)
}

/// Makes and fetches the roots of Debian's packages for a whole run, in the order of their use:
/// beside the kernels' builds, since it mostly waits for a network and for scripts of packages.
/// Errors are ignored here: a test that finds no root tries again and reports the reason.
pub fn prepare() {
    let _ = database::folder();
    let _ = network::folder();
    let _ = servers::folder();
    let _ = strangers::busybox_32();
    let _ = debian::folder();
    let _ = debian::folder_of_32_bits();
    let _ = stress::folder();
    let _ = python::folder();
}
