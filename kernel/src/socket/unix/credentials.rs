//! The sender of a message, and its ancillary data.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN},
        net::{
            SCM_CREDENTIALS, SCM_RIGHTS, SCM_TIMESTAMP, SCM_TIMESTAMPNS, SO_PASSCRED,
            SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SOL_SOCKET,
        },
    },
};
use core::time::Duration;

use super::rights::{MAX_FILES, Rights};
use crate::{
    process::{Process, Shared, thread},
    socket::{
        Common, Incoming, PeerCredentials,
        control::{Control, ControlMessage},
    },
};

/// The user and group of an unrecorded sender (`overflowuid`).
const NOBODY: u32 = 65534;

/// The sender of a message, as `struct ucred`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Sender {
    /// The current thread's process.
    pub fn current() -> Option<Sender> {
        thread::with_current(|thread| {
            let who = thread.shared()?.credentials;
            Some(Sender {
                pid: thread.process().pid(),
                uid: who.real_uid,
                gid: who.real_gid,
            })
        })?
    }
}

/// Returns the credentials of the current thread's process, for the other end.
pub fn current_peer() -> Option<PeerCredentials> {
    thread::with_current(|thread| {
        let who = thread.shared()?.credentials;
        Some(PeerCredentials {
            pid: thread.process().pid(),
            uid: who.effective_uid,
            gid: who.effective_gid,
            groups: who.fs.groups.clone(),
        })
    })?
}

/// The requests in the control messages of a message.
#[derive(Default)]
pub struct Parsed {
    pub sender: Option<Sender>,
    pub rights: Option<Rights>,
}

/// Reads the control messages of a message that the current thread sends.
///
/// # Errors
/// `EINVAL` for malformed or unknown messages, `EBADF`, `EPERM` and `ESRCH` for false credentials,
/// `ETOOMANYREFS`.
pub fn parse(control: Control<'_>) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    if control.is_empty() {
        return Ok(parsed);
    }
    let Some((process, who)) =
        thread::with_current(|thread| Some((thread.process().clone(), thread.shared()?))).flatten()
    else {
        return Err(Errno::EINVAL);
    };
    let mut files = Vec::new();
    for message in control.messages() {
        let ControlMessage { level, kind, data } = message?;
        if level != SOL_SOCKET {
            continue;
        }
        match kind {
            SCM_RIGHTS => {
                if files.len() + data.len() / 4 > MAX_FILES {
                    return Err(Errno::EINVAL);
                }
                for number in data.chunks_exact(4) {
                    let number = [number[0], number[1], number[2], number[3]];
                    files.push(who.files.get(i32::from_le_bytes(number))?);
                }
            }
            SCM_CREDENTIALS => parsed.sender = Some(claimed(data, &process, &who)?),
            _ => return Err(Errno::EINVAL),
        }
    }
    if !files.is_empty() {
        parsed.rights = Some(Rights::new(files, &process, &who)?);
    }
    Ok(parsed)
}

/// The credentials that a program says it has.
fn claimed(data: &[u8], process: &Process, who: &Shared) -> Result<Sender> {
    let words: [u8; 12] = data.try_into().map_err(|_| Errno::EINVAL)?;
    let word = |n: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&words[n * 4..n * 4 + 4]);
        u32::from_le_bytes(word)
    };
    let sender = Sender {
        pid: word(0),
        uid: word(1),
        gid: word(2),
    };
    if sender.uid == u32::MAX || sender.gid == u32::MAX {
        return Err(Errno::EINVAL);
    }
    let own = &who.credentials;
    let is_own_id =
        |id: u32, own: [u32; 3], capability| own.contains(&id) || who.credentials.may(capability);
    let may_claim = (sender.pid == process.pid() || own.may(CAP_SYS_ADMIN))
        && is_own_id(
            sender.uid,
            [own.real_uid, own.effective_uid, own.saved_uid],
            CAP_SETUID,
        )
        && is_own_id(
            sender.gid,
            [own.real_gid, own.effective_gid, own.saved_gid],
            CAP_SETGID,
        );
    if !may_claim {
        return Err(Errno::EPERM);
    }
    if sender.pid != process.pid() && Process::find(sender.pid).is_none() {
        return Err(Errno::ESRCH);
    }
    Ok(sender)
}

/// Adds the sender's credentials for a receiver that asked for them.
pub fn put_sender(common: &Common, message: &mut Incoming<'_>, sender: Option<Sender>) {
    if !common.is_on(SO_PASSCRED) {
        return;
    }
    let Sender { pid, uid, gid } = sender.unwrap_or(Sender {
        pid: 0,
        uid: NOBODY,
        gid: NOBODY,
    });
    let mut data = [0; 12];
    for (to, number) in data.chunks_exact_mut(4).zip([pid, uid, gid]) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    message.control.put(SOL_SOCKET, SCM_CREDENTIALS, &data);
}

/// Tells the receiver when a message was sent, if it wants to know. `at` is since the epoch.
pub fn put_time(common: &Common, message: &mut Incoming<'_>, at: Duration) {
    let (kind, fraction) = if common.is_on(SO_TIMESTAMP_OLD) {
        (SCM_TIMESTAMP, at.subsec_micros())
    } else if common.is_on(SO_TIMESTAMPNS_OLD) {
        (SCM_TIMESTAMPNS, at.subsec_nanos())
    } else {
        return;
    };
    let mut data = [0; 16];
    data[..8].copy_from_slice(&at.as_secs().to_le_bytes());
    data[8..].copy_from_slice(&u64::from(fraction).to_le_bytes());
    message.control.put(SOL_SOCKET, kind, &data);
}
