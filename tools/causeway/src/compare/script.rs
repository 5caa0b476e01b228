//! A script of a person's, run by bash or sh in both kernels with the same root.
//!
//! A line `RESULT NAME MICROSECONDS` is a measurement, and so is `COUNT NAME NUMBER`, of something
//! else than time; the other lines must be the same in both. The script may call `measure NAME
//! COMMAND`, which runs the command and prints a line with the time that it took.
//!
//! Each run gets its own copies of the disks and of the swap space: no run sees changes of another.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Pair;
use crate::console::Console;
use crate::disk::Disk;
use crate::guest::Guest;
use crate::options;
use crate::qemu::Machine;
use crate::root::{BUSYBOX, Root};
use crate::screen::{Screen, Watch};
use crate::swap::Swap;

/// How long a script may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Printed before and after the script's own output.
const BEGIN: &str = "=== the script begins ===";
const END: &str = "=== the script ended ===";

/// The modules of Linux that disks and their file systems need: its ext4 is its ext2 as well.
/// Causeway has its own inside.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];

/// The first program of both kernels. Linux has nothing mounted then, and passes `swap=` of its
/// command line in the environment.
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
if [ -d /linux-modules ] && ! [ -e /proc/causeway ]; then
    for module in /linux-modules/*; do /busybox insmod "$module"; done
fi
[ -z "$swap" ] || grep -q "^$swap " /proc/swaps || /busybox swapon "$swap"
unset module swap
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

/// A measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Measured {
    Seconds(f64),
    Count(f64),
}

impl Measured {
    /// Parses a line of the script's output: the name and the measurement.
    ///
    /// # Errors
    /// When a value is no number.
    fn of_line(line: &str) -> Result<Option<(&str, Self)>> {
        let of = |word| line.strip_prefix(word)?.split_once(' ');
        let number = |text: &str| -> Result<f64> {
            let number: u64 = text.parse().with_context(|| format!("no number: {line}"))?;
            Ok(number as f64)
        };
        if let Some((name, time)) = of("RESULT ") {
            return Ok(Some((name, Self::Seconds(number(time)? / 1e6))));
        }
        match of("COUNT ") {
            Some((name, count)) => Ok(Some((name, Self::Count(number(count)?)))),
            None => Ok(None),
        }
    }

    fn number(self) -> f64 {
        let (Self::Seconds(number) | Self::Count(number)) = self;
        number
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => write!(f, "{seconds:.3} s"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

/// The output of one run: the measurements by name, and the rest.
struct Run {
    measured: BTreeMap<String, Measured>,
    output: String,
}

/// The measurements of all runs by name: of each turn, one place for each system.
type Rows = BTreeMap<String, Vec<Vec<Option<Measured>>>>;

/// Runs the script in turn in both and prints a table.
///
/// # Errors
/// When there is no such root or script. When the outputs differ, a run fails, or a system lacks a
/// measurement: after the table of what was measured.
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
    let disks = Disks::of(options);
    if !disks.is_empty() {
        pair.linux.add_modules(&mut root, &MODULES)?;
    }
    root.write(&archive)?;
    let command = ["/bin/bash".to_owned(), "/init".to_owned()];
    let swap: Vec<String> = disks.option().into_iter().collect();
    let ours = |options: &[String]| {
        let line = Console::pipes().command_line(&[&swap, options].concat(), &command);
        pair.ours(&archive, &line)
    };
    // The first is held against the last.
    let mut sides = vec![("Causeway".to_owned(), ours(&[]))];
    if !options.append.is_empty() {
        sides.push((
            format!("with `{}`", options.append.join(" ")),
            ours(&options.append),
        ));
    }
    // The kernel's own messages must not appear between the script's lines.
    let words = [&swap[..], &["loglevel=1".to_owned()]].concat();
    sides.push(("Linux".to_owned(), pair.theirs(&archive, &words)));
    let names: Vec<_> = sides.iter().map(|(name, _)| name.as_str()).collect();
    let runs = |at: usize| run(&sides[at].1, &disks);
    let Turns { rows, faults } = take_turns(&names, options.pairs as usize, runs);
    print!("{}", table(&names, &rows));
    fail_with(&[faults, lacks(&names, &rows)].concat())
}

/// What the runs of all systems gave.
#[derive(Default)]
struct Turns {
    rows: Rows,
    /// Differences of output and failures, in words.
    faults: Vec<String>,
}

/// Runs the script in each system in turn, `pairs` times: `run` gets a system's place in `systems`.
/// Ends early when a run fails.
fn take_turns(systems: &[&str], pairs: usize, mut run: impl FnMut(usize) -> Result<Run>) -> Turns {
    let mut turns = Turns::default();
    for pair in 0..pairs {
        let mut first: Option<String> = None;
        for (at, name) in systems.iter().enumerate() {
            let run = match run(at) {
                Ok(run) => run,
                Err(error) => {
                    let fault = format!("{name} failed in pair {}: {error:#}", pair + 1);
                    turns.faults.push(fault);
                    return turns;
                }
            };
            for (what, value) in run.measured {
                let row = turns.rows.entry(what).or_default();
                row.resize(pair + 1, vec![None; systems.len()]);
                row[pair][at] = Some(value);
            }
            match &first {
                Some(first) => {
                    if let Some(lines) = difference(first, &run.output) {
                        turns.faults.push(format!(
                            "the outputs differ in pair {}: {} (-) and {name} (+)\n{lines}",
                            pair + 1,
                            systems[0]
                        ));
                    }
                }
                None => {
                    if pair == 0 {
                        print!("{}", run.output);
                    }
                    first = Some(run.output);
                }
            }
        }
        eprintln!("pair {} of {pairs} is done", pair + 1);
    }
    turns
}

/// The lines between the first and the last that differ, with their numbers; `None` if the texts
/// are the same.
fn difference(one: &str, other: &str) -> Option<String> {
    if one == other {
        return None;
    }
    let (one, other): (Vec<_>, Vec<_>) = (one.lines().collect(), other.lines().collect());
    let same = |(a, b): &(&&str, &&str)| a == b;
    let begin = one.iter().zip(&other).take_while(same).count();
    let (one, other) = (&one[begin..], &other[begin..]);
    let end = one.iter().rev().zip(other.iter().rev());
    let end = end.take_while(same).count();
    let mut text = String::new();
    for (sign, lines) in [('-', one), ('+', other)] {
        for (number, line) in lines[..lines.len() - end].iter().enumerate() {
            text += &format!("{sign}{:4} {line}\n", begin + number + 1);
        }
    }
    Some(text)
}

/// Which systems lack which measurements, in words, a line for each.
fn lacks(systems: &[&str], rows: &Rows) -> Vec<String> {
    let mut lacks = Vec::new();
    for (name, turns) in rows {
        for (at, system) in systems.iter().enumerate() {
            let count = turns.iter().filter(|turn| turn[at].is_none()).count();
            if count > 0 {
                lacks.push(format!(
                    "{name}: {count} of {} is missing for {system}",
                    turns.len()
                ));
            }
        }
    }
    lacks
}

/// # Errors
/// When there are any faults: their text.
fn fail_with(faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{}", faults.join("\n"))
}

/// The table: of each measurement the turn whose ratio, of the first system to the last, is in the
/// middle. A measurement that no turn has of all systems has no ratio, and a dash for each system
/// that lacks it.
fn table(systems: &[&str], rows: &Rows) -> String {
    let mut text = format!(
        "| measured | {} | ratio | least | most |\n",
        systems.join(" | ")
    );
    text += &format!("|{}\n", "---|".repeat(systems.len() + 4));
    for (name, turns) in rows {
        let whole = turns.iter().filter_map(|turn| {
            let turn: Option<Vec<Measured>> = turn.iter().copied().collect();
            turn
        });
        let mut whole: Vec<_> = whole.collect();
        let ratio = |turn: &[Measured]| turn[0].number() / turn[systems.len() - 1].number();
        whole.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let (values, ratios) = match whole.get(whole.len() / 2) {
            Some(middle) => {
                let ratios = [middle, &whole[0], &whole[whole.len() - 1]];
                let ratios = ratios.map(|turn| format!("{:.2}", ratio(turn)));
                (middle.iter().map(Measured::to_string).collect(), ratios)
            }
            None => {
                let any = |at: usize| turns.iter().find_map(|turn| turn[at]);
                let values = (0..systems.len()).map(|at| match any(at) {
                    Some(value) => value.to_string(),
                    None => "-".into(),
                });
                (values.collect::<Vec<_>>(), ["-"; 3].map(String::from))
            }
        };
        text += &format!(
            "| {name} | {} | {} |\n",
            values.join(" | "),
            ratios.join(" | ")
        );
    }
    text
}

/// The disks that each run has copies of.
struct Disks<'a> {
    disks: &'a [Disk],
    /// The last disk.
    swap: Option<&'a Swap>,
}

impl<'a> Disks<'a> {
    fn of(options: &'a options::Compare) -> Self {
        Self {
            disks: &options.disks,
            swap: options.swap.as_ref(),
        }
    }

    fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.swap.is_none()
    }

    /// The word of a kernel's command line that names the swap space.
    fn option(&self) -> Option<String> {
        let name = Disk::name(self.disks.len());
        self.swap.map(|_| format!("swap=/dev/{name}"))
    }

    /// QEMU's words for copies that stand in `folder`.
    ///
    /// # Errors
    /// When they can't be made there.
    fn copied(&self, folder: &Path) -> Result<Vec<String>> {
        let copy = |(number, disk): (usize, &Disk)| {
            let copy = disk.copy(&folder.join(Disk::name(number)));
            copy.with_context(|| format!("cannot copy {}", disk.file().display()))
        };
        let copies = self.disks.iter().enumerate().map(copy);
        let mut copies: Vec<Disk> = copies.collect::<Result<_>>()?;
        match self.swap {
            Some(Swap::File(disk)) => copies.push(copy((copies.len(), disk))?),
            Some(made) => copies.push(made.disk(folder)?),
            None => {}
        }
        let words = copies.iter().enumerate();
        Ok(words.flat_map(|(number, disk)| disk.qemu(number)).collect())
    }
}

/// One run, with disks of its own.
fn run(machine: &Machine, disks: &Disks) -> Result<Run> {
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut machine = machine.clone();
    machine.extra.extend(disks.copied(scratch.path())?);
    let (mut guest, _keys, screen) = Guest::start(&machine, false)?;
    let watch = Watch::new(guest.killer(), PATIENCE);
    let mut screen = Screen::new(screen);
    screen.read_until(BEGIN)?;
    let text = screen.read_until(END)?;
    guest.kill();
    guest.wait(None)?;
    drop(watch);
    let text = text.trim_end_matches(END).trim_start().replace('\r', "");
    let mut run = Run {
        measured: BTreeMap::new(),
        output: String::new(),
    };
    for line in text.lines() {
        match Measured::of_line(line)? {
            Some((name, value)) => {
                run.measured.insert(name.into(), value);
            }
            None => {
                run.output.push_str(line);
                run.output.push('\n');
            }
        }
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_measurements_or_output() {
        let of = |line| Measured::of_line(line).unwrap();
        assert_eq!(of("RESULT a 1500000"), Some(("a", Measured::Seconds(1.5))));
        assert_eq!(
            of("COUNT faults-ls 59"),
            Some(("faults-ls", Measured::Count(59.0)))
        );
        assert_eq!(of("COUNT"), None);
        assert_eq!(of("RESULTS a 1"), None);
        assert!(Measured::of_line("COUNT a b").is_err());
        assert!(Measured::of_line("RESULT a -1").is_err());
    }

    #[test]
    fn each_run_has_disks_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        std::fs::write(&file, [7; 1024]).unwrap();
        let given: Disk = format!("{}:ro", file.display()).parse().unwrap();
        let swap = Swap::Size(1 << 20);
        let disks = Disks {
            disks: &[given],
            swap: Some(&swap),
        };
        assert_eq!(disks.option().as_deref(), Some("swap=/dev/vdb"));
        let drives = || {
            let scratch = tempfile::tempdir_in(&folder).unwrap();
            let words = disks.copied(scratch.path()).unwrap();
            assert_eq!(
                std::fs::read(scratch.path().join("vda")).unwrap(),
                [7; 1024]
            );
            assert!(std::fs::read(scratch.path().join("swap")).unwrap().len() == 1 << 20);
            words
        };
        let (first, second) = (drives(), drives());
        assert_eq!(first.len(), 8);
        assert!(first[1].ends_with("readonly=on") && !first[5].contains("readonly"));
        // The files' names differ, the devices' do not.
        assert!(first[1] != second[1] && first[5] != second[5] && first[7] == second[7]);
        let none = Disks {
            disks: &[],
            swap: None,
        };
        assert!(none.is_empty() && none.option().is_none());
    }

    fn counted(lines: &[(&str, f64)], output: &str) -> Run {
        let measured = lines.iter();
        let measured = measured.map(|&(name, count)| (name.to_owned(), Measured::Count(count)));
        Run {
            measured: measured.collect(),
            output: output.into(),
        }
    }

    #[test]
    fn the_middle_turn_is_shown() {
        let turn = |ours, theirs| [ours, theirs].map(|n| Some(Measured::Count(n))).to_vec();
        let turns = vec![turn(3.0, 2.0), turn(1.0, 2.0), turn(2.0, 2.0)];
        let text = table(&["A", "B"], &BTreeMap::from([("row".into(), turns)]));
        let last = text.lines().last().unwrap();
        assert_eq!(last, "| row | 2 | 2 | 1.00 | 0.50 | 1.50 |");
    }

    #[test]
    fn a_difference_or_a_gap_leaves_the_table_and_fails() {
        let systems = ["A", "B"];
        let mut runs = vec![
            counted(&[("both", 1.0), ("ours", 5.0)], "same\nhere\nend\n"),
            counted(&[("both", 2.0), ("theirs", 6.0)], "same\nthere\nend\n"),
        ]
        .into_iter();
        let Turns { rows, faults } = take_turns(&systems, 1, |_| Ok(runs.next().unwrap()));
        let text = table(&systems, &rows);
        let lines: Vec<_> = text.lines().skip(2).collect();
        let expected = [
            "| both | 1 | 2 | 0.50 | 0.50 | 0.50 |",
            "| ours | 5 | - | - | - | - |",
            "| theirs | - | 6 | - | - | - |",
        ];
        assert_eq!(lines, expected);
        let faults = [faults, lacks(&systems, &rows)].concat();
        let text = fail_with(&faults).unwrap_err().to_string();
        let expected = [
            "the outputs differ in pair 1: A (-) and B (+)",
            "-   2 here",
            "+   2 there",
            "",
            "ours: 1 of 1 is missing for B",
            "theirs: 1 of 1 is missing for A",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_run_that_fails_leaves_what_was_measured_before() {
        let systems = ["A", "B"];
        let mut runs = 0;
        let turns = take_turns(&systems, 2, |_| {
            runs += 1;
            match runs {
                1 | 2 => Ok(counted(&[("row", f64::from(runs))], "")),
                _ => bail!("no prompt"),
            }
        });
        assert_eq!(turns.faults, ["A failed in pair 2: no prompt"]);
        let text = table(&systems, &turns.rows);
        assert!(
            text.ends_with("| row | 1 | 2 | 0.50 | 0.50 | 0.50 |\n"),
            "{text}"
        );
        assert!(fail_with(&turns.faults).is_err() && fail_with(&[]).is_ok());
    }

    #[test]
    fn a_difference_is_the_lines_between_its_ends() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\n", "a\n").as_deref(), Some("-   2 b\n"));
        assert_eq!(difference("a\n", "a\nb\n").as_deref(), Some("+   2 b\n"));
        assert_eq!(difference("a\na\n", "a\n").as_deref(), Some("-   2 a\n"));
        // A last line without its end is no other line.
        assert!(difference("a\n", "a").is_some());
    }
}
