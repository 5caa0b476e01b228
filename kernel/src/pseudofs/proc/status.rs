//! The numbers of a process: `stat`, `statm`, `status`, `limits`.

use abi::{
    Result,
    raw::{
        general as raw,
        prctl::{
            PR_SPEC_DISABLE, PR_SPEC_ENABLE, PR_SPEC_FORCE_DISABLE, PR_SPEC_NOT_AFFECTED,
            PR_SPEC_PRCTL,
        },
    },
};
use alloc::{format, string::String};
use core::sync::atomic::Ordering::Relaxed;
use fs::pseudofs::Text;
use nucleus::{PAGE_SIZE, processor::Speculation};
use vm::account::Kind;

use super::{
    super::kib,
    subject::{Subject, name},
};
use crate::process::{CapabilitySet, Facts, INFINITY, Times, ticks};

/// The state letter, of the thread or the process.
fn state(subject: &Subject) -> char {
    match (subject.tid, subject.thread()) {
        (Some(_), Ok(thread)) => thread.state(),
        _ => subject.process.state(),
    }
}

fn times(subject: &Subject) -> Times {
    match (subject.tid, subject.thread()) {
        (Some(_), Ok(thread)) => thread.times(),
        _ => subject.process.times(),
    }
}

/// `stat`: one line of numbers, see `proc(5)`. `with_addresses`: for eyes that may look into it.
pub(super) fn stat(subject: &Subject, with_addresses: bool, out: &mut Text) -> Result<()> {
    let process = &subject.process;
    let thread = subject.thread().ok();
    let facts = thread.as_ref().and_then(|thread| thread.facts());
    let view = subject.view().ok().filter(|_| with_addresses);
    let terminal = process.session().terminal();
    let (tty, foreground) = match &terminal {
        Some(tty) => (tty.device() as i64, i64::from(tty.foreground())),
        None => (0, -1),
    };
    let times = times(subject);
    let children = process.children_usage().times;
    let scheduling = thread.as_ref().map(|thread| thread.scheduling());
    let scheduling = scheduling.unwrap_or_default();
    let nice = i32::from(scheduling.nice);
    let priority = match i32::from(scheduling.level) {
        0 => 20 + nice,
        level => -1 - level,
    };
    let [minor, major] = match (&thread, subject.tid) {
        (Some(thread), Some(_)) => thread.faults(),
        _ => process.usage().faults,
    };
    let [children_minor, children_major] = process.children_usage().faults;
    let id = subject.tid.unwrap_or(process.pid());
    write!(out, "{id} (");
    out.push(&name(subject));
    write!(
        out,
        ") {} {} {} {} {tty} {foreground} 0 {minor} {children_minor} {major} {children_major} \
         {} {} {} {} {} {nice} {} 0 {}",
        state(subject),
        process.parent_pid(),
        process.group_id(),
        process.session_id(),
        ticks(times.user),
        ticks(times.system),
        ticks(children.user),
        ticks(children.system),
        priority,
        process.signals.thread_count(),
        ticks(process.started),
    );
    let limit = process.limits().soft(raw::RLIMIT_RSS);
    let pending = thread.as_ref().map_or(0, |thread| {
        process.signals.pending().0 | thread.pending_signals().0
    });
    let blocked = thread.as_ref().map_or(0, |thread| thread.signals.mask().0);
    let (ignored, caught) = process.signals.actions().ignored_and_caught();
    // Old programs know 31 signals here.
    const OLD: u64 = 0x7fff_ffff;
    let signals = [pending, blocked, ignored.0, caught.0].map(|set| set & OLD);
    let exit_signal = if subject.tid.is_some() {
        -1
    } else {
        raw::SIGCHLD as i32
    };
    let cpu = thread
        .as_ref()
        .and_then(|thread| thread.task())
        .map_or(0, |task| task.cpu());
    let (level, policy) = (scheduling.level, scheduling.policy.number());
    let sizes = facts.as_ref().map(Facts::sizes).unwrap_or_default();
    let (total, resident) = (sizes.total * PAGE_SIZE, sizes.resident);
    // Code and stack; end of the code, heap, arguments and environment. Linux shows that there is
    // code by a 1.
    let hidden = ([usize::from(facts.is_some()); 2], 0, [0; 7]);
    let (code, stack, data) = view.map_or(hidden, |view| {
        let layout = &view.space().layout;
        let heap = view.space().map().heap().start.0;
        let (code, arguments, environment) = (layout.code, layout.arguments, layout.environment);
        (
            [code.start.0, code.end.0],
            layout.stack_start,
            [
                code.end.0,
                heap,
                heap,
                arguments.start.0,
                arguments.end.0,
                environment.start.0,
                environment.end.0,
            ],
        )
    });
    let [start, end] = code;
    write!(out, " {total} {resident} {limit} {start} {end} {stack} 0 0");
    for set in signals {
        write!(out, " {set}");
    }
    write!(out, " 0 0 0 {exit_signal} {cpu} {level} {policy} 0 0 0");
    for address in data {
        write!(out, " {address}");
    }
    writeln!(out, " 0");
    Ok(())
}

/// `statm`: sizes in pages.
pub(super) fn statm(subject: &Subject, out: &mut Text) -> Result<()> {
    let sizes = subject.facts().map(|facts| facts.sizes());
    let sizes = sizes.unwrap_or_default();
    writeln!(
        out,
        "{} {} {} {} 0 {} 0",
        sizes.total,
        sizes.resident,
        sizes.shared_resident,
        sizes.text,
        sizes.data + sizes.stack,
    );
    Ok(())
}

/// `status`: the same for people.
pub(super) fn status(subject: &Subject, out: &mut Text) -> Result<()> {
    let process = &subject.process;
    let thread = subject.thread().ok();
    let facts = thread.as_ref().and_then(|thread| thread.facts());
    let zombies = || process.credentials();
    let credentials = facts
        .as_ref()
        .map(|facts| facts.credentials().clone())
        .or_else(zombies);
    let state = state(subject);
    let word = match state {
        'R' => "running",
        'S' => "sleeping",
        'D' => "disk sleep",
        'T' => "stopped",
        'Z' => "zombie",
        _ => "dead",
    };
    out.push(b"Name:\t");
    out.push_escaped_newlines(&name(subject));
    out.push(b"\n");
    if let Some(facts) = &facts {
        writeln!(out, "Umask:\t{:04o}", facts.umask());
    }
    writeln!(out, "State:\t{state} ({word})");
    writeln!(out, "Tgid:\t{}", process.pid());
    writeln!(out, "Ngid:\t0");
    writeln!(out, "Pid:\t{}", subject.tid.unwrap_or(process.pid()));
    writeln!(out, "PPid:\t{}", process.parent_pid());
    writeln!(out, "TracerPid:\t0");
    if let Some(who) = &credentials {
        let mut ids = |name, real, effective, saved, file| {
            writeln!(out, "{name}:\t{real}\t{effective}\t{saved}\t{file}");
        };
        let (uid, gid) = (who.fs.uid, who.fs.gid);
        ids("Uid", who.real_uid, who.effective_uid, who.saved_uid, uid);
        ids("Gid", who.real_gid, who.effective_gid, who.saved_gid, gid);
    }
    let descriptors = facts.as_ref().map_or(0, |facts| facts.descriptors());
    write!(out, "FDSize:\t{descriptors}\nGroups:\t");
    for group in credentials.iter().flat_map(|who| &who.fs.groups) {
        write!(out, "{group} ");
    }
    writeln!(out);
    if let Some(facts) = &facts {
        // There is one name space of ids.
        let id = subject.tid.unwrap_or(process.pid());
        writeln!(out, "NStgid:\t{}\nNSpid:\t{id}", process.pid());
        let (group, session) = (process.group_id(), process.session_id());
        writeln!(out, "NSpgid:\t{group}\nNSsid:\t{session}");
        let sizes = facts.sizes();
        let anonymous = sizes.resident - sizes.shared_resident.min(sizes.resident);
        let mut line = |name: &str, pages: usize| {
            writeln!(out, "{name}:\t{:>8} kB", kib(pages));
        };
        line("VmPeak", sizes.peak.max(sizes.total));
        line("VmSize", sizes.total);
        line("VmLck", sizes.locked);
        line("VmPin", 0);
        line("VmHWM", sizes.resident);
        line("VmRSS", sizes.resident);
        line("RssAnon", anonymous);
        line("RssFile", sizes.resident - anonymous);
        line("RssShmem", 0);
        line("VmData", sizes.data);
        line("VmStk", sizes.stack);
        let code = facts.code_len().div_ceil(PAGE_SIZE);
        line("VmExe", code);
        line("VmLib", sizes.text - code.min(sizes.text));
        line("VmPTE", sizes.page_tables);
        line("VmSwap", facts.swapped());
        let account = process.account();
        line("VmCharged", account.pages());
        line("HugetlbPages", 0);
        let large = !subject.process.large_pages_disabled.load(Relaxed);
        writeln!(out, "CoreDumping:\t0\nTHP_enabled:\t{}", u8::from(large));
    }
    writeln!(out, "Threads:\t{}", process.signals.thread_count());
    let limit = process.limits().soft(raw::RLIMIT_SIGPENDING);
    writeln!(
        out,
        "SigQ:\t{}/{limit}",
        process.user().things(Kind::Signals)
    );
    let (pending, blocked) = match &thread {
        Some(thread) => (thread.pending_signals().0, thread.signals.mask().0),
        None => (0, 0),
    };
    let (ignored, caught) = process.signals.actions().ignored_and_caught();
    writeln!(out, "SigPnd:\t{pending:016x}");
    writeln!(out, "ShdPnd:\t{:016x}", process.signals.pending().0);
    writeln!(out, "SigBlk:\t{blocked:016x}");
    writeln!(out, "SigIgn:\t{:016x}", ignored.0);
    writeln!(out, "SigCgt:\t{:016x}", caught.0);
    let sets = match &credentials {
        Some(who) => {
            let own = &who.capabilities;
            [
                own.inheritable,
                own.permitted,
                who.fs.capabilities,
                own.bounding,
                own.ambient,
            ]
        }
        None => [CapabilitySet::EMPTY; 5],
    };
    for (name, set) in ["Inh", "Prm", "Eff", "Bnd", "Amb"].iter().zip(sets) {
        writeln!(out, "Cap{name}:\t{:016x}", set.0);
    }
    let no_new = u32::from(process.no_new_privileges.load(Relaxed));
    writeln!(out, "NoNewPrivs:\t{no_new}");
    let (mode, filters) = match &thread {
        Some(thread) => (thread.seccomp.mode(), thread.seccomp.filter_count()),
        None => (0, 0),
    };
    writeln!(out, "Seccomp:\t{mode}\nSeccomp_filters:\t{filters}");
    if let Some(thread) = &thread {
        let stores = stores(thread.restrictions.get(Speculation::Stores));
        let branches = branches(thread.restrictions.get(Speculation::Branches));
        writeln!(out, "Speculation_Store_Bypass:\t{stores}");
        writeln!(out, "SpeculationIndirectBranch:\t{branches}");
    }
    let usage = thread.as_ref().map(|thread| thread.usage());
    let switches = usage.map_or([0; 2], |usage| usage.switches);
    let cpus = thread.map_or(1, |thread| thread.cpus());
    writeln!(out, "Cpus_allowed:\t{cpus:x}");
    writeln!(out, "Cpus_allowed_list:\t{}", ranges(cpus));
    writeln!(out, "Mems_allowed:\t1\nMems_allowed_list:\t0");
    let [waited, displaced] = switches;
    writeln!(out, "voluntary_ctxt_switches:\t{waited}");
    writeln!(out, "nonvoluntary_ctxt_switches:\t{displaced}");
    Ok(())
}

/// Linux's words for what `PR_GET_SPECULATION_CTRL` says of passing stores. As there, a thread that
/// is protected until it executes another program (`PR_SPEC_DISABLE_NOEXEC`) has none of its own.
fn stores(choice: u32) -> &'static str {
    const FOR_GOOD: u32 = PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE;
    const OFF: u32 = PR_SPEC_PRCTL | PR_SPEC_DISABLE;
    const ON: u32 = PR_SPEC_PRCTL | PR_SPEC_ENABLE;
    match choice {
        PR_SPEC_NOT_AFFECTED => "not vulnerable",
        FOR_GOOD => "thread force mitigated",
        OFF => "thread mitigated",
        ON => "thread vulnerable",
        PR_SPEC_DISABLE => "globally mitigated",
        _ => "vulnerable",
    }
}

/// Linux's words for what it says of predicted branches.
fn branches(choice: u32) -> &'static str {
    const FOR_GOOD: u32 = PR_SPEC_PRCTL | PR_SPEC_FORCE_DISABLE;
    const OFF: u32 = PR_SPEC_PRCTL | PR_SPEC_DISABLE;
    const ON: u32 = PR_SPEC_PRCTL | PR_SPEC_ENABLE;
    match choice {
        PR_SPEC_NOT_AFFECTED => "not affected",
        FOR_GOOD => "conditional force disabled",
        OFF => "conditional disabled",
        ON => "conditional enabled",
        PR_SPEC_ENABLE => "always enabled",
        PR_SPEC_DISABLE => "always disabled",
        _ => "unknown",
    }
}

/// The bits that are set, as `0-2,5`.
fn ranges(bits: u64) -> String {
    let mut text = String::new();
    let is_set = |bit: u32| bit < u64::BITS && bits >> bit & 1 != 0;
    let mut first = 0;
    for bit in 0..=u64::BITS {
        if is_set(bit) {
            continue;
        }
        if bit > first {
            if !text.is_empty() {
                text.push(',');
            }
            let last = bit - 1;
            text += &match first == last {
                true => format!("{first}"),
                false => format!("{first}-{last}"),
            };
        }
        first = bit + 1;
    }
    text
}

/// `limits`: soft and hard limit of each resource.
pub(super) fn limits(subject: &Subject, out: &mut Text) -> Result<()> {
    const NAMES: [(u32, &str, &str); 16] = [
        (raw::RLIMIT_CPU, "Max cpu time", "seconds"),
        (raw::RLIMIT_FSIZE, "Max file size", "bytes"),
        (raw::RLIMIT_DATA, "Max data size", "bytes"),
        (raw::RLIMIT_STACK, "Max stack size", "bytes"),
        (raw::RLIMIT_CORE, "Max core file size", "bytes"),
        (raw::RLIMIT_RSS, "Max resident set", "bytes"),
        (raw::RLIMIT_NPROC, "Max processes", "processes"),
        (raw::RLIMIT_NOFILE, "Max open files", "files"),
        (raw::RLIMIT_MEMLOCK, "Max locked memory", "bytes"),
        (raw::RLIMIT_AS, "Max address space", "bytes"),
        (raw::RLIMIT_LOCKS, "Max file locks", "locks"),
        (raw::RLIMIT_SIGPENDING, "Max pending signals", "signals"),
        (raw::RLIMIT_MSGQUEUE, "Max msgqueue size", "bytes"),
        (raw::RLIMIT_NICE, "Max nice priority", ""),
        (raw::RLIMIT_RTPRIO, "Max realtime priority", ""),
        (raw::RLIMIT_RTTIME, "Max realtime timeout", "us"),
    ];
    writeln!(
        out,
        "{:<26}{:<21}{:<21}{:<10}",
        "Limit", "Soft Limit", "Hard Limit", "Units"
    );
    let value = |value: u64| {
        if value == INFINITY {
            String::from("unlimited")
        } else {
            format!("{value}")
        }
    };
    for (resource, name, unit) in NAMES {
        let limit = subject.process.limits().get(resource);
        writeln!(
            out,
            "{name:<26}{:<21}{:<21}{unit:<10}",
            value(limit.soft),
            value(limit.hard)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cpus_are_ranges() {
        let shown = [0, 1, 0b1011_0110, u64::MAX, 1 << 63].map(ranges);
        assert_eq!(shown, ["", "0", "1-2,4-5,7", "0-63", "63"]);
    }
}
