//! Changes of a file's owner and mode that depend on what these were.
//!
//! `chmod` looks who the owner is, `chown` which set-id bits there are, and a write of an ordinary
//! user clears those. Each looks and changes in one turn: between the two, the owner that was
//! checked could give the file to root, or a set-id bit could come back.

use alloc::sync::Arc;

use abi::{Errno, Result};
use nucleus::sync::{Mutex, MutexGuard};

use super::Vnode;
use crate::rank;

/// Turns for vnodes: those whose addresses fall together share one.
static TURNS: [Mutex<()>; 64] = [const { Mutex::new(rank::OWNERSHIP, ()) }; 64];

/// The capabilities that a file gives to those that execute it.
const CAPABILITIES: &[u8] = b"security.capability";

/// Keeps owner, group and mode of `vnode` as they are for others that hold them. May sleep.
pub(crate) fn hold_ownership(vnode: &Arc<dyn Vnode>) -> MutexGuard<'static, ()> {
    // Vnodes are no smaller than a cache line.
    let number = Arc::as_ptr(vnode).addr() >> 6;
    TURNS[number % TURNS.len()].lock()
}

/// Takes a file's capabilities from it: its bytes or its owner change.
///
/// # Errors
/// Those of the file system.
pub(crate) fn drop_capabilities(vnode: &dyn Vnode) -> Result<()> {
    let Ok(attributes) = vnode.extended_attributes() else {
        return Ok(());
    };
    match attributes.get(CAPABILITIES) {
        Ok(_) => attributes.set(CAPABILITIES, None, 0),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(error),
    }
}
