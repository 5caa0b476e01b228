//! The program that the current thread runs, as the floor above tells it.

use alloc::{boxed::Box, sync::Arc};
use nucleus::sync::OnceBox;

use crate::map::Map;

/// How the address space of the current program is found.
type Current = fn(&mut dyn FnMut(&Arc<Map>));

static CURRENT: OnceBox<Current> = OnceBox::new();

/// Registers how the address space of the current program is found. The first one stays.
pub fn set_current_map(current: Current) {
    CURRENT.get_or_insert(|| Box::new(current));
}

/// Runs `f` with the address space of the current program, if there is one.
pub fn with_current<R>(f: impl FnOnce(&Arc<Map>) -> R) -> Option<R> {
    let (mut f, mut result) = (Some(f), None);
    CURRENT.get()?(&mut |map| result = f.take().map(|f| f(map)));
    result
}

/// How it is found whether the current thread is to end.
static DYING: OnceBox<fn() -> bool> = OnceBox::new();

/// Registers how it is found whether the current thread is to end. The first one stays.
pub fn set_dying(dying: fn() -> bool) {
    DYING.get_or_insert(|| Box::new(dying));
}

/// Returns whether the current thread is to end, so that a long call stops.
pub fn is_dying() -> bool {
    DYING.get().is_some_and(|dying| dying())
}
