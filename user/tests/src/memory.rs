//! Maps: flags, sharing, copy-on-write, growth, moves, limits.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("memory: anonymous memory is zero", anonymous),
    ("memory: fixed maps replace", fixed),
    ("memory: bad maps are refused", refusals),
    ("memory: unmapping splits", split),
    ("memory: private file maps", private_file),
    ("memory: shared file maps", shared_file),
    ("memory: shared anonymous maps cross fork", shared_anonymous),
    ("memory: copy on write after fork", copy_on_write),
    ("memory: a copy of a copy", copies_of_copies),
    ("memory: madvise DONTNEED", dont_need),
    ("memory: addresses are random", randomised),
    ("memory: many maps", many),
    ("memory: random maps against a model", model),
];

const READ_WRITE: i32 = PROT_READ | PROT_WRITE;

fn anonymous() -> Outcome {
    let pages = 300;
    let memory = map(pages * PAGE)?;
    for page in 0..pages {
        for at in [0, 1, PAGE / 2, PAGE - 1] {
            let byte = memory.wrapping_add(page * PAGE + at);
            ensure!(peek(byte) == 0, "page {page} was not zero at {at}");
            poke(byte, page as u8);
        }
    }
    for page in 0..pages {
        equal!(peek(memory.wrapping_add(page * PAGE)), page as u8, page);
    }
    call!(munmap(memory.cast(), pages * PAGE));
    Ok(())
}

fn fixed() -> Outcome {
    let memory = map(8 * PAGE)?;
    for page in 0..8 {
        poke(memory.wrapping_add(page * PAGE), 0xaa);
    }
    let middle = memory.wrapping_add(3 * PAGE);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let new = call!(mmap(
        middle.cast(),
        2 * PAGE,
        READ_WRITE,
        flags | MAP_FIXED,
        -1,
        0
    ));
    ensure!(new == middle.cast(), "MAP_FIXED gave another address");
    for (page, expected) in [0xaa, 0xaa, 0xaa, 0, 0, 0xaa, 0xaa, 0xaa]
        .into_iter()
        .enumerate()
    {
        let byte = peek(memory.wrapping_add(page * PAGE));
        ensure!(byte == expected, "page {page} holds {byte:#x}");
    }
    let noreplace = flags | MAP_FIXED_NOREPLACE;
    refused! { mmap(middle.cast(), PAGE, READ_WRITE, noreplace, -1, 0) => EEXIST; }
    call!(munmap(middle.cast(), PAGE));
    let new = call!(mmap(middle.cast(), PAGE, READ_WRITE, noreplace, -1, 0));
    equal!(new, middle.cast());
    call!(munmap(middle.cast(), PAGE));
    let new = call!(mmap(middle.cast(), PAGE, READ_WRITE, flags, -1, 0));
    ensure!(new == middle.cast(), "a free hint was not taken");
    Ok(())
}

fn refusals() -> Outcome {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    refused! {
        mmap(null_mut(), 0, READ_WRITE, flags, -1, 0) => EINVAL;
        mmap(null_mut(), PAGE, READ_WRITE, MAP_ANONYMOUS, -1, 0) => EINVAL;
        mmap(8 as *mut _, PAGE, READ_WRITE, flags | MAP_FIXED, -1, 0) => EINVAL;
        mmap(null_mut(), 1 << 47, READ_WRITE, flags, -1, 0) => ENOMEM;
        mmap(null_mut(), usize::MAX - 8, READ_WRITE, flags, -1, 0) => ENOMEM;
        mmap(null_mut(), PAGE, READ_WRITE, MAP_PRIVATE, 999, 0) => EBADF;
    }
    let (path, both) = file("refusals", b"text")?;
    refused! { mmap(null_mut(), PAGE, READ_WRITE, MAP_PRIVATE, both, 7) => EINVAL; }
    let path = c(&path);
    let reader = call!(open(path.as_ptr(), O_RDONLY));
    refused! { mmap(null_mut(), PAGE, READ_WRITE, MAP_SHARED, reader, 0) => EACCES; }
    let shared = call!(mmap(null_mut(), PAGE, PROT_READ, MAP_SHARED, reader, 0));
    refused!(EACCES, mprotect(shared, PAGE, READ_WRITE));
    let writer = call!(open(path.as_ptr(), O_WRONLY));
    refused! { mmap(null_mut(), PAGE, PROT_READ, MAP_PRIVATE, writer, 0) => EACCES; }
    let (reader, _writer) = pipe(0)?;
    refused! { mmap(null_mut(), PAGE, PROT_READ, MAP_PRIVATE, reader, 0) => ENODEV; }
    let memory = map(PAGE)?;
    refused! {
        munmap(memory.wrapping_add(1).cast(), PAGE) => EINVAL;
        munmap(memory.cast(), 0) => EINVAL;
        munmap(memory.cast(), usize::MAX) => EINVAL;
        mprotect(memory.wrapping_add(1).cast(), PAGE, PROT_READ) => EINVAL;
        madvise(memory.cast(), PAGE, 9999) => EINVAL;
    }
    call!(munmap(memory.cast(), PAGE));
    refused!(ENOMEM, mprotect(memory.cast(), PAGE, PROT_READ));
    refused!(ENOMEM, madvise(memory.cast(), PAGE, MADV_DONTNEED));
    Ok(())
}

fn split() -> Outcome {
    let memory = map(64 * PAGE)?;
    for page in 0..64 {
        poke(memory.wrapping_add(page * PAGE), page as u8 + 1);
    }
    for page in (1..64).step_by(2) {
        call!(munmap(memory.wrapping_add(page * PAGE).cast(), PAGE));
    }
    for page in (0..64).step_by(2) {
        equal!(peek(memory.wrapping_add(page * PAGE)), page as u8 + 1, page);
    }
    // Holes are no error.
    call!(munmap(memory.cast(), 64 * PAGE));
    Ok(())
}

fn private_file() -> Outcome {
    let bytes: Vec<u8> = (0..3 * PAGE + 100).map(|at| (at / 7) as u8).collect();
    let (_, open) = file("private", &bytes)?;
    let memory = map_with(bytes.len(), READ_WRITE, MAP_PRIVATE, open)?;
    for (at, &byte) in bytes.iter().enumerate() {
        equal!(peek(memory.wrapping_add(at)), byte, at);
    }
    equal!(peek(memory.wrapping_add(bytes.len())), 0);
    poke(memory.wrapping_add(PAGE), 0xee);
    let mut back = [0u8; 1];
    call!(pread(open, back.as_mut_ptr().cast(), 1, PAGE as i64));
    ensure!(back[0] == bytes[PAGE], "a private write reached the file");
    // A write to the file shows in pages that were not copied.
    call!(pwrite(open, [0x55u8].as_ptr().cast(), 1, 2 * PAGE as i64));
    equal!(peek(memory.wrapping_add(2 * PAGE)), 0x55);
    equal!(peek(memory.wrapping_add(PAGE)), 0xee);
    // The map outlives the descriptor.
    call!(close(open));
    equal!(peek(memory.wrapping_add(3 * PAGE)), bytes[3 * PAGE]);
    Ok(())
}

fn shared_file() -> Outcome {
    let (path, open) = file("shared", &[1; 2 * PAGE])?;
    let memory = map_with(2 * PAGE, READ_WRITE, MAP_SHARED, open)?;
    poke(memory.wrapping_add(5), 77);
    let mut back = [0u8; 10];
    call!(pread(open, back.as_mut_ptr().cast(), 10, 0));
    equal!(back, [1, 1, 1, 1, 1, 77, 1, 1, 1, 1]);
    child(|| {
        let other = map_with(2 * PAGE, READ_WRITE, MAP_SHARED, open)?;
        equal!(peek(other.wrapping_add(5)), 77);
        poke(other.wrapping_add(PAGE), 88);
        Ok(())
    })?;
    equal!(peek(memory.wrapping_add(PAGE)), 88);
    call!(msync(memory.cast(), 2 * PAGE, MS_SYNC));
    call!(munmap(memory.cast(), 2 * PAGE));
    let bytes = fs::read(&path)?;
    ensure!(bytes[5] == 77 && bytes[PAGE] == 88);
    Ok(())
}

fn shared_anonymous() -> Outcome {
    let memory = shared_map(3 * PAGE)?;
    poke(memory, 1);
    child(|| {
        equal!(peek(memory), 1);
        poke(memory.wrapping_add(PAGE), 2);
        child(|| {
            poke(memory.wrapping_add(2 * PAGE), 3);
            Ok(())
        })
    })?;
    equal!(peek(memory.wrapping_add(PAGE)), 2);
    equal!(peek(memory.wrapping_add(2 * PAGE)), 3);
    Ok(())
}

fn copy_on_write() -> Outcome {
    let pages = 200;
    let memory = map(pages * PAGE)?;
    let at = |page: usize| memory.wrapping_add(page * PAGE);
    (0..pages).for_each(|page| poke(at(page), 1));
    for round in 0..4u8 {
        let child = spawn(|| {
            for page in (0..pages).step_by(2) {
                ensure!(peek(at(page)) == 1, "page {page} is not the parent's");
                poke(at(page), 100 + round);
            }
            pause_ms(5);
            for page in 0..pages {
                let expected = if page % 2 == 0 { 100 + round } else { 1 };
                equal!(peek(at(page)), expected, page);
            }
            Ok(())
        })?;
        for page in (0..pages).step_by(3) {
            poke(at(page), 1);
            poke(at(page).wrapping_add(8), round);
        }
        wait_ok(child)?;
        for page in 0..pages {
            equal!(peek(at(page)), 1, page);
        }
    }
    Ok(())
}

fn copies_of_copies() -> Outcome {
    let memory = map(16 * PAGE)?;
    fn descend(memory: *mut u8, depth: u8) -> Outcome {
        for page in 0..16 {
            let at = memory.wrapping_add(page * PAGE);
            let expected = if page as u8 >= depth {
                0
            } else {
                page as u8 + 1
            };
            equal!(peek(at), expected, page, depth);
        }
        if depth == 16 {
            return Ok(());
        }
        poke(memory.wrapping_add(usize::from(depth) * PAGE), depth + 1);
        child(|| descend(memory, depth + 1))?;
        poke(memory.wrapping_add(usize::from(depth) * PAGE), 0xff);
        ensure!(depth == 0 || peek(memory) == 1);
        Ok(())
    }
    descend(memory, 0)
}

fn dont_need() -> Outcome {
    let memory = map(4 * PAGE)?;
    (0..4).for_each(|page| poke(memory.wrapping_add(page * PAGE), 5));
    call!(madvise(
        memory.wrapping_add(PAGE).cast(),
        2 * PAGE,
        MADV_DONTNEED
    ));
    for (page, expected) in [5, 0, 0, 5].into_iter().enumerate() {
        let byte = peek(memory.wrapping_add(page * PAGE));
        ensure!(byte == expected, "page {page} holds {byte}");
    }
    let (_, open) = file("dontneed", &[3; PAGE])?;
    let memory = map_with(PAGE, READ_WRITE, MAP_PRIVATE, open)?;
    poke(memory, 4);
    call!(madvise(memory.cast(), PAGE, MADV_DONTNEED));
    ensure!(peek(memory) == 3, "the file's byte did not come back");
    for advice in [MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED] {
        call!(madvise(memory.cast(), PAGE, advice));
    }
    Ok(())
}

fn randomised() -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..4 {
        let output = std::process::Command::new("/proc/self/exe")
            .args(["--as", "addresses"])
            .output()?;
        seen.push(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    ensure!(seen.iter().all(|line| line.split(' ').count() == 3), seen);
    for field in 0..3 {
        let mut values: Vec<_> = seen
            .iter()
            .filter_map(|line| line.split(' ').nth(field))
            .collect();
        values.sort_unstable();
        values.dedup();
        ensure!(values.len() > 1, field, values[0]);
    }
    Ok(())
}

fn many() -> Outcome {
    let count = 3000;
    let memory = map(2 * count * PAGE)?;
    for page in 0..count {
        // Every second page gets another protection, so that entries cannot be merged.
        call!(mprotect(
            memory.wrapping_add(2 * page * PAGE).cast(),
            PAGE,
            PROT_READ
        ));
    }
    for page in 0..count {
        poke(memory.wrapping_add((2 * page + 1) * PAGE), 1);
        equal!(peek(memory.wrapping_add(2 * page * PAGE)), 0, page);
    }
    child(|| {
        ensure!(peek(memory.wrapping_add(PAGE)) == 1, "lost in the child");
        call!(munmap(memory.cast(), 2 * count * PAGE));
        Ok(())
    })?;
    call!(munmap(memory.cast(), 2 * count * PAGE));
    Ok(())
}

/// Compares random maps, unmaps, protections, forks and writes with a plain array.
fn model() -> Outcome {
    const PAGES: usize = 96;
    let seed = 4711;
    let mut numbers = Numbers::new(seed);
    let base = map(PAGES * PAGE)?;
    // None: not mapped; else the byte at the start of the page.
    let mut model = vec![Some(0u8); PAGES];
    for step in 0..4000 {
        let first = numbers.below(PAGES as u64) as usize;
        let count = 1 + numbers.below(8.min(PAGES - first) as u64) as usize;
        let at = base.wrapping_add(first * PAGE);
        match numbers.below(7) {
            0 => {
                call!(munmap(at.cast(), count * PAGE));
                model[first..first + count].fill(None);
            }
            1 => {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                call!(mmap(at.cast(), count * PAGE, READ_WRITE, flags, -1, 0));
                model[first..first + count].fill(Some(0));
            }
            2 if model[first..first + count].iter().all(Option::is_some) => {
                call!(madvise(at.cast(), count * PAGE, MADV_DONTNEED));
                model[first..first + count].fill(Some(0));
            }
            3 if model[first..first + count].iter().all(Option::is_some) => {
                call!(mprotect(at.cast(), count * PAGE, PROT_READ));
                call!(mprotect(at.cast(), count * PAGE, READ_WRITE));
            }
            4 if step % 8 == 0 => child(|| compare(base, &model))?,
            _ => {
                for (page, byte) in model.iter_mut().enumerate().skip(first).take(count) {
                    if let Some(byte) = byte {
                        *byte = numbers.next() as u8;
                        poke(base.wrapping_add(page * PAGE), *byte);
                    }
                }
            }
        }
    }
    compare(base, &model).map_err(|why| format!("{why} (seed {seed})").into())
}

fn compare(base: *mut u8, model: &[Option<u8>]) -> Outcome {
    for (page, expected) in model.iter().enumerate() {
        if let Some(expected) = expected {
            let byte = peek(base.wrapping_add(page * PAGE));
            equal!(byte, *expected, page, expected);
        }
    }
    Ok(())
}
