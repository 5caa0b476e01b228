//! Room for the registers of a device that the firmware gave none.

/// Where there is neither memory nor a register of the platform on any machine of this kind: below
/// the I/O APIC's.
const START: u64 = 0xe000_0000;
const END: u64 = 0xfec0_0000;

/// An address for `size` bytes, a power of two, that none of the `used` ranges (address, bytes)
/// overlaps.
pub(super) fn find(size: u64, used: &[(u64, u64)]) -> Option<u32> {
    // Whole pages: registers of two devices share none.
    let size = size
        .max(crate::PAGE_SIZE as u64)
        .checked_next_power_of_two()?;
    let mut at = START.next_multiple_of(size);
    while at.checked_add(size)? <= END {
        let over = used
            .iter()
            .find(|&&(address, len)| address < at + size && at < address.saturating_add(len));
        match over {
            None => return u32::try_from(at).ok(),
            Some(&(address, len)) => {
                at = address.saturating_add(len).checked_next_multiple_of(size)?;
            }
        }
    }
    None
}
