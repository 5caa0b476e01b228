//! Questions to the kernel about interfaces, addresses and routes.

use std::ffi::CStr;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{AF_INET, AF_INET6, AF_NETLINK, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, c_int};

use crate::support::Outcome;
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("netlink: what the C library asks", library),
    ("netlink: questions and answers", questions),
    ("netlink: ports, options, refusals", ports),
];

const RTM_NEWLINK: u16 = libc::RTM_NEWLINK;
const SOL_NETLINK: c_int = 270;

fn library() -> Outcome {
    // SAFETY: the list is read to its end, whose index is 0, and given back.
    let names = unsafe {
        let list = libc::if_nameindex();
        let mut names = Vec::new();
        let mut at = list;
        while !at.is_null() && (*at).if_index != 0 {
            let name = CStr::from_ptr((*at).if_name).to_string_lossy().into_owned();
            names.push(((*at).if_index, name));
            at = at.add(1);
        }
        libc::if_freenameindex(list);
        names
    };
    ensure!(names == [(1, "lo".to_string())], "{names:?}");
    let mut families = Vec::new();
    let mut list = ptr::null_mut();
    call!(getifaddrs(&mut list));
    // SAFETY: the list is read to its end and given back.
    unsafe {
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            let name = CStr::from_ptr(entry.ifa_name);
            ensure!(name == c"lo", "{name:?}");
            let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
            ensure!(up, "flags {:#x}", entry.ifa_flags);
            families.push(c_int::from((*entry.ifa_addr).sa_family));
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    ensure!(
        families == [libc::AF_PACKET, AF_INET, AF_INET6],
        "{families:?}"
    );
    Ok(())
}

fn socket() -> Result<OwnedFd, String> {
    let fd = call!(socket(AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0));
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Asks; the body is one of 16 bytes that begins with `family` and names the interface `index`.
fn ask(socket: &OwnedFd, kind: u16, flags: c_int, family: u8, index: u8) -> Outcome {
    let mut question = [0u8; 32];
    question[0] = 32;
    question[4..6].copy_from_slice(&kind.to_le_bytes());
    question[6..8].copy_from_slice(&(flags as u16 | 1).to_le_bytes());
    question[8] = 77;
    (question[16], question[20]) = (family, index);
    let n = call!(send(
        socket.as_raw_fd(),
        question.as_ptr().cast(),
        question.len(),
        0
    ));
    ensure!(n == 32, "sent {n}");
    Ok(())
}

/// The kinds of the messages that wait, and the first number behind the header of each.
fn answers(socket: &OwnedFd) -> Result<Vec<(u16, i32)>, String> {
    let mut buffer = [0u8; 8192];
    let at = buffer.as_mut_ptr().cast();
    let fd = socket.as_raw_fd();
    let whole = call!(recv(fd, at, 4, MSG_PEEK | MSG_TRUNC));
    let n = call!(recv(fd, at, 8192, 0));
    ensure!(whole == n, "{whole} bytes, then {n}");
    let (mut left, mut found) = (&buffer[..n as usize], Vec::new());
    while left.len() >= 20 {
        let word =
            |at: usize| i32::from_le_bytes([left[at], left[at + 1], left[at + 2], left[at + 3]]);
        ensure!(word(8) == 77, "an answer to {}", word(8));
        found.push((word(4) as u16, word(16)));
        let len = (word(0) as usize).next_multiple_of(4);
        ensure!((20..=left.len()).contains(&len), "{len} of {}", left.len());
        left = &left[len..];
    }
    Ok(found)
}

fn questions() -> Outcome {
    let socket = socket()?;
    let dump = libc::NLM_F_DUMP;
    let kinds = |list: Vec<(u16, i32)>| list.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    for (family, count) in [(0, 2), (AF_INET as u8, 1), (AF_INET6 as u8, 1)] {
        ask(&socket, libc::RTM_GETADDR, dump, family, 0)?;
        let found = kinds(answers(&socket)?);
        ensure!(found == vec![libc::RTM_NEWADDR; count], "{found:?}");
        let end = answers(&socket)?;
        ensure!(end == [(libc::NLMSG_DONE as u16, 0)], "{end:?}");
    }
    ask(&socket, libc::RTM_GETROUTE, dump, AF_INET as u8, 0)?;
    let found = kinds(answers(&socket)?);
    ensure!(found == [libc::RTM_NEWROUTE; 3], "{found:?}");
    answers(&socket)?;
    // One interface, by its number, and another one.
    ask(&socket, libc::RTM_GETLINK, 0, 0, 1)?;
    let found = kinds(answers(&socket)?);
    ensure!(found == [RTM_NEWLINK], "{found:?}");
    ask(&socket, libc::RTM_GETLINK, 0, 0, 2)?;
    let found = answers(&socket)?;
    ensure!(found == [(2, -libc::ENODEV)], "{found:?}");
    ask(&socket, 0x3e, libc::NLM_F_ACK, 0, 0)?;
    let found = answers(&socket)?;
    ensure!(found == [(2, -libc::EOPNOTSUPP)], "{found:?}");
    let fd = socket.as_raw_fd();
    let mut byte = 0u8;
    refused!(EAGAIN, recv(fd, (&raw mut byte).cast(), 1, MSG_DONTWAIT));
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    };
    call!(poll(&mut poll, 1, 0));
    ensure!(poll.revents == libc::POLLOUT, "{:#x}", poll.revents);
    ask(&socket, libc::RTM_GETLINK, dump, 0, 0)?;
    call!(poll(&mut poll, 1, 0));
    ensure!(
        poll.revents == libc::POLLIN | libc::POLLOUT,
        "{:#x}",
        poll.revents
    );
    Ok(())
}

fn name(fd: c_int) -> Result<libc::sockaddr_nl, String> {
    // SAFETY: all zeros is a valid address.
    let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_nl>() as u32;
    call!(getsockname(fd, (&raw mut name).cast(), &mut len));
    ensure!(len == 12, "a name of {len} bytes");
    Ok(name)
}

fn ports() -> Outcome {
    let (first, second) = (socket()?, socket()?);
    let len = size_of::<libc::sockaddr_nl>() as u32;
    // SAFETY: all zeros is a valid address.
    let mut asked: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    asked.nl_family = AF_NETLINK as u16;
    ensure!(
        name(first.as_raw_fd())?.nl_pid == 0,
        "a port from the start"
    );
    call!(bind(first.as_raw_fd(), (&raw const asked).cast(), len));
    let own = name(first.as_raw_fd())?.nl_pid;
    ensure!(own == std::process::id(), "port {own}");
    call!(bind(second.as_raw_fd(), (&raw const asked).cast(), len));
    let other = name(second.as_raw_fd())?.nl_pid;
    ensure!((other as i32) < 0, "port {other}");
    let third = socket()?;
    asked.nl_pid = own;
    refused!(
        EADDRINUSE,
        bind(third.as_raw_fd(), (&raw const asked).cast(), len)
    );
    drop(first);
    call!(bind(third.as_raw_fd(), (&raw const asked).cast(), len));
    let on = 1;
    let at = (&raw const on).cast();
    let fd = third.as_raw_fd();
    call!(setsockopt(fd, SOL_NETLINK, libc::NETLINK_EXT_ACK, at, 4));
    call!(setsockopt(
        fd,
        SOL_NETLINK,
        libc::NETLINK_ADD_MEMBERSHIP,
        at,
        4
    ));
    ensure!(name(fd)?.nl_groups == 1, "groups {}", name(fd)?.nl_groups);
    refused!(ENOPROTOOPT, setsockopt(fd, SOL_NETLINK, 99, at, 4));
    refused!(EPROTONOSUPPORT, socket(AF_NETLINK, libc::SOCK_RAW, 31));
    refused!(ESOCKTNOSUPPORT, socket(AF_NETLINK, libc::SOCK_STREAM, 0));
    Ok(())
}
