//! Memory by other names: files in memory, segments, mappings and their tables.

use super::{
    FOLDER, WORKERS, bomb, bomb_of, bomb_until_killed, child_of_bomb, got_one, until_refused,
};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: bombs: segments that nobody has attached",
        segments,
    ),
    ("attacks: bombs: files in memory with names", named_files),
    ("attacks: bombs: many names of one file", hard_links),
    ("attacks: bombs: long symbolic links", symbolic_links),
    ("attacks: bombs: directories", directories),
    ("attacks: bombs: extended attributes", attributes),
    (
        "attacks: bombs: files in memory without a name",
        memory_files,
    ),
    (
        "attacks: bombs: shared memory of processes that have ended",
        shared,
    ),
    ("attacks: bombs: anonymous memory", anonymous),
    ("attacks: bombs: page tables", tables),
    ("attacks: bombs: mappings", mappings),
];

fn segments() -> Outcome {
    const SIZE: usize = 4 << 20;
    bomb_of(4, || {
        until_refused(|| {
            let segment = call!(shmget(IPC_PRIVATE, SIZE, 0o600));
            // SAFETY: attaches anywhere.
            let memory = unsafe { shmat(segment, null(), 0) }.cast::<u8>();
            touch(memory, SIZE, 1);
            call!(shmdt(memory.cast()));
            Ok(())
        })
    })
}

fn named_files() -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || {
        // SAFETY: asks for the id of this process.
        let mut file = File::create(format!("{FOLDER}/{}", unsafe { getpid() }))?;
        until_refused(|| Ok(file.write_all(&[1; 64 * 1024])?))
    })
}

/// Repeats `make` with a long name that is new, in a folder of the process's own, until it fails.
fn names_until_refused(make: impl Fn(*const c_char) -> Outcome) -> Outcome {
    // SAFETY: asks for the id of this process.
    let own = format!("{FOLDER}/{}", unsafe { getpid() });
    fs::create_dir(&own)?;
    std::env::set_current_dir(&own)?;
    fs::write("file", "")?;
    let mut number = 0;
    until_refused(|| {
        for _ in 0..64 {
            number += 1;
            make(c(&format!("{number:0>255}")).as_ptr())?;
        }
        Ok(())
    })
}

fn names(make: impl Fn(*const c_char) -> Outcome) -> Outcome {
    fs::create_dir_all(FOLDER)?;
    fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
    bomb_of(4, || names_until_refused(&make))
}

fn hard_links() -> Outcome {
    names(|name| {
        call!(link(c"file".as_ptr(), name));
        Ok(())
    })
}

fn symbolic_links() -> Outcome {
    let text = c(&"x".repeat(4095));
    names(|name| {
        call!(symlink(text.as_ptr(), name));
        Ok(())
    })
}

fn directories() -> Outcome {
    names(|name| {
        call!(mkdir(name, 0o700));
        Ok(())
    })
}

fn attributes() -> Outcome {
    let value = [1_u8; 2048];
    names(|name| {
        call!(close(call!(open(name, O_CREAT | O_WRONLY, 0o600))));
        for number in 0..4 {
            let attribute = c(&format!("user.{number}"));
            let bytes = value.as_ptr().cast();
            call!(setxattr(name, attribute.as_ptr(), bytes, value.len(), 0));
        }
        Ok(())
    })
}

fn memory_files() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let fd = call!(memfd_create(c"bomb".as_ptr(), 0));
            // SAFETY: the descriptor is new.
            let mut file = unsafe { File::from_raw_fd(fd) };
            for _ in 0..64 {
                file.write_all(&[1; 64 * 1024])?;
                got_one();
            }
            mem::forget(file);
            Ok(())
        })
    })
}

/// A process shares memory with children, which make it and end.
fn shared() -> Outcome {
    bomb_of(4, || {
        until_refused(|| {
            let memory = shared_map(1 << 20)?;
            child_of_bomb(|| {
                touch(memory, 1 << 20, 1);
                Ok(())
            })
        })
    })
}

fn anonymous() -> Outcome {
    bomb(|| {
        until_refused(|| {
            let memory = map(1 << 20)?;
            touch(memory, 1 << 20, 1);
            Ok(())
        })
    })
}

/// As many mappings of nothing as a process may have.
fn mappings() -> Outcome {
    const SIZE: usize = 130_000 * PAGE;
    bomb(|| {
        let area = map_with(SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
        let mut pages = (0..SIZE).step_by(2 * PAGE);
        until_refused(|| {
            // The last one is not reached: fewer mappings are allowed.
            let at = area.wrapping_add(pages.next().ok_or("all")?);
            call!(mprotect(at.cast(), PAGE, PROT_READ));
            Ok(())
        })
    })
}

/// A page of its own in each page table, until processes are ended for it: all programs wait for
/// memory meanwhile, so the choice must not take longer for thousands of tables.
fn tables() -> Outcome {
    const SIZE: usize = 64 << 30;
    bomb_until_killed(WORKERS, || {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        let memory = map_with(SIZE, READ_WRITE, flags, -1)?;
        // A page of zeros costs three: itself, the table, and what leads back to it.
        for at in (0..SIZE).step_by(2 << 20) {
            peek(memory.wrapping_add(at));
            got_one();
        }
        Ok(())
    })
}
