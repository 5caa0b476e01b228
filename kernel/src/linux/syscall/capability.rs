//! Capabilities: `capget`, `capset`.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{Call, SystemCall, call, credentials::adopt};
use crate::process::{CapabilitySet, Credentials, Pid, Process, pid_table};

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_capget, capget), call!(__NR_capset, capset)];

/// Bytes of one word of the three sets: effective, permitted, inheritable.
const WORD_LEN: usize = 12;

/// Reads the header at argument 0: words of the sets in its version of the interface, and the
/// thread that it names, 0 for the caller. `None` for an unknown version, in whose place the newest
/// was stored.
fn header(call: &Call<'_>) -> Result<Option<(usize, i32)>> {
    let [version, id]: [u32; 2] = call.read(0)?;
    let words = match version {
        raw::_LINUX_CAPABILITY_VERSION_1 => 1,
        raw::_LINUX_CAPABILITY_VERSION_2 | raw::_LINUX_CAPABILITY_VERSION_3 => 2,
        _ => {
            call.write(0, &raw::_LINUX_CAPABILITY_VERSION_3)?;
            return Ok(None);
        }
    };
    Ok(Some((words, id as i32)))
}

fn capget(call: &mut Call<'_>) -> Result<usize> {
    let Some((words, id)) = header(call)? else {
        // Without a place for the sets it was a question for the version.
        return match call.args[1] {
            0 => Ok(0),
            _ => Err(Errno::EINVAL),
        };
    };
    let of = match id {
        0 => call.credentials().clone(),
        id => {
            let id = Pid::try_from(id).map_err(|_| Errno::EINVAL)?;
            let thread = pid_table::find_thread(id).and_then(|thread| thread.credentials());
            // A zombie has them still.
            let of_process = || Process::find(id).and_then(|process| process.credentials());
            thread.or_else(of_process).ok_or(Errno::ESRCH)?
        }
    };
    if call.args[1] == 0 {
        return Ok(0);
    }
    let sets = [
        of.fs.capabilities,
        of.capabilities.permitted,
        of.capabilities.inheritable,
    ];
    for word in 0..words {
        let address = VirtAddr(call.address(1).0.wrapping_add(word * WORD_LEN));
        let part = sets.map(|set| (set.0 >> (32 * word)) as u32);
        user::write(address, &part)?;
    }
    Ok(0)
}

fn capset(call: &mut Call<'_>) -> Result<usize> {
    let (words, id) = header(call)?.ok_or(Errno::EINVAL)?;
    if id != 0 && id != call.thread.tid() as i32 {
        // No thread changes those of others.
        return Err(Errno::EPERM);
    }
    let mut sets = [0u64; 3];
    for word in 0..words {
        let address = VirtAddr(call.address(1).0.wrapping_add(word * WORD_LEN));
        let part: [u32; 3] = user::read(address)?;
        for (set, part) in sets.iter_mut().zip(part) {
            *set |= u64::from(part) << (32 * word);
        }
    }
    let sets = sets.map(|set| CapabilitySet(set).and(CapabilitySet::ALL));
    let new = changed(call.credentials(), sets)?;
    adopt(call, new);
    Ok(0)
}

/// The credentials with other effective, permitted and inheritable sets.
///
/// # Errors
/// `EPERM` for capabilities that they do not allow.
fn changed(
    old: &Credentials,
    [effective, permitted, inheritable]: [CapabilitySet; 3],
) -> Result<Credentials> {
    let own = &old.capabilities;
    let may_add = old.may(raw::CAP_SETPCAP);
    let reach = own.inheritable.union(own.permitted);
    let bound = own.inheritable.union(own.bounding);
    if !may_add && !inheritable.is_within(reach)
        || !inheritable.is_within(bound)
        || !permitted.is_within(own.permitted)
        || !effective.is_within(permitted)
    {
        return Err(Errno::EPERM);
    }
    let mut new = old.clone();
    new.fs.capabilities = effective;
    new.capabilities.permitted = permitted;
    new.capabilities.inheritable = inheritable;
    new.capabilities.ambient = own.ambient.and(permitted).and(inheritable);
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_up_does_not_come_back() {
        let root = Credentials::default();
        let one = CapabilitySet::of(&[raw::CAP_KILL]);
        let none = CapabilitySet::EMPTY;
        let less = changed(&root, [none, one, none]).unwrap();
        assert!(!less.may(raw::CAP_KILL));
        assert!(changed(&less, [one, one, none]).unwrap().may(raw::CAP_KILL));
        let two = CapabilitySet::of(&[raw::CAP_KILL, raw::CAP_CHOWN]);
        assert_eq!(changed(&less, [none, two, none]).err(), Some(Errno::EPERM));
        assert_eq!(changed(&root, [two, one, none]).err(), Some(Errno::EPERM));
    }

    #[test]
    fn inheritable_ones_come_from_the_permitted_ones() {
        let mut user = Credentials::default();
        user.fs.capabilities = CapabilitySet::EMPTY;
        user.capabilities.permitted = CapabilitySet::of(&[raw::CAP_KILL]);
        let kill = user.capabilities.permitted;
        let chown = CapabilitySet::of(&[raw::CAP_CHOWN]);
        assert!(changed(&user, [CapabilitySet::EMPTY, kill, kill]).is_ok());
        let refused = changed(&user, [CapabilitySet::EMPTY, kill, chown]);
        assert_eq!(refused.err(), Some(Errno::EPERM));
    }
}
