//! Facts about a process besides memory and files: its transfers, its login, its out-of-memory
//! score, its children, the maps of its ids.

use core::sync::atomic::Ordering::Relaxed;

use abi::{
    Errno, Result,
    raw::general::{CAP_AUDIT_CONTROL, CAP_SYS_NICE, CAP_SYS_RESOURCE},
};
use fs::pseudofs::{Entry, Table, Text};

use super::{
    super::{line, link},
    subject::{Subject, may, refused},
};
use crate::process::{OOM_NEVER, pid_table, thread};

/// A number that a program writes.
pub(super) fn parse<T: core::str::FromStr>(bytes: &[u8]) -> Result<T> {
    let text = core::str::from_utf8(bytes.trim_ascii()).map_err(|_| Errno::EINVAL)?;
    text.parse().map_err(|_| Errno::EINVAL)
}

/// `io`: bytes that calls have moved. No device with blocks stands behind them.
pub(super) fn transfers(subject: &Subject, out: &mut Text) -> Result<()> {
    // A zombie keeps its counts.
    let io = |thread: &thread::Thread| match subject.tid {
        Some(_) => thread.io.get(),
        None => subject.process.usage().io,
    };
    let io = match subject.view_with_memory()? {
        Some(view) => view.while_same(io).map_err(refused)?,
        None => io(&*subject.thread()?),
    };
    writeln!(out, "rchar: {}\nwchar: {}", io.bytes[0], io.bytes[1]);
    writeln!(out, "syscr: {}\nsyscw: {}", io.calls[0], io.calls[1]);
    writeln!(
        out,
        "read_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0"
    );
    Ok(())
}

/// `children` of a thread: the process's are shown as those of its first thread.
pub(super) fn children(subject: &Subject, out: &mut Text) -> Result<()> {
    let pid = subject.process.pid();
    if subject.tid == Some(pid) {
        for child in pid_table::children(pid) {
            write!(out, "{child} ");
        }
    }
    Ok(())
}

/// `oom_score_adj`, which its owner may raise, and lower with a capability only.
pub(super) fn adjustment(subject: Subject) -> Entry {
    let process = subject.process.clone();
    line(move || subject.process.oom_adjustment.load(Relaxed)).writable(move |bytes| {
        let new: i32 = parse(bytes)?;
        if !(OOM_NEVER..=1000).contains(&new) {
            return Err(Errno::EINVAL);
        }
        if new < process.oom_adjustment.load(Relaxed) && !may(CAP_SYS_RESOURCE) {
            return Err(Errno::EACCES);
        }
        process.oom_adjustment.store(new, Relaxed);
        Ok(())
    })
}

/// `loginuid`: the process itself sets it.
pub(super) fn login(subject: Subject) -> Entry {
    let process = subject.process.clone();
    Entry::text(move |out| {
        write!(out, "{}", subject.process.login()[0]);
        Ok(())
    })
    .writable(move |bytes| {
        let uid: u32 = parse(bytes)?;
        let own = thread::with_current(|me| me.process().pid() == process.pid());
        if own == Some(false) || !may(CAP_AUDIT_CONTROL) {
            return Err(Errno::EPERM);
        }
        process.set_login(uid);
        Ok(())
    })
}

/// `sessionid`.
pub(super) fn login_number(subject: &Subject, out: &mut Text) -> Result<()> {
    write!(out, "{}", subject.process.login()[1]);
    Ok(())
}

/// `timerslack_ns`, for eyes that may change its scheduling.
pub(super) fn timer_slack(subject: Subject) -> Entry {
    fn check(subject: &Subject) -> Result<()> {
        let pid = subject.process.pid();
        let own = thread::with_current(|me| me.process().pid() == pid);
        match own == Some(true) || may(CAP_SYS_NICE) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }
    let changed = subject.clone();
    Entry::text(move |out| {
        check(&subject)?;
        writeln!(out, "{}", subject.thread()?.timer_slack());
        Ok(())
    })
    .writable(move |bytes| {
        let nanoseconds = parse(bytes)?;
        check(&changed)?;
        changed.thread()?.set_timer_slack(nanoseconds);
        Ok(())
    })
    .mode(0o666)
}

/// `personality`.
pub(super) fn personality(subject: &Subject, out: &mut Text) -> Result<()> {
    let personality = |thread: &thread::Thread| thread.process().personality.load(Relaxed);
    let personality = subject.view()?.while_same(personality).map_err(refused)?;
    writeln!(out, "{personality:08x}");
    Ok(())
}

/// `ns`: links whose texts tell name spaces apart. There is one of each kind, with the number of
/// Linux's first one.
pub(super) fn name_spaces() -> Table {
    const KINDS: [(&str, &str); 10] = [
        ("cgroup", "cgroup:[4026531835]"),
        ("ipc", "ipc:[4026531839]"),
        ("mnt", "mnt:[4026531841]"),
        ("net", "net:[4026531840]"),
        ("pid", "pid:[4026531836]"),
        ("pid_for_children", "pid:[4026531836]"),
        ("time", "time:[4026531834]"),
        ("time_for_children", "time:[4026531834]"),
        ("user", "user:[4026531837]"),
        ("uts", "uts:[4026531838]"),
    ];
    KINDS.iter().fold(Table::new(), |table, &(name, text)| {
        table.with(name, link(text))
    })
}
