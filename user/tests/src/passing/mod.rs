//! `/dev/causeway` passes memory to another process: by loan, transfer, or map entries.

pub mod chains;
pub mod places;

use std::os::fd::{AsFd, BorrowedFd};

use crate::large::Switched;
use crate::privileges::{CAP_SYS_PTRACE, drop_one};
use libcauseway::{Causeway, Memory, Passed, Passing, Receiver};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("passing: each way, both sides write", each_way),
    ("passing: to a place of the receiver", fixed),
    ("passing: of files and shared memory", kinds),
    ("passing: both directions at once", both_directions),
    ("passing: a receiver that ends", ends),
    ("passing: permission", permission),
    ("passing: refusals", refusals),
    ("passing: limits of the receiver", limits),
    ("passing: movements are counted", counted),
    ("passing: the example of the C header", example),
];

const WAYS: [Passing; 5] = [
    Passing::Copy,
    Passing::Move,
    Passing::Share,
    Passing::Lend,
    Passing::Transfer,
];

unsafe extern "C" {
    /// `user/libcauseway/examples/lend.c`.
    safe fn lend_example() -> c_int;
}

fn example() -> Outcome {
    equal!(lend_example(), 0);
    Ok(())
}

fn pass(
    memory: *mut u8,
    pages: usize,
    to: Receiver<'_>,
    how: Passing,
    address: Option<usize>,
) -> io::Result<Passed> {
    let range = memory as usize..memory as usize + pages * PAGE;
    // SAFETY: the tests use memory by pointers, and do not use what is gone.
    unsafe { Causeway::open()?.pass_range(range, to, how, address) }
}

/// The error number of a request that must fail.
fn error_of(passed: io::Result<Passed>) -> c_int {
    passed.map_or_else(|why| why.raw_os_error().unwrap_or(-1), |_| 0)
}

fn word(memory: *mut u8, page: usize) -> *mut u64 {
    memory.wrapping_add(page * PAGE).cast()
}

fn set(memory: *mut u8, page: usize, value: u64) {
    // SAFETY: callers name pages that are mapped.
    unsafe { word(memory, page).write_volatile(value) };
}

fn get(memory: *mut u8, page: usize) -> u64 {
    // SAFETY: as in `set`.
    unsafe { word(memory, page).read_volatile() }
}

/// Starts a child that has run `body`, and sleeps.
fn spawn_ready(body: impl FnOnce() -> Outcome) -> Result<pid_t> {
    let (from, to) = pipe(0)?;
    let child = spawn(|| {
        body()?;
        call!(write(to, [1u8].as_ptr().cast(), 1));
        loop {
            // SAFETY: a plain call.
            unsafe { libc::pause() };
        }
    })?;
    call!(close(to));
    let mut answer = 0u8;
    let count = call!(read(from, (&raw mut answer).cast(), 1));
    call!(close(from));
    ensure!(count == 1, "the child has failed");
    Ok(child)
}

/// A child that is told an address, and says when it is done with it.
struct Peer {
    child: pid_t,
    to: c_int,
    from: c_int,
}

impl Peer {
    /// Starts a child that runs `body` with each address until the line is closed.
    fn start(body: impl Fn(*mut u8) -> Outcome) -> Result<Self> {
        let (their_end, to) = pipe(0)?;
        let (from, their_answer) = pipe(0)?;
        let child = spawn(|| {
            call!(close(to));
            loop {
                let mut address = [0u8; 8];
                let count = call!(read(their_end, address.as_mut_ptr().cast(), 8));
                if count == 0 {
                    return Ok(());
                }
                body(usize::from_ne_bytes(address) as *mut u8)?;
                call!(write(their_answer, [1u8].as_ptr().cast(), 1));
            }
        })?;
        call!(close(their_end));
        call!(close(their_answer));
        Ok(Self { child, to, from })
    }

    fn receiver(&self) -> Receiver<'_> {
        Receiver::Id(self.child as u32)
    }

    fn tell(&self, address: usize) -> Outcome {
        call!(write(self.to, address.to_ne_bytes().as_ptr().cast(), 8));
        let mut answer = 0u8;
        let count = call!(read(self.from, (&raw mut answer).cast(), 1));
        ensure!(count == 1, "the child has failed");
        Ok(())
    }

    fn end(self) -> Outcome {
        call!(close(self.to));
        call!(close(self.from));
        wait_ok(self.child)
    }
}

const PAGES: usize = 40;

/// Memory whose pages have their numbers from `first` on.
fn numbered(first: u64) -> Result<*mut u8> {
    let memory = map(PAGES * PAGE)?;
    (0..PAGES).for_each(|page| set(memory, page, first + page as u64));
    Ok(memory)
}

fn check(memory: *mut u8, first: u64, what: &str) -> Outcome {
    for page in 0..PAGES {
        let (is, expected) = (get(memory, page), first + page as u64);
        ensure!(
            is == expected,
            "{what}: page {page} has {is}, not {expected}"
        );
    }
    Ok(())
}

fn each_way() -> Outcome {
    // The child checks what it got, and writes each second page.
    let peer = Peer::start(|memory| {
        check(memory, 100, "the child")?;
        (0..PAGES).step_by(2).for_each(|page| set(memory, page, 7));
        Ok(())
    })?;
    for switch in ["auto", "copy"] {
        let _way = Switched::to("movement", switch)?;
        for how in WAYS {
            let memory = numbered(100)?;
            // A part is common with a child of its own.
            let other = spawn_sleeper()?;
            set(memory, 0, 100);
            let passed = pass(memory, PAGES, peer.receiver(), how, None)?;
            equal!(passed.passed + passed.copied, PAGES as u64);
            let is_copied = switch == "copy" && matches!(how, Passing::Lend | Passing::Transfer);
            equal!(
                passed.copied,
                if is_copied { PAGES as u64 } else { 0 },
                how,
                switch
            );
            match how {
                Passing::Copy | Passing::Lend => {
                    (1..PAGES).step_by(4).for_each(|page| set(memory, page, 9));
                }
                Passing::Move => {
                    let mut byte = 0;
                    refused! { mincore(memory.cast(), PAGE, &mut byte) => ENOMEM; }
                }
                Passing::Transfer => {
                    (0..PAGES).for_each(|page| assert!(get(memory, page) == 0));
                    set(memory, 1, 9);
                }
                Passing::Share => {}
            }
            peer.tell(passed.address)?;
            match how {
                Passing::Copy | Passing::Lend => {
                    for page in 0..PAGES {
                        let expected = if page % 4 == 1 { 9 } else { 100 + page as u64 };
                        equal!(get(memory, page), expected, page);
                    }
                }
                Passing::Share => {
                    for page in 0..PAGES {
                        let expected = if page % 2 == 0 { 7 } else { 100 + page as u64 };
                        equal!(get(memory, page), expected, page);
                    }
                }
                Passing::Transfer => equal!(get(memory, 1), 9),
                Passing::Move => {}
            }
            kill_child(other)?;
            if how != Passing::Move {
                unmap(memory, PAGES * PAGE)?;
            }
        }
    }
    peer.end()
}

fn fixed() -> Outcome {
    // Mapped in both.
    let place = map((PAGES + 2) * PAGE)?;
    set(place, 0, 55);
    set(place, PAGES + 1, 56);
    let inner = place.wrapping_add(PAGE);
    let peer = Peer::start(|memory| {
        check(memory, 300, "the child")?;
        equal!((get(place, 0), get(place, PAGES + 1)), (55, 56));
        (0..PAGES).for_each(|page| set(memory, page, 8));
        Ok(())
    })?;
    // SAFETY: a new descriptor of the child.
    let pidfd = unsafe { libc::syscall(SYS_pidfd_open, peer.child, 0) } as c_int;
    // SAFETY: as above; nothing else closes it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let pidfd: BorrowedFd<'_> = pidfd.as_fd();
    for how in WAYS {
        let memory = numbered(300)?;
        let to = Receiver::Descriptor(pidfd);
        let passed = pass(memory, PAGES, to, how, Some(inner as usize))?;
        equal!(passed.address, inner as usize);
        peer.tell(inner as usize)?;
        if how != Passing::Move {
            let expected = match how {
                Passing::Share => 8,
                Passing::Transfer => 0,
                _ => 303,
            };
            equal!(get(memory, 3), expected, how);
            unmap(memory, PAGES * PAGE)?;
        }
        equal!(get(inner, 0), 0, "its own is as it was");
        if how == Passing::Share {
            // Pages are lent to private memory only.
            let memory = numbered(300)?;
            for how in [Passing::Lend, Passing::Transfer] {
                let passed = pass(memory, PAGES, to, how, Some(inner as usize));
                equal!(error_of(passed), EFAULT);
            }
            pass(memory, PAGES, to, Passing::Copy, Some(inner as usize))?;
        }
    }
    peer.end()?;
    // Inside one process, and by the safe interface.
    let causeway = Causeway::open()?;
    let own = Receiver::Id(std::process::id());
    for how in WAYS {
        let memory = Memory::new(4 * PAGE)?;
        memory.as_u64s()[0].store(5, Relaxed);
        let Ok(passed) = causeway.pass(&memory, own, how) else {
            equal!(how, Passing::Move);
            // What no process gets stays.
            let missing = Receiver::Id(4_000_000);
            let kept = causeway.give(memory, missing).err().ok_or("it is gone")?;
            equal!(kept.error.raw_os_error(), Some(ESRCH));
            equal!(kept.memory.as_u64s()[0].load(Relaxed), 5);
            let passed = causeway.give(kept.memory, own).map_err(io::Error::from)?;
            equal!(get(passed.address as *mut u8, 0), 5);
            continue;
        };
        // SAFETY: it was passed just now.
        let other = unsafe { Memory::from_passed(passed.address, 4 * PAGE) };
        let other = other.ok_or("no address")?;
        equal!(other.as_u64s()[0].load(Relaxed), 5, how);
        other.as_u64s()[0].store(6, Relaxed);
        let expected = match how {
            Passing::Share => 6,
            Passing::Transfer => 0,
            _ => 5,
        };
        equal!(memory.as_u64s()[0].load(Relaxed), expected, how);
        if how == Passing::Share {
            // Shared memory stays what it is: it has no page to give away.
            let passed = causeway.pass(&memory, own, Passing::Transfer);
            equal!(error_of(passed), EINVAL);
            let lent = causeway.pass(&memory, own, Passing::Lend)?;
            equal!(lent.copied, 4);
        }
    }
    Ok(())
}

fn kinds() -> Outcome {
    let path = format!("{}/file", folder("passing")?);
    fs::write(&path, vec![b'f'; 8 * PAGE])?;
    let file = File::options().read(true).write(true).open(&path)?;
    let fd = file.as_raw_fd();
    let peer = Peer::start(|memory| {
        // SAFETY: eight pages were passed.
        unsafe {
            equal!(memory.read_volatile(), b'f');
            memory.write_volatile(b'c');
        }
        Ok(())
    })?;
    for flags in [MAP_PRIVATE, MAP_SHARED] {
        for how in WAYS {
            file.write_all_at(b"f", 0)?;
            let memory = map_with(8 * PAGE, READ_WRITE, flags, fd)?;
            let passed = pass(memory, 8, peer.receiver(), how, None);
            if how == Passing::Transfer {
                equal!(error_of(passed), EINVAL);
                continue;
            }
            let passed = passed?;
            let is_lent = how == Passing::Lend;
            equal!((passed.passed, passed.copied), (8, 0), how, is_lent);
            peer.tell(passed.address)?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, 0)?;
            let reaches_file = flags == MAP_SHARED && matches!(how, Passing::Move | Passing::Share);
            equal!(byte[0], if reaches_file { b'c' } else { b'f' }, how);
            if how != Passing::Move {
                // SAFETY: it is still mapped.
                let seen = unsafe { memory.read_volatile() };
                equal!(seen, if how == Passing::Share { b'c' } else { b'f' }, how);
            }
        }
    }
    peer.end()
}

/// Two processes pass to each other, and both write what they have and what they got.
fn both_directions() -> Outcome {
    const ROUNDS: u64 = 60;
    let slots = shared_map(PAGE)?;
    // SAFETY: a page of zeros that both have, used as atomics only.
    let slots = unsafe { std::slice::from_raw_parts(slots.cast::<AtomicU64>(), PAGE / 8) };
    let slot = |round: u64, side: usize| &slots[2 * round as usize + side];
    let parent = std::process::id();
    let side = |me: usize, other: u32| -> Outcome {
        let mut numbers = Numbers::new(me as u64 + 1);
        for round in 1..=ROUNDS {
            let first = round << 32 | (me as u64) << 20;
            let memory = numbered(first)?;
            let how = WAYS[numbers.below(5) as usize];
            let passed = pass(memory, PAGES, Receiver::Id(other), how, None)?;
            if how != Passing::Move && how != Passing::Share {
                (0..PAGES).for_each(|page| set(memory, page, 1));
            }
            slot(round, me).store(passed.address as u64, SeqCst);
            let theirs = loop {
                match slot(round, 1 - me).load(SeqCst) {
                    0 => thread::yield_now(),
                    address => break address as *mut u8,
                }
            };
            check(theirs, round << 32 | (1 - me as u64) << 20, "received")?;
            (0..PAGES).for_each(|page| set(theirs, page, 2));
            if how != Passing::Move && how != Passing::Share {
                for page in 0..PAGES {
                    equal!(get(memory, page), 1, how);
                }
            }
            unmap(theirs, PAGES * PAGE)?;
            if how != Passing::Move {
                unmap(memory, PAGES * PAGE)?;
            }
        }
        Ok(())
    };
    let child = spawn(|| side(1, parent))?;
    side(0, child as u32)?;
    wait_ok(child)
}

/// A receiver that is killed at any moment harms nobody.
fn ends() -> Outcome {
    for round in 0..40 {
        let how = WAYS[round % 5];
        let child = spawn_sleeper()?;
        let memory = numbered(0)?;
        // No thread, whose stack could come to stand where memory has moved away.
        let killer = spawn(|| {
            if round % 3 == 0 {
                pause_ms(1);
            }
            call!(kill(child, SIGKILL));
            Ok(())
        })?;
        // Until the kill comes.
        loop {
            let error = error_of(pass(memory, PAGES, Receiver::Id(child as u32), how, None));
            if error == ESRCH {
                break;
            }
            // It may have as many mappings as it may have before it is killed.
            ensure!(error == 0 || error == ENOMEM, "{how:?}: errno {error}");
            if how == Passing::Move {
                call!(mmap(
                    memory.cast(),
                    PAGES * PAGE,
                    READ_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1,
                    0
                ));
            }
        }
        wait_ok(killer)?;
        wait(child)?;
        let error = error_of(pass(memory, PAGES, Receiver::Id(child as u32), how, None));
        equal!(error, ESRCH, how);
        unmap(memory, PAGES * PAGE)?;
    }
    Ok(())
}

fn permission() -> Outcome {
    let root = spawn_sleeper()?;
    let other = spawn_ready(|| {
        call!(setuid(1000));
        Ok(())
    })?;
    // A process of the same user that does not let others look into it.
    let closed = spawn_ready(|| {
        call!(setuid(1000));
        call!(prctl(PR_SET_DUMPABLE, 0 as c_ulong, 0, 0, 0));
        Ok(())
    })?;
    let memory = numbered(0)?;
    let refused = |target: pid_t| -> Outcome {
        for how in WAYS {
            for address in [None, Some(memory as usize)] {
                let passed = pass(memory, 1, Receiver::Id(target as u32), how, address);
                equal!(error_of(passed), EPERM, how);
            }
        }
        Ok(())
    };
    child(|| {
        drop_one(CAP_SYS_PTRACE)?;
        refused(other)
    })?;
    child(|| {
        call!(setuid(1000));
        refused(root)?;
        refused(closed)
    })?;
    pass(memory, 1, Receiver::Id(other as u32), Passing::Copy, None)?;
    kill_child(root)?;
    kill_child(other)?;
    kill_child(closed)?;
    Ok(())
}

fn refusals() -> Outcome {
    let memory = numbered(0)?;
    unmap(memory.wrapping_add(8 * PAGE), PAGE)?;
    call!(mprotect(
        memory.wrapping_add(9 * PAGE).cast(),
        PAGE,
        PROT_NONE
    ));
    let peer = Peer::start(|_| Ok(()))?;
    let start = memory as usize;
    let causeway = Causeway::open()?;
    for how in WAYS {
        let try_range = |range: std::ops::Range<usize>, to, address| {
            // SAFETY: nothing is passed.
            error_of(unsafe { causeway.pass_range(range, to, how, address) })
        };
        let to = peer.receiver();
        let own = Receiver::Id(std::process::id());
        let one = || start..start + PAGE;
        for (range, to, address, expected) in [
            (start + 1..start + PAGE, to, None, EINVAL),
            (start..start, to, None, EINVAL),
            (start + 7 * PAGE..start + 9 * PAGE, to, None, EFAULT),
            (usize::MAX - PAGE + 1..usize::MAX, to, None, EFAULT),
            (one(), to, Some(start + 1), EINVAL),
            (one(), to, Some(1 << 63), EFAULT),
            (start..start + 2 * PAGE, own, Some(start + PAGE), EINVAL),
            (one(), Receiver::Id(4_000_000), None, ESRCH),
            (one(), Receiver::Id(u32::MAX), None, ESRCH),
        ] {
            equal!(try_range(range.clone(), to, address), expected, how);
        }
        // SAFETY: a descriptor that is no process.
        let bad = Receiver::Descriptor(unsafe { BorrowedFd::borrow_raw(0) });
        equal!(try_range(one(), bad, None), EBADF, how);
        if matches!(how, Passing::Lend | Passing::Transfer) {
            let unreadable = start + 9 * PAGE..start + 10 * PAGE;
            equal!(try_range(unreadable, to, None), EFAULT, how);
        }
    }
    let device = call!(open(c"/dev/causeway".as_ptr(), O_RDWR));
    let mut words = [peer.child as u64, 0, 0, start as u64, PAGE as u64, 0, 0, 0];
    words[2] = 5;
    refused!(EINVAL, ioctl(device, 0xc040_ca04, words.as_ptr()));
    (words[1], words[2]) = (2, 0);
    refused!(EINVAL, ioctl(device, 0xc040_ca04, words.as_ptr()));
    refused!(EFAULT, ioctl(device, 0xc040_ca04, 8));
    call!(close(device));
    // The kernel's own pages.
    let maps = read_text("/proc/self/maps")?;
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]"));
    if let Some((start, _)) = vdso.and_then(|line| line.split_once('-')) {
        let start = usize::from_str_radix(start, 16).map_err(|_| "no address")?;
        let passed = pass(start as *mut u8, 1, peer.receiver(), Passing::Move, None);
        equal!(error_of(passed), EOPNOTSUPP);
    }
    peer.end()
}

fn limits() -> Outcome {
    let memory = numbered(600)?;
    let child = spawn_ready(|| {
        let limit = limit_of(64 << 20);
        call!(setrlimit(RLIMIT_AS, &limit));
        Ok(())
    })?;
    let large = map(256 << 20)?;
    for how in WAYS {
        let passed = pass(
            large,
            (256 << 20) / PAGE,
            Receiver::Id(child as u32),
            how,
            None,
        );
        equal!(error_of(passed), ENOMEM, how);
        pass(memory, 1, Receiver::Id(child as u32), Passing::Copy, None)?;
    }
    set(large, 0, 1);
    check(memory, 600, "the sender")?;
    kill_child(child)?;
    Ok(())
}

fn counted() -> Outcome {
    let count = |name: &str| -> Result<u64> {
        let text = read_text("/proc/causeway/movements")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line
            .ok_or("no such counter")?
            .parse()
            .map_err(|_| "no number")?)
    };
    let _way = Switched::to("movement", "auto")?;
    let child = spawn_sleeper()?;
    for (how, name, least) in [
        (Passing::Copy, "entries_copied", 1),
        (Passing::Share, "entries_shared", 1),
        (Passing::Lend, "pages_lent", PAGES as u64),
        (Passing::Transfer, "pages_transferred", PAGES as u64),
        (Passing::Move, "entries_moved", 1),
        (Passing::Move, "mappings_moved", PAGES as u64),
    ] {
        let memory = numbered(0)?;
        let before = count(name)?;
        pass(memory, PAGES, Receiver::Id(child as u32), how, None)?;
        let more = count(name)? - before;
        ensure!(more >= least, "{name}: {more} more");
    }
    kill_child(child)?;
    Ok(())
}
