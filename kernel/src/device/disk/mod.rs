//! Disks: the devices behind `/dev/vda` and `/dev/md0`.
//!
//! `virtio`: the host's disks. Memory disks, and persistent memory as `/dev/pmem0`, are the file
//! systems' own ([`MemoryDisk`]). `node`: what opening a block device gives.

mod virtio;

use alloc::{format, string::String, sync::Arc};

use abi::{Errno, Result};
use fs::{
    block::{
        self, Device, Disk, MEMORY_MAJOR, MemoryDisk, PERSISTENT_MAJOR, SECTOR, VIRTIO_MAJOR,
        VIRTIO_MINORS,
    },
    device::number,
};
use nucleus::{
    log,
    virtio::{Kind, take},
};

/// Finds the host's disks and persistent memory, and makes memory disks of these sizes in bytes.
///
/// # Errors
/// A sentence that describes the error. An unusable disk of the host is only logged.
pub fn start(memory: &[u64]) -> core::result::Result<(), String> {
    for (index, found) in (0..).zip(take(Kind::Block)) {
        let name = format!("vd{}", letters(index));
        let device = virtio::start(found)
            .and_then(|disk| add(&name, number(VIRTIO_MAJOR, index * VIRTIO_MINORS), disk));
        match device {
            Ok(device) => announce(&device),
            Err(error) => log!("disk: {name} can't be used: {}", error.name()),
        }
    }
    for (index, &bytes) in (0..).zip(memory) {
        let name = format!("md{index}");
        let made = MemoryDisk::new(bytes)
            .and_then(|disk| add(&name, number(MEMORY_MAJOR, index), Arc::new(disk)));
        match made {
            Ok(device) => announce(&device),
            Err(Errno::ENOMEM) => return Err(format!("no memory for the memory disk {name}")),
            Err(error) => return Err(format!("can't make the disk {name}: {}", error.name())),
        }
    }
    for index in 0.. {
        let name = format!("pmem{index}");
        let made = match MemoryDisk::persistent() {
            Ok(None) => break,
            Ok(Some(disk)) => add(&name, number(PERSISTENT_MAJOR, index), Arc::new(disk)),
            Err(error) => Err(error),
        };
        match made {
            Ok(device) => announce(&device),
            Err(error) => log!("disk: {name} can't be used: {}", error.name()),
        }
    }
    Ok(())
}

fn add(name: &str, number: u64, disk: Arc<dyn Disk>) -> Result<Arc<Device>> {
    let device = Device::new(name, number, disk)?;
    block::register(&device)?;
    Ok(device)
}

fn announce(device: &Device) {
    let limits = device.limits();
    log!(
        "disk: {}, {} KiB, blocks of {} bytes{}{}",
        device.name(),
        limits.sectors * SECTOR as u64 / 1024,
        limits.block_size,
        if limits.read_only { ", read-only" } else { "" },
        if limits.volatile_cache {
            ", with a cache"
        } else {
            ""
        },
    );
}

/// `a` to `z`, `aa` and so on, as Linux counts disks.
fn letters(index: u32) -> String {
    let mut left = index + 1;
    let mut letters = String::new();
    while left > 0 {
        left -= 1;
        letters.insert(0, char::from(b'a' + (left % 26) as u8));
        left /= 26;
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::letters;

    #[test]
    fn disks_are_counted_as_on_linux() {
        for (index, name) in [(0, "a"), (25, "z"), (26, "aa"), (701, "zz"), (702, "aaa")] {
            assert_eq!(letters(index), name);
        }
    }
}
