//! The crates of a workspace, and the order of floors that each declares.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A library crate of the workspace.
pub struct Crate {
    /// The package's name.
    pub name: String,
    /// Its root source file.
    pub root: PathBuf,
    /// Its top-level modules from the bottom up, where its manifest declares them.
    pub floors: Option<Vec<String>>,
}

/// Returns the library crates of the workspace around `folder`.
///
/// # Errors
/// Fails when cargo cannot describe the workspace.
pub fn workspace(folder: &Path) -> Result<Vec<Crate>> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(folder)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let described: Value = serde_json::from_slice(&output.stdout)?;
    let packages = described["packages"].as_array().context("no packages")?;
    Ok(packages.iter().filter_map(library).collect())
}

fn library(package: &Value) -> Option<Crate> {
    let targets = package["targets"].as_array()?;
    let library = targets.iter().find(|it| it["kind"][0] == "lib")?;
    let floors = package["metadata"]["floors"].as_array();
    let word = |it: &Value| Some(it.as_str()?.to_owned());
    Some(Crate {
        name: word(&package["name"])?,
        root: library["src_path"].as_str()?.into(),
        floors: floors.map(|it| it.iter().filter_map(word).collect()),
    })
}
