//! Sending and receiving: `send`, `sendto`, `sendmsg`, `sendmmsg` and their counterparts.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{
    Errno, Result,
    raw::net::{
        MSG_CMSG_CLOEXEC, MSG_CONFIRM, MSG_CTRUNC, MSG_DONTROUTE, MSG_DONTWAIT, MSG_EOR,
        MSG_ERRQUEUE, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL,
        SCM_RIGHTS, SOL_SOCKET,
    },
};
use fbuf::{Sink, Source, UserBuffers};
use nucleus::{VirtAddr, time, user};

use super::{Call, FlagSet, SystemCall, call, flag_set, socket::waits, write_timespec};
use crate::{
    process::files::OpenFile,
    socket::{
        self, Address, Incoming, MSG_ZEROCOPY, Outgoing, SocketFile, Timeout,
        control::{Control, ControlSink, Layout},
    },
};

/// `recvmmsg`: wait for the first message only.
const MSG_WAITFORONE: u32 = 0x1_0000;
/// The most messages of one call and buffers of one message (`UIO_MAXIOV`).
const MAX_MESSAGES: u32 = 1024;
/// The most bytes of control data that a message may be sent with (`net.core.optmem_max`).
const MAX_CONTROL: usize = 20_480;

const SEND_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        MSG_OOB,
        MSG_DONTROUTE,
        MSG_DONTWAIT,
        MSG_EOR,
        MSG_CONFIRM,
        MSG_NOSIGNAL,
        MSG_MORE,
        MSG_ZEROCOPY
    ],
    ignored
);
const RECEIVE_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        MSG_OOB,
        MSG_PEEK,
        MSG_TRUNC,
        MSG_DONTWAIT,
        MSG_WAITALL,
        MSG_ERRQUEUE,
        MSG_NOSIGNAL,
        MSG_CMSG_CLOEXEC
    ],
    ignored
);
const RECEIVE_MANY_FLAGS: FlagSet = flag_set!(
    "flags",
    [
        MSG_OOB,
        MSG_PEEK,
        MSG_TRUNC,
        MSG_DONTWAIT,
        MSG_WAITALL,
        MSG_WAITFORONE,
        MSG_ERRQUEUE,
        MSG_NOSIGNAL,
        MSG_CMSG_CLOEXEC
    ],
    ignored
);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_sendto, sendto).flags(&[&SEND_FLAGS]),
    call!(__NR_recvfrom, recvfrom).flags(&[&RECEIVE_FLAGS]),
    call!(__NR_sendmsg, sendmsg).flags(&[&SEND_FLAGS]),
    call!(__NR_recvmsg, recvmsg).flags(&[&RECEIVE_FLAGS]),
    call!(__NR_sendmmsg, sendmmsg).flags(&[&SEND_FLAGS]),
    call!(__NR_recvmmsg, recvmmsg).flags(&[&RECEIVE_MANY_FLAGS]),
];

/// How long a call with these flags waits at a socket with this limit.
fn timeout(open: &OpenFile, flags: u32, limit: Option<Duration>) -> Timeout {
    Timeout::new(waits(open) && flags & MSG_DONTWAIT == 0, limit)
}

pub(super) fn send(call: &mut Call<'_>) -> Result<usize> {
    call.args[4] = 0;
    sendto(call)
}

pub(super) fn sendto(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &SEND_FLAGS)?;
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let mut data = UserBuffers::new(call.address(1), call.size(2))?;
    let to = match call.args[4] {
        0 => None,
        _ => Some(Address::read(call.address(4), call.int(5))?),
    };
    let timeout = timeout(&open, flags, socket.common().send_timeout());
    let message = Outgoing {
        to,
        ..Outgoing::plain(&mut data, flags, timeout)
    };
    socket::send(&**socket, message)
}

pub(super) fn recv(call: &mut Call<'_>) -> Result<usize> {
    call.args[4] = 0;
    recvfrom(call)
}

pub(super) fn recvfrom(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &RECEIVE_FLAGS)?;
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let mut data = UserBuffers::new(call.address(1), call.size(2))?;
    let timeout = timeout(&open, flags, socket.common().receive_timeout());
    let mut message = Incoming {
        wants_address: call.args[4] != 0,
        ..Incoming::plain(&mut data, flags, timeout)
    };
    let n = socket.receive(&mut message)?;
    if call.args[4] != 0 {
        let from = message.from.unwrap_or(Address::EMPTY);
        from.write_with_len(call.address(4), call.address(5))?;
    }
    Ok(n)
}

/// A `struct msghdr`, read once.
struct Header {
    at: VirtAddr,
    layout: Layout,
    name: VirtAddr,
    name_len: i32,
    buffers: VirtAddr,
    buffer_count: usize,
    control: VirtAddr,
    control_len: usize,
}

impl Header {
    /// Where `msg_namelen`, `msg_controllen`, `msg_flags` stand, the bytes of the whole, and of a
    /// `struct mmsghdr`.
    fn places(layout: Layout) -> [usize; 5] {
        match layout {
            Layout::Wide => [8, 40, 48, 56, 64],
            Layout::Narrow => [4, 20, 24, 28, 32],
        }
    }

    fn read(at: VirtAddr, layout: Layout) -> Result<Header> {
        let fields: [usize; 6] = match layout {
            Layout::Wide => user::read(at)?,
            Layout::Narrow => user::read::<[u32; 6]>(at)?.map(|field| field as usize),
        };
        let [name, name_len, buffers, buffer_count, control, control_len] = fields;
        let header = Header {
            at,
            layout,
            name: VirtAddr(name),
            name_len: name_len as i32,
            buffers: VirtAddr(buffers),
            buffer_count,
            control: VirtAddr(control),
            control_len,
        };
        if header.name.0 != 0 && header.name_len < 0 {
            return Err(Errno::EINVAL);
        }
        if buffer_count > MAX_MESSAGES as usize {
            return Err(Errno::EMSGSIZE);
        }
        Ok(header)
    }

    /// Writes a word of the program's own size.
    fn write_word(&self, to: VirtAddr, value: usize) -> Result<()> {
        Ok(match self.layout {
            Layout::Wide => user::write(to, &value),
            Layout::Narrow => user::write(to, &(value as u32)),
        }?)
    }

    fn data(&self) -> Result<UserBuffers> {
        match self.layout {
            Layout::Wide => UserBuffers::vector(self.buffers, self.buffer_count),
            Layout::Narrow => UserBuffers::vector_32(self.buffers, self.buffer_count),
        }
    }

    /// The control data that the program sends.
    fn control_data(&self) -> Result<Vec<u8>> {
        if self.control.0 == 0 || self.control_len == 0 {
            return Ok(Vec::new());
        }
        if self.control_len > MAX_CONTROL {
            return Err(Errno::ENOBUFS);
        }
        let mut data = nucleus::try_filled(self.control_len, 0).map_err(|_| Errno::ENOBUFS)?;
        user::copy_in(&mut data, self.control)?;
        Ok(data)
    }
}

fn layout(call: &Call<'_>) -> Layout {
    if call.own.compatible_call {
        Layout::Narrow
    } else {
        Layout::Wide
    }
}

fn send_header(open: &OpenFile, header: &Header, flags: u32) -> Result<usize> {
    let socket = SocketFile::of(open)?;
    let to = match header.name.0 {
        0 => None,
        _ if header.name_len == 0 => None,
        _ => Some(Address::read(header.name, header.name_len.min(128))?),
    };
    let control = header.control_data()?;
    let mut data = header.data()?;
    let message = Outgoing {
        data: &mut data as &mut dyn Source,
        flags,
        to,
        control: Control::new(&control, header.layout),
        timeout: timeout(open, flags, socket.common().send_timeout()),
    };
    socket::send(&**socket, message)
}

pub(super) fn sendmsg(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &SEND_FLAGS)?;
    let open = call.opened(0)?;
    SocketFile::of(&open)?;
    let header = Header::read(call.address(1), layout(call))?;
    send_header(&open, &header, flags)
}

/// The header of message `n` of an array of `struct mmsghdr`, and where its length is written.
fn entry(call: &Call<'_>, n: u32) -> Result<(Header, VirtAddr)> {
    let layout = layout(call);
    let [.., len_at, size] = Header::places(layout);
    let at = call
        .address(1)
        .checked_add(n as usize * size)
        .ok_or(Errno::EFAULT)?;
    Ok((Header::read(at, layout)?, at + len_at))
}

pub(super) fn sendmmsg(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &SEND_FLAGS)?;
    let open = call.opened(0)?;
    SocketFile::of(&open)?;
    let count = call.unsigned(2).min(MAX_MESSAGES);
    for n in 0..count {
        let sent = entry(call, n).and_then(|(header, len_at)| {
            let sent = send_header(&open, &header, flags)?;
            Ok(user::write(len_at, &(sent as u32))?)
        });
        match sent {
            Ok(()) => {}
            Err(error) if n == 0 => return Err(error),
            Err(_) => return Ok(n as usize),
        }
    }
    Ok(count as usize)
}

/// Receives a message as `header` says; returns the bytes and the flags that came with it.
fn receive_header(
    call: &Call<'_>,
    open: &OpenFile,
    header: &Header,
    flags: u32,
) -> Result<(usize, u32)> {
    let socket = SocketFile::of(open)?;
    let mut data = header.data()?;
    let room = match header.control.0 {
        0 => 0,
        _ => header.control_len,
    };
    let mut message = Incoming {
        data: &mut data as &mut dyn Sink,
        flags,
        timeout: timeout(open, flags, socket.common().receive_timeout()),
        wants_address: header.name.0 != 0,
        from: None,
        answer: flags & MSG_CMSG_CLOEXEC,
        control: ControlSink::new(room, header.layout),
        rights: Vec::new(),
    };
    let n = socket.receive(&mut message)?;
    let Incoming {
        from,
        mut answer,
        mut control,
        rights,
        ..
    } = message;
    // Descriptors are taken first, then told, and only then mean anything.
    let taken = take_descriptors(call, &mut control, rights);
    if control.is_truncated {
        answer |= MSG_CTRUNC;
    }
    user::copy_out(header.control, &control.bytes)?;
    for (slot, open) in taken {
        slot.install(open, flags & MSG_CMSG_CLOEXEC != 0);
    }
    let [name_len, control_len, flags_at, ..] = Header::places(header.layout);
    if header.name.0 != 0 {
        let from = from.unwrap_or(Address::EMPTY);
        from.write(header.name, header.name_len)?;
        user::write(header.at + name_len, &(from.len() as i32))?;
    }
    user::write(header.at + flags_at, &answer)?;
    header.write_word(header.at + control_len, control.bytes.len())?;
    Ok((n, answer))
}

/// Takes a descriptor for each of `rights` that the control data have room for, and adds the
/// numbers there.
fn take_descriptors<'a>(
    call: &'a Call<'_>,
    control: &mut ControlSink,
    rights: Vec<Arc<OpenFile>>,
) -> nucleus::Pieces<(crate::process::files::Reservation<'a>, Arc<OpenFile>)> {
    let mut taken = nucleus::Pieces::new();
    let mut numbers = Vec::new();
    let room = control.room_for_numbers();
    for open in rights {
        let slot = match call.files().reserve(0, call.descriptor_limit()) {
            Ok(slot) if taken.len() < room => slot,
            _ => {
                control.is_truncated = true;
                break;
            }
        };
        numbers.extend_from_slice(&(slot.fd as i32).to_le_bytes());
        taken.push((slot, open));
    }
    if !taken.is_empty() {
        control.put(SOL_SOCKET, SCM_RIGHTS, &numbers);
    }
    taken
}

pub(super) fn recvmsg(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(2, &RECEIVE_FLAGS)?;
    let open = call.opened(0)?;
    SocketFile::of(&open)?;
    let header = Header::read(call.address(1), layout(call))?;
    Ok(receive_header(call, &open, &header, flags)?.0)
}

/// The time is a 64-bit `timespec` in both worlds.
pub(super) fn recvmmsg(call: &mut Call<'_>) -> Result<usize> {
    let mut flags = call.flags(3, &RECEIVE_MANY_FLAGS)?;
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let end = call.timeout(4)?;
    if let Some(error) = socket.take_error() {
        return Err(error);
    }
    let wait_for_one = flags & MSG_WAITFORONE != 0;
    flags &= !MSG_WAITFORONE;
    let count = call.unsigned(2).min(MAX_MESSAGES);
    let mut received = 0;
    while received < count {
        let result = entry(call, received).and_then(|(header, len_at)| {
            let (n, answer) = receive_header(call, &open, &header, flags)?;
            user::write(len_at, &(n as u32))?;
            Ok(answer)
        });
        match result {
            Ok(answer) => {
                received += 1;
                // The time is looked at after each message only: it does not end a wait.
                let over = end.is_some_and(|end| time::since_boot() >= end);
                if over || answer & MSG_OOB != 0 {
                    break;
                }
            }
            Err(error) if received == 0 => return Err(error),
            Err(error) => {
                // Those received count now; the error is the next call's.
                if error != Errno::EAGAIN && error.number() < 512 {
                    socket.common().set_error(error);
                }
                break;
            }
        }
        if wait_for_one {
            flags |= MSG_DONTWAIT;
        }
    }
    if let Some(end) = end {
        let left = end.saturating_sub(time::since_boot());
        write_timespec(call.address(4), left)?;
    }
    Ok(received as usize)
}
