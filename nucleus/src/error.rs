//! The one error that most of the kernel shares, and allocations that fail with it.

use alloc::{alloc::alloc, boxed::Box, vec::Vec};
use core::alloc::Layout;

/// No frame is free. A program sees it as `ENOMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

/// Why a setting stays as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// The mechanism needs memory that is not there.
    OutOfMemory,
    /// The mechanism is in use.
    InUse,
}

impl From<OutOfMemory> for Unchanged {
    fn from(_: OutOfMemory) -> Unchanged {
        Unchanged::OutOfMemory
    }
}

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

/// Returns a box of `value`.
pub fn try_box<T>(value: T) -> Result<Box<T>, OutOfMemory> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the size is not zero.
    let at = unsafe { alloc(Layout::new::<T>()) }.cast::<T>();
    if at.is_null() {
        return Err(OutOfMemory);
    }
    // SAFETY: memory of the global allocator with the layout of `T`, which is written before the
    // box owns it.
    unsafe {
        at.write(value);
        Ok(Box::from_raw(at))
    }
}
