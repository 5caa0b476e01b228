//! System V message queues.

use abi::{Errno, Result};
use fbuf::UserBuffers;
use nucleus::{VirtAddr, task::Sleep, user};

use super::{
    Call, FlagSet, SystemCall, call, choice, flag_set,
    ipc::{self, Controlled},
};
use crate::ipc::sysv::{
    Caller, IPC_CREAT, IPC_EXCL, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT,
    limits::{MSGMAX, MSGMNB, MSGMNI},
    message::{self, Choice, Message, QUEUES, Queue},
};

/// `msgrcv`: too long a body is cut off.
const MSG_NOERROR: u32 = 0o10000;
/// `msgrcv`: any type but this one.
const MSG_EXCEPT: u32 = 0o20000;
/// `msgrcv`: a copy of the message with this number.
const MSG_COPY: u32 = 0o40000;

const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;

const GET_FLAGS: FlagSet = flag_set!("msgflg", [IPC_CREAT, IPC_EXCL, 0o777], ignored);
const SEND_FLAGS: FlagSet = flag_set!("msgflg", [IPC_NOWAIT], ignored);
const RECEIVE_FLAGS: FlagSet = flag_set!(
    "msgflg",
    [IPC_NOWAIT, MSG_NOERROR, MSG_EXCEPT, MSG_COPY],
    ignored
);
const COMMANDS: FlagSet = choice!(
    "cmd",
    [
        IPC_RMID,
        IPC_SET,
        IPC_STAT,
        IPC_INFO,
        MSG_STAT,
        MSG_INFO,
        MSG_STAT_ANY
    ],
    EINVAL
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_msgget, msgget).flags(&[&GET_FLAGS]),
    call!(__NR_msgsnd, msgsnd).flags(&[&SEND_FLAGS]),
    call!(__NR_msgrcv, msgrcv).flags(&[&RECEIVE_FLAGS]),
    call!(__NR_msgctl, msgctl).flags(&[&COMMANDS]),
];

fn msgget(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(1, &GET_FLAGS)?;
    call.takes_memory()?;
    let id = message::get(call.int(0), flags, ipc::caller(call))?;
    Ok(id as usize)
}

fn msgsnd(call: &mut Call<'_>) -> Result<usize> {
    let kind: i64 = call.read(1)?;
    let text = call.address(1).checked_add(8).ok_or(Errno::EFAULT)?;
    send(call, kind, text)
}

/// `msgsnd` of a message of `kind` whose text is at `text`.
pub(in crate::linux) fn send(call: &mut Call<'_>, kind: i64, text: VirtAddr) -> Result<usize> {
    let flags = call.flags(3, &SEND_FLAGS)?;
    let len = call.size(2);
    if call.int(0) < 0 || kind < 1 || len as u64 > MSGMAX.get() {
        return Err(Errno::EINVAL);
    }
    let message = Message::new(kind, &mut UserBuffers::new(text, len)?)?;
    let queue = QUEUES.get(call.int(0))?;
    queue.send(ipc::caller(call), message, how(flags))?;
    Ok(0)
}

fn how(flags: u32) -> Option<Sleep> {
    (flags & IPC_NOWAIT == 0).then_some(Sleep::INTERRUPTIBLE)
}

fn msgrcv(call: &mut Call<'_>) -> Result<usize> {
    let text = call.address(1).checked_add(8).ok_or(Errno::EFAULT)?;
    let message = receive(call, call.args[3] as i64)?;
    call.write(1, &message.kind)?;
    message.give(&mut UserBuffers::new(text, call.size(2))?, call.size(2))
}

/// `msgrcv`: takes a message that `kind` chooses.
pub(in crate::linux) fn receive(call: &mut Call<'_>, kind: i64) -> Result<Message> {
    let flags = call.flags(4, &RECEIVE_FLAGS)?;
    let room = call.size(2);
    if call.int(0) < 0 || room > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    let cut = flags & MSG_NOERROR != 0;
    let caller = ipc::caller(call);
    if flags & MSG_COPY != 0 {
        if flags & MSG_EXCEPT != 0 || flags & IPC_NOWAIT == 0 {
            return Err(Errno::EINVAL);
        }
        return QUEUES.get(call.int(0))?.copy(caller, kind, room, cut);
    }
    let choice = Choice::new(kind, flags & MSG_EXCEPT != 0);
    let queue = QUEUES.get(call.int(0))?;
    queue.receive(caller, choice, room, cut, how(flags))
}

/// Words of a `struct msqid64_ds`, and which of them is `msg_qbytes`.
const STATUS_WORDS: usize = 15;
const MOST_BYTES: usize = 11;

impl Controlled<STATUS_WORDS> for Queue {
    fn encode(&self) -> [u64; STATUS_WORDS] {
        let s = self.status();
        let users = u64::from(s.last_sender) | u64::from(s.last_receiver) << 32;
        let [sent, received, changed] = [s.sent, s.received, s.changed].map(|time| time as u64);
        let [bytes, messages, most] = [s.bytes, s.messages, s.most].map(|count| count as u64);
        let own = [sent, received, changed, bytes, messages, most, users];
        ipc::encode(&s.permission, s.id, &own)
    }

    fn change(&self, caller: Caller<'_>, words: &[u64; STATUS_WORDS]) -> Result<()> {
        self.set(caller, ipc::change(words), words[MOST_BYTES] as usize)
    }
}

fn msgctl(call: &mut Call<'_>) -> Result<usize> {
    let id = call.int(0);
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    let command = call.choice(1, &COMMANDS)?;
    match command {
        IPC_INFO | MSG_INFO => information(call, command == MSG_INFO),
        _ => ipc::control(call, &QUEUES, command, MSG_STAT_ANY, 2),
    }
}

/// `IPC_INFO`, or with `now` `MSG_INFO`: `struct msginfo`.
fn information(call: &Call<'_>, now: bool) -> Result<usize> {
    let (used, highest) = QUEUES.population();
    let (max, bytes, most) = (MSGMAX.get(), MSGMNB.get(), MSGMNI.get());
    let (messages, held) = message::totals();
    let [pool, map, all] = match now {
        true => [used as i32, messages as i32, held as i32],
        // Linux's figures for limits that it no longer has.
        false => [512_000, 16_384, 16_384],
    };
    // msgpool, msgmap, msgmax, msgmnb, msgmni, msgssz, msgtql, msgseg.
    let info = [
        pool,
        map,
        max as i32,
        bytes as i32,
        most as i32,
        16,
        all,
        0xffff,
    ];
    user::write(call.address(2), &info)?;
    Ok(highest)
}
