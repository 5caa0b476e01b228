//! `/dev/causeway` through its crate: inheritance by children, and the kernel's view of an address
//! space.

use libcauseway::{Causeway, Inherit, Memory};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("causeway: children share private memory", share),
    ("causeway: nothing, zeros, and copies", others),
    ("causeway: copies of what is shared", copies),
    ("causeway: parts of what is shared", parts),
    ("causeway: futexes in what children share", futex),
    ("causeway: what is said of memory", said),
    ("causeway: refusals", refusals),
];

fn open() -> Result<Causeway> {
    Ok(Causeway::open()?)
}

fn memory(inherit: Inherit) -> Result<Memory> {
    let mut memory = Memory::new(16 * PAGE)?;
    let set = open()?.set_inherit(&mut memory, inherit);
    set?;
    Ok(memory)
}

fn share() -> Outcome {
    let memory = memory(Inherit::Share)?;
    let words = memory.as_u64s();
    let place = |i: usize| &words[i * PAGE / 8];
    place(0).store(1, Relaxed);
    child(|| {
        equal!(place(0).load(Relaxed), 1);
        place(0).store(2, Relaxed);
        // A page not touched before.
        place(1).store(3, Relaxed);
        child(|| {
            place(0).fetch_add(10, Relaxed);
            place(2).store(4, Relaxed);
            Ok(())
        })
    })?;
    let seen = [0, 1, 2].map(|i| place(i).load(Relaxed));
    ensure!(seen == [12, 3, 4], "the parent sees {seen:?}");
    // Many at once.
    let children: Result<Vec<_>, _> = (0..4)
        .map(|_| {
            spawn(|| {
                for i in 0..1000 {
                    place(3 + i % 13).fetch_add(1, Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    for child in children? {
        wait_ok(child)?;
    }
    let sum: u64 = (3..16).map(|i| place(i).load(Relaxed)).sum();
    ensure!(sum == 4000, "{sum} of 4000 were counted");
    Ok(())
}

fn others() -> Outcome {
    let none = memory(Inherit::None)?;
    let zero = memory(Inherit::Zero)?;
    let copy = memory(Inherit::Copy)?;
    for memory in [&none, &zero, &copy] {
        memory.as_u64s()[0].store(7, Relaxed);
    }
    child(|| {
        ensure!(zero.as_u64s()[0].load(Relaxed) == 0, "zeros are not zero");
        zero.as_u64s()[0].store(8, Relaxed);
        copy.as_u64s()[0].store(8, Relaxed);
        let mut byte = 0;
        refused! { mincore(none.addresses().start as *mut _, PAGE, &mut byte) => ENOMEM; }
        Ok(())
    })?;
    for memory in [&none, &zero, &copy] {
        ensure!(memory.as_u64s()[0].load(Relaxed) == 7, "a child wrote here");
    }
    Ok(())
}

fn copies() -> Outcome {
    let causeway = open()?;
    let mut memory = memory(Inherit::Share)?;
    memory.as_u64s()[0].store(1, Relaxed);
    // A sharer that waits and checks what it sees in the end.
    let (wake, waker) = pipe(0)?;
    let address = memory.addresses().start;
    let sharer = spawn(|| {
        read_bytes(&wake, 1)?;
        let seen = memory.as_u64s()[0].load(Relaxed);
        ensure!(seen == 2, "who shares it sees {seen}");
        Ok(())
    })?;
    let set = causeway.set_inherit(&mut memory, Inherit::Copy);
    set?;
    child(|| {
        memory.as_u64s()[0].store(99, Relaxed);
        Ok(())
    })?;
    let seen = memory.as_u64s()[0].load(Relaxed);
    ensure!(seen == 1, "a copy's write shows: {seen}");
    memory.as_u64s()[0].store(2, Relaxed);
    call!(write(waker, [0u8].as_ptr().cast(), 1));
    wait_ok(sharer)?;
    let entry = causeway.entry(address)?;
    ensure!(entry.shared_with_children, entry);
    Ok(())
}

fn parts() -> Outcome {
    let memory = memory(Inherit::Share)?;
    let words = memory.as_u64s();
    let start = memory.addresses().start;
    let at = |page: usize| (start + page * PAGE) as *mut c_void;
    for page in 0..16 {
        words[page * PAGE / 8].store(page as u64, Relaxed);
    }
    child(|| {
        call!(munmap(at(2), 3 * PAGE));
        call!(mprotect(at(8), PAGE, PROT_READ));
        words[9 * PAGE / 8].store(109, Relaxed);
        call!(madvise(at(10), PAGE, MADV_DONTNEED));
        equal!(words[10 * PAGE / 8].load(Relaxed), 10);
        let moved = call!(mremap(at(12), PAGE, PAGE, MREMAP_MAYMOVE));
        ensure!(moved == at(12), "it moved for no reason");
        Ok(())
    })?;
    for page in 0..16 {
        let expected = if page == 9 { 109 } else { page as u64 };
        let seen = words[page * PAGE / 8].load(Relaxed);
        ensure!(seen == expected, "page {page} holds {seen}");
    }
    Ok(())
}

/// A futex in shared memory is the same one for all its sharers.
fn futex() -> Outcome {
    let memory = memory(Inherit::Share)?;
    let word = memory.addresses().start as *mut u32;
    let waiter = spawn(|| {
        let limit = timespec_of(20_000);
        while memory.as_u64s()[0].load(Relaxed) == 0 {
            // SAFETY: a word of memory that stays.
            let result =
                unsafe { libc::syscall(libc::SYS_futex, word, FUTEX_WAIT, 0, &raw const limit) };
            let error = errno();
            ensure!(result == 0 || error == EAGAIN, "futex: errno {error}");
        }
        Ok(())
    })?;
    pause_ms(30);
    memory.as_u64s()[0].store(1, Relaxed);
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, word, FUTEX_WAKE, 1) };
    wait_ok(waiter)?;
    Ok(())
}

fn said() -> Outcome {
    let causeway = open()?;
    ensure!(causeway.version()? >= 1);
    let before = causeway.counts()?;
    let memory = map(32 * PAGE)?;
    let entry = causeway.entry(memory as usize)?;
    ensure!(
        entry.range.contains(&(memory as usize)) && entry.inherit == Inherit::Copy,
        "{entry:?}"
    );
    ensure!(
        entry.rights.read && entry.rights.write && !entry.rights.execute && !entry.shared,
        "{entry:?}"
    );
    // Locking a part splits the entry in three.
    call!(mlock(memory.wrapping_add(8 * PAGE).cast(), 8 * PAGE));
    let after = causeway.counts()?;
    ensure!(
        after.locked - before.locked == 8 && after.mapped >= before.mapped + 32,
        "{before:?}, then {after:?}"
    );
    let entry = causeway.entry(memory as usize + 9 * PAGE)?;
    ensure!(
        entry.locked && entry.range.len() == 8 * PAGE && entry.resident == 8,
        "{entry:?}"
    );
    call!(munlock(memory.cast(), 32 * PAGE));
    let joined = causeway.counts()?;
    equal!(joined.entries + 2, after.entries, after, joined);
    call!(munmap(memory.cast(), 32 * PAGE));
    Ok(())
}

fn refusals() -> Outcome {
    let causeway = open()?;
    let memory = map(4 * PAGE)?;
    let start = memory as usize;
    call!(munmap(memory.wrapping_add(PAGE).cast(), PAGE));
    for (range, inherit, expected) in [
        (start + 1..start + PAGE, Inherit::None, EINVAL),
        (start..start + 3 * PAGE, Inherit::None, ENOMEM),
        (usize::MAX - PAGE + 1..usize::MAX, Inherit::None, ENOMEM),
    ] {
        // SAFETY: no child is made.
        let set = unsafe { causeway.set_inherit_of(range.clone(), inherit) };
        let error = set.err().and_then(|error| error.raw_os_error());
        ensure!(error == Some(expected), "{range:x?}: {error:?}");
    }
    let error = causeway
        .entry(8)
        .err()
        .and_then(|error| error.raw_os_error());
    equal!(error, Some(ENOMEM));
    let device = call!(open(c"/dev/causeway".as_ptr(), O_RDWR));
    refused!(ENOTTY, ioctl(device, 0x1234));
    refused!(EFAULT, ioctl(device, 0x8040_ca02, 8));
    let bad = [start as u64, PAGE as u64, 4];
    refused!(EINVAL, ioctl(device, 0x4018_ca01, bad.as_ptr()));
    let mut byte = 0u8;
    refused!(EINVAL, read(device, (&raw mut byte).cast(), 1));
    call!(close(device));
    Ok(())
}
