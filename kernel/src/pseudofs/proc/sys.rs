//! `/proc/sys`: settings. What can't be changed here is read-only.

use core::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use abi::{Errno, Result};
use alloc::{format, string::String, vec::Vec};

use fs::{
    namespace::protect,
    page_cache::dirty::{self, Setting},
    pseudofs::{Entry, Table},
};
use nucleus::random;
use vm::Overcommit;

use super::{
    super::{line, shown, value},
    identity, net, sysvipc,
};
use crate::{
    device::kmsg,
    ipc::{epoll, inotify, mqueue::limits as queues, pipe, quota::Quota},
    process::{RANDOMIZE, SET_ID_DUMPABLE, pid_table},
    tty::pty,
    uts,
};

/// A number that root may change.
pub(super) fn setting(get: fn() -> usize, set: fn(usize)) -> Entry {
    checked(get, move |value| {
        set(value);
        Ok(())
    })
}

/// A number that root may change to what `set` takes.
fn checked(get: fn() -> usize, set: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Entry {
    line(get).writable(move |bytes| {
        let value: u32 = identity::parse(bytes)?;
        if value > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        set(value as usize)
    })
}

/// A number up to `most`, which root may change.
fn level(setting: &'static AtomicU32, most: u32) -> Entry {
    line(|| setting.load(Relaxed)).writable(move |bytes| {
        let value = identity::parse(bytes)?;
        Errno::EINVAL.unless(value <= most)?;
        setting.store(value, Relaxed);
        Ok(())
    })
}

/// A line that root may change; the part behind a newline or a NUL is ignored.
fn name(get: fn() -> uts::Name, set: fn(&[u8]) -> Result<()>) -> Entry {
    bytes(move || get().as_bytes().to_vec()).writable(move |bytes| {
        let end = bytes.iter().position(|&byte| byte == b'\n' || byte == 0);
        set(&bytes[..end.unwrap_or(bytes.len())])
    })
}

/// The most that a user may have of something.
macro_rules! limit {
    ($quota:path) => {
        setting(|| Quota::limit(&$quota), |n| Quota::set_limit(&$quota, n))
    };
}

/// A line that is asked for when it is read.
fn bytes(line: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Entry {
    shown(move |out| {
        out.push(&line());
        out.push(b"\n");
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
        .with("fs", Entry::directory(files()))
        .with("kernel", Entry::directory(kernel()))
        .with("net", Entry::directory(net::settings()))
        .with("vm", Entry::directory(memory()))
}

fn files() -> Table {
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
        .with("file-max", value(i64::MAX))
        .with("nr_open", value(1 << 20))
        .with("pipe-max-size", checked(pipe::max_size, pipe::set_max_size))
        .with("pipe-user-pages-hard", setting(pipe::hard, pipe::set_hard))
        .with("pipe-user-pages-soft", setting(pipe::soft, pipe::set_soft))
        .with("protected_fifos", level(&protect::FIFOS, 2))
        .with("protected_hardlinks", level(&protect::HARDLINKS, 1))
        .with("protected_regular", level(&protect::REGULAR, 2))
        .with("protected_symlinks", level(&protect::SYMLINKS, 1))
        .with("suid_dumpable", level(&SET_ID_DUMPABLE, 2))
}

fn kernel() -> Table {
    let boot_id = identifier();
    sysvipc::add_limits(Table::new())
        .with("cap_last_cap", value("40"))
        .with("core_pattern", value("core"))
        .with("core_uses_pid", value("0"))
        .with("dmesg_restrict", level(&kmsg::RESTRICTED, 1))
        .with("hostname", name(uts::hostname, uts::change_hostname))
        .with("domainname", name(uts::domainname, uts::change_domainname))
        .with("ngroups_max", value("65536"))
        .with("osrelease", bytes(|| uts::release().0))
        .with("ostype", value("Linux"))
        .with("overflowgid", value("65534"))
        .with("overflowuid", value("65534"))
        .with("panic", value("0"))
        .with("panic_on_oops", value("1"))
        .with(
            "pid_max",
            checked(
                || pid_table::pid_max() as usize,
                |max| pid_table::set_pid_max(max as u32),
            ),
        )
        .with("pty", Entry::directory(terminals()))
        .with("random", Entry::directory(random_files(boot_id)))
        .with("randomize_va_space", level(&RANDOMIZE, 2))
        .with("tainted", value("0"))
        .with(
            "threads-max",
            checked(
                || pid_table::threads_max() as usize,
                |max| pid_table::set_threads_max(max as u32),
            ),
        )
        .with("version", bytes(|| uts::release().1.to_vec()))
}

fn terminals() -> Table {
    Table::new()
        .with(
            "max",
            setting(|| pty::limit() as usize, |max| pty::set_limit(max as u32)),
        )
        .with("nr", line(pty::count))
}

fn random_files(boot_id: String) -> Table {
    Table::new()
        .with("boot_id", value(boot_id))
        .with("entropy_avail", line(random::entropy))
        .with("poolsize", value(random::POOL_BITS))
        .with(
            "urandom_min_reseed_secs",
            value(random::RESEED_INTERVAL.as_secs()),
        )
        .with("uuid", line(identifier))
        .with("write_wakeup_threshold", value(random::POOL_BITS))
}

/// The ranges of settings of writeback.
const PER_CENT: RangeInclusive<u64> = 0..=100;
const CENTISECONDS: RangeInclusive<u64> = 0..=i32::MAX as u64;
const BYTES: RangeInclusive<u64> = 0..=i64::MAX as u64;

/// A setting of writing back.
fn writeback(setting: &'static Setting, range: RangeInclusive<u64>) -> Entry {
    line(|| setting.get()).writable(move |bytes| {
        let value: u64 = identity::parse(bytes)?;
        if !range.contains(&value) {
            return Err(Errno::EINVAL);
        }
        setting.set(value);
        Ok(())
    })
}

fn memory() -> Table {
    Table::new()
        .with(
            "dirty_background_bytes",
            writeback(&dirty::BACKGROUND_BYTES, BYTES),
        )
        .with(
            "dirty_background_ratio",
            writeback(&dirty::BACKGROUND_RATIO, PER_CENT),
        )
        .with("dirty_bytes", writeback(&dirty::BYTES, BYTES))
        .with(
            "dirty_expire_centisecs",
            writeback(&dirty::EXPIRE, CENTISECONDS),
        )
        .with("dirty_ratio", writeback(&dirty::RATIO, PER_CENT))
        .with(
            "dirty_writeback_centisecs",
            writeback(&dirty::INTERVAL, CENTISECONDS),
        )
        .with("drop_caches", drop_caches())
        .with(
            "max_map_count",
            setting(vm::max_entries, vm::set_max_entries),
        )
        .with("mmap_min_addr", value("4096"))
        .with("overcommit_memory", checked(overcommit, set_overcommit))
        .with("overcommit_ratio", value("50"))
        .with("page-cluster", value("0"))
        .with("swappiness", value("60"))
}

/// `vm.overcommit_memory` as a number.
fn overcommit() -> usize {
    match vm::overcommit() {
        Overcommit::Heuristic => 0,
        Overcommit::Always => 1,
    }
}

/// Promised memory is not accounted, so no limit can hold it (2).
fn set_overcommit(to: usize) -> Result<()> {
    vm::set_overcommit(match to {
        0 => Overcommit::Heuristic,
        1 => Overcommit::Always,
        _ => return Err(Errno::EINVAL),
    });
    Ok(())
}

/// `vm.drop_caches`: 1 and 3 evict pages of files that can be read again; 2 is for the cache of
/// names alone.
fn drop_caches() -> Entry {
    value(0)
        .writable(|bytes| match identity::parse::<u32>(bytes)? {
            1 | 3 => {
                // Only clean pages can go; `sync` first for more.
                fs::page_cache::reclaim(usize::MAX);
                Ok(())
            }
            2 | 4 => Ok(()),
            _ => Err(Errno::EINVAL),
        })
        .mode(0o200)
}
