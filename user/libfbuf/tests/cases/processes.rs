//! Processes and random numbers of the cases.

use std::panic::{self, AssertUnwindSafe};

/// Repeatable random numbers.
pub struct Draws(pub u64);

impl Draws {
    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.word() as usize % end
    }

    /// Returns any number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// Returns so many bytes, with some newlines.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| b"0123456789abcde\n"[self.below(16)])
            .collect()
    }
}

/// Forks a child that does `body`, and exits with 0 unless that panics.
pub fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: no other thread of this process runs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let outcome = panic::catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    child
}

/// Returns the status with which a child ends.
pub fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Waits for a child, which must exit with 0.
pub fn wait(child: libc::pid_t) {
    assert_eq!(status_of(child), 0, "a child failed");
}
