//! The address families.

use abi::{Errno, Result};

use super::{Family, inet, netlink, packet, unix};

static FAMILIES: &[Family] = &[
    unix::FAMILY,
    inet::V4,
    inet::V6,
    netlink::FAMILY,
    packet::FAMILY,
];

/// The family `domain`.
///
/// # Errors
/// `EAFNOSUPPORT`.
pub fn family(domain: u32) -> Result<&'static Family> {
    FAMILIES
        .iter()
        .find(|family| family.domain == domain)
        .ok_or(Errno::EAFNOSUPPORT)
}
