//! File systems whose files are computed: `/proc` and `/sys`.

pub mod proc;
pub mod sys;

use core::fmt::Display;

use fs::pseudofs::{Entry, Text};
use nucleus::PAGE_SIZE;

/// A file whose text can always be shown.
fn shown(show: impl Fn(&mut Text) + Send + Sync + 'static) -> Entry {
    Entry::text(move |out| {
        show(out);
        Ok(())
    })
}

/// A file with a line that is asked for when it is read.
fn line<T: Display>(line: impl Fn() -> T + Send + Sync + 'static) -> Entry {
    shown(move |out| writeln!(out, "{}", line()))
}

/// A file with a line that stays.
fn value(value: impl Display + Send + Sync + 'static) -> Entry {
    shown(move |out| writeln!(out, "{value}"))
}

/// A link with this text.
fn link(to: &'static str) -> Entry {
    Entry::link(move || Ok(to.into()))
}

/// So many pages in KiB.
fn kib(pages: usize) -> u64 {
    (pages * PAGE_SIZE / 1024) as u64
}

/// A number in a name, as Linux wants it: no sign, no leading zero.
fn number(name: &[u8]) -> Option<u32> {
    if name.is_empty() || name.len() > 1 && name[0] == b'0' {
        return None;
    }
    if !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}
