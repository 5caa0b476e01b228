//! A script of a person's, run by bash or sh in both kernels with the same root.
//!
//! A line `RESULT NAME MICROSECONDS` is a measurement; the other lines must be the same in both. The script may call `measure NAME
//! COMMAND`, which runs the command and prints such a line with the time that it took.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Pair, Screen, Watch};
use crate::guest::Guest;
use crate::options;
use crate::qemu::Machine;
use crate::root::{BUSYBOX, Root};
use crate::run::Console;

/// How long a script may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Printed before and after the script's own output.
const BEGIN: &str = "=== the script begins ===";
const END: &str = "=== the script ended ===";

/// What both kernels run as their first program. Linux has nothing mounted then.
const INIT: &str = r#"#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LC_ALL=C.UTF-8 TERM=linux
mkdir -p /proc /sys /dev /tmp
[ -e /proc/self ] || /busybox mount -t proc proc /proc
[ -e /sys/kernel ] || /busybox mount -t sysfs sys /sys
[ -e /dev/null ] || /busybox mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
grep -q ' /dev/pts ' /proc/mounts || /busybox mount -t devpts devpts /dev/pts
grep -q ' /dev/shm ' /proc/mounts || /busybox mount -t tmpfs shm /dev/shm
grep -q ' /tmp ' /proc/mounts || /busybox mount -t tmpfs tmp /tmp
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
/busybox ip link set lo up 2>/dev/null
cd /root
measure() {
    local name=$1 begin end
    shift
    begin=$EPOCHREALTIME
    "$@"
    end=$EPOCHREALTIME
    echo "RESULT $name $((${end/./} - ${begin/./}))"
}
stty -onlcr </dev/console 2>/dev/null
echo "=== the script begins ==="
. /measured-script
echo "=== the script ended ==="
while :; do sleep 1000; done
"#;

/// What one run printed: the times in seconds by name, and the rest.
struct Run {
    times: BTreeMap<String, f64>,
    output: String,
}

/// Runs the script in turn in both and prints a table.
///
/// # Errors
/// When there is no such root or script, or when the outputs differ.
pub(super) fn compare(options: &options::Compare, pair: &Pair, script: &Path) -> Result<()> {
    let folder = options
        .root
        .as_deref()
        .context("a script needs a root with bash: --root DIR")?;
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let archive = temporary.path().join("root.cpio");
    let mut root = Root::folder(folder)?;
    root.host_file("measured-script", script, 0o644)?;
    root.host_file("busybox", Path::new(BUSYBOX), 0o755)?;
    root.file("init", 0o755, INIT);
    root.write(&archive)?;
    let command = ["/bin/bash".to_owned(), "/init".to_owned()];
    let ours = pair.ours(&archive, &Console::pipes().command_line(&[], &command));
    let theirs = pair.theirs(&archive);
    let mut ratios: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for number in 1..=options.pairs {
        let (a, b) = (run(&ours)?, run(&theirs)?);
        if number == 1 {
            print!("{}", a.output);
        }
        if a.output != b.output {
            bail!(
                "the outputs differ.\nHere:\n{}\nOn Linux:\n{}",
                a.output,
                b.output
            );
        }
        for (name, ours) in a.times {
            let theirs = *b
                .times
                .get(&name)
                .context("Linux measured something else")?;
            ratios.entry(name).or_default().push((ours, theirs));
        }
        eprintln!("pair {number} of {} is done", options.pairs);
    }
    println!("| measured | Causeway, s | Linux, s | ratio | least | most |");
    println!("|---|---|---|---|---|---|");
    for (name, mut pairs) in ratios {
        pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let ratio = |at: usize| pairs[at].0 / pairs[at].1;
        let middle = pairs.len() / 2;
        println!(
            "| {name} | {:.3} | {:.3} | {:.2} | {:.2} | {:.2} |",
            pairs[middle].0,
            pairs[middle].1,
            ratio(middle),
            ratio(0),
            ratio(pairs.len() - 1)
        );
    }
    Ok(())
}

/// One run.
fn run(machine: &Machine) -> Result<Run> {
    let (mut guest, _keys, screen) = Guest::start(machine, false)?;
    let watch = Watch::new(guest.killer(), PATIENCE);
    let mut screen = Screen::new(screen);
    screen.read_until(BEGIN)?;
    let text = screen.read_until(END)?;
    guest.kill();
    guest.wait(None)?;
    drop(watch);
    let text = text.trim_end_matches(END).trim_start().replace('\r', "");
    let mut run = Run {
        times: BTreeMap::new(),
        output: String::new(),
    };
    for line in text.lines() {
        match line
            .strip_prefix("RESULT ")
            .and_then(|rest| rest.split_once(' '))
        {
            Some((name, time)) => {
                let time: f64 = time.parse().with_context(|| format!("no time: {line}"))?;
                run.times.insert(name.into(), time / 1e6);
            }
            None => {
                run.output.push_str(line);
                run.output.push('\n');
            }
        }
    }
    Ok(run)
}
