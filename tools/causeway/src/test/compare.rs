//! `causeway compare-linux` as a user calls it, where there is a Linux: a script with disks, of which each run has its own.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Report;
use super::boot::Bench;
use super::database;
use crate::linux::Linux;
use crate::outcome;
use crate::project;
use crate::root::ext2;

/// What stands on the disk when a run begins, what it leaves there, and the swap space.
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

fn own_disks(bench: &Bench) -> Result<(), String> {
    let error = |error: anyhow::Error| format!("{error:#}");
    let wrong = |error: std::io::Error| error.to_string();
    let root = database::folder().map_err(error)?;
    let script = bench.path("compared.sh");
    fs::write(&script, SCRIPT).map_err(wrong)?;
    let disk = bench.path("compared.ext2");
    let empty = bench.fresh_folder("empty").map_err(error)?;
    fs::create_dir(empty.join("lost+found")).map_err(wrong)?;
    ext2::make(Some(&empty), &disk, Some(16 << 20)).map_err(error)?;
    let before = fs::read(&disk).map_err(wrong)?;
    let run = |script: &Path| {
        let program = std::env::current_exe().map_err(wrong)?;
        let mut command = Command::new(program);
        command.args([
            "compare-linux",
            "--pairs",
            "1",
            "--mem",
            "768M",
            "--swap",
            "16M",
        ]);
        command.arg("--root").arg(&root).arg("--disk").arg(&disk);
        command.arg("--script").arg(script).stdin(Stdio::null());
        command.output().map_err(wrong)
    };
    let output = run(&script)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let printed = PRINTS.lines().all(|line| text.lines().any(|it| it == line));
    if !output.status.success() || !printed || !text.contains("| nothing | ") {
        return Err(format!("{}: {text}", output.status));
    }
    if fs::read(&disk).map_err(wrong)? != before {
        return Err("the disk itself has changed".into());
    }
    // What only one kernel can say is told.
    fs::write(&script, "[ -e /proc/causeway ] || echo other").map_err(wrong)?;
    let output = run(&script)?;
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.code() == Some(outcome::FAILURE.into()) && text.contains("differ") {
        true => Ok(()),
        false => Err(format!("{}: {text}", output.status)),
    }
}
