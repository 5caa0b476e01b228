//! POSIX message queues: `mq_open` and what goes with it.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};
use fbuf::UserBuffers;
use fs::OpenFlags;
use nucleus::{VirtAddr, task::Sleep, time, user};

use super::{Call, FlagSet, SystemCall, call, choice, flag_set, path, read_timespec};
use crate::{
    ipc::{
        mqueue::{
            self, Notice, Queue, QueueFile, Size,
            limits::PRIORITIES,
            notice::{COOKIE, How},
        },
        sysv::message::Message,
    },
    process::files::OpenFile,
    socket::{SocketFile, netlink::NetlinkSocket},
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_mq_open, mq_open)
        .note("other flags than access, O_CREAT, O_EXCL, O_NONBLOCK are ignored, as on Linux"),
    call!(__NR_mq_unlink, mq_unlink),
    call!(__NR_mq_timedsend, mq_timedsend),
    call!(__NR_mq_timedreceive, mq_timedreceive),
    call!(__NR_mq_notify, mq_notify).flags(&[&NOTIFY]),
    call!(__NR_mq_getsetattr, mq_getsetattr).flags(&[&ATTRIBUTE_FLAGS]),
];

const NOTIFY: FlagSet = choice!(
    "sigev_notify",
    [raw::SIGEV_NONE, raw::SIGEV_SIGNAL, raw::SIGEV_THREAD],
    EINVAL
);
const ATTRIBUTE_FLAGS: FlagSet = flag_set!("mq_flags", [raw::O_NONBLOCK], EINVAL);

/// A `struct mq_attr`: flags, most messages, most bytes of one, messages now, four unused.
type Attributes = [i64; 8];

fn mq_open(call: &mut Call<'_>) -> Result<usize> {
    let asked: Option<Attributes> = call.read_if(3)?;
    let name = path::read(call.address(0))?;
    call.takes_memory()?;
    let slot = call.files().reserve(0, call.descriptor_limit())?;
    let flags = call.unsigned(1);
    let kept = OpenFlags::from_bits_retain(flags & (raw::O_ACCMODE | raw::O_NONBLOCK));
    let mode = call.unsigned(2) & 0o7777 & !call.fs().umask();
    let who = &call.credentials().fs;
    let size = || match asked {
        None => Ok(Size::usual()),
        Some([_, messages, bytes, ..]) => {
            Size::asked(messages, bytes, who.may_use(raw::CAP_SYS_RESOURCE))
        }
    };
    let file = mqueue::find_or_make(&name, flags, kept, mode, who, size)?;
    Ok(slot.install(OpenFile::new(file, kept), true))
}

fn mq_unlink(call: &mut Call<'_>) -> Result<usize> {
    let name = path::read(call.address(0))?;
    mqueue::remove(&name, &call.credentials().fs)?;
    Ok(0)
}

/// How to wait at an open queue: until the time of day that argument 4 points to, for ever without
/// one, not at all where the file says so.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
fn timeout(call: &Call<'_>) -> Result<Sleep> {
    let deadline = match call.args[4] {
        0 => None,
        _ => Some(until(read_timespec(call.address(4))?)),
    };
    Ok(Sleep {
        deadline,
        ..Sleep::INTERRUPTIBLE
    })
}

/// A time of day as a time since boot.
fn until(day: Duration) -> Duration {
    let boot = time::since_epoch().saturating_sub(time::since_boot());
    day.saturating_sub(boot)
}

/// The queue, and how to wait there.
fn queue_and_timeout(open: &OpenFile, how: Sleep) -> Result<(&Arc<Queue>, Option<Sleep>)> {
    let waits = !open.flags().has(raw::O_NONBLOCK);
    Ok((QueueFile::of(open)?, waits.then_some(how)))
}

fn mq_timedsend(call: &mut Call<'_>) -> Result<usize> {
    let how = timeout(call)?;
    let (len, priority) = (call.size(2), call.unsigned(3));
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let open = call.files().get(call.int(0))?;
    let (queue, how) = queue_and_timeout(&open, how)?;
    open.writable()?;
    if len > queue.size.bytes {
        return Err(Errno::EMSGSIZE);
    }
    call.takes_memory()?;
    let mut from = UserBuffers::new(call.address(1), len)?;
    let message = Message::new(1, &mut from)?;
    let pid = call.process().pid();
    queue.send(priority, message, how, pid, call.credentials())?;
    Ok(0)
}

fn mq_timedreceive(call: &mut Call<'_>) -> Result<usize> {
    let how = timeout(call)?;
    let room = call.size(2);
    let open = call.files().get(call.int(0))?;
    let (queue, how) = queue_and_timeout(&open, how)?;
    open.readable()?;
    if room < queue.size.bytes {
        return Err(Errno::EMSGSIZE);
    }
    let (priority, message) = queue.receive(how)?;
    call.write_if(3, &priority)?;
    let len = message.len();
    let mut to = UserBuffers::new(call.address(1), len)?;
    message.give(&mut to, len)
}

fn mq_notify(call: &mut Call<'_>) -> Result<usize> {
    let how = match call.args[1] {
        0 => None,
        _ => Some(how_to_notify(call)?),
    };
    let open = call.files().get(call.int(0))?;
    let queue = QueueFile::of(&open)?;
    match how {
        None => queue.forget(call.process()),
        Some(how) => queue.ask(Notice::new(call.process(), how))?,
    }
    Ok(0)
}

/// From a `struct sigevent`: value, signal and way. A thread's value points to a cookie, and the
/// signal is a netlink socket where a thread of the C library waits for it.
fn how_to_notify(call: &Call<'_>) -> Result<How> {
    let [value, signal_and_way, ..]: [u64; 8] = call.read(1)?;
    let (signal, way) = (signal_and_way as u32, (signal_and_way >> 32) as u32);
    match NOTIFY.check(call.caller(), u64::from(way))? as u32 {
        raw::SIGEV_SIGNAL if !(1..=64).contains(&signal) => {
            // As on Linux, signal 0 is one that is not sent.
            if signal == 0 {
                Ok(How::None)
            } else {
                Err(Errno::EINVAL)
            }
        }
        raw::SIGEV_SIGNAL => Ok(How::Signal { signal, value }),
        raw::SIGEV_THREAD => {
            let at = VirtAddr(value as usize);
            let cookie: [u8; COOKIE] = user::read(at)?;
            let open = call.files().get(signal as i32)?;
            let socket = NetlinkSocket::of(SocketFile::of(&open)?).ok_or(Errno::EINVAL)?;
            Ok(How::Thread { socket, cookie })
        }
        _ => Ok(How::None),
    }
}

fn mq_getsetattr(call: &mut Call<'_>) -> Result<usize> {
    let new: Option<Attributes> = call.read_if(1)?;
    let wanted = match new {
        Some([flags, ..]) => {
            let flags = ATTRIBUTE_FLAGS.check(call.caller(), flags as u64)?;
            Some(flags as u32 & raw::O_NONBLOCK != 0)
        }
        None => None,
    };
    let open = call.files().get(call.int(0))?;
    let queue = QueueFile::of(&open)?;
    let size = queue.size;
    let mut old: Attributes = [0; 8];
    old[0] = i64::from(open.flags().bits() & raw::O_NONBLOCK);
    old[1] = size.messages as i64;
    old[2] = size.bytes as i64;
    old[3] = queue.count() as i64;
    if let Some(on) = wanted {
        open.set_flag(raw::O_NONBLOCK, on);
    }
    call.write_if(2, &old)?;
    Ok(0)
}
