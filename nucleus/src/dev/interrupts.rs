//! Handlers of the messages by which devices interrupt.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::hw::machine::{DEVICES, Message, message};
use crate::lock::OnceBox;

/// Runs when a device sends a message, with interrupts off: it may take locks of
/// [`Rank::Device`](crate::sync::Rank::Device) and later, frees nothing and does not sleep.
type Handler = Box<dyn Fn() + Send + Sync>;

static HANDLERS: [OnceBox<Handler>; DEVICES] = [const { OnceBox::new() }; DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Gives `handler` a message of the function at the place `source` for good. `None` when all are
/// taken.
pub(crate) fn add_handler(handler: Handler, source: u16) -> Option<Message> {
    let next = |n: usize| (n < DEVICES).then_some(n + 1);
    let number = NEXT
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .ok()?;
    HANDLERS[number].get_or_insert(|| Box::new(handler));
    Some(message(number, source))
}

/// Calls the handler of message `number`.
pub(crate) fn on_device(number: usize) {
    if let Some(handler) = HANDLERS[number].get() {
        handler();
    }
}
