//! A directory a process, and in it a directory a thread.

use alloc::{string::ToString, sync::Arc, vec::Vec};

use abi::{Errno, Result};
use fs::{
    Kind, Location,
    pseudofs::{Directory, EmitName, Entry, Text},
};
use nucleus::{PAGE_SIZE, VirtRange};

use super::{
    super::{line, number, shown, value},
    descriptors, identity, mem, memory, mounts, status,
    subject::{Subject, name, owned, path},
};
use crate::process::{Pid, Process, Shared, Space, oom_score, pid_table};

/// The directories of all processes.
pub struct Processes;

impl Directory for Processes {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let pid = number(name).ok_or(Errno::ENOENT)?;
        // A thread's id leads to its process, too, though it is not listed.
        let process = match Process::find(pid) {
            Some(process) => process,
            None => pid_table::find_thread(pid)
                .ok_or(Errno::ENOENT)?
                .process()
                .clone(),
        };
        let entry = Entry::directory(Subject {
            process: process.clone(),
            tid: None,
        });
        Ok(owned(entry, &process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        for process in Process::all() {
            let pid = process.pid();
            if u64::from(pid) > cursor
                && !emit(pid.to_string().as_bytes(), Kind::Directory, pid.into())
            {
                break;
            }
        }
        Ok(())
    }
}

/// `uid_map` and its like: there is one name space of ids, and all numbers mean themselves.
const ID_MAP: &str = "         0          0 4294967295";

/// Files in the directory of a process, and which of them that of a thread has.
type Make = fn(Subject) -> Entry;
const FILES: &[(&str, Make)] = &[
    ("auxv", |s| {
        secret(s, |s, out| {
            let space = s.private()?.space;
            for word in &space.layout.auxiliary {
                out.push(&word.to_le_bytes()[..space.layout.class.word()]);
            }
            Ok(())
        })
    }),
    // A line for each hierarchy of control groups, of which there is none.
    ("cgroup", |_| shown(|_| {})),
    ("children", |s| text(s, identity::children)),
    ("cmdline", |s| {
        text(s, |s, out| strings(s, out, |shared| title(&shared.space)))
    }),
    ("comm", |s| {
        let named = s.clone();
        text(s, |s, out| {
            out.push(&name(s));
            out.push(b"\n");
            Ok(())
        })
        .writable(move |bytes| {
            let name = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            named.thread()?.set_name(name);
            Ok(())
        })
    }),
    ("cwd", |s| place(s, |shared| shared.fs.cwd())),
    ("environ", |s| {
        secret(s, |s, out| {
            s.private()?;
            strings(s, out, |shared| shared.space.layout.environment)
        })
    }),
    ("exe", |s| {
        place(s, |shared| shared.space.layout.exe.clone())
    }),
    ("fd", |s| {
        Entry::directory(descriptors::Descriptors { subject: s }).mode(0o500)
    }),
    ("fdinfo", |s| {
        Entry::directory(descriptors::Positions { subject: s }).mode(0o500)
    }),
    ("gid_map", |_| value(ID_MAP)),
    ("io", |s| secret(s, identity::transfers)),
    ("limits", |s| text(s, status::limits)),
    ("loginuid", identity::login),
    ("maps", |s| text(s, memory::maps)),
    ("mem", |s| {
        Entry::file(move |at, _| mem::memory(&s, at)).mode(0o600)
    }),
    ("mountinfo", |s| text(s, mounts::info)),
    ("mounts", |s| text(s, mounts::table)),
    ("mountstats", |s| text(s, mounts::statistics)),
    ("net", |_| Entry::directory(super::net::directory())),
    ("ns", |_| {
        Entry::directory(identity::name_spaces()).mode(0o511)
    }),
    ("oom_score", |s| line(move || oom_score(&s.process))),
    ("oom_score_adj", identity::adjustment),
    ("pagemap", |s| {
        Entry::file(move |at, _| mem::pages(&s, at)).mode(0o400)
    }),
    ("personality", |s| secret(s, identity::personality)),
    ("projid_map", |_| value(ID_MAP)),
    ("root", |s| place(s, |shared| shared.fs.root())),
    ("sessionid", |s| text(s, identity::login_number)),
    ("setgroups", |_| value("allow")),
    ("smaps", |s| text(s, memory::smaps)),
    ("smaps_rollup", |s| text(s, memory::rollup)),
    ("stat", |s| text(s, status::stat)),
    ("statm", |s| text(s, status::statm)),
    ("status", |s| text(s, status::status)),
    ("task", |s| Entry::directory(Threads { process: s.process })),
    ("timerslack_ns", identity::timer_slack),
    ("uid_map", |_| value(ID_MAP)),
    // Functions of the kernel have no names here.
    ("wchan", |_| shown(|out| out.push(b"0"))),
];

impl Subject {
    /// Whether the directory of a process, or that of a thread, has the file.
    fn has(&self, name: &str) -> bool {
        match name {
            "task" | "timerslack_ns" | "mountstats" => self.tid.is_none(),
            "children" => self.tid.is_some(),
            _ => true,
        }
    }
}

impl Directory for Subject {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let (_, make) = FILES
            .iter()
            .filter(|(own, _)| self.has(own))
            .find(|(own, _)| own.as_bytes() == name)
            .ok_or(Errno::ENOENT)?;
        Ok(owned(make(self.clone()), &self.process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        for (i, (name, _)) in FILES.iter().enumerate().skip(cursor as usize) {
            if !self.has(name) {
                continue;
            }
            let kind = match *name {
                "fd" | "fdinfo" | "net" | "ns" | "task" => Kind::Directory,
                "cwd" | "exe" | "root" => Kind::Link,
                _ => Kind::Regular,
            };
            if !emit(name.as_bytes(), kind, i as u64 + 1) {
                break;
            }
        }
        Ok(())
    }
}

/// The threads of a process.
struct Threads {
    process: Arc<Process>,
}

impl Directory for Threads {
    fn lookup(&self, name: &[u8]) -> Result<Entry> {
        let tid = number(name).ok_or(Errno::ENOENT)?;
        let subject = Subject {
            process: self.process.clone(),
            tid: Some(tid),
        };
        subject.thread().map_err(|_| Errno::ENOENT)?;
        Ok(owned(Entry::directory(subject), &self.process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let mut ids: Vec<Pid> = self.process.threads().iter().map(|t| t.tid()).collect();
        ids.sort_unstable();
        for tid in ids.into_iter().filter(|&tid| u64::from(tid) > cursor) {
            if !emit(tid.to_string().as_bytes(), Kind::Directory, tid.into()) {
                break;
            }
        }
        Ok(())
    }
}

fn text(subject: Subject, show: fn(&Subject, &mut Text) -> Result<()>) -> Entry {
    Entry::text(move |out| show(&subject, out))
}

fn secret(subject: Subject, show: fn(&Subject, &mut Text) -> Result<()>) -> Entry {
    text(subject, show).mode(0o400)
}

/// A link to a place, which follows it wherever names lead.
fn place(subject: Subject, which: fn(&Shared) -> Location) -> Entry {
    let shown = subject.clone();
    Entry::place(
        move || Ok(path(&which(&shown.private()?))),
        move || Ok(which(&subject.private()?)),
    )
}

/// Returns the argument strings, or the text that a program has written over them: if their last
/// byte is no longer the NUL that ends them, the string that begins there, which may go on where
/// the environment was (`setproctitle`).
fn title(space: &Space) -> VirtRange {
    let (arguments, environment) = (space.layout.arguments, space.layout.environment);
    let mut last = [0];
    if arguments.is_empty() || space.map().read(arguments.end - 1, &mut last) == 0 || last == [0] {
        return arguments;
    }
    let room = if environment.start == arguments.end {
        environment.end - arguments.start
    } else {
        arguments.end - arguments.start
    };
    let mut text = [0; 256];
    let mut length = 0;
    while length < room.min(PAGE_SIZE) {
        let piece = text.len().min(room - length);
        let n = space
            .map()
            .read(arguments.start + length, &mut text[..piece]);
        if let Some(nul) = text[..n].iter().position(|&byte| byte == 0) {
            length += nul + 1;
            break;
        }
        length += n;
        if n < piece {
            break;
        }
    }
    VirtRange::new(arguments.start, arguments.start + length)
}

/// Strings on the stack of a program.
fn strings(subject: &Subject, out: &mut Text, which: fn(&Shared) -> VirtRange) -> Result<()> {
    let Ok(shared) = subject.shared() else {
        // A zombie has none.
        return Ok(());
    };
    let range = which(&shared);
    let mut piece = [0; 512];
    let mut at = range.start;
    while at < range.end {
        let want = piece.len().min(range.end - at);
        let n = shared.space.map().read(at, &mut piece[..want]);
        out.push(&piece[..n]);
        if n < want {
            break;
        }
        at = at + n;
    }
    Ok(())
}
