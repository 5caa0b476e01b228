//! All names that most tests use: this crate's, the constants and types of `libc`, and those of the
//! standard library for files, threads, pointers and times.

pub use std::arch::asm;
pub use std::collections::{BTreeMap, BTreeSet};
pub use std::ffi::{CStr, CString};
pub use std::fs::{self, File, Permissions};
pub use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
pub use std::mem::{self, size_of, zeroed};
pub use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
pub use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
pub use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
pub use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
pub use std::path::Path;
pub use std::process::{Command, Stdio};
pub use std::ptr::{self, null, null_mut};
pub use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering, Ordering::*,
};
pub use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
pub use std::thread;
pub use std::time::{Duration, Instant};

pub use libc::*;

pub use crate::children::{
    End, await_sleep, child, exit, kill_child, say, spawn, spawn_sleeper, wait, wait_all,
};
pub use crate::children::{wait_ok, wait_with};
pub use crate::cpus::{cpus, futex, futex_wait, futex_wake, futex_with, pin};
pub use crate::failure::{Failure, Outcome, Result, Test, errno, skip};
pub use crate::faults::{Fault, code, code::*, fault_of, faults};
pub use crate::files::{
    c, counter, field, field_of, file, folder, pipe, read_bytes, read_text, write_bytes,
};
pub use crate::legacy::int80;
pub use crate::memory::{
    PAGE, READ_WRITE, low_map, map, map_of_entries, map_with, peek, poke, shared_map, shared_value,
    touch, unmap,
};
pub use crate::numbers::Numbers;
pub use crate::signals::{block, handle, ignore_signal, mask, set_of, signal_stack, take_signal};
pub use crate::sockets::{option, set_option, socket_pair, unread_answers};
pub use crate::structs::{
    allowing_step, epoll_entry, filter_of, limit_of, poll_entry, time_spec, time_val, timer_spec,
    timer_val, undone_raise, vector,
};
pub use crate::time::{after, clock, pause_ms, poll_for, sleep_forever, timespec_of};
pub use crate::{call, ensure, equal, refused};
