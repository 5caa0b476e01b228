//! System V semaphores.

use abi::{Errno, Result};
use nucleus::task::Sleep;

use super::{
    Call, FlagSet, SystemCall, call, choice, flag_set,
    ipc::{self, Controlled},
};
use crate::ipc::sysv::{
    Caller, IPC_CREAT, IPC_EXCL, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT,
    limits::{SEMAEM, SEMMNI, SEMMNS, SEMMSL, SEMOPM, SEMVMX},
    semaphore::{self, Operation, SEM_UNDO, SETS, Set},
};
use crate::process::undo::UndoList;

const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;

const GET_FLAGS: FlagSet = flag_set!("semflg", [IPC_CREAT, IPC_EXCL, 0o777], ignored);
const COMMANDS: FlagSet = choice!(
    "cmd",
    [
        IPC_RMID,
        IPC_SET,
        IPC_STAT,
        IPC_INFO,
        GETPID,
        GETVAL,
        GETALL,
        GETNCNT,
        GETZCNT,
        SETVAL,
        SETALL,
        SEM_STAT,
        SEM_INFO,
        SEM_STAT_ANY
    ],
    EINVAL
);
const OPERATION_FLAGS: FlagSet = flag_set!("sem_flg", [IPC_NOWAIT, SEM_UNDO], ignored);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_semget, semget).flags(&[&GET_FLAGS]),
    call!(__NR_semop, |call| operate(call, Sleep::INTERRUPTIBLE)).flags(&[&OPERATION_FLAGS]),
    call!(__NR_semtimedop, semtimedop).flags(&[&OPERATION_FLAGS]),
    call!(__NR_semctl, semctl).flags(&[&COMMANDS]),
];

fn semget(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &GET_FLAGS)?;
    let count = usize::try_from(call.int(1)).map_err(|_| Errno::EINVAL)?;
    call.takes_memory()?;
    let id = semaphore::get(call.int(0), count, flags, ipc::caller(call))?;
    Ok(id as usize)
}

fn semtimedop(call: &mut Call<'_>) -> Result<usize> {
    let deadline = call.timeout(3)?;
    operate(
        call,
        Sleep {
            interruptible: true,
            deadline,
        },
    )
}

fn operate(call: &mut Call<'_>, how: Sleep) -> Result<usize> {
    let count = call.unsigned(2) as usize;
    if count == 0 || call.int(0) < 0 {
        return Err(Errno::EINVAL);
    }
    if count as u64 > SEMOPM.get() {
        return Err(Errno::E2BIG);
    }
    let mut operations = nucleus::try_vec(count)?;
    for [semaphore, change, flags] in call.read_many::<[u16; 3]>(1, count)? {
        operations.push(Operation {
            semaphore,
            change: change as i16,
            flags: OPERATION_FLAGS.check(call.caller(), flags.into())? as u32,
        });
    }
    let set = SETS.get(call.int(0))?;
    if operations.iter().any(|o| o.flags & SEM_UNDO != 0) {
        call.takes_memory()?;
        call.own.undo.get_or_insert_with(UndoList::new);
    }
    set.operate(ipc::caller(call), operations, call.own.undo.as_deref(), how)?;
    Ok(0)
}

/// Words of a `struct semid64_ds`.
const STATUS_WORDS: usize = 13;

impl Controlled<STATUS_WORDS> for Set {
    fn encode(&self) -> [u64; STATUS_WORDS] {
        let s = self.status();
        let own = [s.operated as u64, 0, s.changed as u64, 0, s.count as u64];
        ipc::encode(&s.permission, s.id, &own)
    }

    fn change(&self, caller: Caller<'_>, words: &[u64; STATUS_WORDS]) -> Result<()> {
        self.set(caller, ipc::change(words))
    }
}

fn semctl(call: &mut Call<'_>) -> Result<usize> {
    let (id, number) = (call.int(0), call.int(1));
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    let command = call.choice(2, &COMMANDS)?;
    let caller = ipc::caller(call);
    match command {
        IPC_INFO | SEM_INFO => information(call, command == SEM_INFO),
        IPC_SET | IPC_RMID | IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            ipc::control(call, &SETS, command, SEM_STAT_ANY, 3)
        }
        GETVAL => Ok(SETS.get(id)?.value(caller, number)?.0 as usize),
        GETPID => Ok(SETS.get(id)?.value(caller, number)?.1 as usize),
        GETNCNT | GETZCNT => SETS.get(id)?.waiters(caller, number, command == GETZCNT),
        GETALL => {
            let values = SETS.get(id)?.values(caller)?;
            call.write_many(3, &values)?;
            Ok(0)
        }
        SETVAL => {
            let value = u16::try_from(call.int(3)).map_err(|_| Errno::ERANGE)?;
            SETS.get(id)?.set_values(caller, number, &[value])?;
            Ok(0)
        }
        _ => {
            let set = SETS.get(id)?;
            let values = call.read_many(3, set.count)?;
            set.set_values(caller, 0, &values)?;
            Ok(0)
        }
    }
}

/// `IPC_INFO`, or with `now` `SEM_INFO`: `struct seminfo`.
fn information(call: &Call<'_>, now: bool) -> Result<usize> {
    let (used, highest) = SETS.population();
    let (size, largest) = match now {
        true => (used as i32, semaphore::total() as i32),
        // Linux's size of an undo structure.
        false => (20, SEMAEM),
    };
    let (most, all, of_set) = (SEMMNI.get(), SEMMNS.get(), SEMMSL.get());
    let operations = SEMOPM.get() as i32;
    // semmap, semmni, semmns, semmnu, semmsl, semopm, semume, semusz, semvmx, semaem.
    let info = [
        all as i32,
        most as i32,
        all as i32,
        all as i32,
        of_set as i32,
        operations,
        operations,
        size,
        SEMVMX,
        largest,
    ];
    call.write(3, &info)?;
    Ok(highest)
}
