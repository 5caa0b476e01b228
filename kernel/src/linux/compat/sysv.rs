//! System V interprocess communication, by the calls of their own and by `ipc`, and what else takes
//! a `struct sigevent` or a message with a head.

use abi::{Errno, Result, raw::general as raw};
use fbuf::UserBuffers;
use nucleus::{VirtAddr, user};

use super::{
    layout::{self, Field, Forms, MSG, PERM, SEM, SHM},
    row::{Row, differs, same, shim},
    translate::{
        Difference::{Event, Out, Times},
        call_native, narrow_in,
    },
};
use crate::linux::syscall::Call;
use crate::{
    ipc::sysv::{IPC_INFO, IPC_SET, IPC_STAT},
    linux::syscall::message,
};

pub(super) const CALLS: &[Row] = &[
    shim(117, raw::__NR_shmctl, ipc),
    differs(259, raw::__NR_timer_create, &[Event(1)]),
    same(393, raw::__NR_semget),
    shim(394, raw::__NR_semctl, |call| {
        SEMAPHORES.call(call, Perm::Wide)
    }),
    same(395, raw::__NR_shmget),
    shim(396, raw::__NR_shmctl, |call| shmctl(call, Perm::Wide)),
    same(397, raw::__NR_shmat),
    same(398, raw::__NR_shmdt),
    same(399, raw::__NR_msgget),
    shim(400, raw::__NR_msgsnd, msgsnd),
    shim(401, raw::__NR_msgrcv, msgrcv),
    shim(402, raw::__NR_msgctl, |call| QUEUES.call(call, Perm::Wide)),
    differs(420, raw::__NR_semtimedop, &[Times(3, 1)]),
];

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
                let words: [u32; 6] = user::read(at)?;
                (words[1], words[2], words[5] & 0xffff)
            }
            Perm::Old => {
                let halves: [u16; 7] = user::read(at)?;
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

/// The control call of a kind of object.
struct Control {
    native: u32,
    /// The argument that points to the structure; the command is before it.
    n: usize,
    /// Words of the 64-bit structure.
    words: usize,
    forms: &'static Forms,
    /// Besides `IPC_STAT`, the commands that tell of one object.
    stats: [u32; 2],
}

const SEMAPHORES: Control = Control {
    native: raw::__NR_semctl,
    n: 3,
    words: 13,
    forms: &SEM,
    stats: [18, 20],
};
const SEGMENTS: Control = Control {
    native: raw::__NR_shmctl,
    n: 2,
    words: 14,
    forms: &SHM,
    stats: [13, 15],
};
const QUEUES: Control = Control {
    native: raw::__NR_msgctl,
    n: 2,
    words: WORDS_MAX,
    forms: &MSG,
    stats: [11, 13],
};
const WORDS_MAX: usize = 15;
/// The word of a 64-bit `struct msqid_ds` that holds the most bytes.
const MOST: usize = 11;
/// Where 32-bit programs have it behind the head: after three times of two words and two counts;
/// of old, a half word after two pointers, three times, two counts and two pointers. The long one
/// is before it.
const MOST_AT: usize = 32;
/// Tells of all segments.
const SHM_INFO: u32 = 14;

impl Control {
    fn call(&self, call: &mut Call<'_>, perm: Perm) -> Result<usize> {
        let (command, at) = (call.unsigned(self.n - 1), call.address(self.n));
        if command == IPC_SET {
            let mut set = [0u64; WORDS_MAX];
            set[..HEAD].copy_from_slice(&perm.decode(at)?);
            if self.native == raw::__NR_msgctl {
                let most = at + perm.len() + MOST_AT;
                set[MOST] = match perm {
                    Perm::Wide => user::read::<u32>(most)?.into(),
                    Perm::Old => user::read::<u16>(most)?.into(),
                };
            }
            call.lay(self.n, &set)?;
        } else if command == IPC_STAT || self.stats.contains(&command) {
            call.lay_room(self.n, self.words * 8)?;
            let result = call.native(self.native)?;
            let mut wide = [0; WORDS_MAX];
            user::read_all(&mut wide[..self.words], call.address(self.n))?;
            layout::write(&perm.parts(self.forms), &wide, at)?;
            return Ok(result);
        }
        call.native(self.native)
    }
}

fn shmctl(call: &mut Call<'_>, perm: Perm) -> Result<usize> {
    match (call.unsigned(1), perm) {
        (IPC_INFO, _) => {
            let to = call.lay_room(2, 9 * 8)?;
            let result = call.native(raw::__NR_shmctl)?;
            let words: [u64; 9] = call.read(2)?;
            let count = if perm == Perm::Wide { 9 } else { 5 };
            let words = words.map(|word| word.min(i32::MAX as u64) as u32);
            user::copy_out(to, &user::as_bytes(&words)[..count * 4])?;
            Ok(result)
        }
        (SHM_INFO, _) => call_native(call, raw::__NR_shmctl, &[Out(2, 6)]),
        _ => SEGMENTS.call(call, perm),
    }
}

/// A message begins with a type of 32 bits.
fn msgsnd(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(1);
    let kind: i32 = user::read(at)?;
    message::send(call, i64::from(kind), at + 4)
}

fn msgrcv(call: &mut Call<'_>) -> Result<usize> {
    let at = call.address(1);
    let message = message::receive(call, i64::from(call.int(3)))?;
    user::write(at, &(message.kind as u32))?;
    message.give(&mut UserBuffers::new(at + 4, call.size(2))?, call.size(2))
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
            let argument: u32 = user::read(VirtAddr(pointer as usize))?;
            let command = third & !IPC_64;
            args(call, [first, second, command, u64::from(argument), 0]);
            SEMAPHORES.call(call, perm(third))
        }
        4 => {
            args(call, [first, pointer, second, fifth, 0]);
            narrow_in(call, 3, 2)?;
            call.native(raw::__NR_semtimedop)
        }
        11 => {
            args(call, [first, pointer, second, third, 0]);
            msgsnd(call)
        }
        12 if version == 0 => {
            // Message and type are pointed to.
            let [message, kind]: [u32; 2] = user::read(VirtAddr(pointer as usize))?;
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
            QUEUES.call(call, perm(second))
        }
        21 if version == 1 => Err(Errno::EINVAL),
        21 => {
            let to = VirtAddr(third as usize);
            let args = [first, pointer, second, 0, 0, 0];
            let at = call.native_with(raw::__NR_shmat, args)?;
            user::write(to, &(at as u32))?;
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
