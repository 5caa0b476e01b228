//! The guest test programs, on 1, 2 and 4 CPUs.

use anyhow::{Result, anyhow};

use super::Report;
use super::boot::{Bench, FAULTY_CPU, Finished, Plan};
use crate::guest::Ending;

/// The machines that run all tests.
pub const CPUS: [u32; 3] = [1, 2, 4];
/// Kernels with mechanisms switched off or on (`docs/architecture.md`): a name, their options, and
/// the tests that they run.
const VARIANTS: [(&str, &str, &[&str]); 6] = [
    ("old mappings", "ephemeral=uncached", PART),
    ("mitigations", "mitigations=full", WAYS),
    (
        "no pages of programs in the kernel",
        "directmap=kernel",
        MAPPED,
    ),
    (
        "old page tables",
        "shootdown=broadcast ptcache=off faultahead=0,0 fork=copy",
        PART,
    ),
    ("small pages only", "large=off", PART),
    ("packets inside the machine", "loopback=ip", &["inet:"]),
];
/// Those that the ways into the kernel and back, and the roots of programs, matter to.
const WAYS: &[&str] = &[
    "signals",
    "memory:",
    "threads",
    "exec",
    "faults",
    "narrow",
    "privileges",
];
/// Each allocation of this number fails, for the program of random calls.
const FAIL_EACH: [u32; 2] = [29, 149];
/// Those that how the kernel reaches pages matters to, and what it maps.
const MAPPED: &[&str] = &[
    "mapped",
    "memory:",
    "movement",
    "pipes: v",
    "files: a file",
    "hw_cost",
    "large:",
];
/// Short ones, which the mechanisms of memory matter to.
const PART: &[&str] = &[
    "memory:",
    "protection: no",
    "pipes: v",
    "pipes: what",
    "pipes: a page",
    "files: a file",
    "unix sockets: files",
    "large:",
];

/// Tests that take a large part of the time of all, and find mostly the same with any number of
/// CPUs: they run with 2, and with `--long` with each number.
const LONG: &[&str] = &["!exhaustion:", "!leaks:", "!libfbuf:"];

/// Words that ask for the parts of the tests that run once more: on one CPU, on four, in a kernel
/// of single frames, and in one whose allocations fail.
pub const ON_ONE: [&str; 2] = ["--part", "1/4"];
pub const ON_FOUR: [&str; 2] = ["--part", "2/2"];
const IN_SINGLE_FRAMES: [&str; 2] = ["--part", "3/4"];
const FAILING: [&str; 2] = ["--part", "2/4"];

/// The seconds that one guest gets for hundreds of tests, each of which has a limit of its own.
const LIMIT: u64 = 480;

/// Boots and runs them on machines with these numbers of CPUs: with 2 all, and with others a part
/// without the [`LONG`] ones, unless `long` is asked for.
pub fn run(bench: &Bench, report: &mut Report, cpus: &[u32], long: bool) {
    for &cpus in cpus {
        let tests = match cpus {
            2 => &[][..],
            _ if long => &[],
            1 => &[&ON_ONE, LONG].concat(),
            _ => &[&ON_FOUR, LONG].concat(),
        };
        if report.wants(&format!("guest: test programs, {cpus} CPUs")) {
            boot(bench, report, &format!("{cpus} CPUs"), cpus, "", tests);
        }
    }
}

/// Boots a kernel that has no two frames together, and one whose allocations fail, and runs a
/// quarter of the tests in each, or nearly all if `long` is asked for.
/// The first one reaches all pages through a window of a few entries, the other one has no page of
/// a program in its direct map.
pub fn short_of_memory(bench: &Bench, report: &mut Report, long: bool) {
    let [first, second] = [&IN_SINGLE_FRAMES, &FAILING].map(|part| match long {
        true => &[],
        false => &part[..],
    });
    let name = "single frames only";
    if report.wants(&format!("guest: test programs, {name}")) {
        let options = "fragment=1 ephemeral=window ephemeral.entries=16";
        let tests = [first, LONG, &["!large", "!network:", "!netserver:"]].concat();
        boot(bench, report, name, 2, options, &tests);
    }
    let each = FAIL_EACH[0];
    let name = format!("failing allocations, {each}");
    if report.wants(&format!("guest: test programs, {name}")) {
        // What hangs on a failure is ended soon.
        let each = each.to_string();
        let words = [second, &["--failing", &each, "--seconds", "3"]].concat();
        boot(bench, report, &name, 2, "directmap=kernel", &words);
    }
}

/// Boots kernels and machines of other kinds and runs some of them.
pub fn variants(bench: &Bench, report: &mut Report) {
    for (name, options, tests) in VARIANTS {
        if report.wants(&format!("guest: test programs, {name}")) {
            boot(bench, report, name, 2, options, tests);
        }
    }
    // There the kernel itself can read a table that a program has laid into its own memory.
    let name = "a CPU without SMAP";
    if report.wants(&format!("guest: test programs, {name}")) {
        let guest = bench.guest(&["/tests/guest-tests", "walls: there are no"]);
        let guest = guest.words(["-cpu", "max,-smap,-smep"]);
        finish(report, name, guest.cpus(2).timeout(60));
    }
    let name = "a CPU with faults";
    if report.wants(&format!("guest: test programs, {name}")) {
        let guest = bench.guest(&[&["/tests/guest-tests"], WAYS].concat());
        let guest = guest.words(["-cpu", FAULTY_CPU]);
        finish(report, name, guest.cpus(2).timeout(LIMIT));
    }
}

/// Runs random calls for so many seconds on each of some machines.
pub fn random_calls(bench: &Bench, report: &mut Report, seconds: u64) {
    for cpus in [2, 4] {
        if report.wants(&format!("guest: random calls, {cpus} CPUs")) {
            let words = ["/tests/random-calls", "--seconds", &seconds.to_string()];
            let guest = bench.guest(&words).cpus(cpus).timeout(seconds + 60);
            let outcome = guest.run_shown().and_then(|finished| finished.ended(0));
            report.note(&format!("random calls, {cpus} CPUs"), outcome);
        }
    }
    for each in FAIL_EACH {
        if report.wants(&format!("guest: random calls, failing allocations, {each}")) {
            // Calls fail; the machine must not, and with all of memory again it must answer. What
            // is asked then needs no /dev/null: children that are root may have removed it.
            let script = format!(
                "/tests/random-calls --seconds {seconds} --failing {each} && \
                 exec /tests/guest-tests 'files: a file' 'memory: copy' 'memory: many'"
            );
            let guest = bench.guest(&["/bin/sh", "-c", &script]).cpus(2);
            let finished = guest.timeout(seconds + 240).run_shown();
            let name = format!("random calls, each {each}th allocation fails");
            report.note(&name, finished.and_then(|finished| finished.ended(0)));
        }
    }
}

/// Runs only the tests with one of these words in their names, with these options of the kernel.
pub fn some(bench: &Bench, report: &mut Report, names: &[String], options: &str) {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for cpus in CPUS {
        boot(
            bench,
            report,
            &format!("{cpus} CPUs"),
            cpus,
            options,
            &names,
        );
    }
}

/// Boots a guest that runs the test program, with these options of the kernel.
fn boot(
    bench: &Bench,
    report: &mut Report,
    machine: &str,
    cpus: u32,
    options: &str,
    tests: &[&str],
) {
    let guest = bench.guest(&[&["/tests/guest-tests"], tests].concat());
    finish(
        report,
        machine,
        guest.cpus(cpus).option(options).timeout(LIMIT),
    );
}

/// Runs a guest with the test program.
fn finish(report: &mut Report, machine: &str, guest: Plan<'_>) {
    match shown(machine, &guest) {
        Ok(finished) => count(report, machine, &finished),
        Err(why) => report.note(&format!("guest tests, {machine}"), Err(why)),
    }
}

/// Runs a guest and shows each line of its output, with the machine's name: another may run beside
/// it.
pub fn shown(machine: &str, guest: &Plan<'_>) -> Result<Finished> {
    let machine = machine.to_owned();
    guest.run_with(move |line| println!("  {machine}: {line}"))
}

/// Counts the lines of a test program on a machine.
pub fn count(report: &mut Report, machine: &str, finished: &Finished) {
    let text = finished.text();
    let mut is_whole = false;
    for line in text.lines() {
        if line.starts_with("ok ") {
            report.passed(1);
        } else if let Some(failure) = line.strip_prefix("FAIL ") {
            report.note(machine, Err(anyhow!("{failure}")));
        }
        is_whole |= line.ends_with(" failed") && line.contains(" passed, ");
    }
    if !is_whole || !matches!(finished.ending, Ending::Status(0 | 1)) {
        let name = format!("guest tests, {machine}: to the end");
        report.note(&name, Err(anyhow!(finished.why())));
    }
}
