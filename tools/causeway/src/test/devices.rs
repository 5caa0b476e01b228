//! Devices whose memory programs map, and persistent memory: the host sees what a guest stored,
//! where it stored it.

use std::fs;

use anyhow::{Result, ensure};

use super::Report;
use super::boot::Bench;
use crate::disk::Disk;
use crate::root::ext2;

/// Bytes of the memory that the host shares (`user/tests/src/bus.rs`).
const SHARED: usize = 1 << 20;
const PAGE: usize = 4096;

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("devices") {
        return;
    }
    for cpus in [1, 2, 4] {
        report.run(&format!("devices: memory of a device, {cpus} CPUs"), || {
            mapped(bench, cpus)
        });
    }
    for cpus in [1, 2] {
        report.run(&format!("devices: persistent memory, {cpus} CPUs"), || {
            persistent(bench, cpus)
        });
    }
    report.run("devices: persistent memory that is too large", || {
        too_large(bench)
    });
    report.run("devices: a memory disk in place", || in_place(bench));
}

fn mapped(bench: &Bench, cpus: u32) -> Result<()> {
    let shared = bench.file("ivshmem", &vec![0; SHARED])?;
    let disk = bench.file("disk-beside", &[0; 1 << 16])?;
    let memory = format!(
        "memory-backend-file,id=shared,share=on,size={SHARED},mem-path={}",
        shared.display()
    );
    let guest = bench.guest(&["/tests/guest-tests", "bus:"]).cpus(cpus);
    let folder = bench.fresh_folder("lent")?;
    let folder = format!(
        "local,id=lent,path={},security_model=none",
        folder.display()
    );
    let guest = guest.timeout(120).disk(Disk::at(&disk)?).words([
        "-fsdev",
        &folder,
        "-device",
        "virtio-9p-pci,disable-legacy=on,fsdev=lent,mount_tag=lent",
        "-object",
        &memory,
        "-device",
        "ivshmem-plain,memdev=shared",
        "-device",
        "edu",
    ]);
    guest.guest_tests()?;
    let found = fs::read(&shared)?;
    // The first pages were used for more.
    for page in 8..SHARED / PAGE {
        let at = page * PAGE + page;
        let wanted = [page as u8 ^ 0x5a, page as u8 ^ 0xa5];
        ensure!(found[at..at + 2] == wanted, "page {page} of the device");
    }
    Ok(())
}

/// Bytes of the persistent memory.
const PERSISTENT: u64 = 16 << 20;

/// Makes a file system where files are used in place, and leaves some.
const MAKES: &str = "
test -b /dev/pmem0 && grep -c pmem0 /proc/partitions
mke2fs -b 4096 /dev/pmem0 >/dev/null 2>&1; mkdir /d && mount -t ext2 -o dax /dev/pmem0 /d && echo mounted
cp /bin/busybox /d/busybox && /d/busybox echo runs
i=0; while [ $i -lt 50 ]; do echo $i > /d/file$i; i=$((i+1)); done; rm /d/file1*
dd if=/dev/zero of=/d/zeros bs=4096 count=100 conv=fsync 2>/dev/null; truncate -s 100K /d/zeros
echo kept > /d/kept; umount /d && echo off";
/// Looks at what a machine before it has left, and at how many pages were read for that: only the
/// file system's own blocks.
const LOOKS: &str = "
mkdir /d && mount -t ext2 -o dax /dev/pmem0 /d && cat /d/kept; ls /d | wc -l
pages_in() { grep -w file_read_ahead /proc/causeway/counters | tr -dc 0-9; }
before=$(pages_in); cmp /bin/busybox /d/busybox && echo same; /d/busybox echo runs
wc -c < /d/zeros; tr -d '\\0' < /d/zeros | wc -c; test $(($(pages_in) - before)) -lt 40 && echo in place
sync; umount /d; mount -t ext2 -o dax,errors=continue /dev/pmem0 /d && cat /d/file23";

fn persistent(bench: &Bench, cpus: u32) -> Result<()> {
    let file = bench.file("pmem", &vec![0; PERSISTENT as usize])?;
    let memory = format!(
        "memory-backend-file,id=pmem,share=on,size={PERSISTENT},mem-path={}",
        file.display()
    );
    let boot = |line: &str| {
        bench.shell(line).cpus(cpus).timeout(120).words([
            "-machine",
            "nvdimm=on",
            "-m",
            "slots=2,maxmem=4G",
            "-object",
            &memory,
            "-device",
            "nvdimm,memdev=pmem,id=nvdimm",
        ])
    };
    let made = boot(MAKES).run()?;
    made.printed("1\nmounted\nruns\noff\n")?;
    ext2::check(&file)?;
    let found = boot(LOOKS).run()?;
    found.printed("kept\n43\nsame\nruns\n102400\n0\nin place\n23\n")?;
    ext2::check(&file)
}

/// Memory whose frame records would take most of the machine's: it boots without.
fn too_large(bench: &Bench) -> Result<()> {
    const SIZE: u64 = 24 << 30;
    let file = bench.file("pmem-large", &[])?;
    fs::File::options().write(true).open(&file)?.set_len(SIZE)?;
    let memory = format!(
        "memory-backend-file,id=pmem,share=on,size={SIZE},mem-path={}",
        file.display()
    );
    let line = "ls /dev/pmem* 2>/dev/null; dmesg | grep -c 'persistent memory of 24576 MiB'";
    let guest = bench.shell(line).timeout(120).words([
        "-machine",
        "nvdimm=on",
        "-m",
        "128M,slots=2,maxmem=64G",
        "-object",
        &memory,
        "-device",
        "nvdimm,memdev=pmem,id=nvdimm",
    ]);
    guest.run()?.printed("1\n")
}

fn in_place(bench: &Bench) -> Result<()> {
    let line = "
mke2fs -b 4096 /dev/md0 >/dev/null 2>&1; mkdir /d && mount -t ext2 -o dax /dev/md0 /d && echo mounted
cp /bin/busybox /d/busybox && sync && cmp /bin/busybox /d/busybox && /d/busybox echo runs
umount /d; mke2fs -b 1024 /dev/md0 >/dev/null 2>&1; mount -t ext2 -o dax /dev/md0 /d && echo mounted
cp /bin/busybox /d/busybox && /d/busybox echo runs";
    let finished = bench.shell(line).option("md=8M").timeout(120).run()?;
    finished.printed("mounted\nruns\nmounted\nruns\n")?;
    let line = "
mke2fs -b 4096 /dev/md0 >/dev/null 2>&1; mkdir /d && mount -t ext2 -o dax /dev/md0 /d
touch /d/in-place && /tests/guest-tests 'in place:' && umount /d && echo off";
    let guest = bench.shell(line).option("md=8M").timeout(120).cpus(2);
    let said = guest.output()?;
    ensure!(
        said.ends_with("off\n") && said.contains("2 passed"),
        "{said}"
    );
    Ok(())
}
