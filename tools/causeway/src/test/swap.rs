//! Guests with swap space: programs larger than the machine, devices that come and go.

use std::path::Path;
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Plan, finish};
use crate::guest::Ending;
use crate::run::Console;
use crate::swap::Swap;

/// What the guest has: less than its programs use.
const MEMORY: &str = "64M";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("swap") {
        return;
    }
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    for cpus in [1, 4] {
        report.run(&format!("swap: guest programs, {cpus} CPUs"), || {
            programs(bench, &root, cpus)
        });
    }
    report.run("swap: no such device", || {
        refused(bench, &root, "swap=/dev/vdq", "there is no disk /dev/vdq")
    });
    report.run("swap: no swap space", || {
        refused(bench, &root, "md=1M swap=/dev/md0", "is no swap space")
    });
}

fn programs(bench: &Bench, root: &Path, cpus: u32) -> Result<(), String> {
    let folder = bench.fresh_folder("swap");
    let folder = folder.map_err(|error| format!("{error:#}"))?;
    let swap: Swap = "160M".parse()?;
    let disk = swap.disk(&folder).map_err(|error| format!("{error:#}"))?;
    let command = ["/tests/guest-tests", "swap:"];
    let mut plan = Plan::new(root, &command);
    plan.cpus = cpus;
    plan.memory = MEMORY;
    plan.timeout = Duration::from_secs(240);
    let words = command.map(str::to_owned);
    let line = Console::pipes().command_line(&["swap=/dev/vda".to_owned()], &words);
    let mut machine = bench.machine(&plan, &line);
    machine.extra.extend(disk.qemu(0));
    let finished = finish(&machine, b"", plan.timeout, |line| println!("  {line}"))
        .map_err(|error| format!("{error:#}"))?;
    let text = finished.text();
    match finished.ending == Ending::Status(0) && !text.contains("skip") {
        true => Ok(()),
        false => Err(format!("{text}; {}", finished.why(&bench.checked))),
    }
}

/// A start that the kernel refuses with a sentence.
fn refused(bench: &Bench, root: &Path, option: &str, sentence: &str) -> Result<(), String> {
    let plan = Plan::new(root, &["true"]);
    let finished = bench.boot_line(&plan, &format!("onlcr=0 echo=0 {option} -- true"))?;
    match finished.text().contains(sentence) {
        true => Ok(()),
        false => Err(finished.why(&bench.checked)),
    }
}
