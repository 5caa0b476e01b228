//! Attributes of open files without a place in a file system: eventfds, epolls and similar files.
//!
//! As on Linux they all share one inode, which belongs to no file system that a program can reach.

use core::{sync::atomic::Ordering::Relaxed, time::Duration};

use fs::{Attributes, Kind};
use nucleus::{sync::OnceBox, time};

/// The one inode's number.
pub const INODE: u64 = 1;

/// The attributes of all of them.
pub fn attributes() -> Attributes {
    static DEVICE: OnceBox<u64> = OnceBox::new();
    let device = *DEVICE.get_or_insert(|| alloc::boxed::Box::new(fs::vnode::new_device()));
    Attributes {
        device,
        inode: INODE,
        kind: Kind::Anonymous,
        mode: 0o600,
        links: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        accessed: created(),
        modified: created(),
        changed: created(),
        created: created(),
    }
}

/// Since the epoch, when the system was started.
fn created() -> Duration {
    use core::sync::atomic::AtomicU64;
    static CREATED: AtomicU64 = AtomicU64::new(0);
    match CREATED.load(Relaxed) {
        0 => {
            let boot = time::since_epoch().saturating_sub(time::since_boot());
            CREATED.store(boot.as_secs(), Relaxed);
            boot
        }
        seconds => Duration::from_secs(seconds),
    }
}
