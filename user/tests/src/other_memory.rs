//! Memory of another process: `process_vm_readv` and `process_vm_writev`.

use std::slice;
use support::prelude::*;

use crate::privileges::{CAP_SYS_PTRACE, drop_one};

pub const TESTS: &[Test] = &[
    ("other memory: ranges, rights and errors", other_memory),
    ("other memory: random ranges", random_ranges),
];

fn other_memory() -> Outcome {
    let page = map(4 * PAGE)?;
    // SAFETY: the mapping has four pages.
    unsafe { page.add(PAGE - 3).copy_from(b"across".as_ptr(), 6) };
    // SAFETY: the last page may go.
    call!(munmap(unsafe { page.add(3 * PAGE) }.cast(), PAGE));
    let other = spawn(|| {
        call!(setuid(1000));
        call!(pause());
        Ok(())
    })?;
    pause_ms(20);
    let mut text = [0u8; 6];
    // SAFETY: inside the mapping.
    let remote = unsafe { [vector(page.add(PAGE - 3), 2), vector(page.add(PAGE - 1), 4)] };
    let local = [
        vector(text.as_mut_ptr(), 5),
        vector(text[5..].as_mut_ptr(), 1),
    ];
    let count = call!(process_vm_readv(
        other,
        local.as_ptr(),
        2,
        remote.as_ptr(),
        2,
        0
    ));
    ensure!(count == 6 && &text == b"across", "read {count}: {text:?}");
    let source = vector(b"WRITTEN".as_ptr(), 7);
    // SAFETY: inside the mapping of the other process.
    let target = vector(unsafe { page.add(PAGE - 3) }, 7);
    let count = call!(process_vm_writev(other, &source, 1, &target, 1, 0));
    ensure!(count == 7, "wrote {count}");
    call!(process_vm_readv(
        other,
        local.as_ptr(),
        2,
        remote.as_ptr(),
        2,
        0
    ));
    ensure!(&text == b"WRITTE", "then {text:?}");
    // SAFETY: the own page is not the other's.
    equal!(unsafe { page.add(PAGE - 3).read() }, b'a');
    // Up to the end of the other's memory.
    // SAFETY: inside the mapping, and beyond.
    let beyond = unsafe { [vector(page.add(PAGE), 4), vector(page.add(3 * PAGE), 4)] };
    let count = call!(process_vm_readv(
        other,
        local.as_ptr(),
        2,
        beyond.as_ptr(),
        2,
        0
    ));
    ensure!(count == 4, "{count} up to the end");
    refused! {
        process_vm_readv(other, local.as_ptr(), 2, &beyond[1], 1, 0) => EFAULT;
        process_vm_readv(other, local.as_ptr(), 2, remote.as_ptr(), 2, 1) => EINVAL;
        process_vm_readv(4_000_000, local.as_ptr(), 2, remote.as_ptr(), 2, 0) => ESRCH;
    }
    child(|| {
        drop_one(CAP_SYS_PTRACE)?;
        refused! { process_vm_readv(other, local.as_ptr(), 2, remote.as_ptr(), 2, 0) => EPERM; }
        Ok(())
    })?;
    kill_child(other)?;
    Ok(())
}

/// Pages of the memory that random ranges lie in: more than a call holds at a time.
const PAGES: usize = 40;
const LEN: usize = PAGES * PAGE;

/// Returns ascending ranges with gaps between them, inside of [`LEN`] bytes.
fn ranges(random: &mut Numbers) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    for _ in 0..1 + random.below(7) {
        // Most are short; now and then one covers many pages.
        let most = if random.below(3) == 0 {
            LEN / 2
        } else {
            3 * PAGE
        } as u64;
        let start = at + random.below(2 * PAGE as u64) as usize;
        let end = start + random.below(most) as usize;
        if end > LEN {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    ranges
}

/// Copies the bytes of the `sources` of `from` to the `targets` of `to`; returns how many.
fn copied(
    from: &[u8],
    sources: &[(usize, usize)],
    to: &mut [u8],
    targets: &[(usize, usize)],
) -> usize {
    let bytes = sources.iter().flat_map(|&(at, len)| &from[at..at + len]);
    let places = targets.iter().flat_map(|&(at, len)| at..at + len);
    let mut count = 0;
    for (byte, place) in bytes.zip(places) {
        to[place] = *byte;
        count += 1;
    }
    count
}

fn random_ranges() -> Outcome {
    let random = &mut Numbers::new(7);
    let memory = map(LEN)?;
    // SAFETY: a mapping of that length that stays.
    let own = unsafe { slice::from_raw_parts_mut(memory, LEN) };
    let fill = |bytes: &mut [u8], random: &mut Numbers| {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = random.next() as u8);
    };
    // Shared by the fork at first.
    fill(own, random);
    let mut there = own.to_vec();
    let other = spawn(|| {
        call!(pause());
        Ok(())
    })?;
    let view = File::open(format!("/proc/{other}/mem"))?;
    for turn in 0..60 {
        if turn % 6 == 5 {
            // Pages not present before their first use.
            call!(madvise(memory.cast(), LEN, MADV_DONTNEED));
        } else {
            fill(&mut own[..PAGE * (1 + turn % PAGES)], random);
        }
        let (local, remote) = (ranges(random), ranges(random));
        let vectors = |ranges: &[(usize, usize)]| -> Vec<iovec> {
            ranges
                .iter()
                .map(|&(at, len)| vector(memory.wrapping_add(at), len))
                .collect()
        };
        let (mine, others) = (vectors(&local), vectors(&remote));
        let (m, o) = (
            (mine.as_ptr(), mine.len() as u64),
            (others.as_ptr(), others.len() as u64),
        );
        if turn % 2 == 0 {
            let mut model = own.to_vec();
            let count = copied(&there, &remote, &mut model, &local);
            let moved = call!(process_vm_readv(other, m.0, m.1, o.0, o.1, 0)) as usize;
            equal!(moved, count, turn);
            ensure!(*own == model[..], "wrong bytes here after turn {turn}");
        } else {
            let count = copied(own, &local, &mut there, &remote);
            let moved = call!(process_vm_writev(other, m.0, m.1, o.0, o.1, 0)) as usize;
            equal!(moved, count, turn);
        }
        let mut seen = vec![0; LEN];
        view.read_exact_at(&mut seen, memory as u64)?;
        ensure!(seen == there, "wrong bytes there after turn {turn}");
    }
    kill_child(other)?;
    Ok(())
}
