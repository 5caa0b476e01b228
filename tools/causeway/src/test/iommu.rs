//! Devices behind an IOMMU: some of the tests of disks, file systems, swap space and shares, with
//! each kind of unit, and what units are told. The whole groups run so by `causeway test --iommu
//! disk ext2 swap shares`.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Plan};
use super::{disk, ext2, shares, swap};
use crate::disk::Disk;
use crate::qemu::Iommu;

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("iommu") {
        return;
    }
    // Tests of other groups have made files of these names.
    let apart = match bench.apart() {
        Ok(apart) => apart,
        Err(why) => return report.note("iommu", Err(why)),
    };
    let (plain, caching) = (
        &apart.behind(Some(Iommu::On)),
        &apart.behind(Some(Iommu::Caching)),
    );
    report.run("iommu: a disk, 4 CPUs", || disk::patterns(plain, 4, ""));
    for options in ["iommu=open", "iommu=off", "iommu.queue=off"] {
        report.run(&format!("iommu: a disk, 1 CPU {options}"), || {
            disk::patterns(plain, 1, options)
        });
    }
    report.run("iommu: a disk, caching mode, 1 CPU", || {
        disk::patterns(caching, 1, "")
    });
    report.run("iommu: errors of the host", || disk::errors(plain));
    report.run("iommu: a disk that goes away", || disk::gone(plain));
    report.run("iommu: eight disks", || disk::many(plain));
    report.run("iommu: a root that stays, 2 CPUs", || ext2::stays(plain, 2));
    report.run("iommu: files of programs, caching mode, 2 CPUs", || {
        ext2::files(caching, 2, true)
    });
    report.run("iommu: swap, 2 CPUs", || swap::programs(plain, 2));
    report.run("iommu: shares, 4 CPUs", || shares::both_ways(plain, 4));
    for (name, bench) in [("", plain), (", caching mode", caching)] {
        report.run(&format!("iommu: what the unit is told{name}"), || {
            told(bench)
        });
    }
    report.run("iommu: none", || none(bench));
    let without = &apart.behind(None);
    report.run("iommu: tables that make no sense", || nonsense(without));
    report.run("iommu: disks that share a number", || shared(plain));
    report.run("iommu: a disk that goes round it", || beside(bench));
    report.run("iommu: an invalidation that the unit refuses", || {
        spoilt(plain)
    });
    report.run("iommu: a unit that does not answer", || silent(plain));
    for (policy, wanted) in [("strict", STRICT), ("open", OPEN), ("off", OFF)] {
        for cpus in [1, 2] {
            let name = format!("iommu: attacks of a device, {policy}, {cpus} CPUs");
            report.run(&name, || attacks(plain, policy, cpus, wanted));
        }
    }
    report.run("iommu: attacks of a device, strict, caching mode", || {
        attacks(caching, "strict", 1, STRICT)
    });
}

/// A guest that reads a disk and says what it has told the unit.
fn reader(bench: &Bench) -> Result<Plan<'_>> {
    let file = bench.file("disk-told", &vec![1; 4 << 20])?;
    // Until no address is left that is to be forgotten.
    let line = "dd if=/dev/vda of=/dev/null bs=64K 2>/dev/null; f=/proc/causeway/iommu; \
                while grep -q 'pending [1-9]' $f; do usleep 10000; done; cat $f; echo ready; sleep 60";
    Ok(bench.shell(line).disk(Disk::at(&file)?))
}

/// The counters of invalidations are what QEMU's unit has seen.
fn told(bench: &Bench) -> Result<()> {
    let trace = bench.path("trace");
    let words = [
        "-trace",
        "vtd_inv_desc*",
        "-D",
        &trace.display().to_string(),
    ]
    .map(String::from);
    let said = reader(bench)?.words(words).said_before("ready\n")?;
    let trace = fs::read_to_string(trace)?;
    let seen = |event: &str| {
        let events = trace.lines().filter(|line| line.contains(event));
        events.count()
    };
    for (counter, events) in [
        ("iommu_global_invalidations", "vtd_inv_desc_iotlb_global "),
        ("iommu_domain_invalidations", "vtd_inv_desc_iotlb_domain "),
        ("iommu_page_invalidations", "vtd_inv_desc_iotlb_pages "),
        ("iommu_interrupt_invalidations", "vtd_inv_desc_iec "),
    ] {
        let line = said.lines().find_map(|line| line.strip_prefix(counter));
        let count: usize = line.context(counter)?.trim().parse()?;
        ensure!(
            count == seen(events),
            "{counter} is {count}; QEMU has {} {events}",
            seen(events)
        );
    }
    let contexts = seen("vtd_inv_desc_cc_global ") + seen("vtd_inv_desc_cc_devices ");
    ensure!(
        said.contains(&format!("iommu_context_invalidations {contexts}\n")),
        "QEMU has {contexts} invalidations of contexts: {said}"
    );
    ensure!(said.contains("iommu_faults 0\n"), "{said}");
    Ok(())
}

/// A disk that QEMU does not put behind the unit uses physical addresses, and works.
fn beside(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-beside-iommu", &vec![1; 1 << 20])?;
    let line = "md5sum < /dev/vda; dmesg | grep -c 'goes round it'";
    let bench = bench.behind(Some(Iommu::Around));
    let finished = bench.shell(line).disk(Disk::at(&file)?).run()?;
    // The disk, and the source of random numbers.
    finished.printed("d35bb2e58b602d94ccd9628f249ae7e5  -\n2\n")
}

/// The lines of `nucleus/src/selftest/edu.rs` where each access is refused that no request needs.
const STRICT: &str = "
policy Strict
its own memory: works
registers that are memory: refused
kernel text: read refused, write refused
IDT: read refused, write refused
GDT: read refused, write refused
a page table: read refused, write refused
a pooled frame: read refused, write refused
another program's page: read refused, write refused
a free frame: read refused, write refused
memory of a request: works
a frame freed and still pending: not free
a frame that becomes the kernel's during the access: write refused
an address that is not mapped: read refused, write refused
an address that is too large: read refused, write refused
after many faults it is stopped
it reaches nothing
its driver hears of it
";
/// Those where memory that is free or data stays open.
const OPEN: &str = "
policy Open
its own memory: works
registers that are memory: refused
kernel text: read refused, write refused
IDT: read refused, write refused
GDT: read refused, write refused
a page table: read refused, write refused
a pooled frame: read refused, write refused
another program's page: read reached, write reached
a free frame: read reached, write reached
memory of a request: works
a frame that becomes the kernel's during the access: write refused
an address that is not mapped: read refused, write refused
an address that is too large: read refused, write refused
after many faults it is stopped
it reaches nothing
its driver hears of it
";
/// The same without a rule.
const OFF: &str = "
policy Off
its own memory: works
registers that are memory: refused
kernel text: read reached
IDT: read reached
GDT: read reached
a page table: read reached
a pooled frame: read reached
another program's page: read reached
a free frame: read reached
memory of a request: works
an address that is not mapped: read silent
an address that is too large: read silent
";

fn attacks(bench: &Bench, policy: &str, cpus: u32, wanted: &str) -> Result<()> {
    let guest = bench.guest(&["true"]).cpus(cpus);
    let guest = guest.option(&format!("iommu={policy} fault_injection=edu"));
    let device = ["-device", "edu,dma_mask=0xffffffffffffffff"];
    let finished = guest.words(device).run()?;
    finished.ended(0)?;
    let said = |line: &String| {
        line.split_once("] edu: ")
            .map(|(_, said)| format!("{said}\n"))
    };
    let said: String = finished.log.iter().filter_map(said).collect();
    ensure!(said == wanted.trim_start(), "{said}{}", finished.why());
    Ok(())
}

/// After an error of its queue, the unit is told everything anew, and the disk works.
fn spoilt(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-spoilt", &vec![1; 1 << 20])?;
    let line = "md5sum < /dev/vda; grep iommu_queue_errors /proc/causeway/iommu; \
                grep 'unit 0' /proc/causeway/iommu";
    let guest = bench.shell(line).disk(Disk::at(&file)?);
    let finished = guest.option("fault_injection=iommu-error").run()?;
    finished.printed(
        "d35bb2e58b602d94ccd9628f249ae7e5  -\niommu_queue_errors 1\n\
         unit 0 on by queue interrupts_remapped 1\n",
    )
}

/// Reads a disk until that fails; the machine goes on without its devices.
const UNTIL_SILENCE: &str = "
while dd if=/dev/vda of=/dev/null bs=4096 count=1 skip=200 2>/dev/null; do usleep 20000; done
grep -o 'unit 0 lost' /proc/causeway/iommu; dmesg | grep -c 'a unit does not answer'";

fn silent(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-silent", &vec![1; 1 << 20])?;
    let guest = bench.shell(UNTIL_SILENCE).disk(Disk::at(&file)?);
    let finished = guest.option("fault_injection=iommu-silence").run()?;
    finished.printed("unit 0 lost\n1\n")
}

/// Disks behind a bridge to conventional PCI, whose requests the unit can't tell apart, are not
/// used; another one is.
fn shared(bench: &Bench) -> Result<()> {
    let file = bench.file("disk-alone", &vec![1; 1 << 20])?;
    let mut words: Vec<String> = Vec::new();
    let mut device = |word: String| words.extend(["-device".into(), word]);
    device("pcie-root-port,id=above,chassis=1".into());
    device("pcie-pci-bridge,id=shared,bus=above".into());
    for at in 0..2 {
        device(format!(
            "virtio-blk-pci,bus=shared,addr={at},drive=shared-{at}"
        ));
    }
    for at in 0..2 {
        let path = bench.file(&format!("disk-shared-{at}"), &[2; 1 << 16])?;
        let drive = format!("if=none,id=shared-{at},format=raw,file={}", path.display());
        words.extend(["-drive".into(), drive]);
    }
    let line =
        "md5sum < /dev/vda; ls /sys/block | grep -c vd; dmesg | grep -c 'a number of its own'";
    let finished = bench
        .shell(line)
        .disk(Disk::at(&file)?)
        .words(words)
        .run()?;
    finished.printed("d35bb2e58b602d94ccd9628f249ae7e5  -\n1\n2\n")
}

/// Whatever the firmware's table of units says, the machine starts, and its disk works by physical
/// addresses.
fn nonsense(bench: &Bench) -> Result<()> {
    let unit = |at: u64, length: u16| {
        let [low, high] = length.to_le_bytes();
        [&[0, 0, low, high, 1, 0, 0, 0][..], &at.to_le_bytes()].concat()
    };
    let file = bench.file("disk-nonsense", &vec![1; 1 << 20])?;
    for (name, entries) in [
        ("none", vec![]),
        ("memory", unit(0x100_0000, 16)),
        ("beyond", unit(0xf_ffff_ffff_f000, 16)),
        ("interrupts", unit(0xfee0_0000, 16)),
        ("timer", unit(0xfed0_0000, 16)),
        ("short", unit(0xfed9_0000, 8)),
        ("endless", unit(0xfed9_0000, 0)),
        ("long", unit(0xfed9_0000, 0xffff)),
    ] {
        // Width, flags, and what is reserved.
        let table = [&[38, 1][..], &[0; 10], &entries].concat();
        let table = bench.file(&format!("dmar-{name}"), &table)?;
        let words = [
            "-acpitable".into(),
            format!("sig=DMAR,data={}", table.display()),
        ];
        let guest = bench.shell("md5sum < /dev/vda; grep policy /proc/causeway/iommu");
        let finished = guest.disk(Disk::at(&file)?).words(words).run()?;
        let printed = finished.printed("d35bb2e58b602d94ccd9628f249ae7e5  -\npolicy off\n");
        printed.with_context(|| name.to_string())?;
    }
    Ok(())
}

/// Without an IOMMU the log says so, once.
fn none(bench: &Bench) -> Result<()> {
    let line = "dmesg | grep -c 'no IOMMU: devices reach all memory'";
    bench.behind(None).shell(line).run()?.printed("1\n")
}
