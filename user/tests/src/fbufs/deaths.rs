//! Domains that end at each step of a transfer.

use super::raw::{Path, *};
use super::{LEN, Line, Receiver, pages_of, prepare};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: receivers that end at each step", receivers),
    ("fbufs: an originator that ends", originators),
    ("fbufs: waiting for a word of one that ends", sleepers),
    ("fbufs: the last descriptor is closed", closed),
    ("fbufs: a new program in the process", executed),
    ("fbufs: memory comes back", memory),
];

/// A figure of `/proc/causeway/fbuf`.
fn figure(name: &str) -> Result<u64> {
    field("/proc/causeway/fbuf", name)
}

fn receivers() -> Outcome {
    for mode in ALL_MODES {
        for step in 0..5 {
            let path = Path::new(mode)?;
            let chunk = path.grow(1)?;
            prepare(chunk, 1);
            let victim = Receiver::start(&path, |path, line| {
                line.hear()?;
                if step > 0 {
                    let message = path.receive()?;
                    if step > 1 {
                        check_leaf(message.root, LEN, 1)?;
                    }
                    if step > 2 {
                        path.secure(message.root, PAGE)?;
                    }
                    if step > 3 {
                        path.free(message.id)?;
                    }
                }
                line.tell()?;
                line.hear()
            })?;
            path.send(chunk)?;
            victim.line.tell()?;
            victim.line.hear()?;
            victim.kill()?;
            // As if it had freed all.
            equal!(path.notices()?, [pages_of(chunk)], mode, step);
            fill(chunk, PAGE + LEN, 2);
            equal!(path.send(chunk), Err(EPIPE));
            equal!(path.count_members()?, 0);
            path.shrink(chunk)?;
        }
    }
    Ok(())
}

impl Path {
    /// How many receivers the only path has that this process originates.
    fn count_members(&self) -> Result<u64> {
        let text = read_text("/proc/causeway/fbuf")?;
        let own = format!(" owner {} ", std::process::id());
        let line = text.lines().find(|line| line.contains(&own));
        let words: Vec<&str> = line.ok_or("no line")?.split(' ').collect();
        let at = words.iter().position(|word| *word == "members");
        Ok(words[at.ok_or("no word")? + 1].parse()?)
    }
}

/// The originator is killed: receivers read what they have, and get what was sent.
fn originators() -> Outcome {
    for mode in ALL_MODES {
        let before = figure("chunks")?;
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let (ours, theirs) = Line::pair()?;
        let victim = spawn(|| {
            let path = Path::new(mode)?;
            let chunk = path.grow(2)?;
            super::send_path(&front, &path)?;
            theirs.hear()?;
            prepare(chunk, 4);
            path.send(chunk)?;
            let second = chunk.wrapping_add(CHUNK);
            prepare(second, 5);
            path.send(second)?;
            // One that receivers have not been told of.
            path.grow(1)?;
            theirs.tell()?;
            sleep_forever()
        })?;
        child(|| {
            let path = super::take_path(&back)?;
            path.join()?;
            ours.tell()?;
            ours.hear()?;
            let first = path.receive()?;
            equal!(kill_by_id(victim), Ok(()));
            // It is gone once it has left the path.
            while poll_for(&path, 0, -1)? & POLLHUP == 0 {}
            check_leaf(first.root, LEN, 4)?;
            let second = path.receive()?;
            check_leaf(second.root, LEN, 5)?;
            path.free(first.id)?;
            check_leaf(second.root, LEN, 5)?;
            path.free(second.id)?;
            equal!(path.receive(), Err(EPIPE));
            let is_cached = mode & UNCACHED == 0;
            let left = if is_cached { 3 } else { 0 };
            equal!(figure("chunks")?, before + left, mode);
            path.leave()?;
            equal!(figure("chunks")?, before, mode);
            ensure!(is_filled(first.root as *const u8, PAGE, 0));
            Ok(())
        })?;
        equal!(wait(victim)?, End::Signal(SIGKILL));
        equal!(figure("chunks")?, before, mode);
    }
    Ok(())
}

/// A thread that waits for a word that the originator writes is woken by it, and by its end.
fn sleepers() -> Outcome {
    for mode in [0, SECURED] {
        let (front, back) = socket_pair(SOCK_STREAM)?.into();
        let (ours, theirs) = Line::pair()?;
        let victim = spawn(|| {
            let path = Path::new(mode)?;
            let chunk = path.grow(1)?;
            super::send_path(&front, &path)?;
            theirs.hear()?;
            // SAFETY: the word is the path's.
            let word = unsafe { AtomicU32::from_ptr(chunk.cast()) };
            word.store(1, SeqCst);
            path.ring(chunk)?;
            theirs.hear()?;
            sleep_forever()
        })?;
        child(|| {
            let path = super::take_path(&back)?;
            path.join()?;
            // The only chunk that it can read.
            let mut chunks = (0..64).map(|i| START + i * CHUNK);
            let chunk = chunks.find(|it| path.whose(*it).is_ok());
            let word = chunk.ok_or("no chunk")? as *const u8;
            equal!(path.wait(word, 7), Err(EAGAIN));
            equal!(path.wait(word.wrapping_add(2), 7), Err(EINVAL));
            equal!(path.wait((&raw const mode).cast(), 7), Err(EFAULT));
            equal!(path.ring(word.wrapping_add(2)), Err(EINVAL));
            equal!(path.ring((&raw const mode).cast()), Err(EFAULT));
            equal!(path.pass(&path, word, word, 7), Err(EAGAIN));
            let own = call!(getpid());
            let helper = spawn(|| {
                await_sleep(own)?;
                ours.tell()?;
                Ok(())
            })?;
            // Unless it comes before the sleep.
            ensure!([Ok(()), Err(EAGAIN)].contains(&path.wait(word, 0)));
            wait_ok(helper)?;
            equal!(path.wait(word, 0), Err(EAGAIN));
            let killer = spawn(|| {
                await_sleep(own)?;
                equal!(kill_by_id(victim), Ok(()));
                Ok(())
            })?;
            equal!(path.pass(&path, word, word, 1), Err(EPIPE));
            wait_ok(killer)?;
            equal!(path.wait(word, 1), Err(EPIPE));
            Ok(())
        })?;
        equal!(wait(victim)?, End::Signal(SIGKILL));
    }
    Ok(())
}

fn kill_by_id(process: pid_t) -> Answer<()> {
    // SAFETY: a plain call.
    match unsafe { libc::kill(process, SIGKILL) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// The last close of its descriptors ends a path: its memory is gone in all domains.
fn closed() -> Outcome {
    for mode in ALL_MODES {
        let before = (figure("chunks")?, figure("paths")?);
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        prepare(chunk, 6);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            let root = message.root;
            check_leaf(root, LEN, 6)?;
            call!(close(path.as_raw_fd()));
            line.tell()?;
            line.hear()?;
            ensure!(is_filled(root as *const u8, PAGE, 0), "it can still read");
            Ok(())
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        equal!(figure("messages_in_flight")?, 1);
        drop(path);
        ensure!(is_filled(chunk, PAGE, 0), "its own memory stays");
        equal!((figure("chunks")?, figure("paths")?), before, mode);
        receiver.line.tell()?;
        receiver.end()?;
    }
    Ok(())
}

/// `execve` ends a domain, as an exit does.
fn executed() -> Outcome {
    let path = Path::new(UNCACHED | SECURED)?;
    let chunk = path.grow(1)?;
    prepare(chunk, 1);
    let receiver = Receiver::start(&path, |path, line| {
        path.receive()?;
        // The path's descriptor stays open in the new program.
        call!(fcntl(path.as_raw_fd(), F_SETFD, 0));
        let script = format!("echo x >&{}; read x <&{}", line.to, line.from);
        let (shell, option, script) = (c("/bin/sh"), c("-c"), c(&script));
        let arguments = [
            shell.as_ptr(),
            option.as_ptr(),
            script.as_ptr(),
            ptr::null(),
        ];
        call!(execv(shell.as_ptr(), arguments.as_ptr()));
        Ok(())
    })?;
    path.send(chunk)?;
    receiver.line.hear()?;
    equal!(path.notices()?, [pages_of(chunk)]);
    fill(chunk, PAGE, 2);
    call!(write(receiver.line.to, b"\n".as_ptr().cast(), 1));
    wait(receiver.child)?;
    Ok(())
}

/// Chunks, pages and records of processes that were killed are free again.
fn memory() -> Outcome {
    let available = || field("/proc/meminfo", "MemAvailable");
    let round = |mode: u64| -> Outcome {
        let path = Path::new(mode)?;
        let chunk = path.grow(8)?;
        fill(chunk, 8 * CHUNK, 3);
        set_leaf(chunk, chunk.wrapping_add(PAGE), 8 * CHUNK - PAGE);
        let receiver = Receiver::start(&path, |path, line| {
            let message = path.receive()?;
            ensure!(is_filled((message.root + PAGE) as *const u8, CHUNK, 3));
            line.tell()?;
            sleep_forever()
        })?;
        path.send(chunk)?;
        receiver.line.hear()?;
        receiver.kill()
    };
    child(|| round(0))?;
    let (chunks, before) = (figure("chunks")?, available()?);
    for mode in ALL_MODES {
        child(|| round(mode))?;
        equal!(figure("chunks")?, chunks);
    }
    let after = available()?;
    ensure!(
        after + 4096 > before,
        "{before} KiB were available, {after} KiB are"
    );
    Ok(())
}
