//! `/proc/sys`: settings. What can't be changed here is read-only.

use core::sync::atomic::Ordering::Relaxed;

use abi::Errno;
use alloc::{format, string::String, vec::Vec};

use fs::synthetic::{Entry, Table};
use nucleus::random;

use super::{net, sysvipc};
use crate::{
    epoll, inotify, mqueue::limits as queues, pipe, process::family, quota::Quota, syscall,
};

pub(super) fn value(value: &'static str) -> Entry {
    Entry::text(move |out| {
        writeln!(out, "{value}");
        Ok(())
    })
}

pub(super) fn number(value: u64) -> Entry {
    Entry::text(move |out| {
        writeln!(out, "{value}");
        Ok(())
    })
}

/// A number that root may change.
fn setting(get: fn() -> usize, set: fn(usize)) -> Entry {
    Entry::text(move |out| {
        writeln!(out, "{}", get());
        Ok(())
    })
    .writable(move |bytes| {
        let text = core::str::from_utf8(bytes.trim_ascii()).map_err(|_| Errno::EINVAL)?;
        let value: u32 = text.parse().map_err(|_| Errno::EINVAL)?;
        if value > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        set(value as usize);
        Ok(())
    })
}

/// The most that a user may have of something.
macro_rules! limit {
    ($quota:path) => {
        setting(|| Quota::limit(&$quota), |n| Quota::set_limit(&$quota, n))
    };
}

/// A line that is asked for when it is read.
fn bytes(line: fn() -> Vec<u8>) -> Entry {
    Entry::text(move |out| {
        out.push(&line());
        out.push(b"\n");
        Ok(())
    })
}

/// A random identifier in its usual form, version 4.
fn identifier() -> String {
    let (high, low) = (random::u64(), random::u64());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

/// `/proc/sys`.
pub fn directory() -> Table {
    Table::new()
        .with("fs", Entry::directory(fs()))
        .with("kernel", Entry::directory(kernel()))
        .with("net", Entry::directory(net::settings()))
        .with("vm", Entry::directory(vm()))
}

fn fs() -> Table {
    let inotify = Table::new()
        .with(
            "max_queued_events",
            setting(
                || inotify::MAX_QUEUED.load(Relaxed),
                |n| inotify::MAX_QUEUED.store(n, Relaxed),
            ),
        )
        .with("max_user_instances", limit!(inotify::INSTANCES))
        .with("max_user_watches", limit!(inotify::WATCHES));
    let mqueue = Table::new()
        .with("msg_default", sysvipc::settings([&queues::MSG_DEFAULT]))
        .with("msg_max", sysvipc::settings([&queues::MSG_MAX]))
        .with(
            "msgsize_default",
            sysvipc::settings([&queues::MSGSIZE_DEFAULT]),
        )
        .with("msgsize_max", sysvipc::settings([&queues::MSGSIZE_MAX]))
        .with("queues_max", sysvipc::settings([&queues::QUEUES_MAX]));
    let epoll = Table::new().with("max_user_watches", limit!(epoll::WATCHES));
    Table::new()
        .with("epoll", Entry::directory(epoll))
        .with("inotify", Entry::directory(inotify))
        .with("mqueue", Entry::directory(mqueue))
        .with("file-max", number(i64::MAX as u64))
        .with("nr_open", number(1 << 20))
        .with(
            "pipe-max-size",
            number((pipe::MAX_SLOTS * nucleus::PAGE_SIZE) as u64),
        )
}

fn kernel() -> Table {
    let boot_id = identifier();
    sysvipc::add_limits(Table::new())
        .with("cap_last_cap", value("40"))
        .with("hostname", bytes(syscall::hostname))
        .with("domainname", value("(none)"))
        .with("ngroups_max", value("65536"))
        .with("osrelease", bytes(|| syscall::release().0.to_vec()))
        .with("ostype", value("Linux"))
        .with("overflowgid", value("65534"))
        .with("overflowuid", value("65534"))
        .with("pid_max", number(u64::from(family::LAST_PID) + 1))
        .with("random", Entry::directory(random_files(boot_id)))
        .with("randomize_va_space", value("2"))
        .with("threads-max", number(u64::from(family::LAST_PID) + 1))
        .with("version", bytes(|| syscall::release().1.to_vec()))
}

fn random_files(boot_id: String) -> Table {
    Table::new()
        .with(
            "boot_id",
            Entry::text(move |out| {
                writeln!(out, "{boot_id}");
                Ok(())
            }),
        )
        .with("entropy_avail", value("256"))
        .with("poolsize", value("256"))
        .with(
            "uuid",
            Entry::text(|out| {
                writeln!(out, "{}", identifier());
                Ok(())
            }),
        )
}

fn vm() -> Table {
    Table::new()
        .with("max_map_count", value("65530"))
        .with("mmap_min_addr", value("4096"))
        .with("overcommit_memory", value("0"))
        .with("overcommit_ratio", value("50"))
        .with("swappiness", value("60"))
}
