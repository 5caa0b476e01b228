//! Netlink: interfaces, addresses and routes.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("netlink: what the C library asks", library),
    ("netlink: questions and answers", questions),
    ("netlink: ports, options, refusals", ports),
];

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
    let mut list = null_mut();
    call!(getifaddrs(&mut list));
    // SAFETY: the list is read to its end and given back.
    unsafe {
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            let name = CStr::from_ptr(entry.ifa_name);
            ensure!(name == c"lo", "{name:?}");
            let up = entry.ifa_flags & IFF_UP as u32 != 0;
            ensure!(up, "flags {:#x}", entry.ifa_flags);
            families.push(c_int::from((*entry.ifa_addr).sa_family));
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    equal!(families, [AF_PACKET, AF_INET, AF_INET6]);
    Ok(())
}

fn socket() -> Result<OwnedFd> {
    let fd = call!(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0));
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a request; its 16-byte body begins with `family` and names the interface `index`.
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

/// Returns the types of the pending messages, and the first number behind each header.
fn answers(socket: &OwnedFd) -> Result<Vec<(u16, i32)>> {
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
    let dump = NLM_F_DUMP;
    let kinds = |list: Vec<(u16, i32)>| list.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    for (family, count) in [(0, 2), (AF_INET as u8, 1), (AF_INET6 as u8, 1)] {
        ask(&socket, RTM_GETADDR, dump, family, 0)?;
        let found = kinds(answers(&socket)?);
        ensure!(found == vec![RTM_NEWADDR; count], "{found:?}");
        let end = answers(&socket)?;
        ensure!(end == [(NLMSG_DONE as u16, 0)], "{end:?}");
    }
    ask(&socket, RTM_GETROUTE, dump, AF_INET as u8, 0)?;
    let found = kinds(answers(&socket)?);
    ensure!(found == [RTM_NEWROUTE; 3], "{found:?}");
    answers(&socket)?;
    // One interface, by its number, and another one.
    ask(&socket, RTM_GETLINK, 0, 0, 1)?;
    let found = kinds(answers(&socket)?);
    ensure!(found == [RTM_NEWLINK], "{found:?}");
    ask(&socket, RTM_GETLINK, 0, 0, 2)?;
    let found = answers(&socket)?;
    ensure!(found == [(2, -ENODEV)], "{found:?}");
    ask(&socket, 0x3e, NLM_F_ACK, 0, 0)?;
    let found = answers(&socket)?;
    ensure!(found == [(2, -EOPNOTSUPP)], "{found:?}");
    let fd = socket.as_raw_fd();
    let mut byte = 0u8;
    refused!(EAGAIN, recv(fd, (&raw mut byte).cast(), 1, MSG_DONTWAIT));
    let mut poll = poll_entry(fd, POLLIN | POLLOUT);
    call!(poll(&mut poll, 1, 0));
    ensure!(poll.revents == POLLOUT, "{:#x}", poll.revents);
    ask(&socket, RTM_GETLINK, dump, 0, 0)?;
    call!(poll(&mut poll, 1, 0));
    equal!(poll.revents, POLLIN | POLLOUT);
    Ok(())
}

fn name(fd: c_int) -> Result<sockaddr_nl> {
    // SAFETY: all zeros is a valid address.
    let mut name: sockaddr_nl = unsafe { zeroed() };
    let mut len = size_of::<sockaddr_nl>() as u32;
    call!(getsockname(fd, (&raw mut name).cast(), &mut len));
    ensure!(len == 12, "a name of {len} bytes");
    Ok(name)
}

fn ports() -> Outcome {
    let (first, second) = (socket()?, socket()?);
    let len = size_of::<sockaddr_nl>() as u32;
    // SAFETY: all zeros is a valid address.
    let mut asked: sockaddr_nl = unsafe { zeroed() };
    asked.nl_family = AF_NETLINK as u16;
    equal!(name(first.as_raw_fd())?.nl_pid, 0);
    call!(bind(first.as_raw_fd(), (&raw const asked).cast(), len));
    let own = name(first.as_raw_fd())?.nl_pid;
    ensure!(own == std::process::id(), "port {own}");
    call!(bind(second.as_raw_fd(), (&raw const asked).cast(), len));
    let other = name(second.as_raw_fd())?.nl_pid;
    ensure!((other as i32) < 0, "port {other}");
    let third = socket()?;
    asked.nl_pid = own;
    refused! { bind(third.as_raw_fd(), (&raw const asked).cast(), len) => EADDRINUSE; }
    drop(first);
    call!(bind(third.as_raw_fd(), (&raw const asked).cast(), len));
    let on = 1;
    let at = (&raw const on).cast();
    let fd = third.as_raw_fd();
    call!(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, at, 4));
    call!(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, at, 4));
    ensure!(name(fd)?.nl_groups == 1, "groups {}", name(fd)?.nl_groups);
    refused!(ENOPROTOOPT, setsockopt(fd, SOL_NETLINK, 99, at, 4));
    refused!(EPROTONOSUPPORT, socket(AF_NETLINK, SOCK_RAW, 31));
    refused!(ESOCKTNOSUPPORT, socket(AF_NETLINK, SOCK_STREAM, 0));
    Ok(())
}
