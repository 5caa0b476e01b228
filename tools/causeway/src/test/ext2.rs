//! A root on ext2: the host's `e2fsck` finds it sound after a guest, and the next boot finds the
//! guest's files, also after the machine was killed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Plan, text};
use crate::disk::Disk;
use crate::root::ext2;

const SIZE: u64 = 32 << 20;

/// Makes trees, links and archives.
const MAKE: &str = "
mkdir -p /a/b /a/git/objects && cp -a /bin/busybox /a/b/ && ln -s b /a/link && ln /a/b/busybox /a/twice
seq 1 20000 > /a/numbers && mv /a/numbers /a/b/moved && mkfifo /a/pipe
for i in $(seq 1 60); do mkdir -p /a/git/objects/$((i % 7)); echo $i > /a/git/objects/$((i % 7))/$i; done
rm -r /a/git/objects/3 && tar cf /a.tar /a 2>/dev/null && mkdir /copy && tar xf /a.tar -C /copy && rm /a.tar
truncate -s 5000000 /a/sparse && echo end >> /a/sparse";
/// Prints the state of the files.
const SHOW: &str = "cd / && find a copy | sort | md5sum; find a copy -type f | sort | xargs md5sum | md5sum; \
readlink /copy/a/link; stat -c %h /a/twice; stat -f -c %t /; grep -c ' / ext2 ' /proc/mounts";

/// Changes its root for ever, behind a `sync`.
const CHANGES: &str = "
mkdir /kept && cp /bin/busybox /kept/ && seq 1 5000 > /kept/numbers && sync && echo synced
while true; do cp -r /kept /more; rm -r /more; done";
/// Checks for the files that were there at the `sync`.
const LOOKS: &str =
    "cmp /kept/busybox /bin/busybox && seq 1 5000 | cmp - /kept/numbers && echo there";

/// The tests on a disk that make few calls.
const FEW_CALLS: [&str; 5] = [
    "ext2: a mapping",
    "ext2: a full",
    "ext2: large",
    "ext2: past",
    "ext2: movement",
];

/// The machines on which programs use files, and whether with the fast kernel.
const FILES: [(u32, bool); 3] = [(1, false), (2, true), (4, false)];

/// Runs them; `long`: the files of programs with one CPU as well, as the group *iommu* does.
pub fn run(bench: &Bench, report: &mut Report, long: bool) {
    if !report.wants("ext2") {
        return;
    }
    for cpus in [1, 2, 4] {
        report.run(&format!("ext2: a root that stays, {cpus} CPUs"), || {
            stays(bench, cpus)
        });
        let name = format!("ext2: a root whose machine is killed, {cpus} CPUs");
        report.run(&name, || killed(bench, cpus));
    }
    for &(cpus, is_fast) in if long { &FILES[..] } else { &FILES[1..] } {
        report.run(&format!("ext2: files of programs, {cpus} CPUs"), || {
            files(bench, cpus, is_fast)
        });
    }
}

fn image(bench: &Bench, name: &str) -> Result<PathBuf> {
    let path = bench.path(name);
    ext2::make(None, &path, Some(SIZE)).map(|()| path)
}

/// Runs a script with an image as its root.
fn script<'a>(bench: &'a Bench, image: &Path, cpus: u32, script: &str) -> Result<Plan<'a>> {
    let guest = bench.shell(script).cpus(cpus).timeout(120);
    Ok(guest.root_disk(Disk::at(image)?))
}

/// Runs `e2fsck` with `how`.
///
/// # Errors
/// Its complaint, if its status is above `most`.
pub fn check(image: &Path, how: &str, most: i32) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let ran = Command::new("e2fsck")
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .arg(how)
        .arg(image)
        .output()
        .context("e2fsck")?;
    let sound = ran.status.code().is_some_and(|code| code <= most);
    ensure!(sound, "e2fsck {how}: {}", text(&ran.stdout));
    Ok(())
}

pub(super) fn stays(bench: &Bench, cpus: u32) -> Result<()> {
    let image = image(bench, &format!("ext2-stays-{cpus}"))?;
    let made = script(bench, &image, cpus, &format!("{MAKE}\n{SHOW}"))?.output()?;
    check(&image, "-fn", 0)?;
    ensure!(made.ends_with("b\n2\nef53\n1\n"), "{made:?}");
    let found = script(bench, &image, cpus, SHOW)?.output()?;
    check(&image, "-fn", 0)?;
    ensure!(found == made, "it was {made:?}, and is {found:?}");
    Ok(())
}

fn killed(bench: &Bench, cpus: u32) -> Result<()> {
    let image = image(bench, &format!("ext2-killed-{cpus}"))?;
    script(bench, &image, cpus, CHANGES)?.killed_after("synced\n")?;
    check(&image, "-fy", 3)?;
    let found = script(bench, &image, cpus, LOOKS)?.output()?;
    check(&image, "-fn", 0)?;
    ensure!(found == "there\n", "{found:?}");
    Ok(())
}

/// Runs `user/tests/src/mounted.rs` on a disk: all of it with the fast kernel, the tests that make
/// few calls with the other one.
pub(super) fn files(bench: &Bench, cpus: u32, is_fast: bool) -> Result<()> {
    let image = bench.path(&format!("ext2-files-{cpus}"));
    let folder = bench.fresh_folder("ext2-almost-empty")?;
    std::fs::write(folder.join("log"), "line\n")?;
    ext2::make(Some(&folder), &image, Some(2 * SIZE))?;
    // Append-only.
    ext2::edit(&image, b"set_inode_field /log flags 0x20\n")?;
    let tests = if is_fast { &["ext2:"] } else { &FEW_CALLS[..] };
    let command = [&["/tests/guest-tests"], tests].concat();
    let guest = bench.guest(&command).cpus(cpus).timeout(180);
    guest
        .fast_if(is_fast)
        .disk(Disk::at(&image)?)
        .guest_tests()?;
    check(&image, "-fn", 0)
}
