//! What remapping units and domains do, for `/proc/causeway/iommu`.

use alloc::{format, string::String, vec::Vec};

use super::dma;
use crate::{
    OutOfMemory,
    hw::{iommu::Device, machine},
    mem::domain,
};

pub use crate::hw::iommu::UnitState;

/// A device before which a unit stands, or whose accesses were refused.
pub struct DeviceState {
    device: Device,
    /// The number of its domain; 0 is that of all open frames.
    pub domain: Option<u16>,
    /// Pages that are mapped for it.
    pub mapped: usize,
    /// Pages that no request uses any more, but that units may still hold.
    pub pending: usize,
    /// Accesses that were refused.
    pub faults: u64,
    /// They were too many: the device is no bus master any more.
    pub is_blocked: bool,
}

impl DeviceState {
    fn new(device: Device) -> DeviceState {
        DeviceState {
            device,
            domain: None,
            mapped: 0,
            pending: 0,
            faults: 0,
            is_blocked: false,
        }
    }

    /// Bus, device and function.
    pub fn place(&self) -> String {
        format!("{}", self.device)
    }
}

/// The units that are used, in the firmware's order.
pub fn units() -> impl Iterator<Item = UnitState> {
    machine::iommu_units()
}

/// Accesses that were refused and of which nothing else is known, at least.
pub fn lost_faults() -> u64 {
    machine::iommu_lost_faults()
}

/// All devices with a domain or with faults, by place.
///
/// # Errors
/// [`OutOfMemory`].
pub fn devices() -> Result<Vec<DeviceState>, OutOfMemory> {
    let mut found: Vec<DeviceState> = Vec::new();
    let mut result = Ok(());
    domain::each(|domain| {
        let mut state = DeviceState::new(domain.device());
        state.domain = Some(domain.strict().map_or(0, |it| it.id()));
        [state.mapped, state.pending] = match domain.strict() {
            Some(strict) => strict.usage(),
            None => [domain::open::count(), 0],
        };
        match found.try_reserve(1) {
            Ok(()) => found.push(state),
            Err(_) => result = Err(OutOfMemory),
        }
    });
    dma::wake_if_last();
    for (device, faults, is_blocked) in super::refused::all() {
        found.try_reserve(1).map_err(|_| OutOfMemory)?;
        let at = match found.iter().position(|it| it.device == device) {
            Some(at) => at,
            None => {
                found.push(DeviceState::new(device));
                found.len() - 1
            }
        };
        (found[at].faults, found[at].is_blocked) = (faults, is_blocked);
    }
    found.sort_unstable_by_key(|it| it.device);
    result.map(|()| found)
}
