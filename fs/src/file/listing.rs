//! Directory listing with "." and "..".

use alloc::sync::Arc;

use abi::Result;

use crate::{Kind, Vnode, vnode::Emit};

/// Positions before the file system's own cursors: 0 is ".", 1 is "..".
const DOTS: u64 = 2;

/// Emits the entries of `directory` from `position` on; returns the position after the last one
/// taken.
pub(super) fn list(directory: &Arc<dyn Vnode>, position: u64, emit: &mut Emit<'_>) -> Result<u64> {
    let mut at = position;
    let own = directory.attributes()?;
    if at == 0 {
        if !emit(b".", own.inode, Kind::Directory, 1) {
            return Ok(at);
        }
        at = 1;
    }
    if at == 1 {
        let inode = directory.parent_inode()?.unwrap_or(own.inode);
        if !emit(b"..", inode, Kind::Directory, DOTS) {
            return Ok(at);
        }
        at = DOTS;
    }
    directory.list(at - DOTS, &mut |name, inode, kind, next| {
        let taken = emit(name, inode, kind, next + DOTS);
        if taken {
            at = next + DOTS;
        }
        taken
    })?;
    Ok(at)
}
