//! A directory a process, and in it a directory a thread.

use alloc::{
    string::ToString,
    sync::{Arc, Weak},
};

use abi::{Errno, Result};
use fs::{
    Kind, Location,
    pseudofs::{Directory, EmitName, Entry, Text},
};
use nucleus::speculation;
use vm::Map;

use super::{
    super::{line, number, shown, value},
    descriptors, identity, mem, memory, mounts, status,
    subject::{Subject, name, owned, owned_directory, path, refused},
};
use crate::process::{Pid, Process, Thread, View, oom_score, pid_table, read_strings, thread};

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
        Ok(owned_directory(entry, &process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let last = cursor.try_into().unwrap_or(Pid::MAX);
        list(Process::after(last).map(|process| process.pid()), emit)
    }
}

/// Lists directories of processes or threads; the cursor of one is its id.
fn list(ids: impl Iterator<Item = Pid>, emit: &mut EmitName<'_>) -> Result<()> {
    for id in ids {
        if !emit(id.to_string().as_bytes(), Kind::Directory, id.into()) {
            break;
        }
    }
    Ok(())
}

/// `uid_map` and its like: there is one name space of ids, and all numbers mean themselves.
const ID_MAP: &str = "         0          0 4294967295";

/// Files in the directory of a process, and which of them that of a thread has.
type Make = fn(Subject) -> Entry;
const FILES: &[(&str, Make)] = &[
    ("auxv", |s| {
        Entry::bound(move || {
            let space = s.view_with_memory()?.map(|view| view.space().clone());
            let space = space.as_ref().map_or(Weak::new(), Arc::downgrade);
            Ok(move |out: &mut Text| {
                let Some(space) = space.upgrade() else {
                    return Ok(());
                };
                for word in &space.layout.auxiliary {
                    out.push(&word.to_le_bytes()[..space.layout.class.word()]);
                }
                Ok(())
            })
        })
        .mode(0o400)
    }),
    // A line for each hierarchy of control groups, of which there is none.
    ("cgroup", |_| shown(|_| {})),
    ("children", |s| text(s, identity::children)),
    ("cmdline", |s| {
        text(s, |s, out| {
            // A zombie has none.
            if let Some(facts) = s.facts() {
                facts.title(|bytes| out.push(bytes));
            }
            Ok(())
        })
    }),
    ("comm", |s| {
        let named = s.clone();
        text(s, |s, out| {
            out.push(&name(s));
            out.push(b"\n");
            Ok(())
        })
        .writable(move |bytes| {
            // Only a process itself sets its name, whichever process opened the file.
            let own = |me: &Thread| Arc::ptr_eq(me.process(), &named.process);
            if thread::with_current(own) == Some(false) {
                return Err(Errno::EINVAL);
            }
            let name = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            named.thread()?.set_name(name);
            Ok(())
        })
    }),
    ("cwd", |s| place(s, View::cwd)),
    ("environ", |s| {
        Entry::bound(move || {
            let view = s.view_with_memory()?;
            let environment = view.map(|view| {
                let space = view.space();
                (Arc::downgrade(space.map()), space.layout.environment)
            });
            Ok(move |out: &mut Text| {
                if let Some((map, range)) = &environment
                    && let Some(map) = map.upgrade()
                {
                    read_strings(&map, *range, &mut |bytes| out.push(bytes));
                }
                Ok(())
            })
        })
        .mode(0o400)
    }),
    ("exe", |s| {
        place(s, |view| Ok(view.space().layout.exe.clone()))
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
    ("maps", |s| mappings(s, memory::maps)),
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
    ("root", |s| place(s, View::root)),
    ("sessionid", |s| text(s, identity::login_number)),
    ("setgroups", |_| value("allow")),
    ("smaps", |s| mappings(s, memory::smaps)),
    ("smaps_rollup", |s| mappings(s, memory::rollup)),
    ("stat", |s| {
        Entry::bound(move || {
            let s = s.clone();
            // The opener and the reader may be different programs.
            let may = s.view().is_ok();
            Ok(move |out: &mut Text| status::stat(&s, may && s.view().is_ok(), out))
        })
    }),
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
        let entry = make(self.clone());
        Ok(match name {
            b"task" | b"net" => owned_directory(entry, &self.process),
            _ => owned(entry, &self.process),
        })
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        for ((name, _), next) in speculation::rest(FILES, cursor as usize).iter().zip(1..) {
            if !self.has(name) {
                continue;
            }
            let kind = match *name {
                "fd" | "fdinfo" | "net" | "ns" | "task" => Kind::Directory,
                "cwd" | "exe" | "root" => Kind::Link,
                _ => Kind::Regular,
            };
            if !emit(name.as_bytes(), kind, cursor + next) {
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
        Ok(owned_directory(Entry::directory(subject), &self.process))
    }

    fn list(&self, cursor: u64, emit: &mut EmitName<'_>) -> Result<()> {
        let last = cursor.try_into().unwrap_or(Pid::MAX);
        let threads = self.process.signals.threads_after(last);
        list(threads.map(|thread| thread.tid()), emit)
    }
}

fn text(subject: Subject, show: fn(&Subject, &mut Text) -> Result<()>) -> Entry {
    Entry::text(move |out| show(&subject, out))
}

fn secret(subject: Subject, show: fn(&Subject, &mut Text) -> Result<()>) -> Entry {
    text(subject, show).mode(0o400)
}

/// A text about the mappings that there are when a process that may see them opens the file.
fn mappings(subject: Subject, show: fn(&Map, &mut Text)) -> Entry {
    Entry::bound(move || {
        let map = subject.memory()?;
        Ok(move |out: &mut Text| {
            if let Some(map) = map.upgrade() {
                show(&map, out);
            }
            Ok(())
        })
    })
}

/// A link to a place, which follows it wherever names lead.
fn place(subject: Subject, which: fn(&View) -> Result<Location>) -> Entry {
    let find = move || which(&subject.view()?).map_err(refused);
    let shown = find.clone();
    Entry::place(move || Ok(path(&shown()?)), find)
}
