//! System V interprocess communication.
//!
//! - [`ids`]: for each kind of object a table from a key or an id to the object. Finding one takes
//!   a lock whose readers share no cache line; everything after it takes the object's own lock, so
//!   unrelated objects never contend.
//! - [`permission`]: access rights, and the owner that `IPC_STAT` shows.
//! - [`limits`]: the settings of `/proc/sys/kernel`.
//! - [`segment`]: shared memory. [`semaphore`] and [`undo`]: sets of semaphores. [`message`]:
//!   queues of messages.
//! - [`listing`][]: `/proc/sysvipc`.
//!
//! The calls are in [`syscall`](crate::linux::syscall); nothing here touches a program's memory
//! with a lock held.

pub mod ids;
pub mod limits;
pub mod listing;
pub mod message;
pub mod permission;
pub mod segment;
pub mod semaphore;

use abi::{Errno, Result};
use nucleus::time;
use vm::account::{self, Charge, Kind};

use crate::process::{Credentials, Pid};

/// Key of objects that no key finds.
pub const IPC_PRIVATE: i32 = 0;
/// Make the object if there is none.
pub const IPC_CREAT: u32 = 0o1000;
/// Fail if there is one.
pub const IPC_EXCL: u32 = 0o2000;
/// Do not sleep.
pub const IPC_NOWAIT: u32 = 0o4000;

/// Commands of the control calls.
pub const IPC_RMID: u32 = 0;
pub const IPC_SET: u32 = 1;
pub const IPC_STAT: u32 = 2;
pub const IPC_INFO: u32 = 3;

#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub credentials: &'a Credentials,
    pub pid: Pid,
}

/// What part of [`user_share`](account::user_share) an ordinary user's queues, and its sets of
/// semaphores, may be: their memory cannot go to swap.
const PART: usize = 8;

/// Charges an object to the current user, if that one may have it.
///
/// # Errors
/// `ENOSPC`.
fn charge(kind: Kind, things: usize, bytes: usize) -> Result<Option<Charge>> {
    let Some(account) = account::current_for(kind) else {
        return Ok(None);
    };
    let charge = account.charge_if(kind, things, bytes, |user| user.may_keep(kind, 0, PART));
    charge.map(Some).ok_or(Errno::ENOSPC)
}

/// Seconds since the epoch, as the objects' time stamps are given.
fn now() -> i64 {
    time::since_epoch().as_secs() as i64
}
