//! Debian's `stress-ng` in a machine that is too small for it: its root and its files are on an
//! ext2 disk, its memory goes to a swap disk, and to swap files that it makes itself. Its checks
//! must pass, and in the end no page and no slot may be missing.

use std::path::Path;

use anyhow::{Result, ensure};

use super::Report;
use super::boot::Bench;
use super::stress;
use crate::disk::Disk;
use crate::root::ext2;
use crate::swap::Swap;

/// The guest's memory and its swap space.
const MEMORY: &str = "256M";
const SWAP: &str = "512M";

/// The stressors, with their sizes, and the amount of each in a short run: an amount instead of a
/// time, so that a busy host takes longer and finds the same. Options of a stressor stand behind
/// it, or `stress-ng` takes them for another one's. Together they need more than the memory and
/// less than memory and swap space: `shm` has 32 objects of its size, and as much of its own for
/// each.
const STRESSORS: [(&str, &str, u32); 9] = [
    ("vm", "2 --vm-bytes 400M", 24),
    ("mmap", "1 --mmap-bytes 32M", 2),
    ("fork", "1", 100),
    ("mremap", "1 --mremap-bytes 16M", 8),
    ("msync", "1 --msync-bytes 8M", 60),
    ("shm", "1 --shm-bytes 2M", 48),
    ("swap", "1", 8),
    ("madvise", "1", 1),
    ("fault", "1", 400),
];

/// In a short run: the ways to use memory that take long where it is on a disk are left out.
const SHORT: &str = "--vm-method write64";

/// Frames that may be used afterwards and were not before, of each kind: the kernel's caches of its
/// own objects, and pages of shells that came back from swap. A page lost in each thousandth
/// operation of a long run is more.
const KEPT: u64 = 1024;

/// How long the start and the end may take.
const PATIENCE: u64 = 240;
/// How long an amount may take, in seconds, where a host is as busy as it gets.
const MOST: u32 = 400;

/// Runs them: a certain amount on 2 CPUs, and for ten minutes each on 1, 2 and 4 if it is `long`.
///
/// # Errors
/// When the root cannot be made.
pub fn run(bench: &Bench, report: &mut Report, long: bool) -> Result<()> {
    let runs: &[(u32, Option<u32>)] = match long {
        false => &[(2, None)],
        true => &[(1, Some(600)), (2, Some(600)), (4, Some(600))],
    };
    for &(cpus, seconds) in runs {
        let name = match seconds {
            Some(seconds) => format!("pressure: stress-ng for {seconds} seconds, {cpus} CPUs"),
            None => format!("pressure: a certain amount of stress-ng, {cpus} CPUs"),
        };
        if report.wants(&name) {
            let folder = stress::folder()?;
            report.run(&name, || pressure(bench, &folder, cpus, seconds));
        }
    }
    Ok(())
}

/// Boots and judges one run, of so many seconds if not by amount.
fn pressure(bench: &Bench, folder: &Path, cpus: u32, seconds: Option<u32>) -> Result<()> {
    let image = bench.path("pressure.ext2");
    if image.exists() {
        std::fs::remove_file(&image)?;
    }
    ext2::make(Some(folder), &image, None)?;
    let swap = SWAP.parse::<Swap>()?;
    let swap = swap.disk(&bench.fresh_folder("pressure")?)?;
    let stressors = STRESSORS.map(|(name, how, amount)| match seconds {
        Some(_) => format!("--{name} {how}"),
        None if name == "vm" => format!("--{name} {how} {SHORT} --{name}-ops {amount}"),
        None => format!("--{name} {how} --{name}-ops {amount}"),
    });
    let seconds = seconds.unwrap_or(MOST);
    let line = format!(
        "counts() {{ sync; echo 3 >/proc/sys/vm/drop_caches
             awk '{{ print \"'$1'\", $1, $2 }}' /proc/causeway/memory /proc/causeway/swap; }}
         cd /var/tmp; stress-ng --version >/dev/null; counts before
         stress-ng {} --timeout {seconds} --verify --metrics-brief </dev/null 2>&1; echo status $?
         ls; counts after; ps -A -o comm= | grep -c stress-ng",
        stressors.join(" ")
    );
    let guest = bench.bash(&line).fast().cpus(cpus).memory(MEMORY);
    let guest = guest.root_disk(Disk::at(&image)?).disk(swap);
    let guest = guest.option("swap=/dev/vdb");
    let finished = guest.timeout(u64::from(seconds) + PATIENCE).run();
    // The file system must be sound in any case.
    let sound = ext2::check(&image);
    let finished = finished?;
    // The last command finds nothing.
    finished.ended(1)?;
    judge(&finished.text(), &finished.log)?;
    sound
}

/// Checks the output of a run and the kernel's log.
fn judge(text: &str, log: &[String]) -> Result<()> {
    let mut wrong = stress::complaints(text, STRESSORS.iter().map(|(name, ..)| *name));
    // There is room for all of them.
    let killed = log.iter().filter(|line| line.contains("out of memory"));
    wrong.extend(killed.cloned());
    for kind in ["data", "page_tables", "heap", "kernel"] {
        match (count(text, "before", kind), count(text, "after", kind)) {
            (Some(before), Some(after)) if after <= before + KEPT => {}
            (before, after) => wrong.push(format!("{kind}: {before:?} frames, then {after:?}")),
        }
    }
    match (count(text, "after", "used"), count(text, "after", "found")) {
        (Some(used), Some(found)) if used == found => {}
        (used, found) => wrong.push(format!("{used:?} slots in use, {found:?} that pages have")),
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    Ok(())
}

/// A number of a line `WHEN NAME NUMBER`.
fn count(text: &str, when: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [first, second, number] if first == when && second == name => number.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_judged() {
        let mut text = String::from("status 0\n");
        for (name, ..) in STRESSORS {
            text += &format!("stress-ng: metrc: [9] {name} 12 1.0 1.0\n");
        }
        let counts = |when: &str, data: u64, used: u64| {
            format!(
                "{when} data {data}\n{when} page_tables 9\n{when} heap 9\n{when} kernel 9\n{when} used {used}\n{when} found 3\n"
            )
        };
        let before = counts("before", 500, 0);
        let judged = |text: &str, log: &[String]| judge(text, log).map_err(|why| why.to_string());
        let with = |after: &str| judged(&format!("{text}{before}{after}"), &[]);
        let fails = |judged: Result<(), String>, word: &str| {
            assert!(judged.unwrap_err().contains(word), "{word}");
        };
        assert_eq!(with(&counts("after", 500 + KEPT, 3)), Ok(()));
        fails(with(&counts("after", 501 + KEPT, 3)), "data");
        fails(with(&counts("after", 500, 4)), "slots");
        fails(with(""), "slots");
        fails(
            judged(&text.replace("vm 12", "vm 0"), &[]),
            "vm did nothing",
        );
        let good = format!("{text}{before}{}", counts("after", 500, 3));
        fails(
            judged(&format!("{good}stress-ng: fail:  [7] vm: bits\n"), &[]),
            "bits",
        );
        let killed = ["[ 9.1] out of memory: killed process 7 (x)".to_owned()];
        fails(judged(&good, &killed), "process 7");
    }
}
