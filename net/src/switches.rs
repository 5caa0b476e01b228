//! The switches of this floor: see [`nucleus::switches`].

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nucleus::switches::{
    Switch,
    Values::{Number, OneOf},
};

/// New stacks send packets between the ends of connections inside the machine.
static BY_PACKETS: AtomicU32 = AtomicU32::new(0);
/// The largest of these packets.
static MTU: AtomicU32 = AtomicU32::new(u16::MAX as u32);

/// Switches of the loopback interface.
pub const SWITCHES: &[Switch] = &[
    Switch {
        name: "loopback",
        values: OneOf(&["joined", "ip"]),
        default: "joined",
        is_live: false,
        get: || [BY_PACKETS.load(Relaxed), 0],
        set: |[n, _]| {
            BY_PACKETS.store(n, Relaxed);
            Ok(())
        },
    },
    Switch {
        name: "loopback.mtu",
        // IPv6 needs 1280.
        values: Number(1280, 65_535, "bytes"),
        default: "65535",
        is_live: false,
        get: || [MTU.load(Relaxed), 0],
        set: |[n, _]| {
            MTU.store(n, Relaxed);
            Ok(())
        },
    },
];

/// Returns the largest packet of connections inside the machine; `None` if they use none.
pub fn loopback_mtu() -> Option<u16> {
    (BY_PACKETS.load(Relaxed) != 0).then(|| MTU.load(Relaxed) as u16)
}
