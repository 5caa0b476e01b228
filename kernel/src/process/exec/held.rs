//! The memory of a program that is being put together.

use vm::account::{self, Charge, Kind};

/// What a call to execute a program holds until the program runs: the addresses of arguments, the
/// first pages of the stack. It may be some MiB, for as long as other threads take to end; so it is
/// charged to the caller.
pub struct Held(Option<Charge>);

impl Held {
    /// Holds nothing yet, for the current process; a task of the kernel is charged nothing.
    pub fn new() -> Held {
        Held(account::current().map(|account| account.charge(Kind::Executions, 1, 0)))
    }

    /// Holds so many bytes more.
    pub fn add(&mut self, bytes: usize) {
        if let Some(charge) = &mut self.0 {
            charge.add(0, bytes);
        }
    }
}
