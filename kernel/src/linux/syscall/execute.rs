//! `execve`.

use alloc::vec::Vec;

use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result, raw::general as raw};
use fs::{Location, Walk};
use nucleus::{VirtAddr, user};

use super::{Call, SystemCall, call};
use crate::process::{
    exec::{
        self,
        elf::Class,
        held::Held,
        load::{self, Request},
        rights::Withheld,
        words::Words,
    },
    with_room,
};

/// Longest path, the NUL included.
const PATH_MAX: usize = raw::PATH_MAX as usize;

/// On Linux, such an error ends the process.
const LATE: &str = "an error that comes late (no memory, a file that changes meanwhile) is returned \
                    to a program whose other threads have ended";

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_execve, execve).note(LATE),
    call!(__NR_execveat, execveat).note(LATE),
];

fn path(address: VirtAddr) -> Result<Vec<u8>> {
    user::copy_in_string(address, PATH_MAX - 1)?.ok_or(Errno::ENAMETOOLONG)
}

fn execve(call: &mut Call<'_>) -> Result<usize> {
    let path = path(call.address(0))?;
    let file = resolve(call, None, &path, true)?;
    run(call, file, path, call.address(1), call.address(2))
}

fn execveat(call: &mut Call<'_>) -> Result<usize> {
    let mut path = path(call.address(1))?;
    let fd = call.int(0);
    let flags = call.unsigned(4);
    if flags & !(raw::AT_EMPTY_PATH | raw::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let base = if fd == raw::AT_FDCWD || path.first() == Some(&b'/') {
        None
    } else {
        let open = call.files().get(fd)?;
        Some(open.location().cloned().ok_or(Errno::EACCES)?)
    };
    let file = if path.is_empty() && flags & raw::AT_EMPTY_PATH != 0 {
        base.unwrap_or_else(|| call.fs().cwd())
    } else {
        let follow = flags & raw::AT_SYMLINK_NOFOLLOW == 0;
        let file = resolve(call, base, &path, follow)?;
        if file.vnode().kind() == fs::Kind::Link {
            return Err(Errno::ELOOP);
        }
        file
    };
    if fd != raw::AT_FDCWD && path.first() != Some(&b'/') {
        // Where an interpreter finds the script again.
        let mut name = alloc::format!("/dev/fd/{fd}").into_bytes();
        if !path.is_empty() {
            name.push(b'/');
            name.append(&mut path);
        }
        path = name;
    }
    run(call, file, path, call.address(2), call.address(3))
}

fn resolve(call: &Call<'_>, base: Option<Location>, path: &[u8], follow: bool) -> Result<Location> {
    let root = call.fs().root();
    let start = base.unwrap_or_else(|| call.fs().cwd());
    Walk {
        root: &root,
        start: &start,
        who: &call.credentials().fs,
    }
    .resolve(path, follow)
}

fn run(
    call: &mut Call<'_>,
    file: Location,
    path: Vec<u8>,
    arguments: VirtAddr,
    environment: VirtAddr,
) -> Result<usize> {
    call.takes_memory()?;
    let process = call.process().clone();
    let max = load::words_max(process.limits());
    let class = match call.own.compatible_call {
        true => Class::I386,
        false => Class::X64,
    };
    loop {
        let loaded = with_room(Errno::ENOMEM, || {
            let mut held = Held::new();
            load::load(Request {
                file: file.clone(),
                path: path.clone(),
                arguments: Words::read(arguments, max, class, &mut held)?,
                environment: Words::read(environment, max, class, &mut held)?,
                credentials: call.credentials(),
                fs: call.fs(),
                limits: process.limits(),
                personality: process.personality.load(Relaxed),
                withheld: Withheld {
                    no_new_privileges: process.no_new_privileges.load(Relaxed),
                    shares_fs_context: process.shares_fs_context(call.fs()),
                },
                beside: Some(&**call.space().map()),
                held,
            })
        })?;
        if exec::replace(call.thread, call.own, call.context, loaded)? {
            return Ok(0);
        }
    }
}
