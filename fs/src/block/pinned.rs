//! Files whose blocks are used past the file system.

use alloc::sync::Arc;

use super::Device;

/// Neighbouring pages of a file that are neighbours on the disk, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first page of the file.
    pub page: u64,
    /// Where it is on the disk.
    pub sector: u64,
    /// How many there are.
    pub pages: u64,
}

/// The blocks of a file, which keep their owner and place until this is dropped: the file can't be
/// written, cut off or made longer meanwhile, and its pages in memory need not agree with its
/// blocks.
pub trait PinnedBlocks: Send + Sync {
    /// The disk.
    fn device(&self) -> &Arc<Device>;

    /// All whole pages of the file, in order and without a gap.
    fn runs(&self) -> &[Run];
}
