//! What became of the bytes of large transfers, by call, and why some were copied:
//! `/proc/causeway/movements`.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use nucleus::task;

/// The calls that move bytes, by what they move them to or from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TransferCall {
    PipeWrite,
    PipeRead,
    UnixSend,
    UnixReceive,
    TcpSend,
    TcpReceive,
    FileWrite,
    FileRead,
    /// `process_vm_readv`, `process_vm_writev`.
    Process,
}

/// What became of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// They went with their pages.
    Passed,
    /// They were copied once, straight into a receiver's memory.
    Put,
    /// They were copied.
    Copied(CopyReason),
}

/// Why bytes were copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyReason {
    /// They are too few.
    Small,
    /// They do not begin with a page, or end before it does.
    Unaligned,
    /// Pages like these were mostly written soon after they had changed hands.
    SoonWritten,
    /// Their page could not be lent, or had not been: it was not there, a device wrote it, or it
    /// belongs to the kernel.
    NotLent,
    /// The receiver's memory takes no pages: it is shared, or memory for that was missing.
    NotTaken,
    /// The switch `movement` says so.
    SwitchedOff,
    /// The queue had no room for a page.
    NoRoom,
    /// They are a packet, or may only be linked together.
    Packet,
    /// The file has pages there, which are written as they are.
    Overwritten,
    /// The file was being written.
    Busy,
}

const CALLS: [&str; 9] = [
    "pipe_write",
    "pipe_read",
    "unix_send",
    "unix_receive",
    "tcp_send",
    "tcp_receive",
    "file_write",
    "file_read",
    "process_vm",
];

/// The names of what became of bytes, in the order of [`moved_bytes`].
pub const MOVED_NAMES: [&str; 12] = [
    "passed",
    "put",
    "small",
    "unaligned",
    "soon_written",
    "not_lent",
    "not_taken",
    "switched_off",
    "no_room",
    "packet",
    "overwritten",
    "busy",
];

impl Moved {
    fn place(self) -> usize {
        match self {
            Moved::Passed => 0,
            Moved::Put => 1,
            Moved::Copied(why) => 2 + why as usize,
        }
    }
}

/// What one CPU has counted.
#[repr(align(64))]
struct Sums([[AtomicU64; MOVED_NAMES.len()]; CALLS.len()]);

static SUMS: [Sums; task::MAX_CPUS] =
    [const { Sums([const { [const { AtomicU64::new(0) }; MOVED_NAMES.len()] }; CALLS.len()]) };
        task::MAX_CPUS];

/// Counts bytes of a large transfer.
pub fn count_moved(call: TransferCall, moved: Moved, bytes: usize) {
    SUMS[task::cpu()].0[call as usize][moved.place()].fetch_add(bytes as u64, Relaxed);
}

/// Returns the name of each call, and the bytes of its large transfers by what became of them.
pub fn moved_bytes() -> impl Iterator<Item = (&'static str, [u64; MOVED_NAMES.len()])> {
    let sum = |call: usize, way: usize| {
        let each = SUMS.iter().map(|sums| sums.0[call][way].load(Relaxed));
        each.fold(0, u64::wrapping_add)
    };
    CALLS
        .iter()
        .enumerate()
        .map(move |(call, name)| (*name, core::array::from_fn(|way| sum(call, way))))
}
