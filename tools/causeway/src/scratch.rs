//! A folder for files that end with this program, also where a signal ends it.

use std::fs;
use std::path::Path;

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
