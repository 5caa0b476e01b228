//! Threads and processes come and go.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{Call, Entry};
use crate::process::{
    self,
    fork::{self, Request},
};

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_fork, "fork", fork),
    Entry::new(raw::__NR_vfork, "vfork", vfork),
    Entry::new(raw::__NR_clone, "clone", clone),
    Entry::new(raw::__NR_clone3, "clone3", clone3),
    Entry::new(raw::__NR_unshare, "unshare", unshare),
    Entry::new(raw::__NR_exit, "exit", exit),
    Entry::new(raw::__NR_exit_group, "exit_group", exit_group),
    Entry::new(
        raw::__NR_set_robust_list,
        "set_robust_list",
        set_robust_list,
    ),
    Entry::new(
        raw::__NR_get_robust_list,
        "get_robust_list",
        get_robust_list,
    ),
];

fn make(call: &mut Call<'_>, request: &Request) -> Result<usize> {
    let tid = fork::clone(call.thread, call.own, call.context, request)?;
    Ok(tid as usize)
}

pub(super) fn fork(call: &mut Call<'_>) -> Result<usize> {
    make(
        call,
        &Request {
            exit_signal: raw::SIGCHLD,
            ..Request::default()
        },
    )
}

pub(super) fn vfork(call: &mut Call<'_>) -> Result<usize> {
    make(
        call,
        &Request {
            flags: u64::from(raw::CLONE_VFORK | raw::CLONE_VM),
            exit_signal: raw::SIGCHLD,
            ..Request::default()
        },
    )
}

/// The low byte of the flags is the exit signal (`CSIGNAL`).
fn clone(call: &mut Call<'_>) -> Result<usize> {
    let [flags, stack, parent_tid, child_tid, tls, _] = call.args;
    let flags = flags & u64::from(u32::MAX);
    make(
        call,
        &Request {
            flags: flags & !u64::from(raw::CSIGNAL),
            exit_signal: (flags & u64::from(raw::CSIGNAL)) as u32,
            stack,
            tls,
            parent_tid,
            child_tid,
        },
    )
}

fn clone3(call: &mut Call<'_>) -> Result<usize> {
    let address = call.address(0);
    let size = call.size(1);
    const WORDS: usize = raw::CLONE_ARGS_SIZE_VER2 as usize / 8;
    if size < raw::CLONE_ARGS_SIZE_VER0 as usize {
        return Err(Errno::EINVAL);
    }
    if size > nucleus::PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    let mut bytes = [0; WORDS * 8];
    let known = size.min(bytes.len());
    user::copy_in(&mut bytes[..known], address).map_err(|_| Errno::EFAULT)?;
    // What this kernel does not know must be zero.
    let mut at = known;
    while at < size {
        let byte: u8 =
            user::read(VirtAddr(address.0.wrapping_add(at))).map_err(|_| Errno::EFAULT)?;
        if byte != 0 {
            return Err(Errno::E2BIG);
        }
        at += 1;
    }
    let mut words = [0u64; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    }
    let [
        flags,
        _pidfd,
        child_tid,
        parent_tid,
        exit_signal,
        stack,
        stack_size,
        tls,
        set_tid,
        set_tid_size,
        _cgroup,
    ] = words;
    let only_low = flags & u64::from(raw::CSIGNAL | raw::CLONE_DETACHED) == 0;
    let stack_good = (stack == 0) == (stack_size == 0);
    if !only_low || exit_signal > 64 || !stack_good || set_tid != 0 || set_tid_size != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(raw::CLONE_THREAD | raw::CLONE_PARENT) != 0 && exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    make(
        call,
        &Request {
            flags,
            exit_signal: exit_signal as u32,
            stack: stack.checked_add(stack_size).ok_or(Errno::EINVAL)?,
            tls,
            parent_tid,
            child_tid,
        },
    )
}

fn unshare(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.unsigned(0);
    let alone = call.process().signals.thread_count() == 1;
    if flags & !(raw::CLONE_FS | raw::CLONE_FILES | raw::CLONE_SYSVSEM) != 0 {
        let thread_flags = raw::CLONE_THREAD | raw::CLONE_SIGHAND | raw::CLONE_VM;
        let rest = flags & !(raw::CLONE_FS | raw::CLONE_FILES | raw::CLONE_SYSVSEM);
        // Nothing to do for what a single thread shares with nobody.
        if rest & !thread_flags != 0 || !alone {
            return Err(Errno::EINVAL);
        }
    }
    let files = if flags & raw::CLONE_FILES != 0 {
        Some(call.files().duplicate()?)
    } else {
        None
    };
    if flags & raw::CLONE_FS != 0 {
        call.own.fs = call.own.fs.duplicate();
    }
    if let Some(files) = files {
        call.own.files = files;
    }
    call.thread.publish(Some(call.own.shared()));
    Ok(0)
}

/// The wait status of a thread that ends with argument 0.
fn status(call: &Call<'_>) -> i32 {
    (call.int(0) & 0xff) << 8
}

pub(super) fn exit(call: &mut Call<'_>) -> Result<usize> {
    call.own.ended = Some(status(call));
    call.thread.signals.call_attention();
    Ok(0)
}

pub(super) fn exit_group(call: &mut Call<'_>) -> Result<usize> {
    process::exit_group(call.process(), status(call));
    call.thread.signals.call_attention();
    Ok(0)
}

fn set_robust_list(call: &mut Call<'_>) -> Result<usize> {
    if call.size(1) != size_of::<raw::robust_list_head>() {
        return Err(Errno::EINVAL);
    }
    call.own.robust_list = call.args[0];
    Ok(0)
}

/// Only the caller's own: nobody else's list is ever looked at while it runs.
fn get_robust_list(call: &mut Call<'_>) -> Result<usize> {
    let tid = call.int(0);
    if tid != 0 && tid != call.thread.tid() as i32 {
        return Err(Errno::EPERM);
    }
    let head = call.own.robust_list;
    call.write(2, &(size_of::<raw::robust_list_head>() as u64))?;
    call.write(1, &head)?;
    Ok(0)
}
