//! `/proc/PID/mounts`, `mountinfo`, `mountstats`: the mounts that a process can reach.

use abi::Result;
use fs::{Location, MountFlags, namespace::MountLine, pseudofs::Text};

use super::subject::Subject;
use crate::mounts;

fn lines(subject: &Subject) -> nucleus::Pieces<MountLine> {
    let namespace = mounts::namespace();
    let facts = subject.facts();
    let root = facts.map_or_else(|| namespace.root(), |facts| facts.reaches());
    namespace.mounts(&root)
}

/// Flags and the file system's own options.
fn options(line: &MountLine, out: &mut Text) {
    out.push(access(line.mount.is_read_only()));
    out.push(&line.mount.flags().words());
    own_options(line, out);
}

fn access(read_only: bool) -> &'static [u8] {
    match read_only {
        true => b"ro",
        false => b"rw",
    }
}

fn own_options(line: &MountLine, out: &mut Text) {
    let own = line.mount.options();
    if !own.is_empty() {
        out.push(b",");
        out.push_escaped(&own);
    }
}

/// `mounts`: as `/etc/fstab`.
pub(super) fn table(subject: &Subject, out: &mut Text) -> Result<()> {
    for line in lines(subject) {
        out.push_escaped(line.mount.source());
        out.push(b" ");
        out.push_escaped(&line.at);
        write!(out, " {} ", line.mount.fstype());
        options(&line, out);
        out.push(b" 0 0\n");
    }
    Ok(())
}

/// `mountinfo`, see `proc(5)`.
pub(super) fn info(subject: &Subject, out: &mut Text) -> Result<()> {
    for line in lines(subject) {
        let mount = &line.mount;
        let parent = mount.at().map_or(0, |at| at.mount().id());
        let device = mount.root().attributes().map_or(0, |a| a.device);
        let (major, minor) = (fs::device::major(device), fs::device::minor(device));
        write!(out, "{} {parent} {major}:{minor} ", mount.id());
        let root = Location::inside(mount, mount.root().clone());
        out.push_escaped(&root.path_in_file_system());
        out.push(b" ");
        out.push_escaped(&line.at);
        out.push(b" ");
        out.push(access(mount.has(MountFlags::READ_ONLY)));
        out.push(&mount.flags().words());
        write!(out, " - {} ", mount.fstype());
        out.push_escaped(mount.source());
        out.push(b" ");
        out.push(access(mount.is_read_only()));
        own_options(&line, out);
        out.push(b"\n");
    }
    Ok(())
}

/// `mountstats`.
pub(super) fn statistics(subject: &Subject, out: &mut Text) -> Result<()> {
    for line in lines(subject) {
        out.push(b"device ");
        out.push_escaped(line.mount.source());
        out.push(b" mounted on ");
        out.push_escaped(&line.at);
        writeln!(out, " with fstype {}", line.mount.fstype());
    }
    Ok(())
}
