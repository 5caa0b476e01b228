//! Requests that are too large for one command of their disk.

use alloc::{collections::VecDeque, vec::Vec};

use nucleus::dma::Part;

use super::{Limits, Operation, Request, SECTOR};

/// A request in pieces that one command takes each, whole blocks of the disk's.
pub(super) fn pieces(request: Request, limits: &Limits) -> Vec<Request> {
    let mut pieces = Vec::new();
    let block = u64::from(limits.block_size) / SECTOR as u64;
    let mut sector = request.sector;
    if request.operation == Operation::Discard {
        let most = (limits.max_discard / block).max(1) * block;
        let end = sector + request.sectors;
        while sector < end {
            let count = most.min(end - sector);
            pieces.push(Request::discard(sector, count));
            sector += count;
        }
        return pieces;
    }
    let mut parts: VecDeque<Part> = request.parts.into();
    parts.retain(|part| part.len > 0);
    while !parts.is_empty() {
        let bytes: usize = parts
            .iter()
            .take(limits.max_parts)
            .map(|part| part.len)
            .sum();
        let sectors = ((bytes / SECTOR) as u64).min(limits.max_sectors) / block * block;
        let piece = take(&mut parts, sectors as usize * SECTOR);
        pieces.push(Request::transfer(request.operation, sector, piece));
        sector += sectors;
    }
    pieces
}

/// Takes the first `bytes` bytes out of `parts`.
fn take(parts: &mut VecDeque<Part>, bytes: usize) -> Vec<Part> {
    let (mut taken, mut left) = (Vec::new(), bytes);
    while left > 0
        && let Some(part) = parts.front_mut()
    {
        let len = part.len.min(left);
        left -= len;
        taken.push(Part::new(part.frame.clone(), part.offset, len));
        part.offset += len;
        part.len -= len;
        if part.len == 0 {
            parts.pop_front();
        }
    }
    taken
}
