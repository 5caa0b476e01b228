//! Shared pages of files: passed on without a copy, or received that way.
//!
//! A shared page is immutable: a writer, or a fault that makes it writable, first replaces it by a
//! copy ([`Object::replace_by_copy`](vm::Object::replace_by_copy)). Writers and faults hold a
//! handle of the page for a moment as well, and may take each other for sharers. A copy in vain
//! does no harm, but the page is then no longer the frame that is being written: the writer
//! [settles](settle) that.

use abi::Result;
use nucleus::{Frame, ephemeral};

/// The handles of a page that is not shared: the object's and the caller's.
const OWN_HANDLES: u64 = 2;

/// Whether a page has no handles but its object's, its mappings' and the caller's.
pub(crate) fn is_own(frame: &Frame) -> bool {
    frame.handles().saturating_sub(frame.mappings().into()) <= OWN_HANDLES
}

/// As [`is_own`], for a caller that has the page's chunk locked and no handle of the page.
pub(crate) fn is_own_locked(frame: &Frame) -> bool {
    frame.handles().saturating_sub(frame.mappings().into()) < OWN_HANDLES
}

/// Copies bytes `at..at + len` of `frame`, which was a page of a file and was written just now,
/// into the frame that `page` finds there, if that is another one, and calls `changed` for it. No
/// other writer runs.
pub(crate) fn settle(
    frame: &Frame,
    at: usize,
    len: usize,
    mut page: impl FnMut() -> Result<Option<Frame>>,
    mut changed: impl FnMut(&Frame),
) -> Result<()> {
    let mut has = frame.clone();
    // A copy that is made after this look has the bytes.
    while let Some(now) = page()? {
        if now == has {
            break;
        }
        ephemeral::map(&now).copy_from(at, &ephemeral::map(frame), at, len);
        changed(&now);
        has = now;
    }
    Ok(())
}
