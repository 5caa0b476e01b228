//! Programs that try to write, to read or to keep what is not theirs, and all requests at once.

use super::raw::{Path, *};
use super::{LEN, Line, Receiver, prepare};
use support::numbers::Numbers;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: no write by a debugger's ways", no_debugger),
    ("fbufs: a path that only itself leads to", circles),
    ("fbufs: memory of an earlier path", recycled),
    ("fbufs: the default is root's to change", roots_switch),
    ("fbufs: watched before it is joined", early_watch),
    ("fbufs: random requests of many processes", random),
    (
        "fbufs: random requests without memory",
        random_without_memory,
    ),
];

/// Writes to memory of this process as a debugger does; whether any was written.
fn writes_own(at: *const u8) -> Result<bool> {
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let by_file = memory.write_at(b"!", at as u64).is_ok();
    let byte = *b"!";
    let (ours, theirs) = (vector(byte.as_ptr(), 1), vector(at.cast_mut(), 1));
    // SAFETY: both vectors live across the call, which checks what they name.
    let by_call = unsafe { process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) };
    Ok(by_file || by_call == 1)
}

/// `/proc/PID/mem` writes where a program itself may not. Fbufs of others stay as they
/// are, and so do the originator's own secured ones.
fn no_debugger() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 7);
        let data = chunk.wrapping_add(PAGE);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            ensure!(!writes_own(data)?, "it has written an fbuf");
            check_leaf(message.root, LEN, 7)?;
            line.tell()?;
            line.hear()?;
            path.free(message.id)?;
            line.tell()
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        if mode & SECURED != 0 {
            ensure!(!writes_own(data)?, "it has written a secured page");
        }
        ensure!(is_filled(data, LEN, 7), "it has changed");
        receiver.line.tell()?;
        receiver.line.hear()?;
        receiver.end()?;
        path.shrink(chunk)?;
    }
    Ok(())
}

/// A path's descriptor lies in a socket that lies in itself, and no process has it: it ends.
fn circles() -> Outcome {
    for mode in ALL_MODES {
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 1);
        let id = path.id_in_list()?;
        let (ours, theirs) = socket_pair(SOCK_STREAM)?.into();
        let fds = [path.as_raw_fd(), ours.as_raw_fd(), theirs.as_raw_fd()];
        crate::unix_sockets::rights::send_files(ours.as_raw_fd(), b"x", &fds)?;
        drop((path, ours, theirs));
        let mut left = true;
        // It is collected some time later.
        for _ in 0..1000 {
            left = read_text("/proc/causeway/fbuf")?.contains(&format!("path {id} "));
            if !left {
                break;
            }
            pause_ms(10);
        }
        ensure!(!left, "the path is left");
        ensure!(is_filled(chunk, PAGE, 0), "its chunk is left");
    }
    Ok(())
}

impl Path {
    /// Its number, as its `fdinfo` shows it.
    fn id_in_list(&self) -> Result<u64> {
        field(
            &format!("/proc/self/fdinfo/{}", self.as_raw_fd()),
            "fbuf-path",
        )
    }
}

/// Addresses of a chunk that goes back stay their path's as long as it or a receiver is there, and
/// go to another path then, each time without what was in the chunk.
fn recycled() -> Outcome {
    for mode in ALL_MODES {
        let first = Path::new(mode)?;
        let chunk = first.grow(1)?;
        prepare(chunk, 9);
        let receiver = Receiver::start(&first, |path, line| {
            let message = path.receive()?;
            check_leaf(message.root, LEN, 9)?;
            path.free(message.id)?;
            line.tell()?;
            line.hear()?;
            ensure!(is_filled(chunk, PAGE + LEN, 0), "it reads other memory");
            line.tell()
        })?;
        first.send(chunk)?;
        receiver.line.hear()?;
        first.shrink(chunk)?;
        child(|| {
            let second = Path::new(mode)?;
            let other = second.grow(1)?;
            ensure!(other != chunk, "another path has its addresses");
            fill(other, PAGE + LEN, 5);
            receiver.line.tell()?;
            receiver.line.hear()
        })?;
        receiver.end()?;
        equal!(first.grow(1)?, chunk);
        ensure!(is_filled(chunk, CHUNK, 0), "earlier bytes are left");
        fill(chunk, PAGE, 6);
        first.leave()?;
        child(|| {
            let second = Path::new(mode)?;
            equal!(second.grow(1)?, chunk);
            ensure!(
                is_filled(chunk, CHUNK, 0),
                "an earlier path's bytes are left"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn roots_switch() -> Outcome {
    let before = read_text("/proc/causeway/fbuf")?;
    child(|| {
        call!(setresuid(1000, 1000, 1000));
        let opened = File::options().write(true).open("/proc/causeway/fbuf");
        let refused = opened.and_then(|mut file| file.write_all(b"cached,secured"));
        ensure!(refused.is_err(), "an ordinary user has changed it");
        Ok(())
    })?;
    let mode = |text: &str| text.lines().next().map(str::to_owned);
    equal!(mode(&read_text("/proc/causeway/fbuf")?), mode(&before));
    Ok(())
}

/// An epoll instance learns of messages to a receiver that attached after it was told to watch.
fn early_watch() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    prepare(chunk, 1);
    let (ours, theirs) = Line::pair()?;
    let receiver = spawn(|| {
        let epoll = call!(epoll_create1(0));
        let mut event = epoll_entry(EPOLLIN, 7);
        enter()?;
        let fd = path.as_raw_fd();
        call!(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &mut event));
        path.attach()?;
        equal!(call!(epoll_wait(epoll, &mut event, 1, 0)), 0);
        theirs.tell()?;
        equal!(call!(epoll_wait(epoll, &mut event, 1, -1)), 1);
        check_leaf(path.receive()?.root, LEN, 1)?;
        Ok(())
    })?;
    ours.hear()?;
    path.send(chunk)?;
    wait_ok(receiver)
}

const PROCESSES: usize = 6;
const REQUESTS: usize = 600;

/// Processes with each other's paths make all requests in any order, with addresses of each other,
/// change their mappings, and end anywhere, some of them killed. Nothing of it is left.
fn random() -> Outcome {
    let before = field("/proc/causeway/fbuf", "paths")?;
    let (front, back) = nonblocking_pair()?;
    let mut children = Vec::new();
    for seed in 0..PROCESSES as u64 {
        children.push(spawn(|| be_random(&front, &back, Numbers::new(seed + 1)))?);
    }
    let mut numbers = Numbers::new(99);
    for seed in 0..2 * PROCESSES as u64 {
        pause_ms(20);
        let victim = numbers.below(children.len() as u64) as usize;
        kill_child(children[victim])?;
        let numbers = Numbers::new(seed + 100);
        children[victim] = spawn(|| be_random(&front, &back, numbers))?;
        read_text("/proc/causeway/fbuf")?;
    }
    for child in children {
        wait_ok(child)?;
    }
    drop((front, back));
    nothing_left(before)
}

/// As before, while each so-manyth allocation of the kernel fails.
fn random_without_memory() -> Outcome {
    let before = field("/proc/causeway/fbuf", "paths")?;
    for every in [3, 10, 31] {
        let (front, back) = nonblocking_pair()?;
        let children: Vec<pid_t> = (0..PROCESSES as u64)
            .map(|seed| spawn(|| be_random(&front, &back, Numbers::new(seed + every))))
            .collect::<Result<_>>()?;
        drop((front, back));
        fs::write("/proc/causeway/failalloc", format!("{every}"))?;
        pause_ms(300);
        while fs::write("/proc/causeway/failalloc", "0").is_err() {}
        for child in children {
            // Some may have ended for memory.
            kill_child(child)?;
        }
    }
    nothing_left(before)
}

fn nonblocking_pair() -> Result<(OwnedFd, OwnedFd)> {
    let (front, back) = socket_pair(SOCK_DGRAM)?.into();
    call!(fcntl(front.as_raw_fd(), F_SETFL, O_NONBLOCK));
    call!(fcntl(back.as_raw_fd(), F_SETFL, O_NONBLOCK));
    Ok((front, back))
}

/// Waits until there are as many paths as before: descriptors in sockets are closed later.
fn nothing_left(before: u64) -> Outcome {
    let mut left = before + 1;
    for _ in 0..1000 {
        left = field("/proc/causeway/fbuf", "paths")?;
        if left == before {
            break;
        }
        pause_ms(10);
    }
    equal!(left, before);
    Ok(())
}

fn be_random(front: &OwnedFd, back: &OwnedFd, mut numbers: Numbers) -> Outcome {
    // There may be no memory for it.
    let Ok((device, _)) = enter() else {
        return Ok(());
    };
    let mut paths: Vec<Path> = Vec::new();
    let mut runs: Vec<*mut u8> = Vec::new();
    let mut held: Vec<u64> = Vec::new();
    for _ in 0..REQUESTS {
        let any = |numbers: &mut Numbers| {
            let chunk = START + numbers.below(24) as usize * CHUNK;
            (chunk + numbers.below(24) as usize * PAGE) as *mut u8
        };
        let at = any(&mut numbers);
        if paths.is_empty() || numbers.below(12) == 0 {
            if let Ok(path) = Path::make(&device, numbers.below(5), 1 + numbers.below(3)) {
                let fds = [path.as_raw_fd()];
                path.set_nonblocking()?;
                // Its socket may be full.
                let _ = crate::unix_sockets::rights::send_files(front.as_raw_fd(), b"x", &fds);
                paths.push(path);
            }
            continue;
        }
        if numbers.below(8) == 0 {
            if let Ok(files) = crate::unix_sockets::rights::take_files(back.as_raw_fd()) {
                paths.extend(files.into_iter().map(Path));
            }
            continue;
        }
        let index = numbers.below(paths.len() as u64) as usize;
        let path = &paths[index];
        // Whatever the kernel answers is right here; that it does, and what is left, is tested.
        match numbers.below(19) {
            0 | 1 => drop(path.attach()),
            2 | 3 => runs.extend(path.grow(1 + numbers.below(2))),
            4 => drop(path.shrink(at)),
            5..=7 => {
                // Stores of a debugger fail where the page may not be written.
                let data = any(&mut numbers) as u64;
                let next = any(&mut numbers) as u64;
                let run = match runs.is_empty() {
                    true => at,
                    false => runs[numbers.below(runs.len() as u64) as usize],
                };
                let node = [1 + numbers.below(2), 3 * PAGE as u64, data, next];
                let (ours, theirs) = (vector(node.as_ptr().cast::<u8>(), 32), vector(run, 32));
                // SAFETY: both vectors live across the call, which checks what they name.
                unsafe { process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) };
                let _ = path.send(run);
                let _ = path.send_to(1 + numbers.below(3), run as usize);
            }
            8 | 9 => held.extend(path.receive().map(|it| it.id)),
            10 if !held.is_empty() => {
                let one = numbers.below(held.len() as u64) as usize;
                let _ = path.free(held[one]);
            }
            11 => drop(path.notices()),
            12 => drop(path.secure(at as usize, 2 * PAGE)),
            13 => drop(path.idle(at, 3 * PAGE)),
            14 => drop(path.leave()),
            15 => drop(paths.swap_remove(index)),
            16 => {
                // SAFETY: nothing of this process uses what is there.
                unsafe {
                    madvise(at.cast(), 2 * PAGE, MADV_REMOVE);
                    mlock(at.cast(), PAGE);
                    munlock(at.cast(), PAGE);
                }
            }
            17 => {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                // SAFETY: as above.
                unsafe {
                    match numbers.below(2) {
                        0 => drop(munmap(at.cast(), 3 * PAGE)),
                        _ => drop(mmap(at.cast(), 2 * PAGE, READ_WRITE, flags, -1, 0)),
                    }
                }
            }
            _ => {
                // SAFETY: the child only exits; it has copies of the descriptors meanwhile.
                let child = unsafe { fork() };
                if child == 0 {
                    exit(0);
                }
                if child > 0 {
                    wait_ok(child)?;
                }
            }
        }
    }
    Ok(())
}
