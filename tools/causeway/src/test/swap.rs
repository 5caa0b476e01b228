//! Guests with swap space: programs larger than the machine, devices that come and go.

use std::path::Path;
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Plan, finish};
use crate::disk::Disk;
use crate::guest::Ending;
use crate::root::ext2;
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
    for cpus in [1, 2, 4] {
        report.run(&format!("swap: guest programs, {cpus} CPUs"), || {
            programs(bench, &root, cpus)
        });
    }
    report.run("swap: a sector that can't be read", || {
        unreadable(bench, &root)
    });
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
    let image = folder.join("ext2");
    ext2::make(None, &image, Some(16 << 20)).map_err(|error| format!("{error:#}"))?;
    let mut words = disk.qemu(0).to_vec();
    words.extend(Disk::at(&image)?.qemu(1));
    guest_tests(bench, root, cpus, "swap:", words)
}

/// The host can't read one of the first sectors of the swap space.
fn unreadable(bench: &Bench, root: &Path) -> Result<(), String> {
    /// Of the hundredth slot.
    const SECTOR: u32 = 100 * 8;
    let folder = bench.fresh_folder("swap");
    let folder = folder.map_err(|error| format!("{error:#}"))?;
    let swap: Swap = "16M".parse()?;
    let disk = swap.disk(&folder).map_err(|error| format!("{error:#}"))?;
    let drive = format!(
        "if=none,id=bad,format=raw,rerror=report,werror=report,file.driver=blkdebug,file.image.filename={},\
         file.inject-error.0.event=read_aio,file.inject-error.0.iotype=read,\
         file.inject-error.0.errno=5,file.inject-error.0.sector={SECTOR}",
        disk.file().display()
    );
    let words = ["-drive", &drive, "-device", "virtio-blk-pci,drive=bad"];
    let words = words.map(str::to_owned).to_vec();
    guest_tests(bench, root, 2, "unreadable:", words)
}

/// Runs the guest programs of a name, with these further words for QEMU, whose first disk is swap space.
fn guest_tests(
    bench: &Bench,
    root: &Path,
    cpus: u32,
    name: &str,
    words: Vec<String>,
) -> Result<(), String> {
    let command = ["/tests/guest-tests", name];
    let mut plan = Plan::new(root, &command);
    plan.cpus = cpus;
    plan.memory = MEMORY;
    plan.timeout = Duration::from_secs(240);
    let options = ["md=4M".to_owned(), "swap=/dev/vda".to_owned()];
    let line = Console::pipes().command_line(&options, &command.map(str::to_owned));
    let mut machine = bench.machine(&plan, &line);
    machine.extra.extend(words);
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
