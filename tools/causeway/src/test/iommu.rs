//! Devices behind an IOMMU: some of the tests of disks, file systems, swap space and shares, with
//! each kind of unit, and counters of invalidations. The whole groups run so by `causeway test
//! --iommu disk ext2 swap shares`.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Report;
use super::boot::{Bench, Finished, Plan};
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
    report.run("iommu: files of programs, caching mode, 1 CPU", || {
        ext2::files(caching, 1, false)
    });
    report.run("iommu: swap, 1 CPU", || swap::programs(plain, 1));
    report.run("iommu: shares, 4 CPUs", || shares::both_ways(plain, 4));
    for (name, bench) in [("", plain), (", caching mode", caching)] {
        report.run(&format!("iommu: invalidations{name}"), || {
            invalidations(bench)
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
    report.run("iommu: a device whose unit does not answer", || {
        cut_off(plain)
    });
    for policy in ["strict", "open", "off"] {
        for cpus in [1, 2] {
            let name = format!("iommu: attacks of a device, {policy}, {cpus} CPUs");
            report.run(&name, || attacks(plain, policy, cpus));
        }
    }
    for (mistake, policy, line) in MISTAKES {
        report.run(&format!("iommu: an attack meets {mistake}"), || {
            reaches(plain, mistake, policy, line)
        });
    }
    report.run("iommu: attacks of a device, strict, caching mode", || {
        attacks(caching, "strict", 1)
    });
}

/// A guest that reads a disk and shows its counters of invalidations.
fn reader(bench: &Bench) -> Result<Plan<'_>> {
    let file = bench.file("disk-invalidations", &vec![1; 4 << 20])?;
    // Until no address is left that is to be invalidated.
    let line = "dd if=/dev/vda of=/dev/null bs=64K 2>/dev/null; f=/proc/causeway/iommu; \
                while grep -q 'pending [1-9]' $f; do usleep 10000; done; cat $f; echo ready; sleep 60";
    Ok(bench.shell(line).disk(Disk::at(&file)?))
}

/// The counters of invalidations agree with the trace of QEMU's unit.
fn invalidations(bench: &Bench) -> Result<()> {
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

/// The lines of `nucleus/src/selftest/edu.rs` under a policy: `strict` refuses each access that no
/// request needs; `open` leaves memory that is free or data open; `off` refuses nothing.
fn expected(policy: &str) -> String {
    const NEVER: [&str; 5] = [
        "kernel text",
        "IDT",
        "GDT",
        "a page table",
        "a pooled frame",
    ];
    const OPEN: [&str; 2] = ["another program's page", "a free frame"];
    const NOWHERE: [&str; 2] = [
        "an address that is not mapped",
        "an address that is too large",
    ];
    let (is_off, is_strict) = (policy == "off", policy == "strict");
    let name = match policy {
        "off" => "Off",
        "open" => "Open",
        _ => "Strict",
    };
    let mut lines = vec![
        format!("policy {name}"),
        "its own memory: works".into(),
        "registers that are memory: refused".into(),
    ];
    let access = |target: &str, outcome: &str| match is_off {
        true => format!("{target}: read {outcome}"),
        false => format!("{target}: read {outcome}, write {outcome}"),
    };
    let protected = if is_off { "reached" } else { "refused" };
    lines.extend(NEVER.map(|target| access(target, protected)));
    let open = if is_strict { "refused" } else { "reached" };
    lines.extend(OPEN.map(|target| access(target, open)));
    lines.push("memory of a request: works".into());
    if is_strict {
        lines.push("a frame freed and still pending: not free".into());
    }
    if !is_off {
        let race = "a frame that becomes a table during the access: write refused";
        lines.push(race.into());
    }
    let nowhere = if is_off { "silent" } else { "refused" };
    lines.extend(NOWHERE.map(|target| access(target, nowhere)));
    if !is_off {
        let after = [
            "after many faults it is stopped",
            "it is no bus master",
            "its domain is given up",
            "it reaches nothing",
        ];
        lines.extend(after.map(String::from));
        lines.push("its driver hears of it".into());
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// A guest whose kernel lets an `edu` device attack it.
fn attacked(bench: &Bench, policy: &str, cpus: u32, attack: &str) -> Result<Finished> {
    let guest = bench.guest(&["true"]).cpus(cpus);
    let guest = guest.option(&format!("iommu={policy} fault_injection={attack}"));
    let device = ["-device", "edu,dma_mask=0xffffffffffffffff"];
    guest.words(device).run()
}

/// The lines of the log about attacks.
fn outcomes(finished: &Finished) -> String {
    let outcome = |line: &String| {
        line.split_once("] edu: ")
            .map(|(_, outcome)| format!("{outcome}\n"))
    };
    finished.log.iter().filter_map(outcome).collect()
}

fn attacks(bench: &Bench, policy: &str, cpus: u32) -> Result<()> {
    let finished = attacked(bench, policy, cpus, "edu")?;
    finished.ended(0)?;
    let said = outcomes(&finished);
    ensure!(said == expected(policy), "{said}{}", finished.why());
    Ok(())
}

/// Rules, by the mistakes that remove them (`nucleus/src/mem/mistake.rs`), and the first line that
/// differs then.
const MISTAKES: [(&str, &str, &str); 9] = [
    (
        "TableNotWithdrawn",
        "open",
        "a page table: read reached, write reached",
    ),
    (
        "PooledReturns",
        "open",
        "a pooled frame: read reached, write reached",
    ),
    ("LeavesWithoutInvalidation", "open", LATE),
    ("BatchNotInvalidated", "strict", LATE),
    (
        "PendingReleased",
        "strict",
        "a frame freed and still pending: free",
    ),
    ("FaultsUnlimited", "strict", "after many faults it goes on"),
    ("BusMasterKept", "strict", "it is still a bus master"),
    ("DomainKept", "strict", "its domain is kept"),
    (
        "DriversNotNotified",
        "strict",
        "its driver does not hear of it",
    ),
];
const LATE: &str = "a frame that becomes a table during the access: write reached";

/// Without a rule, the attack on it succeeds. The kernel may find that itself, later.
fn reaches(bench: &Bench, mistake: &str, policy: &str, line: &str) -> Result<()> {
    let finished = attacked(bench, policy, 1, &format!("edu:{mistake}"))?;
    let said = outcomes(&finished);
    let wanted = expected(policy);
    let differs = said.lines().zip(wanted.lines()).find(|(a, b)| a != b);
    let found = differs.map(|(said, _)| said);
    ensure!(found == Some(line), "{said}{}", finished.why());
    Ok(())
}

/// After an error of the queue, all caches of the unit are invalidated, and the disk works.
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

/// When an invalidation finds that the unit does not answer, its devices reach nothing.
fn cut_off(bench: &Bench) -> Result<()> {
    let finished = attacked(bench, "strict", 1, "edu-silence")?;
    finished.ended(0)?;
    let said = outcomes(&finished);
    let wanted = "its own memory: works\nit is no bus master\nit reaches nothing\n";
    ensure!(said == wanted, "{said}{}", finished.why());
    Ok(())
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
