//! Temporary files and folders, pipes, plain reads and writes, numbers from `/proc`.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;

use libc::c_int;

use crate::failure::{Outcome, Result};
use crate::{call, equal};

/// Makes a pipe; returns the end to read and the end to write.
pub fn pipe(flags: c_int) -> Result<(c_int, c_int)> {
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), flags));
    Ok((ends[0], ends[1]))
}

/// Returns a path as the C library wants it.
pub fn c(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// Makes a fresh folder for a test's files.
pub fn folder(name: &str) -> Result<String> {
    let path = format!("/tmp/test-{name}-{}", std::process::id());
    fs::create_dir_all(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(path)
}

/// Makes a file with these bytes, open for reading and writing; returns its path and descriptor.
pub fn file(name: &str, bytes: &[u8]) -> Result<(String, c_int)> {
    let path = format!("{}/{name}", folder(name)?);
    fs::write(&path, bytes).map_err(|error| format!("{path}: {error}"))?;
    let open = call!(open(c(&path).as_ptr(), libc::O_RDWR));
    Ok((path, open))
}

/// Reads at most `most` bytes by one call.
pub fn read_bytes(from: &impl AsRawFd, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let count = call!(read(from.as_raw_fd(), bytes.as_mut_ptr().cast(), most));
    bytes.truncate(count as usize);
    Ok(bytes)
}

/// Writes all these bytes by one call.
#[track_caller]
pub fn write_bytes(to: &impl AsRawFd, bytes: &[u8]) -> Outcome {
    let line = std::panic::Location::caller().line();
    let count = call!(write(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()));
    equal!(count as usize, bytes.len(), line);
    Ok(())
}

/// Reads a text file, such as one in `/proc`.
pub fn read_text(path: &str) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}").into())
}

/// Returns the number behind the word `name`, with or without a colon, at the start of a file's
/// line.
pub fn field(path: &str, name: &str) -> Result<u64> {
    field_of(&read_text(path)?, name).map_err(|why| format!("{path}: {why}").into())
}

/// Returns the number behind the word `name`, with or without a colon, at the start of a text's
/// line.
pub fn field_of(text: &str, name: &str) -> Result<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let is_it = |word: &str| word.strip_suffix(':').unwrap_or(word) == name;
    lines
        .find_map(|mut line| is_it(line.next()?).then(|| line.next()?.parse().ok())?)
        .ok_or_else(|| format!("no {name} in\n{text}").into())
}

/// Returns one of Causeway's counters.
pub fn counter(name: &str) -> Result<u64> {
    field("/proc/causeway/counters", name)
}
