//! Limits: sizes that wrap, races for the last place, and calls that are refused but leave
//! something behind.

use crate::{as_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[(
    "attacks: limits: segments whose size wraps",
    wrapping_segments,
)];

/// Segments that together have 2^64 bytes do not count as none.
fn wrapping_segments() -> Outcome {
    let kib = field("/proc/meminfo", "MemTotal")? + field("/proc/meminfo", "SwapTotal")?;
    let third = kib as usize * 1024 / 3;
    as_user(|| {
        while_attacking(|| {
            let small = call!(shmget(IPC_PRIVATE, 4097 * PAGE, 0o600));
            for pages in 4097..4097 + 16 {
                for flags in [0, SHM_NORESERVE] {
                    let size = 0_usize.wrapping_sub(pages * PAGE);
                    refused!(EINVAL, shmget(IPC_PRIVATE, size, 0o600 | flags));
                }
            }
            refused!(ENOSPC, shmget(IPC_PRIVATE, 1 << 46, 0o600 | SHM_NORESERVE));
            // The limit holds as before.
            let first = call!(shmget(IPC_PRIVATE, third, 0o600));
            refused!(ENOSPC, shmget(IPC_PRIVATE, third, 0o600));
            for segment in [small, first] {
                call!(shmctl(segment, IPC_RMID, null_mut()));
            }
            Ok(())
        })
    })
}
