//! The protocol `NETLINK_ROUTE`: requests, permissions, and answers.
//!
//! There is one table of routes beside the one of this machine's own addresses, and its rules stay
//! as they are.

use abi::{Errno, Result, raw::general::__NR_sendto};

use super::{
    addresses, link,
    message::{self, Answers, Request, Writer},
    neighbours, numbers as raw, routes,
};
use crate::{
    process::thread,
    socket::inet::{AF_INET, AF_INET6, interface},
    unsupported::{Caller, note_unsupported},
};

/// The requester.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// His socket's port.
    pub port: u32,
    /// May change the network (`CAP_NET_ADMIN`).
    pub is_administrator: bool,
    /// Heads are checked to the last field, and their fields choose the listed objects
    /// (`NETLINK_GET_STRICT_CHK`).
    pub is_strict: bool,
    /// Failures are answered without the whole request (`NETLINK_CAP_ACK`).
    pub caps_outcomes: bool,
}

/// The result of a request.
enum Served {
    /// The request is answered; listeners are told if it changed something.
    Done,
    /// An answer that says so itself.
    Answered,
}

/// One kind of request comes in groups of four: to make, to delete, to get, to set.
const GET: u32 = 2;

/// The first type behind the last that Linux knows (`RTM_MAX`).
const END: u32 = 120;

/// Serves the requests in a datagram, until the thread is to end.
pub fn serve(bytes: &[u8], asker: &Asker, answers: &mut Answers<'_>) {
    for request in message::requests(bytes) {
        if vm::is_dying() {
            return;
        }
        // Messages that are no requests, and the protocol's own, need no answer.
        let asks = request.has(raw::NLM_F_REQUEST) && request.kind >= raw::NLMSG_MIN_TYPE;
        let served = match asks {
            true => serve_one(&request, asker, answers),
            false => Ok(Served::Done),
        };
        let error = match served {
            Ok(Served::Answered) => continue,
            Ok(Served::Done) if !request.has(raw::NLM_F_ACK) => continue,
            Ok(Served::Done) => None,
            Err(error) => Some(error),
        };
        if error == Some(Errno::EOPNOTSUPP) {
            // The requests of a socket are served as they are sent.
            thread::with_current(|thread| {
                let caller = Caller {
                    number: __NR_sendto,
                    compatible: false,
                    thread,
                };
                note_unsupported(caller, "nlmsg_type", request.kind.into());
            });
        }
        let mut writer = Writer::new(&request, asker.port);
        writer.outcome(&request, error, asker.caps_outcomes);
        answers.push(writer.finish());
    }
}

fn serve_one(request: &Request<'_>, asker: &Asker, answers: &mut Answers<'_>) -> Result<Served> {
    if request.kind >= END {
        return Err(Errno::EOPNOTSUPP);
    }
    // All begin with the family's number.
    let Some(&family) = request.body().first() else {
        return Ok(Served::Done);
    };
    if request.kind & 3 != GET {
        if !asker.is_administrator {
            return Err(Errno::EPERM);
        }
        return change(request).map(|()| Served::Done);
    }
    let kind = request.kind;
    if request.has(raw::NLM_F_DUMP) {
        answers.check_room()?;
        let mut writer = Writer::new(request, asker.port);
        let (v4, v6) = match u32::from(family) {
            AF_INET => (true, false),
            AF_INET6 => (false, true),
            _ => (true, true),
        };
        let listed = match kind {
            raw::RTM_GETLINK => link::list(request, asker, &mut writer),
            raw::RTM_GETADDR => addresses::list(request, asker, &mut writer, v4, v6),
            raw::RTM_GETROUTE => routes::list(request, asker, &mut writer, v4, v6),
            raw::RTM_GETRULE => Ok(routes::list_rules(&mut writer, v4, v6)),
            raw::RTM_GETNEIGH => neighbours::list(request, &mut writer, v4, v6),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let (error, flags) = match listed {
            Ok(flags) => (None, flags),
            Err(error) => (Some(error), 0),
        };
        for datagram in writer.finish_all()? {
            answers.push(Ok(datagram));
        }
        let mut end = Writer::new(request, asker.port);
        end.done(error, flags);
        answers.push(end.finish());
        return Ok(Served::Answered);
    }
    let mut writer = Writer::new(request, asker.port);
    match kind {
        raw::RTM_GETLINK => link::show(request, asker, &mut writer)?,
        raw::RTM_GETROUTE => routes::find(request, &mut writer)?,
        raw::RTM_GETNEIGH => neighbours::show(request, &mut writer)?,
        _ => return Err(Errno::EOPNOTSUPP),
    }
    answers.push(writer.finish());
    Ok(Served::Done)
}

/// Serves a request to change something.
fn change(request: &Request<'_>) -> Result<()> {
    match request.kind {
        raw::RTM_NEWLINK | raw::RTM_SETLINK => link::change(request),
        raw::RTM_DELLINK => link::remove(request),
        raw::RTM_NEWADDR => addresses::add(request),
        raw::RTM_DELADDR => addresses::remove(request),
        raw::RTM_NEWROUTE => routes::add(request),
        raw::RTM_DELROUTE => routes::remove(request),
        raw::RTM_NEWNEIGH => neighbours::add(request),
        raw::RTM_DELNEIGH => neighbours::remove(request),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// The first `N` bytes of a request's body.
///
/// # Errors
/// `EINVAL` if it has fewer.
pub fn structure<const N: usize>(request: &Request<'_>) -> Result<[u8; N]> {
    request
        .body()
        .first_chunk::<N>()
        .copied()
        .ok_or(Errno::EINVAL)
}

/// Checks the number of an interface in a request.
///
/// # Errors
/// `ENODEV`.
pub fn check_index(index: u32) -> Result<()> {
    interface::by_index(index).map(drop)
}
