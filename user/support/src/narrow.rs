//! A 32-bit program (`narrow/program.c`), which needs no library.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/narrow"));

/// The program's file, which anyone may execute: made the first time.
///
/// # Errors
/// When it cannot be made.
pub fn program() -> io::Result<&'static str> {
    const PATH: &str = "/tmp/narrow";
    if !fs::exists(PATH)? {
        let new = format!("{PATH}.{}", std::process::id());
        fs::write(&new, PROGRAM)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, PATH)?;
    }
    Ok(PATH)
}
