//! The memory of fbufs: what it costs, who may write it, and what stays in it.

use super::raw::{Path, *};
use super::{LEN, Receiver, prepare};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: cached and volatile costs nothing", costs_nothing),
    (
        "fbufs: the right to write comes back by itself",
        right_comes_back,
    ),
    ("fbufs: secured pages are not written", secured),
    ("fbufs: bytes in queues do not change", bytes_stay),
    ("fbufs: the default mode", default_mode),
    ("fbufs: contents are dropped", dropped),
];

/// Costs of fbufs, then those of the whole machine, where other tasks may have some.
const COSTS: [&str; 7] = [
    "fbuf_grants",
    "fbuf_revocations",
    "fbuf_secured",
    "tlb_local_page",
    "tlb_local_full",
    "tlb_remote",
    "page_tables_allocated",
];

fn costs() -> Result<Vec<u64>> {
    COSTS.into_iter().map(counter).collect()
}

/// Transfers in a row.
const TRANSFERS: u64 = 200;

fn own_faults() -> Result<i64> {
    // SAFETY: plain numbers.
    let mut usage: rusage = unsafe { zeroed() };
    call!(getrusage(RUSAGE_SELF, &mut usage));
    Ok(usage.ru_minflt + usage.ru_majflt)
}

/// After the first rounds a transfer takes no fault and changes no page table.
fn costs_nothing() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    let receiver = Receiver::start(&path, |path, line| {
        let mut faults = 0;
        for value in 1..=3u8 {
            let before = own_faults()?;
            for _ in 0..TRANSFERS {
                let message = path.receive()?;
                check_leaf(message.root, LEN, value)?;
                path.free(message.id)?;
                line.tell()?;
            }
            faults = own_faults()? - before;
        }
        equal!(faults, 0);
        Ok(())
    })?;
    let rounds = |value: u8| -> Result<i64> {
        let faults = own_faults()?;
        for _ in 0..TRANSFERS {
            prepare(chunk, value);
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        Ok(own_faults()? - faults)
    };
    rounds(1)?;
    costs()?;
    rounds(2)?;
    let before = costs()?;
    let faults = rounds(3)?;
    let after = costs()?;
    receiver.end()?;
    equal!(faults, 0);
    equal!(after[..3], before[..3]);
    // Far from one for each transfer.
    let is_little = |(after, before): (&u64, &u64)| after - before < TRANSFERS / 10;
    ensure!(after.iter().zip(&before).all(is_little), after, before);
    Ok(())
}

/// Pages that all receivers have freed can be written again without a fault.
fn right_comes_back() -> Outcome {
    for mode in [SECURED, SECURED | UNCACHED] {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for value in 1..=9u8 {
                let message = path.receive()?;
                check_leaf(message.root, LEN, value)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        for value in 1..=9u8 {
            let faults = own_faults()?;
            prepare(chunk, value);
            let faults = own_faults()? - faults;
            ensure!(value == 1 || faults == 0, mode, value, faults);
            path.send(chunk)?;
            receiver.line.hear()?;
        }
        // Memory that the program has protected by itself stays so.
        call!(mprotect(chunk.cast(), PAGE, PROT_READ));
        receiver.end()?;
        // Two messages, and the first one is freed: the other still has the pages.
        let receiver = Receiver::start(&path, |path, line| {
            let messages = [path.receive()?, path.receive()?];
            path.free(messages[0].id)?;
            line.tell()?;
            line.hear()?;
            path.free(messages[1].id)?;
            line.tell()
        })?;
        path.send(chunk)?;
        path.send(chunk)?;
        receiver.line.hear()?;
        let (from, to) = pipe(0)?;
        call!(write(to, b"xy".as_ptr().cast(), 2));
        let data = chunk.wrapping_add(PAGE).cast::<c_void>();
        refused!(EFAULT, read(from, data, 1));
        receiver.line.tell()?;
        receiver.line.hear()?;
        equal!(call!(read(from, data, 1)), 1);
        refused!(EFAULT, read(from, chunk.cast(), 1));
        receiver.end()?;
        call!(close(from));
        call!(close(to));
    }
    Ok(())
}

/// What was sent on cannot be written by the originator of a secured path, nor after a receiver
/// has asked.
fn secured() -> Outcome {
    for mode in ALL_MODES {
        let shared = shared_map(PAGE)?;
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 3);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            equal!(path.secure(START + SIZE - PAGE, 1), Err(EFAULT));
            equal!(path.secure(message.root, PAGE + LEN + 1), Err(EFAULT));
            path.secure(message.root, PAGE + LEN)?;
            line.tell()?;
            line.hear()?;
            check_leaf(message.root, LEN, 3)?;
            path.free(message.id)?;
            line.tell()?;
            line.hear()
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        // The thread that writes waits in the handler until the page may be written.
        let (address, writer) = (chunk as usize + 2 * PAGE, shared as usize);
        extern "C" fn wait_for_right(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
            // SAFETY: the kernel passes a valid siginfo, and the page is mapped.
            unsafe {
                let words = SEEN.load(SeqCst) as *mut [AtomicUsize; 3];
                (&(*words))[0].store((*info).si_code as usize, SeqCst);
                (&(*words))[1].store((*info).si_addr() as usize, SeqCst);
                while (&(*words))[2].load(SeqCst) == 0 {
                    sched_yield();
                }
            }
        }
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        SEEN.store(writer, SeqCst);
        handle(SIGSEGV, wait_for_right, 0)?;
        // SAFETY: the page is zero, and stays.
        let words = unsafe { &*(shared as *const [AtomicUsize; 3]) };
        words.iter().for_each(|word| word.store(0, SeqCst));
        let thread = thread::spawn(move || poke(address as *mut u8, 77));
        while words[1].load(SeqCst) == 0 {
            // SAFETY: a plain call.
            unsafe { sched_yield() };
        }
        equal!(words[0].load(SeqCst), SEGV_ACCERR as usize);
        equal!(words[1].load(SeqCst), address);
        // Not by the kernel's hand either.
        let (from, to) = pipe(0)?;
        call!(write(to, b"xyz".as_ptr().cast(), 3));
        refused!(EFAULT, read(from, address as *mut c_void, 3));
        let pages = chunk.wrapping_add(PAGE).cast::<c_void>();
        call!(mprotect(pages, LEN, PROT_READ));
        call!(mprotect(pages, LEN, PROT_READ | PROT_WRITE));
        refused!(EFAULT, read(from, address as *mut c_void, 3));
        refused!(EIO, madvise(pages, LEN, MADV_REMOVE));
        receiver.line.tell()?;
        receiver.line.hear()?;
        words[2].store(1, SeqCst);
        thread.join()?;
        equal!(peek(address as *const u8), 77);
        call!(signal(SIGSEGV, SIG_DFL));
        receiver.line.tell()?;
        receiver.end()?;
        for file in [from, to] {
            call!(close(file));
        }
        unmap(shared, PAGE)?;
    }
    Ok(())
}

/// What has gone into a pipe or a socket from an fbuf does not change when that is written again.
fn bytes_stay() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            line.hear()?;
            // The other side wrote after it had sent.
            check_leaf(message.root, LEN, 2)?;
            path.free(message.id)?;
            line.tell()
        })?;
        let len = 16 * PAGE;
        let data = chunk.wrapping_add(PAGE);
        let sockets = socket_pair(SOCK_STREAM)?;
        let lines = [pipe(0)?, pipe(0)?];
        fill(data, len, 1);
        let written = [
            call!(write(lines[0].1, data.cast(), len)),
            call!(vmsplice(lines[1].1, &vector(data, len), 1, 0)),
            call!(send(sockets[0].as_raw_fd(), data.cast(), len, 0)),
        ];
        // Its own page now, which receivers see.
        fill(data, len, 2);
        set_leaf(chunk, data, LEN);
        path.send(chunk)?;
        receiver.line.tell()?;
        receiver.line.hear()?;
        receiver.end()?;
        fill(data, len, 3);
        let froms = [lines[0].0, lines[1].0, sockets[1].as_raw_fd()];
        for (from, count) in froms.into_iter().zip(written) {
            let mut got = vec![0u8; count as usize];
            let mut at = 0;
            while at < got.len() {
                at += call!(read(from, got[at..].as_mut_ptr().cast(), got.len() - at)) as usize;
            }
            // By `vmsplice`, too, where Linux would show later writes.
            ensure!(
                is_filled(got.as_ptr(), got.len(), 1),
                "mode {mode}: other bytes"
            );
        }
        for (from, to) in lines {
            call!(close(from));
            call!(close(to));
        }
    }
    Ok(())
}

/// Paths that leave the mode to the kernel have the default, which root changes.
fn default_mode() -> Outcome {
    const BY_DEFAULT: u64 = 4;
    let words = [
        "cached,volatile",
        "uncached,volatile",
        "cached,secured",
        "uncached,secured",
    ];
    for (mode, word) in words.into_iter().enumerate() {
        let was = read_text("/proc/causeway/fbuf")?;
        fs::write("/proc/causeway/fbuf", word)?;
        let (device, _) = enter()?;
        let path = Path::make(&device, BY_DEFAULT, 0)?;
        path.grow(1)?;
        let attached = child(|| {
            enter()?;
            equal!(path.attach()?[2], mode as u64);
            Ok(())
        });
        let text = read_text("/proc/causeway/fbuf")?;
        ensure!(text.contains(&format!("mode {word}\n")), "{text}");
        ensure!(
            text.contains(&format!("there {word} chunks 1/32")),
            "{text}"
        );
        let first = was
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("mode "));
        fs::write("/proc/causeway/fbuf", first.ok_or("no mode")?)?;
        attached?;
    }
    Ok(())
}

/// The originator drops the contents of memory that it does not use: nothing of it is left, for
/// receivers as well.
fn dropped() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let memory = || field("/proc/causeway/fbuf", "pages");
        let before = (memory()?, counter("fbuf_pages_dropped")?);
        fill(chunk, CHUNK, 7);
        equal!(memory()?, before.0 + 512);
        call!(madvise(chunk.cast(), CHUNK, MADV_REMOVE));
        let after = (memory()?, counter("fbuf_pages_dropped")?);
        equal!(after, (before.0, before.1 + 512), mode);
        ensure!(is_filled(chunk, PAGE, 0));
        set_leaf(chunk, chunk.wrapping_add(PAGE), LEN);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            check_leaf(message.root, LEN, 0)?;
            equal!(path.idle(chunk, PAGE), Err(EPERM));
            line.tell()?;
            line.hear()?;
            path.free(message.id)?;
            line.tell()?;
            let message = path.receive()?;
            check_leaf(message.root, LEN, 9)?;
            path.free(message.id)?;
            Ok(())
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        // Contents that may be dropped when memory is short, unless they are written again.
        equal!(path.idle(chunk, CHUNK), Err(EBUSY));
        equal!(path.idle(chunk, 2 * CHUNK), Err(EFAULT));
        receiver.line.tell()?;
        receiver.line.hear()?;
        path.idle(chunk, CHUNK)?;
        prepare(chunk, 9);
        path.send(chunk)?;
        receiver.end()?;
    }
    Ok(())
}
