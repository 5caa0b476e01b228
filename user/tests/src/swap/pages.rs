//! Pages that go to swap and come back to their owners.

use super::state::{byte, check, expect_slots, fill, needs_swap, send_away};
use libcauseway::{Causeway, Passing, Receiver};
use support::prelude::*;

pub fn away() -> Outcome {
    needs_swap()?;
    expect_slots(Some(0))?;
    let pages = 500;
    for shared in [false, true] {
        let memory = if shared {
            shared_map(pages * PAGE)?
        } else {
            map(pages * PAGE)?
        };
        fill(memory, pages, 3);
        send_away(memory, pages)?;
        let out = field("/proc/meminfo", "SwapTotal")? - field("/proc/meminfo", "SwapFree")?;
        ensure!(out >= 1900, "only {out} KiB went");
        let mut residency = vec![0u8; pages];
        call!(mincore(memory.cast(), pages * PAGE, residency.as_mut_ptr()));
        let gone = residency.iter().filter(|it| **it & 1 == 0).count();
        ensure!(gone > 450, "{gone} pages are gone");
        if !shared {
            let swapped = field("/proc/self/status", "VmSwap")?;
            ensure!(swapped >= 1800, "VmSwap is {swapped}");
        }
        // From the end: reads each page, then writes every other one.
        for page in (0..pages).rev() {
            check(memory, page, 3)?;
        }
        for page in (0..pages).step_by(2) {
            let at = memory.wrapping_add(page * PAGE + page % PAGE);
            poke(at, byte(page, 9));
        }
        send_away(memory, pages)?;
        for page in 0..pages {
            check(memory, page, if page % 2 == 0 { 9 } else { 3 })?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(Some(0))?;
    }
    Ok(())
}

/// Lent pages go to swap from each of their owners, and come back to each.
pub fn lent() -> Outcome {
    const PAGES: usize = 200;
    needs_swap()?;
    expect_slots(Some(0))?;
    let broken = || field("/proc/causeway/movements", "loans_broken_by_pageout");
    let before = broken()?;
    let (from, to) = pipe(0)?;
    let child = spawn(|| {
        call!(close(to));
        let mut address = 0usize;
        call!(read(from, (&raw mut address).cast(), size_of::<usize>()));
        let memory = address as *mut u8;
        send_away(memory, PAGES)?;
        for page in (0..PAGES).step_by(2) {
            check(memory, page, 5)?;
        }
        for page in (0..PAGES).step_by(3) {
            poke(
                memory.wrapping_add(page * PAGE + page % PAGE),
                byte(page, 9),
            );
        }
        send_away(memory, PAGES)?;
        for page in 0..PAGES {
            check(memory, page, if page % 3 == 0 { 9 } else { 5 })?;
        }
        Ok(())
    })?;
    let memory = map(PAGES * PAGE)?;
    fill(memory, PAGES, 5);
    let (range, receiver) = (
        memory as usize..memory as usize + PAGES * PAGE,
        Receiver::Id(child as u32),
    );
    // SAFETY: the memory is used by pointers only.
    let passed = unsafe { Causeway::open()?.pass_range(range, receiver, Passing::Lend, None) }?;
    equal!(passed.passed, PAGES as u64);
    send_away(memory, PAGES)?;
    call!(write(
        to,
        (&raw const passed.address).cast(),
        size_of::<usize>()
    ));
    for page in (0..PAGES).rev().step_by(2) {
        check(memory, page, 5)?;
        poke(
            memory.wrapping_add(page * PAGE + page % PAGE),
            byte(page, 7),
        );
    }
    send_away(memory, PAGES)?;
    wait_ok(child)?;
    for page in 0..PAGES {
        check(memory, page, if page % 2 == 1 { 7 } else { 5 })?;
    }
    let broken = broken()? - before;
    ensure!(
        broken >= PAGES as u64 / 2,
        "{broken} loans ended by page-out"
    );
    call!(close(from));
    call!(close(to));
    call!(munmap(memory.cast(), PAGES * PAGE));
    expect_slots(Some(0))
}

/// A tree of processes that write, swap out, fork and exit.
pub fn fork_tree() -> Outcome {
    needs_swap()?;
    expect_slots(Some(0))?;
    let pages = 64;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 1);
    for round in 0..6 {
        child(|| {
            send_away(memory, pages)?;
            fill(memory, pages / 2, 20 + round);
            child(|| {
                for page in 0..pages {
                    check(memory, page, if page < pages / 2 { 20 + round } else { 1 })?;
                }
                fill(memory, pages, 40);
                send_away(memory, pages)
            })?;
            for page in 0..pages {
                check(memory, page, if page < pages / 2 { 20 + round } else { 1 })?;
            }
            expect_slots(None)
        })?;
        for page in 0..pages {
            check(memory, page, 1)?;
        }
        if round % 2 == 0 {
            fill(memory, pages, 1);
        }
        expect_slots(None)?;
    }
    call!(munmap(memory.cast(), pages * PAGE));
    expect_slots(Some(0))
}
