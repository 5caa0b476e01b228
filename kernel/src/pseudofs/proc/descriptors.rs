//! `/proc/PID/fd` and `fdinfo`.

use alloc::{string::ToString, sync::Arc};

use abi::{Errno, Result, raw::general::SEEK_CUR};
use fs::{
    Kind,
    pseudofs::{Directory, EmitName, Entry},
};

use super::{
    super::number,
    subject::{Subject, owned, path, refused},
};
use crate::process::files::OpenFile;

/// Links to the open files of the descriptors.
pub(super) struct Descriptors {
    pub subject: Subject,
}

/// Positions and flags.
pub(super) struct Positions {
    pub subject: Subject,
}

fn open_file(subject: &Subject, fd: u32) -> Result<Arc<OpenFile>> {
    let fd = i32::try_from(fd).map_err(|_| Errno::ENOENT)?;
    subject.view()?.file(fd).map_err(|error| match error {
        Errno::EPERM => Errno::EACCES,
        _ => Errno::ENOENT,
    })
}

fn list(subject: &Subject, kind: Kind, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
    let view = subject.view()?;
    // A cursor is the descriptor plus one, since 0 is the start.
    let mut from = cursor as usize;
    while let Some(fd) = view.next_descriptor(from).map_err(refused)? {
        if !emit(fd.to_string().as_bytes(), kind, fd as u64 + 1) {
            break;
        }
        from = fd + 1;
    }
    Ok(())
}

impl Directory for Descriptors {
    fn is_open_to_caller(&self) -> bool {
        self.subject.is_caller()
    }

    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let fd = number(name).ok_or(Errno::ENOENT)?;
        let open = open_file(&self.subject, fd)?;
        let mode =
            (u32::from(open.flags().reads()) * 0o500) | (u32::from(open.flags().writes()) * 0o300);
        let (shown, followed) = (self.subject.clone(), self.subject.clone());
        let entry = Entry::place(
            move || {
                let open = open_file(&shown, fd)?;
                if let Some(place) = open.location() {
                    return Ok(path(place));
                }
                let text = open.file().describe();
                Ok(match text.is_empty() {
                    true => b"anon_inode:[file]".to_vec(),
                    false => text,
                })
            },
            move || {
                let open = open_file(&followed, fd)?;
                match open.location() {
                    Some(place) => Ok(place.clone()),
                    None => open.file().reopen().ok_or(Errno::ENXIO),
                }
            },
        );
        Ok(owned(entry.mode(mode), &self.subject.process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        list(&self.subject, Kind::Link, cursor, emit)
    }
}

impl Directory for Positions {
    fn is_open_to_caller(&self) -> bool {
        self.subject.is_caller()
    }

    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let fd = number(name).ok_or(Errno::ENOENT)?;
        open_file(&self.subject, fd)?;
        let subject = self.subject.clone();
        let entry = Entry::text(move |out| {
            let open = open_file(&subject, fd)?;
            let position = open.file().seek(0, SEEK_CUR).unwrap_or(0);
            writeln!(out, "pos:\t{position}");
            writeln!(out, "flags:\t0{:o}", open.flags().bits());
            let mount = open.location().map_or(0, |place| place.mount().id());
            writeln!(out, "mnt_id:\t{mount}");
            let attributes = open.attributes()?;
            writeln!(out, "ino:\t{}", attributes.inode);
            open.file().details(&mut |line| out.push(line));
            Ok(())
        });
        Ok(owned(entry.mode(0o400), &self.subject.process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        list(&self.subject, Kind::Regular, cursor, emit)
    }
}
