//! Epolls that watch epolls.

use abi::{Errno, Result};
use nucleus::sync::{Mutex, MutexGuard};

use super::Epoll;

/// How many epolls may stand in a chain, each watching the next. A wake-up runs along the chain, on
/// one stack.
const LONGEST: usize = 5;

/// Held while an epoll is added to another: two of them could make a circle together.
static NESTING: Mutex<()> = Mutex::new(crate::rank::NESTING, ());

/// No epoll begins to watch another meanwhile.
pub(super) fn lock() -> MutexGuard<'static, ()> {
    NESTING.lock()
}

/// Whether `outer` may watch `inner`. Nesting is locked.
///
/// # Errors
/// `ELOOP`: that would make a circle, or a chain longer than [`LONGEST`].
pub(super) fn check(outer: &Epoll, inner: &Epoll) -> Result<()> {
    let above = height(outer, LONGEST);
    match LONGEST.checked_sub(above) {
        Some(room) if fits(outer, inner, room) => Ok(()),
        _ => Err(Errno::ELOOP),
    }
}

/// Epolls in the longest chain that ends with `epoll`; `most` and one if there are more.
fn height(epoll: &Epoll, most: usize) -> usize {
    let mut height = 0;
    if most > 0 {
        epoll.each_outer(|outer| height = height.max(self::height(outer, most - 1)));
    }
    height + 1
}

/// Whether every chain that begins with `epoll` has at most `room` epolls, none of them `outer`.
fn fits(outer: &Epoll, epoll: &Epoll, room: usize) -> bool {
    room > 0
        && !core::ptr::eq(outer, epoll)
        && epoll.each_inner(|inner| fits(outer, inner, room - 1))
}
