//! Turns of the kernel's tasks that act at once.

use core::time::Duration;

use nucleus::{
    task::{self, Priority},
    time,
};

/// How long a task of the kernel may run before all programs. Work that is left after it competes
/// with them: programs decide how much work there is.
const LONGEST: Duration = Duration::from_millis(1);

/// A turn of the current task, which has [`Priority::KERNEL`] and gets it back when this is
/// dropped.
pub struct Turn {
    end: Duration,
    is_over: bool,
}

impl Turn {
    pub fn new() -> Turn {
        Turn {
            end: time::since_boot() + LONGEST,
            is_over: false,
        }
    }

    /// Called before each piece of work, whose size is bounded: the task gives up its priority when
    /// the turn has taken too long. Returns the time.
    pub fn next(&mut self) -> Duration {
        let now = time::since_boot();
        if now >= self.end {
            self.end();
        }
        now
    }

    /// The task gives up its priority: what follows may take long.
    pub fn end(&mut self) {
        if !self.is_over {
            self.is_over = true;
            task::current().set_priority(Priority::default());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_over {
            task::current().set_priority(Priority::KERNEL);
        }
    }
}
