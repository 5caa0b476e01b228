//! A folder for files that end with this program, also where a signal ends it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::signals::{self, Guard};

/// A temporary folder.
pub struct Scratch {
    folder: TempDir,
    _undo: Guard,
}

impl Scratch {
    /// Makes an empty one.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let path = folder.path().to_path_buf();
        let undo = signals::undo(move || {
            // Some of it may have been removed already.
            let _ = fs::remove_dir_all(path);
        });
        Ok(Self {
            folder,
            _undo: undo,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Opens a folder and returns a short path of it, for as long as it is open: the path of a socket
/// has less than 108 bytes. Programs of the same user can take it, too.
///
/// # Errors
/// When the folder can't be opened.
pub fn short_path(folder: &Path) -> io::Result<(File, PathBuf)> {
    let open = File::open(folder)?;
    let path = format!("/proc/{}/fd/{}", process::id(), open.as_raw_fd());
    Ok((open, path.into()))
}
