//! See [`crate::hw::iommu`].

use crate::PhysAddr;
use crate::hw::iommu::{Device, Domain, Fault, Features, Stale};

pub(crate) fn iommu_features() -> Option<Features> {
    None
}

pub(crate) fn iommu_attach(_device: Device, _domain: Domain, _root: PhysAddr) {}

pub(crate) fn iommu_detach(_device: Device) {}

pub(crate) fn iommu_forget(_stale: &[Stale]) {}

pub(crate) fn iommu_written(_at: PhysAddr, _bytes: usize) {}

pub(crate) fn iommu_take_fault() -> Option<Fault> {
    None
}
