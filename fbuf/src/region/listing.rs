//! The figures of all paths, for `/proc/causeway/fbuf`.

use alloc::vec::Vec;

use abi::Result;

use super::{Mode, table};

/// The figures of one path.
#[derive(Clone, Copy, Debug)]
pub struct PathStatus {
    /// Its number.
    pub id: u64,
    /// The process of the originator; 0: the kernel.
    pub owner: u32,
    /// The originator is gone.
    pub is_over: bool,
    /// Its mode.
    pub mode: Mode,
    /// Chunks that it has.
    pub chunks: usize,
    /// Chunks that it may have at most.
    pub limit: usize,
    /// Pages of these in memory or in swap.
    pub pages: usize,
    /// Number of receivers.
    pub members: usize,
    /// Messages that some receiver has not freed.
    pub messages: usize,
    /// Pages that the originator has not been told about.
    pub notices: usize,
    /// Secured pages, which its originator may not write now.
    pub secured: usize,
}

/// Returns the figures of all paths.
///
/// # Errors
/// `ENOMEM`.
pub fn statuses() -> Result<Vec<PathStatus>> {
    let paths = table::lock().paths()?;
    let mut statuses = nucleus::try_vec(paths.len())?;
    for path in paths {
        let state = path.state.lock();
        let runs = || state.runs.iter().map(|shares| &shares.run);
        statuses.push(PathStatus {
            id: path.id(),
            owner: path.owner(),
            is_over: !state.has_originator(),
            mode: path.mode(),
            chunks: state.chunks(),
            limit: path.limit(),
            pages: runs()
                .map(|run| vm::Pager::object(&**run).resident_count())
                .sum(),
            members: state.members.iter().flatten().count(),
            messages: state.messages.count(),
            notices: state.notices(),
            secured: runs().map(|run| run.secured_count()).sum(),
        });
    }
    statuses.sort_unstable_by_key(|status| status.id);
    Ok(statuses)
}
