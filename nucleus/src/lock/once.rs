//! Places that are filled once and then read without a lock.

use alloc::{boxed::Box, sync::Arc};
use core::{
    fmt,
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// Empty, or a box that stays until this is dropped or taken apart through `&mut`. One word; a
/// reader pays one load. It builds trees whose readers take no lock (`vm`'s sparse arrays).
pub struct OnceBox<T> {
    pointer: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: the value moves with the cell, as a `Box<T>` would.
unsafe impl<T: Send> Send for OnceBox<T> {}
// SAFETY: several threads may get `&T` (hence `T: Sync`) and any of them may put the box in
// (hence `T: Send`); the pointer does not change again while a `&OnceBox` exists.
unsafe impl<T: Send + Sync> Sync for OnceBox<T> {}

impl<T> OnceBox<T> {
    /// Empty.
    pub const fn new() -> OnceBox<T> {
        OnceBox {
            pointer: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// What is inside.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: a pointer that is not null came from `Box::into_raw` in `get_or_insert` and is
        // freed only through `&mut self`, which this borrow excludes. Acquire pairs with the
        // release there, so the value's initialisation is seen.
        unsafe { self.pointer.load(Ordering::Acquire).as_ref() }
    }

    /// What is inside, or what `make` gives. When two do this at once, one box wins and the other
    /// is dropped.
    pub fn get_or_insert(&self, make: impl FnOnce() -> Box<T>) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = Box::into_raw(make());
        let winner = match self.pointer.compare_exchange(
            ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the exchange failed, so no other CPU ever saw `new`.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: `winner` is the cell's content now, not null; see `get`.
        unsafe { &*winner }
    }

    /// Empties the cell. One that is empty is only looked at: where many stand together most are.
    #[inline]
    pub fn take(&mut self) -> Option<Box<T>> {
        let pointer = *self.pointer.get_mut();
        if pointer.is_null() {
            return None;
        }
        *self.pointer.get_mut() = ptr::null_mut();
        // SAFETY: a pointer that is not null came from `Box::into_raw`, and the cell has just
        // given it up; `&mut self` shows that no `&T` from `get` is alive.
        Some(unsafe { Box::from_raw(pointer) })
    }

    /// What is inside, to change.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: as in `get`, and `&mut self` excludes every other borrow.
        unsafe { self.pointer.get_mut().as_mut() }
    }
}

impl<T> Default for OnceBox<T> {
    fn default() -> OnceBox<T> {
        OnceBox::new()
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceBox").field(&self.get()).finish()
    }
}

/// As [`OnceBox`], for what others may keep after it left this place.
pub struct OnceArc<T> {
    pointer: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

// SAFETY: the value is shared as through an `Arc<T>`, which asks for both.
unsafe impl<T: Send + Sync> Send for OnceArc<T> {}
// SAFETY: as above; the pointer does not change again while a `&OnceArc` exists.
unsafe impl<T: Send + Sync> Sync for OnceArc<T> {}

impl<T> OnceArc<T> {
    /// Empty.
    pub const fn new() -> OnceArc<T> {
        OnceArc {
            pointer: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// What is inside.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: a pointer that is not null came from `Arc::into_raw` in `get_or_insert`, and the
        // reference that it stands for is given up only through `&mut self`, which this borrow
        // excludes. Acquire pairs with the release there, so the value's initialisation is seen.
        unsafe { self.pointer.load(Ordering::Acquire).as_ref() }
    }

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

    /// What is inside, or what `make` gives. When two do this at once, one value wins and the other
    /// is dropped.
    pub fn get_or_insert(&self, make: impl FnOnce() -> Arc<T>) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = Arc::into_raw(make()).cast_mut();
        let winner = match self.pointer.compare_exchange(
            ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the exchange failed, so the reference from `into_raw` is still ours.
                drop(unsafe { Arc::from_raw(new) });
                other
            }
        };
        // SAFETY: `winner` is the cell's content now, not null; see `get`.
        unsafe { &*winner }
    }

    /// Empties the cell. One that is empty is only looked at: where many stand together most are.
    #[inline]
    pub fn take(&mut self) -> Option<Arc<T>> {
        let pointer = *self.pointer.get_mut();
        if pointer.is_null() {
            return None;
        }
        *self.pointer.get_mut() = ptr::null_mut();
        // SAFETY: a pointer that is not null came from `Arc::into_raw`, and the cell has just given
        // its reference up; `&mut self` shows that no `&T` from `get` is alive.
        Some(unsafe { Arc::from_raw(pointer) })
    }
}

impl<T> Default for OnceArc<T> {
    fn default() -> OnceArc<T> {
        OnceArc::new()
    }
}

impl<T> Drop for OnceArc<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceArc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceArc").field(&self.get()).finish()
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
