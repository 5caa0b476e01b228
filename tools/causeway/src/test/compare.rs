//! `causeway compare-linux` as a user calls it, where there is a Linux: a script with disks, of
//! which each run has its own.

use std::fs;

use anyhow::{Result, ensure};

use super::Report;
use super::boot::{Bench, causeway, shown, text};
use super::database;
use crate::linux::Linux;
use crate::outcome;
use crate::project;
use crate::root::ext2;

/// Shows the disk's contents at the start of a run, changes them, and shows the swap space.
const SCRIPT: &str = "
mount -t ext2 /dev/vda /mnt && ls /mnt && echo new > /mnt/new && cat /mnt/new && umount /mnt
while read -r name kind size rest; do echo $name $kind $size; done </proc/swaps
measure nothing true
";
const PRINTS: &str = "\
lost+found
new
Filename Type Size
/dev/vdb partition 16380
pair 1 of 1 is done
";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("compare-linux") {
        return;
    }
    let unpacked = project::home().is_ok_and(|home| home.join("target/linux/boot").exists());
    if !unpacked || Linux::find(None).is_err() {
        println!("skip: compare-linux: there is no Linux here; `make bench` fetches one");
        return;
    }
    report.run(
        "compare-linux: a disk and swap space of its own for each run",
        || own_disks(bench),
    );
}

fn own_disks(bench: &Bench) -> Result<()> {
    let root = database::folder()?;
    let script = bench.file("compared.sh", SCRIPT.as_bytes())?;
    let disk = bench.path("compared.ext2");
    let empty = bench.fresh_folder("empty")?;
    fs::create_dir(empty.join("lost+found"))?;
    ext2::make(Some(&empty), &disk, Some(16 << 20))?;
    let before = fs::read(&disk)?;
    let run = || {
        let mut command = causeway(&["compare-linux", "--pairs", "1", "--mem", "768M"]);
        command.args(["--swap", "16M"]);
        command.arg("--root").arg(&root).arg("--disk").arg(&disk);
        command.arg("--script").arg(&script).output()
    };
    let output = run()?;
    let all = shown(&output);
    let printed = PRINTS.lines().all(|line| all.lines().any(|it| it == line));
    let measured = all.contains("| nothing | ");
    ensure!(output.status.success() && printed && measured, "{all}");
    ensure!(fs::read(&disk)? == before, "the disk itself has changed");
    // A line that only one of the kernels prints is reported.
    fs::write(&script, "[ -e /proc/causeway ] || echo other")?;
    let output = run()?;
    let told = text(&output.stderr).contains("differ");
    ensure!(
        output.status.code() == Some(outcome::FAILURE.into()) && told,
        "{}",
        shown(&output)
    );
    Ok(())
}
