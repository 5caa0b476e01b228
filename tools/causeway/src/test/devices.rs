//! Devices whose memory programs map: the host sees what a guest stored, where it stored it.

use std::fs;

use anyhow::{Result, ensure};

use super::Report;
use super::boot::Bench;
use crate::disk::Disk;

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
}

fn mapped(bench: &Bench, cpus: u32) -> Result<()> {
    let shared = bench.file("ivshmem", &vec![0; SHARED])?;
    let disk = bench.file("disk-beside", &[0; 1 << 16])?;
    let memory = format!(
        "memory-backend-file,id=shared,share=on,size={SHARED},mem-path={}",
        shared.display()
    );
    let guest = bench.guest(&["/tests/guest-tests", "bus:"]).cpus(cpus);
    let guest = guest.timeout(120).disk(Disk::at(&disk)?).words([
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
