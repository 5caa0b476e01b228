//! Places that are filled once and then read without a lock.

use alloc::{boxed::Box, sync::Arc};
use core::{
    fmt,
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::error::{OutOfMemory, try_box};

/// An owner of a value that a [`Once`] keeps as one word.
///
/// # Safety
/// `into_raw` gives a pointer that is not null, and the value stays there until `from_raw`.
pub unsafe trait Owner {
    /// The value.
    type Value;

    /// Gives up the ownership.
    fn into_raw(self) -> *mut Self::Value;

    /// Takes it back.
    ///
    /// # Safety
    /// The pointer is from `into_raw`, once for each call of that.
    unsafe fn from_raw(pointer: *mut Self::Value) -> Self;
}

// SAFETY: a box's value does not move.
unsafe impl<T> Owner for Box<T> {
    type Value = T;

    #[inline]
    fn into_raw(self) -> *mut T {
        Box::into_raw(self)
    }

    #[inline]
    unsafe fn from_raw(pointer: *mut T) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Box::from_raw(pointer) }
    }
}

// SAFETY: as above; the value lives at least as long as this handle.
unsafe impl<T> Owner for Arc<T> {
    type Value = T;

    #[inline]
    fn into_raw(self) -> *mut T {
        Arc::into_raw(self).cast_mut()
    }

    #[inline]
    unsafe fn from_raw(pointer: *mut T) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(pointer) }
    }
}

/// Empty, or an owner that stays until this is dropped or taken apart through `&mut`. One word; a
/// reader pays one load. It builds trees whose readers take no lock (`vm`'s sparse arrays).
pub struct Once<P: Owner> {
    pointer: AtomicPtr<P::Value>,
    owns: PhantomData<P>,
}

/// Holds a value of its own.
pub type OnceBox<T> = Once<Box<T>>;
/// Holds a value that others may keep after it left this place.
pub type OnceArc<T> = Once<Arc<T>>;

// SAFETY: the owner moves with the cell.
unsafe impl<P: Owner + Send> Send for Once<P> {}
// SAFETY: several threads may get a reference to the value (hence `Sync`) and any of them may put
// the owner in (hence `Send`); the pointer does not change again while a `&Once` exists.
unsafe impl<P: Owner + Send + Sync> Sync for Once<P> {}

impl<P: Owner> Once<P> {
    /// Empty.
    pub const fn new() -> Self {
        Self {
            pointer: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// What is inside.
    #[inline]
    pub fn get(&self) -> Option<&P::Value> {
        // SAFETY: a pointer that is not null came from `into_raw` in `get_or_insert` and is given
        // up only through `&mut self`, which this borrow excludes. Acquire pairs with the release
        // there, so the value's initialisation is seen.
        unsafe { self.pointer.load(Ordering::Acquire).as_ref() }
    }

    /// What is inside, or what `make` gives. When two do this at once, one owner wins and the other
    /// is dropped.
    pub fn get_or_insert(&self, make: impl FnOnce() -> P) -> &P::Value {
        if let Some(value) = self.get() {
            return value;
        }
        let new = make().into_raw();
        let winner = match self.pointer.compare_exchange(
            ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the exchange failed, so no other CPU ever saw `new`.
                drop(unsafe { P::from_raw(new) });
                other
            }
        };
        // SAFETY: `winner` is the cell's content now, not null; see `get`.
        unsafe { &*winner }
    }

    /// Empties the cell. One that is empty is only looked at: where many stand together most are.
    #[inline]
    pub fn take(&mut self) -> Option<P> {
        let pointer = *self.pointer.get_mut();
        if pointer.is_null() {
            return None;
        }
        *self.pointer.get_mut() = ptr::null_mut();
        // SAFETY: a pointer that is not null came from `into_raw`, and the cell has just given it
        // up; `&mut self` shows that no reference from `get` is alive.
        Some(unsafe { P::from_raw(pointer) })
    }
}

impl<T> OnceBox<T> {
    /// Returns the value, or puts in what `make` gives. Never sleeps.
    ///
    /// # Errors
    /// No memory for the box.
    #[inline]
    pub fn get_or_try_insert(&self, make: impl FnOnce() -> T) -> Result<&T, OutOfMemory> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let new = try_box(make())?;
        Ok(self.get_or_insert(|| new))
    }

    /// What is inside, to change.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: as in `get`, and `&mut self` excludes every other borrow.
        unsafe { self.pointer.get_mut().as_mut() }
    }
}

impl<T> OnceArc<T> {
    /// What is inside, counted once more.
    pub fn get_arc(&self) -> Option<Arc<T>> {
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: as in `get`: while `&self` is borrowed the cell keeps its reference, so there is
        // one to add to.
        (!pointer.is_null()).then(|| unsafe {
            Arc::increment_strong_count(pointer);
            Arc::from_raw(pointer)
        })
    }
}

impl<P: Owner> Default for Once<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Owner> Drop for Once<P> {
    #[inline]
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<P: Owner<Value: fmt::Debug>> fmt::Debug for Once<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Once").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{OnceArc, OnceBox};
    use alloc::{boxed::Box, sync::Arc};

    #[test]
    fn keeps_the_first_box_and_frees_all() {
        let count = Arc::new(());
        let mut cell = OnceBox::new();
        assert!(cell.get().is_none());
        cell.get_or_insert(|| Box::new(count.clone()));
        cell.get_or_insert(|| unreachable!());
        assert_eq!(Arc::strong_count(&count), 2);
        assert!(cell.take().is_some());
        assert!(cell.take().is_none());
        cell.get_or_insert(|| Box::new(count.clone()));
        drop(cell);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[test]
    fn gives_up_its_reference_once() {
        let value = Arc::new(7);
        let mut cell = OnceArc::new();
        assert!(cell.get().is_none() && cell.take().is_none());
        assert_eq!(cell.get_or_insert(|| value.clone()), &7);
        cell.get_or_insert(|| unreachable!());
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(
            cell.get_arc()
                .is_some_and(|held| Arc::ptr_eq(&held, &value))
        );
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(cell.take().is_some_and(|taken| Arc::ptr_eq(&taken, &value)));
        assert!(cell.get_arc().is_none());
        assert_eq!(Arc::strong_count(&value), 1);
        cell.get_or_insert(|| value.clone());
        drop(cell);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
