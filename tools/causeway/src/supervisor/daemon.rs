//! Guests that go on without a terminal.
//!
//! `causeway run --detach` starts itself again, with `--supervisor`, in a session of its own. That
//! one reports on its standard output, once, that the program runs or why not, and from then on
//! has nothing of the user's.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};
use serde::{Deserialize, Serialize};

use super::place;
use crate::launch::SELF;
use crate::sessions;
use crate::{options, outcome};

/// The file of the guest's folder that the supervisor's standard error, and QEMU's, goes to.
pub const MESSAGES: &str = "messages";

/// Bytes of its beginning that are kept; as many may follow, then the older half of those is cut.
const KEPT: u64 = 256 << 10;

/// What the supervisor says to the command that started it.
#[derive(Serialize, Deserialize)]
struct Report {
    /// The exit status, if the program does not run.
    status: Option<u8>,
    /// Why it does not.
    why: String,
}

/// Starts a guest's supervisor, waits until its program runs, and prints the guest's name.
///
/// # Errors
/// When it can't be started.
pub fn detach(options: &options::Run) -> Result<u8> {
    let name = match options.guest_name.name() {
        Some(name) => name.to_string(),
        None => place::make_up()?,
    };
    place::check_name(&name)?;
    let mut command = Command::new(SELF);
    command.args(["run", "--supervisor", &name]);
    if options.guest.kernel.is_none() {
        // Built here, where its progress is seen.
        command.arg("--kernel").arg(options.guest.kernel()?);
    }
    // The first word is this program, the second one `run`.
    command.args(std::env::args_os().skip(2));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A lock or pipe of the script that starts the guest ends with the script.
    close_fds::set_fds_cloexec(3, &named_descriptors(std::env::args_os().skip(2)));
    let mut child = command.spawn().context("cannot start the supervisor")?;
    let output = child.stdout.take().context("no pipe to the supervisor")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Report { status: None, .. }) => {
            println!("{name}");
            Ok(0)
        }
        Ok(Report {
            status: Some(status),
            why,
        }) => {
            eprint!("{why}");
            Ok(status)
        }
        Err(_) => {
            // It has said why, on the standard error that is this one's.
            let ended = child
                .wait()?
                .code()
                .and_then(|code| u8::try_from(code).ok());
            Ok(ended.unwrap_or(outcome::FAILURE))
        }
    }
}

/// The descriptors that words name as files, as a shell's `<(...)` does; in order.
fn named_descriptors(words: impl Iterator<Item = OsString>) -> Vec<RawFd> {
    let number = |word: OsString| word.to_str()?.rsplit_once("/dev/fd/")?.1.parse().ok();
    let mut descriptors: Vec<RawFd> = words.filter_map(number).collect();
    descriptors.sort_unstable();
    descriptors
}

/// The supervisor of a detached guest.
#[derive(Clone)]
pub struct Daemon {
    has_reported: Arc<AtomicBool>,
    messages: Arc<Mutex<Option<File>>>,
}

impl Daemon {
    /// Leaves the user's session.
    pub fn new() -> Self {
        // The leader of a group, which this is not, would stay where it is.
        let _ = setsid();
        Self {
            has_reported: Arc::new(AtomicBool::new(false)),
            messages: Arc::new(Mutex::new(None)),
        }
    }

    /// Makes standard error a file of the guest's folder.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn enter(&mut self, folder: &Path) -> Result<()> {
        let mut open = OpenOptions::new();
        let open = open.create(true).read(true).append(true).mode(0o600);
        let messages = open.open(folder.join(MESSAGES))?;
        dup2_stderr(&messages)?;
        *self.messages.lock().unwrap_or_else(PoisonError::into_inner) = Some(messages);
        Ok(())
    }

    /// Writes a line of the guest's log down, as far as there is room.
    pub fn log(&self, line: &str) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(messages) = messages.as_mut() {
            // The guest goes on where its log can't be kept.
            let _ = writeln!(messages, "{line}").and_then(|()| trim(messages, KEPT));
        }
    }

    /// Reports that the program runs.
    pub fn report_start(&self) {
        if self.report(None, String::new()) {
            // No file system of the user's is busy from now on.
            let _ = std::env::set_current_dir("/");
        }
    }

    /// Reports the end of a guest whose program has never run, by the messages, or, where a full
    /// disk did not take them, by `error`; returns whether it is that.
    pub fn report_end(&self, status: u8, error: &str) -> bool {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut why = Vec::new();
        if let Some(messages) = messages.as_mut() {
            // A report without its reason is better than none.
            let _ = messages.rewind();
            let _ = messages.read_to_end(&mut why);
        }
        let why = match &why[..] {
            [] => error.into(),
            why => String::from_utf8_lossy(why).into_owned(),
        };
        self.report(Some(status), why)
    }

    /// Reports, unless that has been done.
    fn report(&self, status: Option<u8>, why: String) -> bool {
        if self.has_reported.swap(true, Ordering::SeqCst) {
            return false;
        }
        let report = serde_json::to_string(&Report { status, why }).unwrap_or_default();
        // The user may have given up waiting.
        let _ = writeln!(io::stdout(), "{report}");
        if let Ok(null) = sessions::null() {
            let _ = dup2_stdout(null);
        }
        true
    }
}

/// Cuts a file of twice `kept` bytes, which is open for appending: its beginning and its newest
/// lines stay.
fn trim(file: &mut File, kept: u64) -> io::Result<()> {
    let len = file.metadata()?.len();
    if len < 2 * kept {
        return Ok(());
    }
    let mut newest = vec![0; (kept / 2) as usize];
    file.read_exact_at(&mut newest, len - kept / 2)?;
    // The first of them is the end of a line.
    let cut = newest.iter().position(|&byte| byte == b'\n');
    let newest = &newest[cut.map_or(0, |cut| cut + 1)..];
    file.set_len(kept)?;
    file.write_all(b"\n(lines are not kept)\n")?;
    file.write_all(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_beginning_and_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut open = OpenOptions::new();
        let open = open.create(true).read(true).append(true);
        let mut file = open.open(folder.path().join("file")).unwrap();
        for number in 0..5000 {
            writeln!(file, "line {number}").unwrap();
            trim(&mut file, 1000).unwrap();
            assert!(file.metadata().unwrap().len() < 2000);
        }
        let text = std::fs::read_to_string(folder.path().join("file")).unwrap();
        assert!(text.starts_with("line 0\nline 1\n"), "{text}");
        assert!(text.ends_with("\nline 4998\nline 4999\n"), "{text}");
        assert_eq!(text.matches("not kept").count(), 1, "{text}");
    }
}
