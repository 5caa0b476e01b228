//! System V interprocess communication, by the calls of their own and by `ipc`, and what else takes
//! a `struct sigevent` or a message with a head.

use abi::{Errno, Result, raw::general as raw};
use fbuf::UserSink;
use nucleus::VirtAddr;

use super::{
    layout::{self, Field, Forms, MSG, PERM, SEM, SHM},
    row::{Row, give, same, shim, take},
    time::narrow_in,
    time::wide_in,
};
use crate::linux::syscall::Call;
use crate::{
    ipc::sysv::{IPC_INFO, IPC_SET, IPC_STAT},
    linux::syscall::message,
};

pub(super) const CALLS: &[Row] = &[
    shim(117, raw::__NR_shmctl, ipc),
    shim(259, raw::__NR_timer_create, |call| {
        event_in(call, 1)?;
        call.native(raw::__NR_timer_create)
    }),
    same(393, raw::__NR_semget),
    shim(394, raw::__NR_semctl, |call| semctl(call, Perm::Wide)),
    same(395, raw::__NR_shmget),
    shim(396, raw::__NR_shmctl, |call| shmctl(call, Perm::Wide)),
    same(397, raw::__NR_shmat),
    same(398, raw::__NR_shmdt),
    same(399, raw::__NR_msgget),
    shim(400, raw::__NR_msgsnd, msgsnd),
    shim(401, raw::__NR_msgrcv, msgrcv),
    shim(402, raw::__NR_msgctl, |call| msgctl(call, Perm::Wide)),
    shim(420, raw::__NR_semtimedop, |call| {
        wide_in::<1>(call, 3)?;
        call.native(raw::__NR_semtimedop)
    }),
];

/// Makes argument `n` point to the wide form of a `struct sigevent`, unless it is null.
pub(super) fn event_in(call: &mut Call<'_>, n: usize) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    let words: [u32; 16] = call.read(n)?;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut wide = [0u64; 8];
    // The value; signal and way; a thread.
    wide[0] = u64::from(words[0]);
    wide[1] = pair(words[1], words[2]);
    wide[2] = u64::from(words[3]);
    call.lay(n, &wide)
}

/// How a structure begins: with a `struct ipc64_perm`, or with the `struct ipc_perm` of old.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Perm {
    Wide,
    Old,
}

/// The words of a 64-bit structure's head: key, user; group, maker; its group, mode; sequence; two
/// unused.
const HEAD: usize = 6;

impl Perm {
    /// The layouts of a structure of two parts: the head, and its own fields.
    fn parts(self, own: &Forms) -> [&'static [Field]; 2] {
        match self {
            Perm::Wide => [PERM.wide, own.wide],
            Perm::Old => [PERM.old, own.old],
        }
    }

    /// The head that `IPC_SET` wants, of which user, group and mode count, from a program's
    /// structure.
    fn decode(self, at: VirtAddr) -> Result<[u64; HEAD]> {
        let (uid, gid, mode) = match self {
            Perm::Wide => {
                let words: [u32; 6] = take(at)?;
                (words[1], words[2], words[5] & 0xffff)
            }
            Perm::Old => {
                let halves: [u16; 7] = take(at)?;
                let [uid, gid, mode] = [halves[2], halves[3], halves[6]].map(u32::from);
                (uid, gid, mode)
            }
        };
        let mut wide = [0; HEAD];
        wide[0] = u64::from(uid) << 32;
        wide[1] = u64::from(gid);
        wide[2] = u64::from(mode) << 32;
        Ok(wide)
    }

    /// Bytes of the head.
    fn len(self) -> usize {
        match self {
            Perm::Wide => 36,
            Perm::Old => 16,
        }
    }
}

/// Calls a control call whose argument `n` is a structure: `words` of it are read with `IPC_SET`,
/// else written.
fn control(
    call: &mut Call<'_>,
    native: u32,
    n: usize,
    words: usize,
    set: Option<&[u64]>,
) -> Result<usize> {
    call.lay_room(n, words * 8)?;
    for (i, word) in set.unwrap_or(&[]).iter().enumerate() {
        give(call.address(n) + i * 8, word)?;
    }
    call.native(native)
}

/// Commands that tell of one object, and of all.
const STATS: [u32; 3] = [13, 14, 15];
const SEM_STATS: [u32; 3] = [18, 19, 20];

fn semctl(call: &mut Call<'_>, perm: Perm) -> Result<usize> {
    const WORDS: usize = 13;
    let (command, at) = (call.unsigned(2), call.address(3));
    let [stat, _, stat_any] = SEM_STATS;
    match command {
        IPC_SET => {
            let head = perm.decode(at)?;
            control(call, raw::__NR_semctl, 3, WORDS, Some(&head))
        }
        _ if command == IPC_STAT || command == stat || command == stat_any => {
            let result = control(call, raw::__NR_semctl, 3, WORDS, None)?;
            let w: [u64; WORDS] = call.read(3)?;
            layout::write(&perm.parts(&SEM), &w, at)?;
            Ok(result)
        }
        _ => call.native(raw::__NR_semctl),
    }
}

fn shmctl(call: &mut Call<'_>, perm: Perm) -> Result<usize> {
    const WORDS: usize = 14;
    let (command, at) = (call.unsigned(1), call.address(2));
    let [stat, info, stat_any] = STATS;
    match command {
        IPC_SET => {
            let head = perm.decode(at)?;
            control(call, raw::__NR_shmctl, 2, WORDS, Some(&head))
        }
        IPC_INFO => {
            let result = control(call, raw::__NR_shmctl, 2, 9, None)?;
            let words: [u64; 9] = call.read(2)?;
            let count = if perm == Perm::Wide { 9 } else { 5 };
            let words = words.map(|word| word.min(i32::MAX as u64) as u32);
            let bytes = nucleus::user::as_bytes(&words);
            nucleus::user::copy_out(at, &bytes[..count * 4]).map_err(|_| Errno::EFAULT)?;
            Ok(result)
        }
        _ if command == info => {
            let result = control(call, raw::__NR_shmctl, 2, 6, None)?;
            let words: [u64; 6] = call.read(2)?;
            give(at, &words.map(|word| word as u32))?;
            Ok(result)
        }
        _ if command == IPC_STAT || command == stat || command == stat_any => {
            let result = control(call, raw::__NR_shmctl, 2, WORDS, None)?;
            let w: [u64; WORDS] = call.read(2)?;
            layout::write(&perm.parts(&SHM), &w, at)?;
            Ok(result)
        }
        _ => call.native(raw::__NR_shmctl),
    }
}

fn msgctl(call: &mut Call<'_>, perm: Perm) -> Result<usize> {
    const WORDS: usize = 15;
    /// The word of a 64-bit structure that holds the most bytes.
    const MOST: usize = 11;
    let (command, at) = (call.unsigned(1), call.address(2));
    match command {
        IPC_SET => {
            let mut set = [0; MOST + 1];
            set[..HEAD].copy_from_slice(&perm.decode(at)?);
            set[MOST] = match perm {
                // Behind three times of two words, and two counts.
                Perm::Wide => u64::from(take::<u32>(at + perm.len() + 32)?),
                // Behind two pointers, three times, two counts and two pointers: a half word; the
                // long one is before it.
                Perm::Old => u64::from(take::<u16>(at + perm.len() + 32)?),
            };
            control(call, raw::__NR_msgctl, 2, WORDS, Some(&set))
        }
        IPC_STAT | 11 | 13 => {
            let result = control(call, raw::__NR_msgctl, 2, WORDS, None)?;
            let w: [u64; WORDS] = call.read(2)?;
            layout::write(&perm.parts(&MSG), &w, at)?;
            Ok(result)
        }
        _ => call.native(raw::__NR_msgctl),
    }
}

/// A message begins with a type of 32 bits.
fn msgsnd(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(1);
    let kind: i32 = take(at)?;
    message::send(call, i64::from(kind), at + 4)
}

fn msgrcv(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(1);
    let message = message::receive(call, i64::from(call.int(3)))?;
    give(at, &(message.kind() as u32))?;
    message.give(&mut UserSink::new(at + 4, call.size(2))?, call.size(2))
}

/// In the command of a control call: the structure is the one of now.
const IPC_64: u64 = 0x100;

/// `ipc`: one call for all, with a version in its upper half.
fn ipc(call: &mut Call<'_>) -> Result<usize> {
    let [which, first, second, third, pointer, fifth] = call.args;
    let version = which >> 16;
    let perm = |command: u64| match command & IPC_64 {
        0 => Perm::Old,
        _ => Perm::Wide,
    };
    let args = |call: &mut Call<'_>, args: [u64; 5]| {
        call.args[..5].copy_from_slice(&args);
        call.args[5] = 0;
    };
    match which & 0xffff {
        1 => call.native_with(raw::__NR_semop, [first, pointer, second, 0, 0, 0]),
        2 => call.native_with(raw::__NR_semget, [first, second, third, 0, 0, 0]),
        3 => {
            // The last argument is a number or a pointer, and is itself pointed to.
            let argument: u32 = take(VirtAddr(pointer as usize))?;
            let command = third & !IPC_64;
            args(call, [first, second, command, u64::from(argument), 0]);
            semctl(call, perm(third))
        }
        4 => {
            args(call, [first, pointer, second, fifth, 0]);
            narrow_in::<2>(call, 3)?;
            call.native(raw::__NR_semtimedop)
        }
        11 => {
            args(call, [first, pointer, second, third, 0]);
            msgsnd(call)
        }
        12 if version == 0 => {
            // Message and type are pointed to.
            let [message, kind]: [u32; 2] = take(VirtAddr(pointer as usize))?;
            args(call, [first, message.into(), second, kind.into(), third]);
            msgrcv(call)
        }
        12 => {
            args(call, [first, pointer, second, fifth, third]);
            msgrcv(call)
        }
        13 => call.native_with(raw::__NR_msgget, [first, second, 0, 0, 0, 0]),
        14 => {
            args(call, [first, second & !IPC_64, pointer, 0, 0]);
            msgctl(call, perm(second))
        }
        21 if version == 1 => Err(Errno::EINVAL),
        21 => {
            let to = VirtAddr(third as usize);
            let args = [first, pointer, second, 0, 0, 0];
            let at = call.native_with(raw::__NR_shmat, args)?;
            give(to, &(at as u32))?;
            Ok(0)
        }
        22 => call.native_with(raw::__NR_shmdt, [pointer, 0, 0, 0, 0, 0]),
        23 => call.native_with(raw::__NR_shmget, [first, second, third, 0, 0, 0]),
        24 => {
            args(call, [first, second & !IPC_64, pointer, 0, 0]);
            shmctl(call, perm(second))
        }
        _ => Err(Errno::ENOSYS),
    }
}
