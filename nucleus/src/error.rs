//! The one error that most of the kernel shares, and vectors that fail with it.

use alloc::vec::Vec;

/// No frame is free. A program sees it as `ENOMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// Returns an empty vector with room for `count` elements.
pub fn try_vec<T>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
    Ok(vec)
}

/// Returns a vector of `count` times `value`.
pub fn try_filled<T: Clone>(count: usize, value: T) -> Result<Vec<T>, OutOfMemory> {
    let mut vec = try_vec(count)?;
    vec.resize(count, value);
    Ok(vec)
}

/// Returns a copy of `slice`.
pub fn try_copy<T: Clone>(slice: &[T]) -> Result<Vec<T>, OutOfMemory> {
    let mut vec = try_vec(slice.len())?;
    vec.extend_from_slice(slice);
    Ok(vec)
}
