//! The sender of a message, and its ancillary data.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN},
        net::{SCM_CREDENTIALS, SCM_RIGHTS, SO_PASSCRED, SOL_SOCKET},
    },
};

use nucleus::user::as_bytes;

use super::rights::{MAX_FILES, Rights};
use crate::{
    process::{Process, Shared, thread},
    socket::{
        Common, Incoming, PeerCredentials,
        control::{Control, ControlMessage, number},
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
            thread.with_credentials(|who| Sender {
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
        thread.with_credentials(|who| PeerCredentials {
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
        thread::with_current(|thread| thread.process().clone()).zip(thread::current_shared())
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
                for at in (0..data.len() / 4).map(|n| n * 4) {
                    files.push(who.files.get(number(data, at) as i32)?);
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
    if data.len() != 12 {
        return Err(Errno::EINVAL);
    }
    let sender = Sender {
        pid: number(data, 0),
        uid: number(data, 4),
        gid: number(data, 8),
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
    let data = [pid, uid, gid];
    let control = &mut message.control;
    control.put(SOL_SOCKET, SCM_CREDENTIALS, as_bytes(&data));
}
