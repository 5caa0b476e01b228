//! Sockets: making, naming, connecting, ending. Messages are in `socket_message`, options in
//! `socket_option`.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::{
        general::{O_CLOEXEC, O_NONBLOCK},
        net::{
            AF_MAX, SOCK_DGRAM, SOCK_RAW, SOCK_RDM, SOCK_SEQPACKET, SOCK_STREAM, SYS_ACCEPT,
            SYS_ACCEPT4, SYS_BIND, SYS_CONNECT, SYS_GETPEERNAME, SYS_GETSOCKNAME, SYS_GETSOCKOPT,
            SYS_LISTEN, SYS_RECV, SYS_RECVFROM, SYS_RECVMMSG, SYS_RECVMSG, SYS_SEND, SYS_SENDMMSG,
            SYS_SENDMSG, SYS_SENDTO, SYS_SETSOCKOPT, SYS_SHUTDOWN, SYS_SOCKET, SYS_SOCKETPAIR,
        },
    },
};
use nucleus::user;

use super::{
    Call, FlagSet, Handler, SystemCall, call, choice, flag_set,
    socket_message::{recv, recvfrom, recvmmsg, recvmsg, send, sendmmsg, sendmsg, sendto},
    socket_option::{getsockopt, setsockopt},
};
use crate::unsupported::note_unsupported;
use crate::{
    process::files::OpenFile,
    socket::{self, Address, BACKLOG_MAX, Family, Shutdown, SocketFile, Timeout},
};

/// Flags that `socket`, `socketpair` and `accept4` take with the type, in Linux's values those of
/// `open`.
const SOCK_CLOEXEC: u32 = O_CLOEXEC;
const SOCK_NONBLOCK: u32 = O_NONBLOCK;
/// The bits of the type argument that are the type.
const TYPE_MASK: u32 = 0xf;
const FLAGS: FlagSet = flag_set!("type", [SOCK_CLOEXEC, SOCK_NONBLOCK], EINVAL);
const TYPES: FlagSet = choice!(
    "type",
    [SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_RDM, SOCK_SEQPACKET],
    EINVAL
);
const ACCEPT_FLAGS: FlagSet = flag_set!("flags", [SOCK_CLOEXEC, SOCK_NONBLOCK], EINVAL);
const SHUT_RD: u32 = 0;
const SHUT_WR: u32 = 1;
const SHUT_RDWR: u32 = 2;
const HOW: FlagSet = choice!("how", [SHUT_RD, SHUT_WR, SHUT_RDWR], EINVAL);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_socket, socket).flags(&[&TYPES, &FLAGS]),
    call!(__NR_socketpair, socketpair).flags(&[&TYPES, &FLAGS]),
    call!(__NR_bind, bind),
    call!(__NR_listen, listen),
    call!(__NR_accept, accept),
    call!(__NR_accept4, accept4).flags(&[&ACCEPT_FLAGS]),
    call!(__NR_connect, connect),
    call!(__NR_getsockname, getsockname),
    call!(__NR_getpeername, getpeername),
    call!(__NR_shutdown, shutdown).flags(&[&HOW]),
];

/// Whether calls on an open file may wait.
pub(super) fn waits(open: &OpenFile) -> bool {
    !open.flags().has(O_NONBLOCK)
}

/// The socket that the first three arguments of `socket` and `socketpair` ask for.
struct Asked {
    family: &'static Family,
    kind: u32,
    protocol: u32,
    close_on_exec: bool,
    nonblocking: bool,
}

fn asked(call: &Call<'_>) -> Result<Asked> {
    call.takes_memory()?;
    let (domain, kind, protocol) = (call.unsigned(0), call.unsigned(1), call.int(2));
    let flags = FLAGS.check(call.caller(), u64::from(kind & !TYPE_MASK))? as u32;
    if domain >= AF_MAX {
        return Err(Errno::EAFNOSUPPORT);
    }
    let kind = kind & TYPE_MASK;
    let family = socket::family(domain)
        .inspect_err(|_| note_unsupported(call.caller(), "domain", domain.into()))?;
    // Numbers in between are types that no family has.
    if !matches!(kind, SOCK_STREAM..=10) {
        note_unsupported(call.caller(), "type", kind.into());
        return Err(Errno::EINVAL);
    }
    Ok(Asked {
        family,
        kind,
        protocol: u32::try_from(protocol).map_err(|_| Errno::EINVAL)?,
        close_on_exec: flags & SOCK_CLOEXEC != 0,
        nonblocking: flags & SOCK_NONBLOCK != 0,
    })
}

fn socket(call: &mut Call<'_>) -> Result<usize> {
    let asked = asked(call)?;
    let socket = (asked.family.create)(asked.kind, asked.protocol)?;
    let open = SocketFile::open(socket, asked.nonblocking);
    call.files()
        .install(open, asked.close_on_exec, call.descriptor_limit())
}

fn socketpair(call: &mut Call<'_>) -> Result<usize> {
    let asked = asked(call)?;
    let pair = asked.family.pair.ok_or(Errno::EOPNOTSUPP)?;
    let limit = call.descriptor_limit();
    let first = call.files().reserve(0, limit)?;
    let second = call.files().reserve(0, limit)?;
    let [a, b] = pair(asked.kind, asked.protocol)?;
    let [a, b] = [a, b].map(|socket| SocketFile::open(socket, asked.nonblocking));
    // The program learns the numbers before they mean anything: if it can't, nothing has to be
    // undone.
    let numbers = [first.fd as i32, second.fd as i32];
    call.write(3, &numbers)?;
    first.install(a, asked.close_on_exec);
    second.install(b, asked.close_on_exec);
    Ok(0)
}

fn bind(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    call.takes_memory()?;
    socket.bind(&Address::read(call.address(1), call.int(2))?)?;
    Ok(0)
}

fn listen(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    // A negative number is a large one.
    SocketFile::of(&open)?.listen(call.unsigned(1).min(BACKLOG_MAX.load(Relaxed)))?;
    Ok(0)
}

fn accept(call: &mut Call<'_>) -> Result<usize> {
    accept_with(call, 0)
}

fn accept4(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &ACCEPT_FLAGS)?;
    accept_with(call, flags)
}

fn accept_with(call: &Call<'_>, flags: u32) -> Result<usize> {
    call.takes_memory()?;
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let slot = call.files().reserve(0, call.descriptor_limit())?;
    let timeout = Timeout::new(waits(&open), socket.common().receive_timeout());
    let accepted = socket.accept(timeout)?;
    // From here on a failure releases it.
    let accepted = SocketFile::open(accepted, flags & SOCK_NONBLOCK != 0);
    if call.args[1] != 0 {
        let peer = SocketFile::of(&accepted)?
            .peer_name()
            .map_err(|_| Errno::ECONNABORTED)?;
        peer.write_with_len(call.address(1), call.address(2))?;
    }
    Ok(slot.install(accepted, flags & SOCK_CLOEXEC != 0))
}

fn connect(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    call.takes_memory()?;
    let address = Address::read(call.address(1), call.int(2))?;
    let timeout = Timeout::new(waits(&open), socket.common().send_timeout());
    socket.connect(&address, timeout)?;
    Ok(0)
}

fn getsockname(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let name = SocketFile::of(&open)?.name()?;
    name.write_with_len(call.address(1), call.address(2))?;
    Ok(0)
}

fn getpeername(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let name = SocketFile::of(&open)?.peer_name()?;
    name.write_with_len(call.address(1), call.address(2))?;
    Ok(0)
}

fn shutdown(call: &mut Call<'_>) -> Result<usize> {
    let open = call.opened(0)?;
    let socket = SocketFile::of(&open)?;
    let how = call.choice(1, &HOW)?;
    socket.shutdown(Shutdown {
        receive: how != SHUT_WR,
        send: how != SHUT_RD,
    })?;
    Ok(0)
}

/// The calls of `socketcall`, by number, with how many arguments each has.
const MULTIPLEXED: &[(u32, usize, Handler)] = &[
    (SYS_SOCKET, 3, socket),
    (SYS_BIND, 3, bind),
    (SYS_CONNECT, 3, connect),
    (SYS_LISTEN, 2, listen),
    (SYS_ACCEPT, 3, accept),
    (SYS_GETSOCKNAME, 3, getsockname),
    (SYS_GETPEERNAME, 3, getpeername),
    (SYS_SOCKETPAIR, 4, socketpair),
    (SYS_SEND, 4, send),
    (SYS_RECV, 4, recv),
    (SYS_SENDTO, 6, sendto),
    (SYS_RECVFROM, 6, recvfrom),
    (SYS_SHUTDOWN, 2, shutdown),
    (SYS_SETSOCKOPT, 5, setsockopt),
    (SYS_GETSOCKOPT, 5, getsockopt),
    (SYS_SENDMSG, 3, sendmsg),
    (SYS_RECVMSG, 3, recvmsg),
    (SYS_ACCEPT4, 4, accept4),
    (SYS_RECVMMSG, 5, recvmmsg),
    (SYS_SENDMMSG, 4, sendmmsg),
];

/// The one call that 32-bit programs had for all of sockets: a number, and an array of arguments.
pub(in crate::linux) fn socketcall(call: &mut Call<'_>) -> Result<usize> {
    let number = call.unsigned(0);
    let Some((_, count, handler)) = MULTIPLEXED.iter().find(|(n, ..)| *n == number) else {
        note_unsupported(call.caller(), "call", number.into());
        return Err(Errno::EINVAL);
    };
    let at = call.address(1);
    let mut args = [0; 6];
    for (n, arg) in args.iter_mut().enumerate().take(*count) {
        let at = at.checked_add(n * 4).ok_or(Errno::EFAULT)?;
        *arg = u64::from(user::read::<u32>(at)?);
    }
    // A call that a signal interrupts is made again with the arguments that the registers still
    // have.
    call.args = args;
    handler(call)
}
