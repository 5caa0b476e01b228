//! `membarrier`.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::general::{membarrier_cmd as command, membarrier_cmd_flag},
};
use nucleus::pmap;

use super::{Call, FlagSet, NO_FLAGS, SystemCall, call, choice, flag_set};

const COMMANDS: FlagSet = choice!(
    "cmd",
    [
        command::MEMBARRIER_CMD_QUERY,
        command::MEMBARRIER_CMD_GLOBAL,
        command::MEMBARRIER_CMD_GLOBAL_EXPEDITED,
        command::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED,
        command::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
        command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
        command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
        command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
        command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ,
        command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ,
    ],
    EINVAL
);
/// Those of `MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ`.
const RSEQ_FLAGS: FlagSet = flag_set!(
    "flags (RSEQ)",
    [membarrier_cmd_flag::MEMBARRIER_CMD_FLAG_CPU],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] =
    &[call!(__NR_membarrier, membarrier).flags(&[&COMMANDS, &NO_FLAGS, &RSEQ_FLAGS])];

const GLOBAL: u32 = command::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = command::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const REGISTER_GLOBAL: u32 = command::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const REGISTER_PRIVATE: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32;
const PRIVATE_CORE: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const REGISTER_PRIVATE_CORE: u32 =
    command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;

const PRIVATE_RSEQ: u32 = command::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as u32;
const REGISTER_PRIVATE_RSEQ: u32 = command::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ as u32;

/// Has the restartable sequences begin anew in which threads of the caller's process are. Those of
/// one CPU may be asked for; all are no worse.
fn disturb(call: &Call<'_>) {
    for thread in call.process().threads() {
        if let Some(task) = thread.task() {
            task.disturb();
        }
    }
    call.space().map().pmap().interrupt();
}

/// Makes other CPUs pass a full barrier: they are interrupted, and have answered when the call
/// returns. An interrupt also makes a CPU fetch its instructions anew, so the kind for changed code
/// needs nothing more.
fn membarrier(call: &mut Call<'_>) -> Result<usize> {
    match call.unsigned(0) {
        PRIVATE_RSEQ => call.flags(1, &RSEQ_FLAGS)?,
        _ => call.flags(1, &NO_FLAGS)?,
    };
    let space = call.space();
    let registered = |bit: u32| space.barriers.load(Relaxed) & bit != 0;
    match call.choice(0, &COMMANDS)? {
        GLOBAL | GLOBAL_EXPEDITED => pmap::interrupt_all(),
        bit @ (REGISTER_GLOBAL
        | REGISTER_PRIVATE
        | REGISTER_PRIVATE_CORE
        | REGISTER_PRIVATE_RSEQ) => {
            space.barriers.fetch_or(bit, Relaxed);
        }
        PRIVATE if registered(REGISTER_PRIVATE) => space.map().pmap().interrupt(),
        PRIVATE_CORE if registered(REGISTER_PRIVATE_CORE) => space.map().pmap().interrupt(),
        PRIVATE_RSEQ if registered(REGISTER_PRIVATE_RSEQ) => disturb(call),
        PRIVATE | PRIVATE_CORE | PRIVATE_RSEQ => return Err(Errno::EPERM),
        // The query: which commands there are.
        _ => {
            return Ok((GLOBAL
                | GLOBAL_EXPEDITED
                | REGISTER_GLOBAL
                | PRIVATE
                | REGISTER_PRIVATE
                | PRIVATE_CORE
                | REGISTER_PRIVATE_CORE
                | PRIVATE_RSEQ
                | REGISTER_PRIVATE_RSEQ) as usize);
        }
    }
    Ok(0)
}
