//! Devices and files as swap space: valid ones, `swapon` and `swapoff`.

use super::state::{
    DEVICE, SWAP_FLAG_PREFER, check, expect_slots, fill, needs_swap, send_away, state,
};
use support::prelude::*;

pub fn refusals() -> Outcome {
    needs_swap()?;
    let (plain, descriptor) = file("plain", &[0; 16 * PAGE])?;
    call!(close(descriptor));
    // A tmpfs file has no blocks.
    for path in ["/dev/null", "/", plain.as_str()] {
        let name = c(path);
        refused!(EINVAL, swapon(name.as_ptr(), 0));
    }
    let (device, nothing) = (c(DEVICE), c("/nowhere"));
    refused!(EBUSY, swapon(device.as_ptr(), 0));
    refused!(EINVAL, swapon(device.as_ptr(), 1 << 20));
    refused!(ENOENT, swapon(nothing.as_ptr(), 0));
    refused!(ENOENT, swapoff(nothing.as_ptr()));
    let null = c("/dev/null");
    refused!(EINVAL, swapoff(null.as_ptr()));
    child(|| {
        call!(setuid(1000));
        let name = c(DEVICE);
        refused!(EPERM, swapoff(name.as_ptr()));
        refused!(EPERM, swapon(name.as_ptr(), 0));
        Ok(())
    })
}

pub fn off_and_on() -> Outcome {
    needs_swap()?;
    let pages = 300;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 5);
    send_away(memory, pages)?;
    let name = c(DEVICE);
    call!(swapoff(name.as_ptr()));
    ensure!(state()?.is_none(), "it is still in /proc/swaps");
    equal!(field("/proc/meminfo", "SwapTotal")?, 0);
    refused!(EINVAL, swapoff(name.as_ptr()));
    for page in 0..pages {
        check(memory, page, 5)?;
    }
    call!(swapon(name.as_ptr(), SWAP_FLAG_PREFER | 7));
    let [size, used, priority] = state()?.ok_or("it is not in /proc/swaps")?;
    ensure!(size > 0 && used == 0 && priority == 7, size, used, priority);
    send_away(memory, pages)?;
    for page in 0..pages {
        check(memory, page, 5)?;
    }
    Ok(())
}

/// Makes a swap space of so many pages of a file or device, as `mkswap` does.
pub fn prepare(path: &str, pages: usize) -> Outcome {
    let mut header = vec![0; PAGE];
    header[1024] = 1;
    header[1028..1032].copy_from_slice(&(pages as u32 - 1).to_le_bytes());
    header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    let mut open = fs::OpenOptions::new();
    let mut write = || -> io::Result<()> {
        let mut file = open.write(true).create(true).open(path)?;
        for page in 0..pages {
            match page {
                0 => file.write_all(&header)?,
                _ => file.write_all(&[7; PAGE])?,
            }
        }
        file.sync_all()
    };
    write().map_err(|error| format!("{path}: {error}").into())
}

/// Swaps to another device instead of the host's while `body` runs.
pub fn instead(path: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    let (device, other) = (c(DEVICE), c(path));
    call!(swapoff(device.as_ptr()));
    call!(swapon(other.as_ptr(), 0));
    let outcome = body();
    let off = || {
        call!(swapoff(other.as_ptr()));
        call!(swapon(device.as_ptr(), 0));
        Ok(())
    };
    outcome.and(off())
}

/// The file can be neither removed nor changed while it is in use.
pub fn on_a_file() -> Outcome {
    const DISK: &str = "/dev/vdb";
    needs_swap()?;
    if !fs::exists(DISK).unwrap_or(false) {
        return Err(skip(format!("there is no {DISK}")));
    }
    let folder = folder("swap-file")?;
    let (disk, at, kind) = (c(DISK), c(&folder), c("ext2"));
    call!(mount(disk.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, null()));
    let (path, other) = (format!("{folder}/swap"), format!("{folder}/other"));
    prepare(&path, 600)?;
    fs::write(&other, "other")?;
    let (name, new) = (c(&path), c(&other));
    instead(&path, || {
        let pages = 400;
        let memory = map(pages * PAGE)?;
        fill(memory, pages, 4);
        send_away(memory, pages)?;
        let out = field("/proc/meminfo", "SwapTotal")? - field("/proc/meminfo", "SwapFree")?;
        ensure!(out >= 1500, "only {out} KiB went");
        refused!(EPERM, unlink(name.as_ptr()));
        refused!(EPERM, rename(name.as_ptr(), new.as_ptr()));
        refused!(EPERM, rename(new.as_ptr(), name.as_ptr()));
        refused!(ETXTBSY, truncate(name.as_ptr(), 0));
        refused!(EBUSY, umount2(at.as_ptr(), 0));
        for page in (0..pages).rev() {
            check(memory, page, 4)?;
        }
        send_away(memory, pages)?;
        for page in 0..pages / 2 {
            check(memory, page, 4)?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(None)
    })?;
    call!(unlink(name.as_ptr()));
    call!(umount2(at.as_ptr(), 0));
    Ok(())
}

/// One slot cannot be read: only the fault on its page fails.
pub fn unreadable() -> Outcome {
    needs_swap()?;
    let pages = 256;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 5);
    send_away(memory, pages)?;
    let before = field("/proc/vmstat", "pswpin")?;
    let mut failed = Vec::new();
    for page in 0..pages {
        let at = memory.wrapping_add(page * PAGE + page % PAGE);
        let read = || {
            peek(at);
        };
        match fault_of(read)? {
            None => check(memory, page, 5)?,
            Some(fault) => failed.push((page, fault.signal)),
        }
    }
    let read = field("/proc/vmstat", "pswpin")? - before;
    ensure!(matches!(failed[..], [(_, SIGBUS)]), failed, read);
    let name = c(DEVICE);
    // It cannot be paged in.
    refused!(EIO, swapoff(name.as_ptr()));
    ensure!(state()?.is_some(), "it is not in /proc/swaps any more");
    call!(munmap(memory.cast(), pages * PAGE));
    expect_slots(None)?;
    call!(swapoff(name.as_ptr()));
    Ok(())
}
