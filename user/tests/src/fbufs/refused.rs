//! Bad input, missing rights, limits, and what the calls for memory do in the region.

use super::raw::{Path, *};
use super::{LEN, Receiver, prepare};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: receivers cannot write", no_write),
    ("fbufs: memory without permission reads zero", empty_region),
    ("fbufs: bad aggregates", bad_aggregates),
    ("fbufs: an aggregate that changes", changing),
    ("fbufs: roles and numbers", roles),
    ("fbufs: limits", limits),
    ("fbufs: the calls for memory in the region", memory_calls),
    ("fbufs: the region is taken", taken),
];

fn no_write() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 1);
        let at = chunk as usize + 2 * PAGE;
        faults(SIGSEGV, SEGV_ACCERR, at, || {
            path.join().expect("room");
            poke(at as *mut u8, 1);
        })?;
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            let pages = message.root as *mut c_void;
            refused! {
                mprotect(pages, PAGE, READ_WRITE) => EACCES;
                madvise(pages, PAGE, MADV_REMOVE) => EACCES;
            }
            // Not by the kernel's hand either.
            let (from, to) = pipe(0)?;
            call!(write(to, b"xyz".as_ptr().cast(), 3));
            refused!(EFAULT, read(from, pages, 3));
            super::Line::tell(line)?;
            line.hear()
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        // Nor by another process.
        let bytes = *b"xyz";
        let (ours, theirs) = (vector(bytes.as_ptr(), 3), vector(chunk, 3));
        refused!(
            EFAULT,
            process_vm_writev(receiver.child, &ours, 1, &theirs, 1, 0)
        );
        let mut got = [0u8; 4];
        let ours = vector(got.as_mut_ptr(), 4);
        let theirs = vector(chunk.wrapping_add(PAGE), 4);
        let count = call!(process_vm_readv(receiver.child, &ours, 1, &theirs, 1, 0));
        equal!((count, got), (4, [1; 4]));
        receiver.line.tell()?;
        receiver.end()?;
    }
    Ok(())
}

fn empty_region() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 7);
        let is_empty = |at: usize| is_filled(at as *const u8, PAGE, 0);
        // Another domain, of no path.
        child(|| {
            enter()?;
            for at in [chunk as usize, chunk as usize + CHUNK, START + SIZE - PAGE] {
                ensure!(is_empty(at), "it reads {at:x}");
            }
            refused!(EACCES, mprotect(chunk.cast(), PAGE, READ_WRITE));
            Ok(())
        })?;
        faults(SIGSEGV, SEGV_ACCERR, chunk as usize, || {
            enter().expect("room");
            poke(chunk, 1);
        })?;
        let receiver = Receiver::start(&path, |path, line| {
            let is_cached = mode & UNCACHED == 0;
            ensure!(is_empty(chunk as usize) != is_cached, "{mode}");
            line.tell()?;
            let message = path.receive()?;
            check_leaf(message.root, LEN, 7)?;
            // The message reaches no more.
            ensure!(is_empty(chunk as usize + PAGE + LEN));
            path.free(message.id)?;
            ensure!(is_empty(chunk as usize) != is_cached, "{mode}");
            line.tell()
        })?;
        receiver.line.hear()?;
        path.send(chunk)?;
        receiver.line.hear()?;
        receiver.end()?;
        path.shrink(chunk)?;
        ensure!(is_empty(chunk as usize), "its own memory stays");
    }
    Ok(())
}

fn bad_aggregates() -> Outcome {
    let path = Path::new(CACHED)?;
    let other = Path::new(CACHED)?;
    let (chunk, theirs) = (path.grow(1)?, other.grow(1)?);
    let stranger = {
        // Chunks of another domain.
        let (ours, line) = super::Line::pair()?;
        let child = spawn(|| {
            let path = Path::new(CACHED)?;
            let chunk = path.grow(1)?;
            fill(chunk, PAGE, 1);
            let address = chunk as usize;
            call!(write(line.to, address.to_ne_bytes().as_ptr().cast(), 8));
            line.hear()
        })?;
        let mut address = [0u8; 8];
        call!(read(ours.from, address.as_mut_ptr().cast(), 8));
        (child, ours, usize::from_ne_bytes(address))
    };
    let receiver = Receiver::start(&path, |_, line| line.hear())?;
    let node = |i: usize| chunk.wrapping_add(64 * i);
    let sent = |root: usize| path.send_to(0, root).map(drop);
    // Roots.
    for root in [
        0,
        1,
        START - 32,
        START + SIZE,
        START + SIZE - 8,
        usize::MAX - 7,
    ] {
        equal!(sent(root), Err(EFAULT), root);
    }
    for root in [chunk as usize + 4, stranger.2] {
        equal!(sent(root), Err(EFAULT), root);
    }
    // Its other path's chunks are its own; nothing was written there.
    equal!(sent(theirs as usize), Ok(()));
    // Leaves.
    let bad = [
        (0, 1),
        (stranger.2, 1),
        (chunk as usize, CHUNK + 1),
        (chunk as usize, usize::MAX),
        (START, SIZE),
        (usize::MAX, 2),
    ];
    for (start, len) in bad {
        set_node(chunk, 1, len as u64, start, 0);
        equal!(sent(chunk as usize), Err(EFAULT), start, len);
    }
    set_node(chunk, 1, 0, 0, 0);
    equal!(sent(chunk as usize), Ok(()));
    // Kinds.
    set_node(chunk, 3, 0, 0, 0);
    equal!(sent(chunk as usize), Err(EINVAL));
    // Pairs.
    set_pair(chunk, node(1), stranger.2 as *const u8);
    equal!(sent(chunk as usize), Err(EFAULT));
    // Cycles of each length, at each depth.
    for depth in [0, 1, 5, 100] {
        for length in [1, 2, 3, 7, 64] {
            for i in 0..depth + length {
                let next = if i + 1 == depth + length {
                    depth
                } else {
                    i + 1
                };
                match i % 2 {
                    0 => set_pair(node(i), node(next), node(1000)),
                    _ => set_pair(node(i), node(1000), node(next)),
                }
            }
            equal!(sent(chunk as usize), Err(ELOOP), depth, length);
        }
    }
    // Shared nodes: 2^40 paths, and a few.
    for (depth, wanted) in [(40, Err(E2BIG)), (10, Ok(()))] {
        set_leaf(node(depth), node(2000), 1);
        for i in 0..depth {
            set_pair(node(i), node(i + 1), node(i + 1));
        }
        equal!(sent(chunk as usize), wanted);
    }
    // A million nodes.
    let many = path.grow(16)?;
    for i in 0..1_000_000 {
        let at = many.wrapping_add(32 * i);
        set_pair(at, chunk.wrapping_add(64 * 3000), at.wrapping_add(32));
    }
    equal!(sent(many as usize), Err(E2BIG));
    // Many pages, none beside another.
    let nodes = path.grow(1)?;
    for i in 0..4000 {
        let at = nodes.wrapping_add(64 * i);
        set_leaf(at, many.wrapping_add(2 * i * PAGE), 1);
        let pair = at.wrapping_add(32);
        set_pair(pair, at, if i == 3999 { at } else { pair.wrapping_add(64) });
    }
    equal!(sent(nodes as usize + 32), Err(E2BIG));
    receiver.line.tell()?;
    receiver.end()?;
    stranger.1.tell()?;
    wait_ok(stranger.0)
}

/// The root points to a part, to nothing that may be reached, and to itself, in turn, while it is
/// sent: an error or a message, and the bytes of a message are what one of these has.
fn changing() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    path.set_nonblocking()?;
    prepare(chunk.wrapping_add(64), 1);
    let receiver = Receiver::start(&path, |path, line| {
        while line_is_open(line)? {
            match path.receive() {
                Ok(message) => {
                    ensure!([0, LEN as u64, 2 * LEN as u64].contains(&message.bytes));
                    path.free(message.id)?;
                }
                Err(error) => equal!(error, EAGAIN),
            }
        }
        Ok(())
    })?;
    let stop = AtomicBool::new(false);
    let (leaf, root) = (chunk as usize + 64, chunk as usize);
    let done: Outcome = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (root, leaf) = (root as *mut u8, leaf as *mut u8);
            while !stop.load(Relaxed) {
                set_pair(root, leaf, leaf);
                set_pair(root, leaf, 64 as *const u8);
                set_pair(root, leaf, root);
                set_node(root, 9, 0, 0, 0);
                set_pair(root, leaf, chunk_end(root));
            }
        });
        for _ in 0..3000 {
            if let Err(error) = path.send_to(0, root) {
                ensure!([EFAULT, ELOOP, EINVAL, EAGAIN].contains(&error), "{error}");
            }
        }
        stop.store(true, Relaxed);
        writer.join()?;
        Ok(())
    });
    done?;
    receiver.line.tell()?;
    receiver.end()
}

fn chunk_end(chunk: *mut u8) -> *const u8 {
    chunk.wrapping_add(CHUNK - 64)
}

/// Whether the other side has not told anything.
fn line_is_open(line: &super::Line) -> Result<bool> {
    let mut entry = poll_entry(line.from, POLLIN);
    Ok(call!(poll(&mut entry, 1, 0)) == 0)
}

fn roles() -> Outcome {
    let device = File::options().read(true).write(true).open("/dev/fbuf")?;
    // Before it has entered.
    child(|| {
        equal!(Path::make(&device, 0, 0).err(), Some(EPERM));
        Ok(())
    })?;
    let path = Path::new(CACHED)?;
    for mode in [8, 5, 1 << 32] {
        equal!(Path::make(&device, mode, 0).err(), Some(EINVAL), mode);
    }
    equal!(Path::make(&device, 0, 1025).err(), Some(EINVAL));
    let chunk = path.grow(1)?;
    prepare(chunk, 1);
    equal!(path.attach(), Err(EPERM));
    equal!(path.receive(), Err(EPERM));
    equal!(path.free(1), Err(EPERM));
    equal!(path.secure(chunk as usize, 1), Err(EPERM));
    equal!(path.send(chunk), Err(EPIPE));
    equal!(path.shrink(chunk.wrapping_add(PAGE)), Err(EINVAL));
    child(|| {
        equal!(path.attach(), Err(EPERM));
        equal!(path.receive(), Err(EPERM));
        enter()?;
        equal!(path.receive(), Err(EPERM));
        equal!(path.grow(1), Err(EPERM));
        equal!(path.send(chunk), Err(EPERM));
        equal!(path.notices(), Err(EPERM));
        Ok(())
    })?;
    let receiver = Receiver::start(&path, |path, line| {
        equal!(path.attach()?[3], 1);
        equal!(path.grow(1), Err(EPERM));
        equal!(path.shrink(chunk), Err(EPERM));
        equal!(path.send(chunk), Err(EPERM));
        equal!(path.notices(), Err(EPERM));
        let message = path.receive()?;
        equal!(path.free(message.id + 256), Err(EINVAL));
        path.free(message.id)?;
        equal!(path.free(message.id), Err(EINVAL));
        equal!(path.free(u64::MAX), Err(EINVAL));
        path.leave()?;
        equal!(path.receive(), Err(EPERM));
        ensure!(is_filled(chunk, PAGE, 0), "it can still read");
        line.tell()
    })?;
    for (member, error) in [(2, EINVAL), (u64::MAX, EINVAL)] {
        equal!(path.send_to(member, chunk as usize), Err(error), member);
    }
    path.send_to(1, chunk as usize)?;
    receiver.line.hear()?;
    receiver.end()
}

fn limits() -> Outcome {
    let (device, _) = enter()?;
    let path = Path::make(&device, CACHED, 4)?;
    for chunks in [0, 33, u64::MAX] {
        equal!(path.grow(chunks), Err(EINVAL), chunks);
    }
    equal!(path.grow(5), Err(ENOSPC));
    let first = path.grow(3)?;
    equal!(path.grow(2), Err(ENOSPC));
    path.grow(1)?;
    equal!(path.grow(1), Err(ENOSPC));
    path.shrink(first)?;
    let first = path.grow(3)?;
    // A receiver that frees nothing stops the sender, on this path only.
    path.set_nonblocking()?;
    prepare(first, 1);
    let hoarder = Receiver::start(&path, |path, line| {
        while path.receive().is_ok() {}
        line.tell()?;
        line.hear()
    })?;
    let mut sent = 0;
    let refused = loop {
        match path.send(first) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    equal!(refused, EAGAIN);
    ensure!((64..=256).contains(&sent), "{sent} messages");
    equal!(path.shrink(first), Err(EBUSY));
    hoarder.line.hear()?;
    hoarder.line.tell()?;
    hoarder.end()?;
    equal!(poll_for(&path, POLLOUT, -1)?, POLLOUT);
    path.shrink(first)?;
    // Receivers.
    let mut receivers = Vec::new();
    for _ in 0..15 {
        receivers.push(Receiver::start(&path, |_, line| line.hear())?);
    }
    child(|| {
        enter()?;
        equal!(path.attach(), Err(ENOSPC));
        Ok(())
    })?;
    for receiver in receivers {
        receiver.line.tell()?;
        receiver.end()?;
    }
    // The chunks of one user.
    child(|| {
        let (device, _) = enter()?;
        let mut paths = Vec::new();
        let mut chunks = 0;
        let refused = loop {
            let path = Path::make(&device, CACHED, 1024)?;
            let mut refused = None;
            for _ in 0..32 {
                match path.grow(32) {
                    Ok(_) => chunks += 32,
                    Err(error) => refused = Some(error),
                }
            }
            paths.push(path);
            if let Some(error) = refused {
                break error;
            }
        };
        equal!(refused, ENOSPC);
        ensure!(chunks <= SIZE / CHUNK / 8, "{chunks} chunks");
        Ok(())
    })
}

fn memory_calls() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 1);
        let page = chunk.cast::<c_void>();
        // Children have nothing there, whatever was asked for.
        refused! {
            madvise(page, PAGE, MADV_DOFORK) => EINVAL;
            madvise(page, PAGE, MADV_WIPEONFORK) => EINVAL;
        }
        faults(SIGSEGV, SEGV_MAPERR, chunk as usize, || {
            peek(chunk);
        })?;
        // It neither moves nor grows.
        let elsewhere = map(CHUNK)?;
        let to = elsewhere.cast::<c_void>();
        refused! {
            mremap(page, CHUNK, 2 * CHUNK, MREMAP_MAYMOVE) => EINVAL;
            mremap(page, CHUNK, CHUNK, MREMAP_MAYMOVE | MREMAP_FIXED, to) => EINVAL;
            mremap(page, 0, CHUNK, MREMAP_MAYMOVE) => EINVAL;
        }
        unmap(elsewhere, CHUNK)?;
        call!(mlock(page, PAGE));
        call!(munlock(page, PAGE));
        // The region is not meant by all memory.
        call!(mlockall(MCL_CURRENT | MCL_FUTURE));
        let other = path.grow(1)?;
        call!(munlockall());
        path.shrink(other)?;
        call!(madvise(page, PAGE, MADV_DONTNEED));
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            let data = check_leaf(message.root, LEN, 1)?;
            call!(mlock(data as *const c_void, PAGE));
            // What it has in place of an fbuf stays; what it takes away, it loses.
            let own = map_with(PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
            let moved = call!(mremap(
                own.cast(),
                PAGE,
                PAGE,
                MREMAP_MAYMOVE | MREMAP_FIXED,
                data as *mut c_void
            ));
            equal!(moved as usize, data);
            poke(data as *mut u8, 42);
            call!(munmap((data + PAGE) as *mut c_void, PAGE));
            path.free(message.id)?;
            equal!(peek(data as *const u8), 42);
            line.tell()?;
            // The kernel's side is as it was.
            let message = path.receive()?;
            equal!(message.bytes, LEN as u64);
            equal!(peek(data as *const u8), 42);
            ensure!(is_filled((data + 2 * PAGE) as *const u8, PAGE, 1));
            path.free(message.id)?;
            path.leave()?;
            ensure!(is_filled((data + 2 * PAGE) as *const u8, PAGE, 0));
            equal!(peek(data as *const u8), 42);
            line.tell()
        })?;
        for _ in 0..2 {
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        receiver.end()?;
        equal!(path.notices()?, [super::pages_of(chunk)]);
        // The originator gives up its own mapping: others read on.
        let receiver = Receiver::start(&path, |path, line| {
            line.hear()?;
            let message = path.receive()?;
            check_leaf(message.root, LEN, 1)?;
            path.free(message.id)?;
            Ok(())
        })?;
        unmap(chunk, CHUNK)?;
        path.send(chunk)?;
        receiver.line.tell()?;
        receiver.end()?;
        path.shrink(chunk)?;
    }
    Ok(())
}

fn taken() -> Outcome {
    child(|| {
        let at = (START + SIZE / 2) as *mut c_void;
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        let mapped = call!(mmap(at, PAGE, READ_WRITE, flags, -1, 0));
        equal!(mapped, at);
        let device = File::options().read(true).write(true).open("/dev/fbuf")?;
        let mut words = [0u64; 8];
        refused!(
            EEXIST,
            ioctl(device.as_raw_fd(), 0xc040_fb00, words.as_mut_ptr())
        );
        call!(munmap(at, PAGE));
        enter()?;
        enter()?;
        Ok(())
    })
}
