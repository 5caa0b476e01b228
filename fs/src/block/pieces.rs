//! Requests that are too large for one command of their disk.

use alloc::vec::Vec;

use nucleus::dma::Part;

use super::{Limits, Operation, Request, SECTOR};

/// A request in pieces that one command takes each.
pub(super) fn pieces(request: Request, limits: &Limits) -> Vec<Request> {
    let mut pieces = Vec::new();
    let block = u64::from(limits.block_size) / SECTOR as u64;
    if request.operation == Operation::Discard {
        let most = (limits.max_discard / block).max(1) * block;
        let end = request.sector + request.sectors;
        let mut sector = request.sector;
        while sector < end {
            let count = most.min(end - sector);
            pieces.push(Request::discard(sector, count));
            sector += count;
        }
        return pieces;
    }
    let most = limits.max_sectors / block * block;
    let mut current = Request {
        operation: request.operation,
        sector: request.sector,
        sectors: 0,
        parts: Vec::new(),
    };
    let mut parts = request.parts.into_iter();
    let mut rest = parts.next();
    while let Some(mut part) = rest.take() {
        let room = (most - current.sectors) as usize * SECTOR;
        if room == 0 || current.parts.len() == limits.max_parts {
            // A piece ends at a block of the disk's: the bytes beyond begin the next one.
            let next = Request {
                operation: current.operation,
                sector: current.sector + current.sectors,
                sectors: 0,
                parts: Vec::new(),
            };
            let full = core::mem::replace(&mut current, next);
            let beyond = (full.sectors % block) as usize * SECTOR;
            let (full, begun) = cut(full, beyond);
            current.sector -= begun.sectors;
            current.sectors = begun.sectors;
            current.parts = begun.parts;
            pieces.push(full);
            rest = Some(part);
            continue;
        }
        let len = part.len.min(room);
        current.parts.push(Part {
            frame: part.frame.clone(),
            offset: part.offset,
            len,
        });
        current.sectors += (len / SECTOR) as u64;
        part.offset += len;
        part.len -= len;
        rest = if part.len > 0 {
            Some(part)
        } else {
            parts.next()
        };
    }
    pieces.push(current);
    pieces
}

/// Takes the last `bytes` bytes off a request; gives both.
fn cut(mut request: Request, bytes: usize) -> (Request, Request) {
    let mut left = bytes;
    let mut taken = Vec::new();
    while left > 0 {
        let Some(last) = request.parts.last_mut() else {
            break;
        };
        if last.len <= left {
            left -= last.len;
            taken.extend(request.parts.pop());
        } else {
            last.len -= left;
            taken.push(Part {
                frame: last.frame.clone(),
                offset: last.offset + last.len,
                len: left,
            });
            left = 0;
        }
    }
    taken.reverse();
    let sectors = ((bytes - left) / SECTOR) as u64;
    request.sectors -= sectors;
    let rest = Request {
        operation: request.operation,
        sector: request.sector + request.sectors,
        sectors,
        parts: taken,
    };
    (request, rest)
}
