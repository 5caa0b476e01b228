//! Limits: sizes that wrap, races for the last place, and calls that are refused but leave
//! something behind.

use crate::{USER, as_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: limits: segments whose size wraps",
        wrapping_segments,
    ),
    ("attacks: limits: what names cost is charged", charged_names),
    (
        "attacks: limits: the list of many watches while memory is scarce",
        long_lists,
    ),
];

/// Segments that together have 2^64 bytes do not count as none.
fn wrapping_segments() -> Outcome {
    let kib = field("/proc/meminfo", "MemTotal")? + field("/proc/meminfo", "SwapTotal")?;
    let third = kib as usize * 1024 / 3;
    as_user(|| {
        while_attacking(|| {
            let small = call!(shmget(IPC_PRIVATE, 4097 * PAGE, 0o600));
            for pages in 4097..4097 + 16 {
                for flags in [0, SHM_NORESERVE] {
                    let size = 0_usize.wrapping_sub(pages * PAGE);
                    refused!(EINVAL, shmget(IPC_PRIVATE, size, 0o600 | flags));
                }
            }
            refused!(ENOSPC, shmget(IPC_PRIVATE, 1 << 46, 0o600 | SHM_NORESERVE));
            // The limit holds as before.
            let first = call!(shmget(IPC_PRIVATE, third, 0o600));
            refused!(ENOSPC, shmget(IPC_PRIVATE, third, 0o600));
            for segment in [small, first] {
                call!(shmctl(segment, IPC_RMID, null_mut()));
            }
            Ok(())
        })
    })
}

/// The KiB that the attacker is charged with for files in memory.
fn charged() -> Result<i64> {
    let text = read_text("/proc/causeway/accounts")?;
    let name = format!("{USER} files ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    let kib = line.and_then(|line| line.split(' ').nth(1)?.parse().ok());
    Ok(kib.unwrap_or(0))
}

/// Long names, links, directories and attributes are charged with all the memory that they take.
fn charged_names() -> Outcome {
    const COUNT: usize = 4000;
    let text = c(&"x".repeat(4095));
    let value = [1_u8; 2048];
    let makers: [(&str, &dyn Fn(*const c_char) -> Outcome); 4] = [
        ("hard links", &|name| {
            call!(link(c"file".as_ptr(), name));
            Ok(())
        }),
        ("symbolic links", &|name| {
            call!(symlink(text.as_ptr(), name));
            Ok(())
        }),
        ("directories", &|name| {
            call!(mkdir(name, 0o700));
            Ok(())
        }),
        ("attributes", &|name| {
            call!(close(call!(open(name, O_CREAT | O_WRONLY, 0o600))));
            let bytes = value.as_ptr().cast();
            call!(setxattr(name, c"user.a".as_ptr(), bytes, value.len(), 0));
            Ok(())
        }),
    ];
    for (what, make) in makers {
        let folder = folder("names")?;
        fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
        let free = || Ok::<_, Failure>(field("/proc/meminfo", "MemAvailable")? as i64);
        let (before, charged_before) = (free()?, charged()?);
        as_user(|| {
            std::env::set_current_dir(&folder)?;
            fs::write("file", "")?;
            for number in 0..COUNT {
                make(c(&format!("{number:0>255}")).as_ptr())?;
            }
            Ok(())
        })?;
        let (taken, more) = (before - free()?, charged()? - charged_before);
        println!("  {what}: {taken} KiB taken, {more} KiB charged");
        ensure!(more * 10 >= taken * 9, what, taken, more);
        fs::remove_dir_all(&folder)?;
        equal!(charged()?, charged_before, what);
    }
    Ok(())
}

/// The list of an epoll's watches needs no memory that is not there.
fn long_lists() -> Outcome {
    const WATCHES: u64 = 40_000;
    let mut before = limit_of(0);
    call!(getrlimit(RLIMIT_NOFILE, &mut before));
    call!(setrlimit(RLIMIT_NOFILE, &limit_of(WATCHES + 64)));
    let outcome = as_user(|| {
        // Its files in `/proc` are its own again.
        call!(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
        let epoll = call!(epoll_create1(0));
        let pipe = pipe(0)?.0;
        for _ in 0..WATCHES {
            let copy = call!(dup(pipe));
            let mut event = epoll_event { events: 0, u64: 0 };
            call!(epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &mut event));
        }
        let path = format!("/proc/self/fdinfo/{epoll}");
        let lines = |text: &str| text.lines().filter(|line| line.starts_with("tfd:")).count();
        equal!(lines(&read_text(&path)?), WATCHES as usize);
        // What it takes is refused, or the process is ended: nothing else may happen.
        let size = 1 << 30;
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let memory = map_with(size, READ_WRITE, flags, -1)?;
        let free = || field("/proc/meminfo", "MemFree");
        let mut page = 0;
        while free()? > 10 << 10 && page * PAGE < size {
            for _ in 0..64 {
                poke(memory.wrapping_add(page * PAGE), 1);
                page += 1;
            }
        }
        while_attacking(|| {
            let _ = fs::read(&path);
            Ok(())
        })
    });
    call!(setrlimit(RLIMIT_NOFILE, &before));
    let ended = |why: &Failure| why.to_string().contains("Signal(9)");
    match outcome {
        Err(why) if !ended(&why) => Err(why),
        _ => Ok(()),
    }
}
