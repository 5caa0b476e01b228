//! Slices and aggregates (`fbufs.txt` 3.2: buffer aggregates).

use nucleus::Frame;

/// Bytes `offset..offset + len` of one frame; `offset + len` is at most a page, `len` is not 0. Immutable once passed on.
#[derive(Clone, Debug)]
pub struct Slice {
    pub frame: Frame,
    pub offset: usize,
    pub len: usize,
}

/// A chain of slices. Joining, splitting and clipping change the chain, not the data.
#[derive(Clone, Default, Debug)]
pub struct Aggregate {
    slices: alloc::collections::VecDeque<Slice>,
    len: usize,
}
