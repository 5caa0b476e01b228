//! The audit of all page tables: see [`nucleus::pmap::audit`].

use nucleus::dma::audit_devices;
use nucleus::ephemeral::audit::audit_kernel;
use nucleus::pmap::audit::{Report, Seen, audit_frames, audit_space};

use super::SPACES;
use crate::chunks::Hand;

/// Audits the page tables of all address spaces, all frames, and what the kernel maps and devices
/// reach, while all
/// else goes on. May sleep.
pub fn audit_page_tables(report: Report<'_>) -> Seen {
    let mut seen = Seen::default();
    let mut hand = Hand::default();
    while let Some(pmap) = SPACES.next(&mut hand) {
        audit_space(&pmap, &mut seen, report);
    }
    audit_frames(false, &mut seen, report);
    audit_kernel(&mut seen, report);
    audit_devices(&mut seen, report);
    seen
}
