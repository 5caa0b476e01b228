//! A guest's log: each line is looked at once as it comes; the first and the newest are kept.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rustix::event::{EventfdFlags, eventfd};

use crate::symbols;

/// Bytes of a line that are kept. The kernel's have 512; only the backtrace of a panic is longer.
const LINE: usize = 8 << 10;
/// Bytes of lines that are kept of the beginning, and as many of the end.
const KEPT: usize = 256 << 10;

/// The log of a guest, which one thread reads and others ask.
pub struct Log {
    lines: Mutex<Lines>,
    /// Notified of the first line, and of the end.
    came: Condvar,
    /// Readable once the kernel has panicked.
    panic: OwnedFd,
}

#[derive(Default)]
struct Lines {
    first: Vec<String>,
    newest: VecDeque<String>,
    /// Bytes of `first` and of `newest`.
    bytes: [usize; 2],
    /// Lines between them that are not kept.
    dropped: u64,
    status: Option<u8>,
    has_panicked: bool,
    has_begun: bool,
}

impl Log {
    /// Returns an empty one.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> Result<Self> {
        Ok(Self {
            lines: Mutex::default(),
            came: Condvar::new(),
            panic: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn guard(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a log to its end, and calls `each` with each line.
    pub fn read(&self, from: impl Read, mut each: impl FnMut(&str)) {
        each_line(from, |text| {
            each(text);
            self.add(text);
        });
        self.guard().has_begun = true;
        self.came.notify_all();
    }

    fn add(&self, text: &str) {
        let mut lines = self.guard();
        if let Some(status) = symbols::message(text).strip_prefix("exit: status ") {
            lines.status = status.parse().ok().or(lines.status);
        }
        if !lines.has_panicked && symbols::is_panic(text) {
            lines.has_panicked = true;
            // A counter that is full is readable as well.
            let _ = rustix::io::write(&self.panic, &1u64.to_ne_bytes());
        }
        lines.keep(text.into());
        if !lines.has_begun {
            lines.has_begun = true;
            self.came.notify_all();
        }
    }

    /// The lines that are kept, and between them how many are not.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.guard();
        let mut all = lines.first.clone();
        if lines.dropped > 0 {
            all.push(format!("({} lines are not kept)", lines.dropped));
        }
        all.extend(lines.newest.iter().cloned());
        all
    }

    /// Whether no line has come.
    pub fn is_empty(&self) -> bool {
        self.guard().first.is_empty()
    }

    /// The status that the log names last.
    pub fn status(&self) -> Option<u8> {
        self.guard().status
    }

    /// Whether the kernel has panicked.
    pub fn has_panicked(&self) -> bool {
        self.guard().has_panicked
    }

    /// Becomes readable when the kernel panics.
    pub fn panic(&self) -> BorrowedFd<'_> {
        self.panic.as_fd()
    }

    /// Waits for the first line or the end, no longer than `patience`.
    pub fn wait_for_line(&self, patience: Duration) {
        let none = |lines: &mut Lines| !lines.has_begun;
        drop(self.came.wait_timeout_while(self.guard(), patience, none));
    }
}

impl Lines {
    fn keep(&mut self, line: String) {
        // A line is never free of charge.
        let size = line.len() + size_of::<String>();
        if self.newest.is_empty() && self.bytes[0] + size <= KEPT {
            self.bytes[0] += size;
            self.first.push(line);
            return;
        }
        self.bytes[1] += size;
        self.newest.push_back(line);
        while self.bytes[1] > KEPT {
            let Some(old) = self.newest.pop_front() else {
                return;
            };
            self.bytes[1] -= old.len() + size_of::<String>();
            self.dropped += 1;
        }
    }
}

/// What a guest says as a terminal may show it: `?` in place of the characters that control one.
pub fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
    text.chars().map(shown).collect()
}

/// Reads what a guest says to its end, and calls `each` with each line, [plain] and without
/// white space at its end.
pub fn each_line(from: impl Read, mut each: impl FnMut(&str)) {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    while next(&mut from, &mut line) {
        each(&plain(String::from_utf8_lossy(&line).trim_end()));
        line.clear();
    }
}

/// Appends the next line to `line`, without what is too long of it; returns whether there is one.
fn next(from: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    let mut any = false;
    loop {
        let Ok(bytes @ [_, ..]) = from.fill_buf() else {
            return any;
        };
        any = true;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        line.extend_from_slice(&part[..part.len().min(LINE - line.len())]);
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(from: impl Read) -> (Log, usize) {
        let (log, mut count) = (Log::new().unwrap(), 0);
        log.read(from, |_| count += 1);
        (log, count)
    }

    #[test]
    fn a_log_without_a_status_has_none() {
        let (log, _) = log_of(&b"[0.1] up\n[0.2] exit: status\n"[..]);
        assert_eq!((log.status(), log.has_panicked()), (None, false));
        let twice = b"[0.1] exit: status 0\n[0.2] exit: status 7\n[0.3] panic: no\nend";
        let (log, count) = log_of(&twice[..]);
        assert_eq!(
            (log.status(), log.has_panicked(), count),
            (Some(7), false, 4)
        );
        assert_eq!(log.lines().last().unwrap(), "end");
    }

    #[test]
    fn a_line_does_not_control_a_terminal() {
        let mut said = Vec::new();
        each_line(&b"a\tb\x1b[2J\r\n\xc2\x9b7m\x07\n"[..], |line| {
            said.push(line.to_string())
        });
        assert_eq!(said, ["a\tb?[2J", "?7m?"]);
    }

    #[test]
    fn the_beginning_and_the_newest_lines_are_kept() {
        let mut text: String = (0..100_000).map(|n| format!("[0.1] line {n}\n")).collect();
        text += "panic: boom\nslide: 0, direct map: 0\nbacktrace: 1\n";
        let (log, count) = log_of(text.as_bytes());
        assert_eq!((count, log.has_panicked()), (100_003, true));
        let lines = log.lines();
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!(bytes < 2 * KEPT, "{bytes}");
        assert_eq!(lines[0], "[0.1] line 0");
        assert!(lines.ends_with(&["backtrace: 1".into()]));
        let dropped = lines.iter().filter(|line| line.ends_with("not kept)"));
        assert_eq!(dropped.count(), 1);
        assert_eq!(symbols::panic_report(&lines, None).len(), 2);
    }

    #[test]
    fn a_long_line_is_cut_and_its_rest_is_no_line() {
        let long = std::io::repeat(b'x').take(100 << 20);
        let (log, count) = log_of(long.chain(&b"panic: no\nlast\n"[..]));
        assert_eq!((count, log.has_panicked()), (2, false));
        assert_eq!(log.lines()[0].len(), LINE);
        assert_eq!(log.lines()[1], "last");
    }
}
