//! The paths of the device that this process is a receiver of. The kernel counts a process once for
//! each path, however often it attaches.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::process;
use std::sync::{Arc, Mutex, Weak};

use crate::path::Inner;
use crate::raw::{self, request};
use crate::region::lock;

/// A share of this process's membership in a path of the device. The last one's drop leaves the
/// path.
pub(crate) struct Membership {
    process: u32,
    /// The kernel's number of the path.
    path: u64,
}

/// How this process belongs to a path.
#[derive(Default)]
struct Joined {
    shares: usize,
    members: Vec<Weak<Inner>>,
}

/// The process and, by the numbers of its paths, how it belongs to them.
static MEMBERSHIPS: Mutex<(u32, BTreeMap<u64, Joined>)> = Mutex::new((0, BTreeMap::new()));

impl Membership {
    /// Attaches to a path, or once more; returns the kernel's answer, too.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> io::Result<(Membership, raw::Words)> {
        let process = process::id();
        let mut memberships = lock(&MEMBERSHIPS);
        if memberships.0 != process {
            // Those of the parent, of which a child has inherited nothing.
            *memberships = (process, BTreeMap::new());
        }
        let mut words = [0; 8];
        raw::ask(fd, request::ATTACH, &mut words)?;
        let path = words[0];
        memberships.1.entry(path).or_default().shares += 1;
        Ok((Membership { process, path }, words))
    }

    /// Returns the kernel's number of the path.
    pub(crate) fn path(&self) -> u64 {
        self.path
    }

    /// Notes the member that has this share, so that others [find](Membership::find) it.
    pub(crate) fn enter(&self, member: &Arc<Inner>) {
        if let Some(joined) = lock(&MEMBERSHIPS).1.get_mut(&self.path) {
            joined.members.retain(|it| it.strong_count() > 0);
            joined.members.push(Arc::downgrade(member));
        }
    }

    /// Returns a member of the path with this number.
    pub(crate) fn find(path: u64) -> Option<Arc<Inner>> {
        let memberships = lock(&MEMBERSHIPS);
        if memberships.0 != process::id() {
            return None;
        }
        memberships
            .1
            .get(&path)?
            .members
            .iter()
            .find_map(Weak::upgrade)
    }

    pub(crate) fn end(&self, fd: BorrowedFd<'_>) {
        let mut memberships = lock(&MEMBERSHIPS);
        if self.process != process::id() || memberships.0 != self.process {
            return;
        }
        let Some(joined) = memberships.1.get_mut(&self.path) else {
            return;
        };
        joined.shares -= 1;
        if joined.shares == 0 {
            memberships.1.remove(&self.path);
            raw::leave(fd);
        }
    }
}
