//! Pages of files that others keep, because they were passed on without a copy, or came that way.
//!
//! What others keep never changes: who writes such a page, or maps it to be written, puts a copy in its place first
//! ([`Object::replace_by_copy`](vm::Object::replace_by_copy)). Who writes and who faults have a handle of the page for a moment as well, and may take
//! each other for one who keeps it. A copy in vain does no harm, but the page is not the one any more that is being written: who has written [looks
//! after](settle) that.

use abi::Result;
use nucleus::{Frame, ephemeral};

/// The handles of a page that nobody but its file knows: the object's, and that of who asks.
const OWN_HANDLES: u32 = 2;

/// Whether nobody holds a page but its object, its mappings and who asks.
pub(crate) fn is_own(frame: &Frame) -> bool {
    frame.handles().saturating_sub(frame.mappings()) <= OWN_HANDLES
}

/// Bytes `at..at + len` of `frame`, which was a page of a file, were written just now: puts them into the page that `page` finds there, if that is
/// another one. `changed` hears of it. The file's other writers are kept off.
///
/// # Errors
/// Those of `page`.
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
