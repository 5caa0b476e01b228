//! `rseq`.

use abi::{Errno, Result};
use nucleus::{addr::USER_END, task};

use super::{Call, SystemCall, call};
use crate::flags::{FlagSet, flag_set};
use crate::process::rseq::{self, Registration};

pub(super) const CALLS: &[SystemCall] = &[call!(__NR_rseq, call).flags(&[&FLAGS])];

/// Of `linux/rseq.h`, which the bindings leave out.
const RSEQ_FLAG_UNREGISTER: u32 = 1;

const FLAGS: FlagSet = flag_set!("flags", [RSEQ_FLAG_UNREGISTER], EINVAL);

fn call(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &FLAGS)?;
    let wanted = Registration {
        address: call.address(0),
        signature: call.unsigned(3),
    };
    let (task, fits) = (task::current(), call.unsigned(1) == rseq::SIZE);
    if let Some(old) = call.own.rseq {
        if old.address != wanted.address || !fits {
            return Err(Errno::EINVAL);
        }
        if old.signature != wanted.signature {
            return Err(Errno::EPERM);
        }
        if flags & RSEQ_FLAG_UNREGISTER == 0 {
            return Err(Errno::EBUSY);
        }
        old.withdraw()?;
        call.own.rseq = None;
        task.watch_switches(false);
        return Ok(0);
    }
    let aligned = wanted.address.0.is_multiple_of(rseq::SIZE as usize);
    if flags & RSEQ_FLAG_UNREGISTER != 0 || !aligned || !fits {
        return Err(Errno::EINVAL);
    }
    if wanted.address.0 >= USER_END.0 {
        return Err(Errno::EFAULT);
    }
    call.own.rseq = Some(wanted);
    task.watch_switches(true);
    Ok(0)
}
