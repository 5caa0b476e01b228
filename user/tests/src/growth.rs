//! Memory that grows, moves and shrinks, and its limits.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("growth: brk grows and shrinks", program_break),
    ("growth: mremap", remap),
    ("growth: mremap that leaves a mapping", remap_and_leave),
    ("growth: RLIMIT_AS", limit_space),
    ("growth: RLIMIT_DATA", limit_data),
];

const READ_WRITE: i32 = PROT_READ | PROT_WRITE;

fn program_break() -> Outcome {
    let start = call!(sbrk(0)) as usize;
    call!(brk((start + 40 * PAGE) as *mut _));
    let at = |page: usize| ((start + PAGE) & !(PAGE - 1)).wrapping_add(page * PAGE) as *mut u8;
    for page in 0..38 {
        equal!(peek(at(page)), 0, page);
        poke(at(page), 9);
    }
    call!(brk((start + 2 * PAGE) as *mut _));
    call!(brk((start + 40 * PAGE) as *mut _));
    equal!(peek(at(30)), 0);
    call!(brk(start as *mut _));
    ensure!(call!(sbrk(0)) as usize == start, "the break did not return");
    Ok(())
}

fn remap() -> Outcome {
    let memory = map(4 * PAGE)?;
    (0..4).for_each(|page| poke(memory.wrapping_add(page * PAGE), page as u8 + 1));
    refused! {
        mremap(memory.wrapping_add(1).cast(), PAGE, 2 * PAGE, 0) => EINVAL;
        mremap(memory.cast(), PAGE, 0, 0) => EINVAL;
    }
    // The next page is taken: it cannot grow in place.
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    let block = map(12 * PAGE)?;
    call!(munmap(block.cast(), 8 * PAGE));
    let moved = block.wrapping_add(4 * PAGE);
    call!(mremap(
        memory.cast(),
        4 * PAGE,
        4 * PAGE,
        MREMAP_MAYMOVE | MREMAP_FIXED,
        moved
    ));
    for page in 0..4 {
        equal!(peek(moved.wrapping_add(page * PAGE)), page as u8 + 1, page);
    }
    refused!(ENOMEM, mremap(moved.cast(), 4 * PAGE, 8 * PAGE, 0));
    let grown = call!(mremap(moved.cast(), 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE)).cast::<u8>();
    for page in 0..4 {
        equal!(peek(grown.wrapping_add(page * PAGE)), page as u8 + 1, page);
    }
    equal!(peek(grown.wrapping_add(63 * PAGE)), 0);
    let shrunk = call!(mremap(grown.cast(), 64 * PAGE, 2 * PAGE, 0)).cast::<u8>();
    ensure!(shrunk == grown && peek(grown.wrapping_add(PAGE)) == 2);
    call!(mmap(
        grown.wrapping_add(2 * PAGE).cast(),
        PAGE,
        READ_WRITE,
        flags,
        -1,
        0
    ));
    refused!(EFAULT, mremap(moved.cast(), PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    Ok(())
}

fn remap_and_leave() -> Outcome {
    let (memory, taken) = (map(PAGE)?, map(PAGE)?);
    poke(memory, 1);
    poke(taken, 2);
    let flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    // An address without MAP_FIXED is only a hint.
    let moved = call!(mremap(memory.cast(), PAGE, PAGE, flags, taken)).cast::<u8>();
    ensure!(moved != taken && peek(taken) == 2);
    ensure!(peek(moved) == 1, "the page did not move");
    ensure!(peek(memory) == 0, "the page is at its old place too");
    call!(munmap(taken.cast(), PAGE));
    let wished = call!(mremap(moved.cast(), PAGE, PAGE, flags, taken)).cast::<u8>();
    ensure!(wished == taken, "a wish for a free place was not met");
    refused!(EINVAL, mremap(moved.cast(), PAGE, PAGE, flags, moved));
    Ok(())
}

fn limit_space() -> Outcome {
    call!(setrlimit(RLIMIT_AS, &limit_of(64 << 20)));
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    refused!(ENOMEM, mmap(null_mut(), 64 << 20, PROT_READ, flags, -1, 0));
    let memory = map(16 << 20)?;
    refused! { mremap(memory.cast(), 16 << 20, 63 << 20, MREMAP_MAYMOVE) => ENOMEM; }
    call!(munmap(memory.cast(), 16 << 20));
    map(16 << 20)?;
    Ok(())
}

fn limit_data() -> Outcome {
    call!(setrlimit(RLIMIT_DATA, &limit_of(16 << 20)));
    refused!(ENOMEM, sbrk(17 << 20));
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    refused!(ENOMEM, mmap(null_mut(), 17 << 20, READ_WRITE, flags, -1, 0));
    // Memory that is not private and writable does not count as data.
    call!(mmap(null_mut(), 17 << 20, PROT_READ, flags, -1, 0));
    Ok(())
}
