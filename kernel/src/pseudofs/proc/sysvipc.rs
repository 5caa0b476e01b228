//! `/proc/sysvipc`, and the limits in `/proc/sys/kernel`.

use abi::{Errno, Result};
use fs::pseudofs::{Entry, Table};

use super::super::shown;
use crate::ipc::{
    setting::Setting,
    sysv::{
        limits::{MSGMAX, MSGMNB, MSGMNI, SEMMNI, SEMMNS, SEMMSL, SEMOPM, SHMALL, SHMMAX, SHMMNI},
        listing,
    },
};

/// `/proc/sysvipc`.
pub(super) fn directory() -> Table {
    Table::new()
        .with("msg", shown(listing::queues))
        .with("sem", shown(listing::sets))
        .with("shm", shown(listing::segments))
}

/// Adds the limits.
pub(super) fn add_limits(table: Table) -> Table {
    table
        .with("msgmax", settings([&MSGMAX]))
        .with("msgmnb", settings([&MSGMNB]))
        .with("msgmni", settings([&MSGMNI]))
        .with("sem", settings([&SEMMSL, &SEMMNS, &SEMOPM, &SEMMNI]))
        .with("shmall", settings([&SHMALL]))
        .with("shmmax", settings([&SHMMAX]))
        .with("shmmni", settings([&SHMMNI]))
}

/// A line of settings, which can be written, all or the first of them.
pub(super) fn settings<const N: usize>(all: [&'static Setting; N]) -> Entry {
    Entry::text(move |out| {
        for (i, setting) in all.iter().enumerate() {
            let before = if i > 0 { "\t" } else { "" };
            write!(out, "{before}{}", setting.get());
        }
        out.push(b"\n");
        Ok(())
    })
    .writable(move |bytes| store(&all, bytes))
}

fn store(all: &[&Setting], bytes: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    for (setting, word) in all.iter().zip(text.split_ascii_whitespace()) {
        let value = word.parse().map_err(|_| Errno::EINVAL)?;
        if !setting.set(value) {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}
