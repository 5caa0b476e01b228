//! What memory is passed, and to what place: stacks, guard pages, untouched memory, the pages of
//! 32-bit programs; and the errors of each.

use super::{PAGES, WAYS, error_of, get, numbered, pass, set, spawn_ready};
use libcauseway::{Causeway, Passing, Receiver};
use support::legacy::int80;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("passing: stacks and guard pages", stacks),
    ("passing: memory that was never touched", untouched),
    ("passing: the receiver may lock no more", locked),
    ("passing: pages beyond the end of a file", beyond_end),
    ("passing: no more map entries", entries),
    ("passing: by 32-bit calls", narrow),
];

fn own() -> Receiver<'static> {
    Receiver::Id(std::process::id())
}

/// Addresses where the kernel places nothing.
const FAR: usize = 0x1000_0000_0000;

fn stacks() -> Outcome {
    for (number, how) in WAYS.into_iter().enumerate() {
        // Far from all else, so that a stack of two pages grows to four.
        let stack = (FAR + (number << 30)) as *mut u8;
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_GROWSDOWN;
        let (top, size) = (stack.wrapping_add(2 * PAGE), 2 * PAGE);
        call!(mmap(top.cast(), size, READ_WRITE, flags, -1, 0));
        set(stack, 0, 5);
        set(stack, 2, 7);
        let passed = pass(stack, 4, own(), how, None);
        if how == Passing::Share {
            equal!(error_of(passed), EINVAL);
            continue;
        }
        let passed = passed?.address as *mut u8;
        equal!((get(passed, 0), get(passed, 2)), (5, 7), how);
        // What was passed does not grow.
        let entry = Causeway::open()?.entry(passed as usize)?;
        ensure!(!entry.grows_down, how);
        // The stack goes on growing where it is left, below a page that was replaced, too.
        if how != Passing::Move {
            let memory = numbered(10)?;
            pass(memory, 1, own(), Passing::Lend, Some(stack as usize + PAGE))?;
            set(stack.wrapping_sub(PAGE), 0, 6);
            equal!(get(stack, 1), 10, how);
            // Below it no pages are mapped to be replaced.
            let below = stack as usize - 9 * PAGE;
            let passed = pass(memory, 1, own(), Passing::Lend, Some(below));
            equal!(error_of(passed), EFAULT);
        }
    }
    // A guard is passed as one by entries, and takes no pages.
    for how in WAYS {
        let memory = numbered(20)?;
        call!(mprotect(memory.wrapping_add(PAGE).cast(), PAGE, PROT_NONE));
        let passed = pass(memory, 3, own(), how, None);
        let is_by_pages = matches!(how, Passing::Lend | Passing::Transfer);
        if is_by_pages {
            equal!(error_of(passed), EFAULT, how);
            equal!((get(memory, 0), get(memory, 2)), (20, 22), how);
        } else {
            let there = passed?.address as *mut u8;
            equal!((get(there, 0), get(there, 2)), (20, 22), how);
            let rights = Causeway::open()?.entry(there as usize + PAGE)?.rights;
            ensure!(!rights.read && !rights.write, how);
        }
        // As a place.
        let (from, place) = (numbered(30)?, numbered(40)?);
        let guard = place.wrapping_add(PAGE);
        call!(mprotect(guard.cast(), PAGE, PROT_NONE));
        let passed = pass(from, 3, own(), how, Some(place as usize));
        if is_by_pages {
            equal!(error_of(passed), EFAULT, how);
            equal!((get(place, 0), get(place, 2)), (40, 42), how);
            equal!(get(from, 0), 30, how);
        } else {
            passed?;
            equal!((get(place, 1), get(place, 3)), (31, 43), how);
        }
    }
    Ok(())
}

/// Pages that were never touched take no memory on either side, and read zero at a place.
fn untouched() -> Outcome {
    const COUNT: usize = 16 << 10;
    for how in [Passing::Lend, Passing::Transfer] {
        let (memory, place) = (map(COUNT * PAGE)?, map(COUNT * PAGE)?);
        set(memory, 5000, 50);
        for page in [0, 5000, COUNT - 1] {
            set(place, page, 9);
        }
        let anonymous =
            |at: *mut u8| -> Result<u64> { Ok(Causeway::open()?.entry(at as usize)?.anonymous) };
        for address in [None, Some(place as usize)] {
            let passed = pass(memory, COUNT, own(), how, address)?;
            equal!(passed.passed + passed.copied, COUNT as u64);
            let there = passed.address as *mut u8;
            let is_there = how == Passing::Lend || address.is_none();
            let expected = if is_there { 50 } else { 0 };
            for (page, expected) in [(0, 0), (5000, expected), (COUNT - 1, 0)] {
                equal!(get(there, page), expected, page);
            }
            let (here, there) = (anonymous(memory)?, anonymous(there)?);
            ensure!(here < 20 && there < 60, "{here} pages here, {there} there");
        }
        unmap(memory, COUNT * PAGE)?;
        unmap(place, COUNT * PAGE)?;
    }
    Ok(())
}

fn locked() -> Outcome {
    let child = spawn_ready(|| {
        let limit = limit_of(16 * PAGE as u64);
        call!(setrlimit(RLIMIT_MEMLOCK, &limit));
        call!(setuid(1000));
        call!(mlockall(MCL_FUTURE));
        Ok(())
    })?;
    let large = map(64 * PAGE)?;
    set(large, 3, 3);
    for how in WAYS {
        let passed = pass(large, 64, Receiver::Id(child as u32), how, None);
        equal!(error_of(passed), EAGAIN, how);
        equal!(get(large, 3), 3, how);
    }
    kill_child(child)?;
    // Within the limit it has all pages at once.
    let memory = map(PAGES * PAGE)?;
    set(memory, 3, 3);
    let child = spawn_ready(|| {
        call!(mlockall(MCL_FUTURE));
        Ok(())
    })?;
    for how in [Passing::Lend, Passing::Transfer, Passing::Copy] {
        let before = field(&format!("/proc/{child}/status"), "VmRSS")?;
        pass(memory, PAGES, Receiver::Id(child as u32), how, None)?;
        let more = field(&format!("/proc/{child}/status"), "VmRSS")? - before;
        ensure!(more as usize >= PAGES * PAGE / 1024, "{how:?}: {more} KiB");
    }
    kill_child(child)?;
    Ok(())
}

fn beyond_end() -> Outcome {
    let path = format!("{}/short", folder("passing-end")?);
    fs::write(&path, vec![b'f'; PAGE])?;
    let file = File::options().read(true).write(true).open(&path)?;
    for flags in [MAP_PRIVATE, MAP_SHARED] {
        let memory = map_with(2 * PAGE, READ_WRITE, flags, file.as_raw_fd())?;
        let before = Causeway::open()?.counts()?;
        let passed = pass(memory, 2, own(), Passing::Lend, None);
        equal!(error_of(passed), EIO, flags);
        let after = Causeway::open()?.counts()?;
        equal!(after.mapped, before.mapped, "new memory is gone");
        let place = numbered(60)?;
        let passed = pass(memory, 2, own(), Passing::Lend, Some(place as usize));
        equal!(error_of(passed), EIO, flags);
        equal!(get(place, 1), 61);
        pass(memory, 1, own(), Passing::Lend, None)?;
    }
    Ok(())
}

fn entries() -> Outcome {
    const NAME: &str = "/proc/sys/vm/max_map_count";
    let memory = numbered(70)?;
    for page in (0..PAGES).step_by(2) {
        call!(mprotect(
            memory.wrapping_add(page * PAGE).cast(),
            PAGE,
            PROT_READ
        ));
    }
    let peer = spawn_ready(|| Ok(()))?;
    let to = Receiver::Id(peer as u32);
    let maps = read_text(&format!("/proc/{peer}/maps"))?.lines().count();
    let most = read_text(NAME)?;
    fs::write(NAME, format!("{}", maps + PAGES / 2))?;
    let results = WAYS.map(|how| (how, error_of(pass(memory, PAGES, to, how, None))));
    fs::write(NAME, most.trim())?;
    for (how, error) in results {
        let is_by_pages = matches!(how, Passing::Lend | Passing::Transfer);
        // Pages go to one new entry.
        equal!(error, if is_by_pages { 0 } else { ENOMEM }, how);
    }
    // All but the transfer have left it here.
    equal!(get(memory, 3), 0);
    let again = numbered(70)?;
    pass(again, PAGES, to, Passing::Move, None)?;
    kill_child(peer)?;
    Ok(())
}

/// The request by the 32-bit table of calls: the same words.
fn narrow() -> Outcome {
    const IOCTL: u32 = 54;
    const PASS: u32 = 0xc040_ca04;
    let device = call!(open(c"/dev/causeway".as_ptr(), O_RDWR));
    let low = low_map((PAGES + 1) * PAGE)?;
    let words = low.wrapping_add(PAGES * PAGE).cast::<[u64; 8]>();
    for (number, how) in WAYS.into_iter().enumerate() {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        call!(mmap(low.cast(), PAGES * PAGE, READ_WRITE, flags, -1, 0));
        (0..PAGES).for_each(|page| set(low, page, 80 + page as u64));
        let size = (PAGES * PAGE) as u64;
        let me = u64::from(std::process::id());
        // SAFETY: the last page is mapped.
        unsafe { words.write([me, 0, number as u64, low as u64, size, 0, 0, 0]) };
        let result = int80(IOCTL, [device as u32, PASS, words as u32]);
        equal!(result, 0, how);
        // SAFETY: as above.
        let [.., address, passed, copied] = unsafe { words.read() };
        equal!(passed + copied, PAGES as u64, how);
        super::check(address as *mut u8, 80, "32-bit")?;
    }
    call!(close(device));
    Ok(())
}
