//! Folders of the host that guests see: each side must see the other's changes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Finished};
use crate::share::Share;

/// Bytes of the file that goes in and comes out: many messages, and no whole number of pages.
const BIG: usize = (9 << 20) + 1234;

/// Uses a share at `/mnt/share`, and prints each failed check.
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
dd if=big of=part bs=1000 skip=7 count=9 2>/dev/null
dd if=part of=copy bs=1000 seek=3 conv=notrunc 2>/dev/null
: > empty; rm empty; chmod 640 hard; stat -c %a hard
exec 3< hard; rm hard; cat <&3 | wc -l; exec 3<&-
[ -e none ] && echo 'what is not there is'
rmdir c 2>/dev/null && echo 'a directory that was not empty went'
sync
"#;

/// The output of [`WRITES`].
const PRINTED: &str = "the host's words\n1000\n889\nmoved\nmoved\nc/b/y\n2\n640\n2\n";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("shares") {
        return;
    }
    for cpus in [1, 4] {
        report.run(&format!("shares: both ways, {cpus} CPUs"), || {
            both_ways(bench, cpus)
        });
    }
    report.run("shares: read-only", || read_only(bench));
    report.run("shares: no such device", || {
        let guest = bench.guest(&["true"]).option("share=nowhere:/mnt");
        guest.run()?.says("no device shares 'nowhere'")
    });
}

/// Runs a line of shell with `folder` at `/mnt/share`.
fn with_share(bench: &Bench, folder: &Path, mode: &str, cpus: u32, line: &str) -> Result<Finished> {
    let share: Share = format!("{}:/mnt/share{mode}", folder.display()).parse()?;
    let guest = bench.shell(line).cpus(cpus).timeout(120);
    guest.option(&share.option(0)).words(share.qemu(0)).run()
}

pub(super) fn both_ways(bench: &Bench, cpus: u32) -> Result<()> {
    let folder = bench.fresh_folder("share")?;
    let big: Vec<u8> = (0..BIG as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 15) as u8)
        .collect();
    fs::write(folder.join("big"), &big)?;
    fs::write(folder.join("from-host"), "the host's words\n")?;
    let finished = with_share(bench, &folder, "", cpus, WRITES)?;
    finished.ended(0)?;
    finished.printed(PRINTED)?;
    let mut copy = big.clone();
    copy.copy_within(7000..16_000, 3000);
    for (name, wanted) in [
        ("copy", &copy[..]),
        ("part", &big[7000..16_000]),
        ("many/file999", b"999\n"),
        ("c/b/y", b"moved\nmore\n"),
    ] {
        let found = fs::read(folder.join(name)).context(name)?;
        ensure!(found == wanted, "{name} is not what the guest wrote");
    }
    let many = fs::read_dir(folder.join("many"))?.count();
    let kept = ["hard", "empty", "a"].map(|name| folder.join(name).exists());
    ensure!(
        many == 889 && kept == [false; 3],
        "{many} files, removed ones that exist: {kept:?}"
    );
    Ok(())
}

fn read_only(bench: &Bench) -> Result<()> {
    let folder = bench.fresh_folder("share")?;
    fs::write(folder.join("from-host"), "words\n")?;
    let line =
        "cat /mnt/share/from-host; (echo no > /mnt/share/from-host) 2>/dev/null || echo refused";
    let finished = with_share(bench, &folder, ":ro", 1, line)?;
    let kept = fs::read(folder.join("from-host"))?;
    let refused = finished.text().ends_with("words\nrefused\n");
    ensure!(refused && kept == b"words\n", "{}", finished.why());
    Ok(())
}
