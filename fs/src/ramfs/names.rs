//! The names that a node records of itself.
//!
//! Open files rely on the first record instead of a reference to the directory, which all CPUs that
//! open files there would count: it stays the same for as long as the node has that name, and
//! follows it through renames.

use alloc::sync::{Arc, Weak};

use super::node::Node;

/// A name in a directory, which owns the node.
pub(super) struct Record {
    pub(super) parent: Weak<Node>,
    pub(super) name: Arc<[u8]>,
}

/// The parent and name of a node.
pub(super) enum TreePlace {
    /// The root, and nodes that never had a name.
    Nowhere,
    /// The first name of those that it has, and the one that was added last, if it has several.
    In(Record, Option<Record>),
    /// The recorded names were removed, this one last; it has others.
    Lost(Record),
    /// The last name was removed; now the node owns the directory, so that ".." still leads there.
    Removed(Arc<Node>, Arc<[u8]>),
}

impl Record {
    pub(super) fn new(parent: &Weak<Node>, name: Arc<[u8]>) -> Record {
        let parent = parent.clone();
        Record { parent, name }
    }

    /// Tells whether it is this name.
    pub(super) fn is(&self, directory: *const (), name: &[u8]) -> bool {
        core::ptr::addr_eq(self.parent.as_ptr(), directory) && *self.name == *name
    }
}

impl TreePlace {
    /// Adds a name. Returns what has to be dropped when no lock is held.
    #[must_use]
    pub(super) fn add(&mut self, new: Record) -> TreePlace {
        match self {
            TreePlace::In(_, last) => {
                let old = last.replace(new);
                old.map_or(TreePlace::Nowhere, |old| TreePlace::In(old, None))
            }
            _ => core::mem::replace(self, TreePlace::In(new, None)),
        }
    }

    /// Removes a name. Returns whether it was the first record, and the old records, to be dropped
    /// without locks.
    #[must_use]
    pub(super) fn remove(&mut self, directory: *const (), name: &[u8]) -> (bool, TreePlace) {
        let TreePlace::In(first, last) = self else {
            return (false, TreePlace::Nowhere);
        };
        if first.is(directory, name) {
            let old = match last.take() {
                Some(next) => TreePlace::In(core::mem::replace(first, next), None),
                None => match core::mem::replace(self, TreePlace::Nowhere) {
                    TreePlace::In(first, _) => {
                        *self = TreePlace::Lost(first);
                        TreePlace::Nowhere
                    }
                    other => other,
                },
            };
            return (true, old);
        }
        let gone = last.take_if(|last| last.is(directory, name));
        (
            false,
            gone.map_or(TreePlace::Nowhere, |gone| TreePlace::In(gone, None)),
        )
    }

    /// A name became another one. Returns what has to be dropped when no lock is held.
    #[must_use]
    pub(super) fn rename(&mut self, directory: *const (), name: &[u8], new: Record) -> TreePlace {
        match self {
            TreePlace::In(first, _) if first.is(directory, name) => {
                TreePlace::In(core::mem::replace(first, new), None)
            }
            _ => self.add(new),
        }
    }
}

impl Node {
    /// Tells whether it goes by this name.
    pub(super) fn goes_by(&self, directory: *const (), name: &[u8]) -> bool {
        match &*self.place.lock() {
            TreePlace::In(first, _) => first.is(directory, name),
            _ => false,
        }
    }
}
