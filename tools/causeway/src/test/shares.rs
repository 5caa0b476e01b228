//! Folders of the host that guests see: both sides must agree on what each has done.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Finished, Plan, finish};
use crate::guest::Ending;
use crate::share::Share;

/// Bytes of the file that goes in and comes out: many messages, and no whole number of pages.
const BIG: usize = (9 << 20) + 1234;

/// What a guest does in its share, `/mnt/share`; prints what does not hold.
const WRITES: &str = r#"
cd /mnt/share || exit 9
cat from-host
cp big /tmp/big && cp /tmp/big copy && cmp big copy || echo 'big differs'
i=0; mkdir many; while [ $i -lt 1000 ]; do echo $i > many/file$i; i=$((i+1)); done
ls many | wc -l
rm many/file5*; ls many | wc -l
mkdir -p a/b; echo moved > a/x; mv a/x a/b/y; mv a c; cat c/b/y
ln -s c/b/y link; cat link; readlink link
ln c/b/y hard; echo more >> hard; cat c/b/y | wc -l
dd if=big of=part bs=1000 skip=7 count=9 2>/dev/null; dd if=part of=copy bs=1000 seek=3 conv=notrunc 2>/dev/null
: > empty; rm empty; chmod 640 hard; stat -c %a hard
exec 3< hard; rm hard; cat <&3 | wc -l; exec 3<&-
[ -e none ] && echo 'what is not there is'
rmdir c 2>/dev/null && echo 'a directory that was not empty went'
sync
"#;

/// What [`WRITES`] prints.
const PRINTED: &str = "the host's words\n1000\n889\nmoved\nmoved\nc/b/y\n2\n640\n2\n";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("shares") {
        return;
    }
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    for cpus in [1, 4] {
        report.run(&format!("shares: both ways, {cpus} CPUs"), || {
            both_ways(bench, &root, cpus)
        });
    }
    report.run("shares: read-only", || read_only(bench, &root));
    report.run("shares: no such device", || {
        let plan = Plan::new(&root, &["true"]);
        let line = "onlcr=0 echo=0 share=nowhere:/mnt -- true";
        let finished = bench.boot_line(&plan, line)?;
        match finished.text().contains("no device shares 'nowhere'") {
            true => Ok(()),
            false => Err(finished.why(&bench.checked)),
        }
    });
}

/// Runs a line of shell with `folder` at `/mnt/share`.
fn with_share(
    bench: &Bench,
    root: &Path,
    folder: &Path,
    mode: &str,
    (cpus, line): (u32, &str),
) -> Result<Finished, String> {
    let share: Share = format!("{}:/mnt/share{mode}", folder.display()).parse()?;
    let command = ["/bin/sh", "-c", line];
    let mut plan = Plan::new(root, &command);
    plan.cpus = cpus;
    plan.timeout = Duration::from_secs(120);
    let words: Vec<String> = command.iter().map(ToString::to_string).collect();
    let options = [share.option(0)];
    let console = crate::run::Console::pipes();
    let mut machine = bench.machine(&plan, &console.command_line(&options, &words));
    machine.extra.extend(share.qemu(0));
    finish(&machine, b"", plan.timeout, |_| ()).map_err(|error| format!("{error:#}"))
}

fn io(error: std::io::Error) -> String {
    error.to_string()
}

fn both_ways(bench: &Bench, root: &Path, cpus: u32) -> Result<(), String> {
    let folder = bench
        .fresh_folder("share")
        .map_err(|error| format!("{error:#}"))?;
    let big: Vec<u8> = (0..BIG as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 15) as u8)
        .collect();
    fs::write(folder.join("big"), &big).map_err(io)?;
    fs::write(folder.join("from-host"), "the host's words\n").map_err(io)?;
    let finished = with_share(bench, root, &folder, "", (cpus, WRITES))?;
    if finished.ending != Ending::Status(0) {
        return Err(finished.why(&bench.checked));
    }
    if finished.text() != PRINTED {
        return Err(format!("the guest printed {:?}", finished.text()));
    }
    let mut copy = big.clone();
    copy.copy_within(7000..16_000, 3000);
    for (name, wanted) in [
        ("copy", &copy[..]),
        ("part", &big[7000..16_000]),
        ("many/file999", b"999\n"),
        ("c/b/y", b"moved\nmore\n"),
    ] {
        let found = fs::read(folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        if found != wanted {
            return Err(format!("{name} is not what the guest wrote"));
        }
    }
    let many = fs::read_dir(folder.join("many")).map_err(io)?.count();
    let gone = ["hard", "empty", "a"].map(|name| folder.join(name).exists());
    match many == 889 && gone == [false; 3] {
        true => Ok(()),
        false => Err(format!("{many} files, removed ones there: {gone:?}")),
    }
}

fn read_only(bench: &Bench, root: &Path) -> Result<(), String> {
    let folder = bench
        .fresh_folder("share")
        .map_err(|error| format!("{error:#}"))?;
    fs::write(folder.join("from-host"), "words\n").map_err(io)?;
    let line =
        "cat /mnt/share/from-host; (echo no > /mnt/share/from-host) 2>/dev/null || echo refused";
    let finished = with_share(bench, root, &folder, ":ro", (1, line))?;
    let kept = fs::read(folder.join("from-host")).map_err(io)?;
    match finished.text().ends_with("words\nrefused\n") && kept == b"words\n" {
        true => Ok(()),
        false => Err(finished.why(&bench.checked)),
    }
}
