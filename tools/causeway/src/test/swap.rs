//! Guests with swap space: programs larger than the machine, devices that come and go.

use anyhow::Result;

use super::Report;
use super::boot::{Bench, Plan};
use crate::disk::Disk;
use crate::root::ext2;
use crate::swap::Swap;

/// A sector of the hundredth swap slot.
const BAD_SECTOR: u32 = 100 * 8;

/// Runs them, and with `long` on machines with other numbers of CPUs than 2: one CPU has the group
/// *iommu* as well.
pub fn run(bench: &Bench, report: &mut Report, long: bool) {
    if !report.wants("swap") {
        return;
    }
    for &cpus in if long { &[1, 2, 4][..] } else { &[2] } {
        report.run(&format!("swap: guest programs, {cpus} CPUs"), || {
            programs(bench, cpus)
        });
    }
    report.run("swap: a sector that can't be read", || {
        let events = ["read_aio,file.inject-error.0.iotype=read"];
        let guest = tests(bench, 2, "unreadable:");
        let disk = space(bench, "16M")?;
        guest
            .bad_disk(disk.file(), BAD_SECTOR, &events)
            .guest_tests()
    });
    for (name, option, sentence) in [
        (
            "no such device",
            "swap=/dev/vdq",
            "there is no disk /dev/vdq",
        ),
        ("no swap space", "md=1M swap=/dev/md0", "is no swap space"),
    ] {
        report.run(&format!("swap: {name}"), || {
            let guest = bench.guest(&["true"]).option(option);
            guest.run()?.says(sentence)
        });
    }
}

/// Programs larger than the machine.
pub(super) fn programs(bench: &Bench, cpus: u32) -> Result<()> {
    let image = bench.path(&format!("swap-ext2-{cpus}"));
    ext2::make(None, &image, Some(16 << 20))?;
    let guest = tests(bench, cpus, "swap:");
    let guest = guest.disk(space(bench, "160M")?).disk(Disk::at(&image)?);
    guest.guest_tests()
}

/// A disk with new swap space.
pub fn space(bench: &Bench, size: &str) -> Result<Disk> {
    size.parse::<Swap>()?.disk(&bench.fresh_folder("swap")?)
}

/// The guest programs of a name in less memory than they use; the first disk is swap space.
fn tests<'a>(bench: &'a Bench, cpus: u32, name: &str) -> Plan<'a> {
    let guest = bench.guest(&["/tests/guest-tests", name]);
    let guest = guest.cpus(cpus).memory("64M").timeout(240);
    guest.option("md=4M").option("swap=/dev/vda")
}
