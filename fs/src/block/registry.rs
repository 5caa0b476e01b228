//! Block devices by name and by number.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result};
use nucleus::sync::{Rank, SpinLock};

use super::Device;

static DEVICES: SpinLock<Vec<Arc<Device>>> = SpinLock::new(Rank::Leaf, Vec::new());

/// From now on the device is found by its name and number.
///
/// # Errors
/// `EEXIST` if another one has either of them, `ENOMEM`.
pub fn register(device: &Arc<Device>) -> Result<()> {
    let mut devices = DEVICES.lock();
    let taken =
        |other: &Arc<Device>| other.name() == device.name() || other.number() == device.number();
    if devices.iter().any(taken) {
        return Err(Errno::EEXIST);
    }
    devices.try_reserve(1)?;
    devices.push(device.clone());
    Ok(())
}

/// Removes it from the registry; its holders keep it.
pub fn unregister(device: &Arc<Device>) {
    let mut devices = DEVICES.lock();
    let found = devices.iter().position(|other| Arc::ptr_eq(other, device));
    let gone = found.map(|at| devices.remove(at));
    drop(devices);
    // Its last handle may be the one that went.
    drop(gone);
}

/// The device that is called `name`: `vda`, `md0`.
pub fn by_name(name: &[u8]) -> Option<Arc<Device>> {
    let devices = DEVICES.lock();
    devices
        .iter()
        .find(|device| device.name().as_bytes() == name)
        .cloned()
}

/// The device with this `dev_t`.
pub fn by_number(number: u64) -> Option<Arc<Device>> {
    let devices = DEVICES.lock();
    devices
        .iter()
        .find(|device| device.number() == number)
        .cloned()
}

/// All of them, in the order in which they were registered.
pub fn all() -> Vec<Arc<Device>> {
    DEVICES.lock().clone()
}
