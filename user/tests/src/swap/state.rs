//! The state of swap space, and memory in which each page's byte identifies it.

use support::prelude::*;

/// The host's swap space.
pub const DEVICE: &str = "/dev/vda";
pub const SWAP_FLAG_PREFER: c_int = 0x8000;

/// Returns the device's line of `/proc/swaps`: size and use in KiB, priority.
pub fn state() -> Result<Option<[i64; 3]>> {
    let text = fs::read_to_string("/proc/swaps")?;
    let Some(line) = text.lines().find(|line| line.starts_with(DEVICE)) else {
        return Ok(None);
    };
    let mut words = line.split_ascii_whitespace().skip(2).map(str::parse::<i64>);
    let mut next = || -> Result<i64> {
        match words.next() {
            Some(Ok(number)) => Ok(number),
            _ => Err(format!("/proc/swaps has {line:?}").into()),
        }
    };
    Ok(Some([next()?, next()?, next()?]))
}

/// Skips the test where there is no swap space.
pub fn needs_swap() -> Outcome {
    match state()? {
        Some(_) => Ok(()),
        None => Err(skip("there is no swap space")),
    }
}

/// Waits until the slots in use are those that pages hold, and `used` of them if given.
pub fn expect_slots(used: Option<u64>) -> Outcome {
    const COUNTS: &str = "/proc/causeway/swap";
    let mut seen = (0, 0);
    for _ in 0..100 {
        seen = (field(COUNTS, "used")?, field(COUNTS, "found")?);
        if seen.0 == seen.1 && used.is_none_or(|used| used == seen.0) {
            return Ok(());
        }
        pause_ms(20);
    }
    Err(format!(
        "{} slots in use, {} that pages have, expected {used:?}",
        seen.0, seen.1
    )
    .into())
}

/// Returns the byte that the tests write to a page.
pub fn byte(page: usize, salt: usize) -> u8 {
    (page.wrapping_mul(2_654_435_761) >> 9) as u8 ^ salt as u8
}

/// Writes each page.
pub fn fill(memory: *mut u8, pages: usize, salt: usize) {
    for page in 0..pages {
        poke(
            memory.wrapping_add(page * PAGE + page % PAGE),
            byte(page, salt),
        );
    }
}

/// Checks the byte that [`fill`] wrote.
pub fn check(memory: *mut u8, page: usize, salt: usize) -> Outcome {
    let found = peek(memory.wrapping_add(page * PAGE + page % PAGE));
    let wanted = byte(page, salt);
    equal!(found, wanted, page);
    Ok(())
}

/// Requests page-out of the pages until they are written.
pub fn send_away(memory: *mut u8, pages: usize) -> Outcome {
    for _ in 0..3 {
        call!(madvise(memory.cast(), pages * PAGE, MADV_PAGEOUT));
        pause_ms(30);
    }
    Ok(())
}
