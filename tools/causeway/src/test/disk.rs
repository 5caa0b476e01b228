//! Disks: the image holds the bytes that a guest wrote, and errors of the host reach the program
//! that asked.

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use super::Report;
use super::boot::{Bench, tell_monitor};
use crate::disk::Disk;
use crate::root::ext2;

/// Bytes of the disk that is written: no whole number of pages.
const SIZE: u64 = (6 << 20) + 1536;

/// The byte that `user/tests/src/disks.rs` writes at each place.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("disk") {
        return;
    }
    for (cpus, options) in [(1, ""), (4, ""), (1, "ephemeral=uncached")] {
        report.run(&format!("disk: patterns, {cpus} CPUs {options}"), || {
            patterns(bench, cpus, options)
        });
    }
    report.run("disk: errors of the host", || errors(bench));
    for cpus in [1, 2] {
        let name = format!("disk: a bad sector under programs, {cpus} CPUs");
        report.run(&name, || bad_sector(bench, cpus));
    }
    report.run("disk: one that goes away", || gone(bench));
    report.run("disk: eight of them", || many(bench));
    report.run("disk: Debian's view", || shown(bench));
    report.run("disk: a root that is kept", || root_on_disk(bench));
}

pub(super) fn patterns(bench: &Bench, cpus: u32, options: &str) -> Result<()> {
    let written = bench.file("disk", &vec![0x55; SIZE as usize])?;
    let read = bench.file("disk-ro", &[0x33; 1 << 16])?;
    let guest = bench.guest(&["/tests/guest-tests", "disks"]).cpus(cpus);
    let guest = guest.option("md=1M").option(options).timeout(120);
    let guest = guest.disk(Disk::at(&written)?);
    let disk = format!("{}:ro", read.display()).parse()?;
    guest.disk(disk).guest_tests()?;
    let found = fs::read(&written)?;
    let wrong = (0..).zip(&found).find(|&(at, &found)| found != byte(at));
    if let Some((at, found)) = wrong {
        bail!("byte {at} of the image is {found:#x}");
    }
    ensure!(
        found.len() as u64 == SIZE && fs::read(&read)? == [0x33; 1 << 16],
        "an image has changed where it must not"
    );
    Ok(())
}

/// Sectors that the host can't read fail in the guest, and only those.
pub(super) fn errors(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-bad", &vec![b'.'; 2 << 20])?;
    let line = "
dd if=/dev/vda of=/dev/null bs=512 skip=2000 count=1 2>&1 | grep -c 'Input/output error'
dd if=/dev/vda bs=512 skip=2001 count=1 2>/dev/null | wc -c
dd if=/dev/vda bs=512 count=1990 2>/dev/null | wc -c
cat /dev/vda > /dev/null 2>&1 || echo broken
dd if=/dev/vda of=/dev/null bs=4096 skip=300 2>/dev/null && echo fine";
    let guest = bench.shell(line).timeout(120);
    let finished = guest.bad_disk(&file, 2000, &["read_aio"]).run()?;
    // The page with the bad sector can't be read, whichever of its sectors is asked for.
    finished.printed("1\n0\n1018880\nbroken\nfine\n")
}

/// A sector that can be neither read nor written: the errors reach programs.
fn bad_sector(bench: &Bench, cpus: u32) -> Result<()> {
    let mut bytes = vec![b'.'; 4 << 20];
    bytes[..10].copy_from_slice(b"bad sector");
    let file = bench.file("disk-bad-sector", &bytes)?;
    let guest = bench.guest(&["/tests/guest-tests", "bad sector:"]);
    let guest = guest.cpus(cpus).timeout(120);
    // In page 250, as `user/tests/src/mounted.rs` has it.
    let guest = guest.bad_disk(&file, 2003, &["read_aio", "write_aio"]);
    guest.guest_tests()
}

/// Uses a disk until the host takes it away, and then tries to go on.
const AWAY: &str = "
mkdir /d && mount -t ext2 /dev/vda /d && cp /bin/busybox /d/before && mkdir /d/dir && sync && echo ready
while dd if=/dev/vda of=/dev/null bs=4096 count=1 skip=1000 2>/dev/null; do usleep 20000; done
cmp /bin/busybox /d/before && echo 'in memory'
echo 3 > /proc/sys/vm/drop_caches; cat /d/before 2>&1 > /dev/null | grep -c 'Input/output error'
dd if=/dev/zero of=/d/before bs=4096 count=4 conv=fsync,notrunc 2>&1 | grep -c 'Input/output error'
(echo new > /d/dir/new) 2>/dev/null || echo refused; sync; umount -l /d && echo off; cat /dev/vda 2>/dev/null | wc -c";

/// A disk whose file the host closes while it is mounted: every later request fails, and none
/// hangs.
pub(super) fn gone(bench: &Bench) -> Result<()> {
    let file = bench.path("disk-gone");
    ext2::make(Some(&bench.fresh_folder("nothing")?), &file, Some(8 << 20))?;
    let monitor = bench.path("monitor");
    let drive = format!("if=none,id=gone,format=raw,file={}", file.display());
    let socket = format!("unix:{},server=on,wait=off", monitor.display());
    let guest = bench.shell(AWAY).cpus(2).words([
        "-drive",
        &drive,
        "-device",
        "virtio-blk-pci,drive=gone",
        "-monitor",
        &socket,
    ]);
    let finished = guest.run_with(move |line| {
        if line == "ready" {
            // The answer does not matter: the guest sees whether it was done.
            let _ = tell_monitor(&monitor, "drive_del gone");
        }
    })?;
    finished.ended(0)?;
    finished.printed("ready\nin memory\n1\n1\nrefused\noff\n0\n")
}

fn shown(bench: &Bench) -> Result<()> {
    let line = "ls -l /dev/md0 | cut -c1-10; cat /proc/partitions; grep md /proc/devices; \
                cat /sys/block/*/size";
    let finished = bench.shell(line).option("md=64K,1M").run()?;
    finished.printed(
        "brw-rw----\nmajor minor  #blocks  name\n\n   9        0         64 md0\n\
         \x20  9        1       1024 md1\n  9 md\n128\n2048\n",
    )
}

/// More disks than the BIOS has room for beside a root in memory.
pub(super) fn many(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-many", &[b'm'; 4096])?;
    let disk: Disk = format!("{}:ro", file.display()).parse()?;
    let guest = bench.shell("cat /dev/vd? | tr -d m | wc -c; ls /dev/vd? | wc -l");
    let guest = (0..8).fold(guest, |guest, _| guest.disk(disk.clone()));
    guest.timeout(120).run()?.printed("0\n8\n")
}

/// The changes of the first boot to its disk.
const CHANGES: &str = "
mkdir -p /srv/a/b && cp /bin/busybox /srv/a/b/copy && cmp /bin/busybox /srv/a/b/copy && echo same
i=0; while [ $i -lt 200 ]; do echo $i > /srv/file$i; i=$((i+1)); done; rm /srv/file1*
ln -s a/b/copy /srv/link; ln /srv/file5 /srv/hard; mv /srv/a /srv/c; sync; mount | grep -c ' / type ext2 (rw'";
/// The checks of the second boot.
const LOOKS: &str = "
cmp /bin/busybox /srv/c/b/copy && echo same; ls /srv | wc -l; cat /srv/hard; readlink /srv/link
(echo no > /srv/no) 2>/dev/null || echo refused";

/// Boots from a disk, changes it, and boots from it again; e2fsck has nothing to say in between.
pub(super) fn root_on_disk(bench: &Bench) -> Result<()> {
    let image = bench.path("root.ext2");
    ext2::make(None, &image, Some(24 << 20))?;
    for (mode, line, wanted) in [
        ("rw", CHANGES, "same\n1\n"),
        ("ro", LOOKS, "same\n92\n5\na/b/copy\nrefused\n"),
    ] {
        let disk = format!("{}:{mode}", image.display()).parse()?;
        let finished = bench.shell(line).root_disk(disk).run()?;
        finished.printed(wanted).context(mode)?;
        ext2::check(&image).context(mode)?;
    }
    Ok(())
}
