//! Disks: what a guest wrote is on the image, errors of the host's reach who asked.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Finished, Plan, finish};
use crate::disk::Disk;
use crate::guest::Ending;
use crate::qemu::Boot;
use crate::root::ext2;
use crate::run::Console;

/// Bytes of the disk that is written: no whole number of pages.
const SIZE: u64 = (6 << 20) + 1536;

/// What `user/tests/src/disks.rs` writes everywhere.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("disk") {
        return;
    }
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    for (cpus, options) in [(1, ""), (4, ""), (1, "ephemeral=uncached")] {
        report.run(&format!("disk: patterns, {cpus} CPUs {options}"), || {
            patterns(bench, &root, cpus, options)
        });
    }
    report.run("disk: errors of the host", || errors(bench, &root));
    for cpus in [1, 2] {
        let name = format!("disk: a bad sector under programs, {cpus} CPUs");
        report.run(&name, || bad_sector(bench, &root, cpus));
    }
    report.run("disk: one that goes away", || gone(bench, &root));
    report.run("disk: eight of them", || many(bench, &root));
    report.run("disk: Debian's view", || shown(bench, &root));
    report.run("disk: a root that is kept", || root_on_disk(bench, &root));
}

fn io(error: std::io::Error) -> String {
    error.to_string()
}

/// Runs a command with these further words for QEMU.
fn with_words(
    bench: &Bench,
    root: &Path,
    (cpus, options): (u32, &str),
    command: &[&str],
    words: Vec<String>,
) -> Result<Finished, String> {
    let mut plan = Plan::new(root, command);
    plan.cpus = cpus;
    plan.timeout = Duration::from_secs(120);
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    let line = Console::pipes().command_line(&[options.into()], &command);
    let mut machine = bench.machine(&plan, &line);
    machine.extra.extend(words);
    finish(&machine, b"", plan.timeout, |_| ()).map_err(|error| format!("{error:#}"))
}

fn image(bench: &Bench, name: &str, bytes: &[u8]) -> Result<PathBuf, String> {
    let path = bench.path(name);
    fs::write(&path, bytes).map_err(io)?;
    Ok(path)
}

fn patterns(bench: &Bench, root: &Path, cpus: u32, options: &str) -> Result<(), String> {
    let written = image(bench, "disk", &vec![0x55; SIZE as usize])?;
    let read = image(bench, "disk-ro", &[0x33; 1 << 16])?;
    let disks: [Disk; 2] = [
        written.display().to_string().parse()?,
        format!("{}:ro", read.display()).parse()?,
    ];
    let words = (0..).zip(&disks).flat_map(|(n, disk)| disk.qemu(n));
    let options = format!("md=1M {options}");
    let command = ["/tests/guest-tests", "disks"];
    let finished = with_words(bench, root, (cpus, &options), &command, words.collect())?;
    let text = finished.text();
    if finished.ending != Ending::Status(0) || text.contains("skip") {
        return Err(format!("{text}; {}", finished.why(&bench.checked)));
    }
    let found = fs::read(&written).map_err(io)?;
    let wrong = (0..).zip(&found).find(|&(at, &found)| found != byte(at));
    if let Some((at, found)) = wrong {
        return Err(format!("byte {at} of the image is {found:#x}"));
    }
    match found.len() as u64 == SIZE && fs::read(&read).map_err(io)? == [0x33; 1 << 16] {
        true => Ok(()),
        false => Err("an image has changed where it must not".into()),
    }
}

/// Sectors that the host can't read, and what the guest makes of it.
fn errors(bench: &Bench, root: &Path) -> Result<(), String> {
    const BAD: u32 = 2000;
    let file = image(bench, "disk-bad", &vec![b'.'; 2 << 20])?;
    let drive = format!(
        "if=none,id=bad,format=raw,rerror=report,werror=report,file.driver=blkdebug,file.image.filename={},\
         file.inject-error.0.event=read_aio,file.inject-error.0.errno=5,file.inject-error.0.sector={BAD}",
        file.display()
    );
    let words = ["-drive", &drive, "-device", "virtio-blk-pci,drive=bad"];
    let line = "
dd if=/dev/vda of=/dev/null bs=512 skip=2000 count=1 2>&1 | grep -c 'Input/output error'
dd if=/dev/vda bs=512 skip=2001 count=1 2>/dev/null | wc -c
dd if=/dev/vda bs=512 count=1990 2>/dev/null | wc -c
cat /dev/vda > /dev/null 2>&1 || echo broken
dd if=/dev/vda of=/dev/null bs=4096 skip=300 2>/dev/null && echo fine";
    let command = ["/bin/sh", "-c", line];
    let words = words.iter().map(ToString::to_string).collect();
    let finished = with_words(bench, root, (1, ""), &command, words)?;
    // The page with the bad sector can't be read, whichever of its sectors is asked for.
    match finished.text() == "1\n0\n1018880\nbroken\nfine\n" {
        true => Ok(()),
        false => Err(format!(
            "{:?}; {}",
            finished.text(),
            finished.why(&bench.checked)
        )),
    }
}

/// A sector that can be neither read nor written, and what programs hear of it.
fn bad_sector(bench: &Bench, root: &Path, cpus: u32) -> Result<(), String> {
    // In page 250, as `user/tests/src/mounted.rs` has it.
    const BAD: u32 = 2003;
    let mut bytes = vec![b'.'; 4 << 20];
    bytes[..10].copy_from_slice(b"bad sector");
    let file = image(bench, "disk-bad-sector", &bytes)?;
    let mut drive = format!(
        "if=none,id=bad,format=raw,rerror=report,werror=report,file.driver=blkdebug,file.image.filename={}",
        file.display()
    );
    for (number, event) in ["read_aio", "write_aio"].iter().enumerate() {
        drive.push_str(&format!(
            ",file.inject-error.{number}.event={event},file.inject-error.{number}.errno=5,\
             file.inject-error.{number}.sector={BAD}"
        ));
    }
    let words = ["-drive", &drive, "-device", "virtio-blk-pci,drive=bad"];
    let words = words.iter().map(ToString::to_string).collect();
    let command = ["/tests/guest-tests", "bad sector:"];
    let finished = with_words(bench, root, (cpus, ""), &command, words)?;
    let text = finished.text();
    match finished.ending == Ending::Status(0) && !text.contains("skip") {
        true => Ok(()),
        false => Err(format!("{text}; {}", finished.why(&bench.checked))),
    }
}

/// What a guest does with a disk until the host takes it away, and then.
const AWAY: &str = "
mkdir /d && mount -t ext2 /dev/vda /d && cp /bin/busybox /d/before && mkdir /d/dir && sync && echo ready
while dd if=/dev/vda of=/dev/null bs=4096 count=1 skip=1000 2>/dev/null; do usleep 20000; done
cmp /bin/busybox /d/before && echo 'in memory'
echo 3 > /proc/sys/vm/drop_caches; cat /d/before 2>&1 > /dev/null | grep -c 'Input/output error'
dd if=/dev/zero of=/d/before bs=4096 count=4 conv=fsync,notrunc 2>&1 | grep -c 'Input/output error'
(echo new > /d/dir/new) 2>/dev/null || echo refused; sync; umount -l /d && echo off; cat /dev/vda 2>/dev/null | wc -c";

/// A disk whose file the host closes while it is mounted: every request fails from then on, and nobody waits for ever.
fn gone(bench: &Bench, root: &Path) -> Result<(), String> {
    let file = bench.path("disk-gone");
    let empty = bench.fresh_folder("nothing");
    let empty = empty.map_err(|error| format!("{error:#}"))?;
    ext2::make(Some(&empty), &file, Some(8 << 20)).map_err(|error| format!("{error:#}"))?;
    let monitor = bench.path("monitor");
    let words = [
        "-drive",
        &format!("if=none,id=gone,format=raw,file={}", file.display()),
        "-device",
        "virtio-blk-pci,drive=gone",
        "-monitor",
        &format!("unix:{},server=on,wait=off", monitor.display()),
    ];
    let command = ["/bin/sh", "-c", AWAY];
    let mut plan = Plan::new(root, &command);
    plan.cpus = 2;
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    let line = Console::pipes().command_line(&[], &command);
    let mut machine = bench.machine(&plan, &line);
    machine.extra.extend(words.iter().map(ToString::to_string));
    let take = move |line: &str| {
        if line == "ready"
            && let Ok(mut socket) = UnixStream::connect(&monitor)
        {
            // The answer is of no interest: the guest sees whether it was done.
            let _ = socket.write_all(b"drive_del gone\n");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let finished = finish(&machine, b"", plan.timeout, take);
    let finished = finished.map_err(|error| format!("{error:#}"))?;
    let wanted = "ready\nin memory\n1\n1\nrefused\noff\n0\n";
    match finished.ending == Ending::Status(0) && finished.text() == wanted {
        true => Ok(()),
        false => Err(format!(
            "{:?}; {}",
            finished.text(),
            finished.why(&bench.checked)
        )),
    }
}

fn shown(bench: &Bench, root: &Path) -> Result<(), String> {
    let line = "ls -l /dev/md0 | cut -c1-10; cat /proc/partitions; grep md /proc/devices; cat /sys/block/*/size";
    let command = ["/bin/sh", "-c", line];
    let finished = with_words(bench, root, (1, "md=64K,1M"), &command, Vec::new())?;
    let wanted = "brw-rw----\nmajor minor  #blocks  name\n\n   9        0         64 md0\n   9        1       1024 md1\n  9 md\n128\n2048\n";
    match finished.text() == wanted {
        true => Ok(()),
        false => Err(format!(
            "{:?}; {}",
            finished.text(),
            finished.why(&bench.checked)
        )),
    }
}

/// More disks than the BIOS has room for beside a root in memory.
fn many(bench: &Bench, root: &Path) -> Result<(), String> {
    let file = image(bench, "disk-many", &[b'm'; 4096])?;
    let disk: Disk = format!("{}:ro", file.display()).parse()?;
    let words = (0..8).flat_map(|number| disk.qemu(number)).collect();
    let command = [
        "/bin/sh",
        "-c",
        "cat /dev/vd? | tr -d m | wc -c; ls /dev/vd? | wc -l",
    ];
    let finished = with_words(bench, root, (1, ""), &command, words)?;
    match finished.text() == "0\n8\n" {
        true => Ok(()),
        false => Err(format!(
            "{:?}; {}",
            finished.text(),
            finished.why(&bench.checked)
        )),
    }
}

/// What the first boot does on its disk.
const CHANGES: &str = "
mkdir -p /srv/a/b && cp /bin/busybox /srv/a/b/copy && cmp /bin/busybox /srv/a/b/copy && echo same
i=0; while [ $i -lt 200 ]; do echo $i > /srv/file$i; i=$((i+1)); done; rm /srv/file1*
ln -s a/b/copy /srv/link; ln /srv/file5 /srv/hard; mv /srv/a /srv/c; sync; mount | grep -c ' / type ext2 (rw'";
/// What the second one finds.
const LOOKS: &str = "
cmp /bin/busybox /srv/c/b/copy && echo same; ls /srv | wc -l; cat /srv/hard; readlink /srv/link
(echo no > /srv/no) 2>/dev/null || echo refused";

/// Boots from a disk, changes it, and boots from it again; e2fsck has nothing to say in between.
fn root_on_disk(bench: &Bench, archive: &Path) -> Result<(), String> {
    let image = bench.path("root.ext2");
    ext2::make(None, &image, Some(24 << 20)).map_err(|error| format!("{error:#}"))?;
    for (mode, line, wanted) in [
        ("rw", CHANGES, "same\n1\n"),
        ("ro", LOOKS, "same\n92\n5\na/b/copy\nrefused\n"),
    ] {
        let command = ["/bin/sh", "-c", line];
        let plan = Plan::new(archive, &command);
        let disk: Disk = format!("{}:{mode}", image.display()).parse()?;
        let words: Vec<String> = command.iter().map(ToString::to_string).collect();
        let options = [format!("root=/dev/vda {mode}")];
        let line = Console::pipes().command_line(&options, &words);
        let mut machine = bench.machine(&plan, &line);
        if let Boot::Kernel { root, .. } = &mut machine.boot {
            *root = None;
        }
        machine.extra.extend(disk.qemu(0));
        let finished =
            finish(&machine, b"", plan.timeout, |_| ()).map_err(|error| format!("{error:#}"))?;
        if finished.text() != wanted {
            let (text, why) = (finished.text(), finished.why(&bench.checked));
            return Err(format!("{mode}: {text:?}; {why}"));
        }
        ext2::check(&image).map_err(|error| format!("{mode}: {error:#}"))?;
    }
    Ok(())
}
