//! `/proc/PID/maps` and `smaps`.

use abi::{Errno, Result};
use fs::{device, synthetic::Text};
use nucleus::{PAGE_SIZE, Prot};
use vm::{Backing, Description, Entry};

use super::process::Subject;
use crate::process::Shared;

/// The column of a mapping's name.
const NAME_COLUMN: usize = 73;

/// `maps`.
pub(super) fn maps(subject: &Subject, out: &mut Text) -> Result<()> {
    if let Some(shared) = with_memory(subject)? {
        shared
            .space
            .map()
            .for_each_entry(&mut |entry| line(entry, out));
    }
    Ok(())
}

/// What the subject uses, if it has memory at all.
fn with_memory(subject: &Subject) -> Result<Option<Shared>> {
    match subject.private() {
        Err(Errno::ENOENT) => Ok(None),
        shared => shared.map(Some),
    }
}

fn line(entry: &Entry, out: &mut Text) {
    let (description, offset) = match &entry.backing {
        Backing::Zero => (Description::default(), 0),
        Backing::Object { pager, offset } => (pager.describe(), *offset),
    };
    let bit = |prot, letter| {
        if entry.prot.contains(prot) {
            letter
        } else {
            '-'
        }
    };
    let start = out.len();
    write!(
        out,
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        entry.range.start.0,
        entry.range.end.0,
        bit(Prot::READ, 'r'),
        bit(Prot::WRITE, 'w'),
        bit(Prot::EXEC, 'x'),
        if entry.shared { 's' } else { 'p' },
        offset,
        device::major(description.device),
        device::minor(description.device),
        description.inode,
    );
    let name = if description.name.is_empty() {
        entry.label.as_bytes()
    } else {
        &description.name
    };
    if !name.is_empty() {
        for _ in out.len() - start..NAME_COLUMN {
            out.push(b" ");
        }
        out.push_escaped_newlines(name);
    }
    out.push(b"\n");
}

/// `smaps`: each mapping with its pages.
pub(super) fn smaps(subject: &Subject, out: &mut Text) -> Result<()> {
    let Some(shared) = with_memory(subject)? else {
        return Ok(());
    };
    shared.space.map().for_each_entry(&mut |entry| {
        line(entry, out);
        let kib = |pages: usize| pages * PAGE_SIZE / 1024;
        let resident = kib(entry.resident_pages);
        let anonymous = kib(entry.anonymous_pages);
        let file = resident - anonymous.min(resident);
        let mut value = |name: &str, kib: usize| {
            let width = 24 - name.len() - 1;
            writeln!(out, "{name}:{kib:>width$} kB");
        };
        value("Size", entry.range.len() / 1024);
        value("KernelPageSize", PAGE_SIZE / 1024);
        value("MMUPageSize", PAGE_SIZE / 1024);
        value("Rss", resident);
        value("Pss", resident);
        value("Shared_Clean", file);
        value("Shared_Dirty", 0);
        value("Private_Clean", 0);
        value("Private_Dirty", anonymous);
        value("Referenced", resident);
        value("Anonymous", anonymous);
        value("Swap", 0);
    });
    Ok(())
}
