//! Running a program until it traps.
//!
//! A task that runs a program loops: [`UserContext::run`], then handle the [`Event`]. Entering and
//! leaving the program saves only what the program and the kernel's ABI need; there is no lock and
//! no allocation.

use crate::hw::registers::Event;
use crate::hw::user_context::UserContext;
use crate::task;

impl UserContext {
    /// Runs the program in the current task's pmap until something happens. Preemption by the timer
    /// returns [`Event::Interrupt`]; a wish to reschedule has been served before the return.
    /// Returns [`Event::Interrupt`] at once while the task is
    /// [interrupted](crate::task::Task::interrupt), or was switched to and [asks to
    /// know](crate::task::Task::watch_switches), and once after it ran in the kernel
    /// [before its turn](sched::debt).
    #[inline]
    pub fn run(&mut self) -> Event {
        self.run_unless(task::must_look)
    }
}
