//! Looking into processes that have gained rights: races of a check with the target's `execve`,
//! and what a program leaves behind for a set-id program that it executes.

use crate::victims::{self, MARK, SECRET, WORD, execute, place};
use crate::{USER, as_user, become_user, while_attacking};
use libcauseway::{Causeway, Passing, Receiver};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: writing into a set-uid program", write_memory),
    ("attacks: reading from a set-uid program", read_memory),
    ("attacks: passing memory to a set-uid program", pass_memory),
    ("attacks: a set-uid program's memory as a file", memory_file),
    ("attacks: a set-uid program's environment", environment),
    ("attacks: a set-uid program's mappings", mappings),
    ("attacks: a set-uid program's auxiliary vector", auxiliary),
    ("attacks: taking a set-uid program's files", descriptors),
    ("attacks: seeing a set-uid program's files", links),
    ("attacks: a set-uid program's position", positions),
    ("attacks: a set-uid program's working directory", directory),
    ("attacks: limits of a set-uid program", limits),
    ("attacks: the name of a set-uid program", name),
    (
        "attacks: files opened before a set-uid program ran",
        kept_files,
    ),
    ("attacks: a set-uid program that reads for others", deputy),
    ("attacks: a program that may only be executed", execute_only),
    ("attacks: a process that gave up its rights", gave_up),
    ("attacks: addresses of root's processes", addresses),
];

/// Lets other processes of the user look into this one.
fn open_up() -> Outcome {
    call!(prctl(PR_SET_DUMPABLE, 1 as c_ulong, 0, 0, 0));
    Ok(())
}

/// Closes all descriptors but the standard ones.
fn close_all() -> Outcome {
    call!(syscall(SYS_close_range, 3, u32::MAX, 0));
    Ok(())
}

/// Runs `attack` on many processes at a time against processes that execute `victim`: with the
/// target's id, again and again. It returns whether it got what it should not.
fn race(victim: &CStr, attack: fn(c_int) -> bool) -> Outcome {
    as_user(|| {
        let page = shared_map(PAGE)?;
        // SAFETY: the page lives as long as this process and its children.
        let (target, gained) = unsafe {
            (
                &*page.cast::<AtomicI32>(),
                &*page.add(64).cast::<AtomicU32>(),
            )
        };
        let mut attackers = Vec::new();
        for _ in 0..2 * cpus() + 1 {
            attackers.push(spawn(|| {
                loop {
                    let pid = target.load(Relaxed);
                    if pid == 0 {
                        // SAFETY: a plain call.
                        unsafe { sched_yield() };
                    } else if attack(pid) {
                        gained.fetch_add(1, Relaxed);
                    }
                }
            })?);
        }
        let outcome = while_attacking(|| {
            let child = spawn(|| {
                open_up()?;
                close_all()?;
                // Attackers begin while it may still be looked into.
                target.store(call!(getpid()), Relaxed);
                call!(sched_yield());
                execute(victim)
            })?;
            let end = wait(child)?;
            target.store(0, Relaxed);
            equal!(end, End::Exit(0));
            equal!(gained.load(Relaxed), 0);
            Ok(())
        });
        for attacker in attackers {
            kill_child(attacker)?;
        }
        outcome
    })
}

fn write_memory() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        let word = 0u32;
        let (from, to) = (vector(&word, 4), vector(WORD as *const u8, 4));
        // SAFETY: writes to another process.
        unsafe { process_vm_writev(pid, &from, 1, &to, 1, 0) };
        false
    })
}

fn read_memory() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        let mut word = 0u32;
        let (to, from) = (vector(&raw mut word, 4), vector(WORD as *const u8, 4));
        // SAFETY: reads from another process into `word`.
        unsafe { process_vm_readv(pid, &to, 1, &from, 1, 0) };
        word == SECRET
    })
}

fn pass_memory() -> Outcome {
    const WAYS: [Passing; 4] = [
        Passing::Copy,
        Passing::Share,
        Passing::Lend,
        Passing::Transfer,
    ];
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        let (Ok(memory), Ok(causeway)) = (map(PAGE), Causeway::open()) else {
            return false;
        };
        let there = WORD & !(PAGE - 1);
        for how in WAYS {
            poke(memory, 1);
            let range = memory as usize..memory as usize + PAGE;
            // SAFETY: the memory is used by pointers only. What stands at this address in a program
            // that may be changed is nothing.
            let _ =
                unsafe { causeway.pass_range(range, Receiver::Id(pid as u32), how, Some(there)) };
        }
        let _ = unmap(memory, PAGE);
        false
    })
}

/// Opens a file about a process.
fn open_about(pid: c_int, name: &str, write: bool) -> Option<File> {
    File::options()
        .read(true)
        .write(write)
        .open(format!("/proc/{pid}/{name}"))
        .ok()
}

/// Returns the start of a file about a process, empty where it can't be read.
fn about(pid: c_int, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let read = open_about(pid, name, false).and_then(|mut file| file.read(&mut bytes).ok());
    bytes.truncate(read.unwrap_or(0));
    bytes
}

pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn memory_file() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        let Some(file) = open_about(pid, "mem", true) else {
            return false;
        };
        let mut word = [0; 4];
        let read = file.read_at(&mut word, WORD as u64).is_ok();
        let _ = file.write_at(&[0; 4], WORD as u64);
        read && word == SECRET.to_le_bytes()
    })
}

fn environment() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        contains(&about(pid, "environ"), MARK.to_bytes())
    })
}

fn mappings() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        contains(&about(pid, "maps"), b"/victim") || contains(&about(pid, "smaps"), b"/victim")
    })
}

fn auxiliary() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::watch())?, |pid| {
        let vector = about(pid, "auxv");
        let words = vector.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        // The victim begins where no other program does.
        words.any(|word| word as usize & !(PAGE - 1) == WORD & !(PAGE - 1))
    })
}

/// The descriptor that a victim opens: the first one that is free.
const OPENED: c_int = 3;

fn is_secret(open: c_int) -> bool {
    // SAFETY: all zeros is a valid answer, which the call fills.
    let mut state: stat = unsafe { zeroed() };
    // SAFETY: as above.
    unsafe { fstat(open, &mut state) == 0 && state.st_mode & 0o777 == 0o700 && state.st_uid == 0 }
}

fn descriptors() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::holder(&place.secret))?, |pid| {
        // SAFETY: plain calls; what they open is closed here.
        unsafe {
            let process = syscall(SYS_pidfd_open, pid, 0);
            let taken = syscall(SYS_pidfd_getfd, process, OPENED, 0) as c_int;
            let gained = taken >= 0 && is_secret(taken);
            close(taken);
            close(process as c_int);
            gained
        }
    })
}

fn leads_to_secret(path: &str) -> bool {
    fs::read_link(path).is_ok_and(|to| to.to_string_lossy().ends_with("/secret"))
}

fn links() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::holder(&place.secret))?, |pid| {
        leads_to_secret(&format!("/proc/{pid}/fd/{OPENED}"))
    })
}

fn positions() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::holder(&place.secret))?, |pid| {
        // The attacker's own program has no such descriptor.
        !about(pid, &format!("fdinfo/{OPENED}")).is_empty()
    })
}

fn directory() -> Outcome {
    let place = place()?;
    race(&place.victim(victims::holder(&place.secret))?, |pid| {
        leads_to_secret(&format!("/proc/{pid}/cwd"))
    })
}

/// Starts a set-uid program that goes on until it is killed, as a child of an attacker.
fn started(victim: &CStr) -> Result<c_int> {
    let child = spawn(|| {
        open_up()?;
        execute(victim)
    })?;
    for _ in 0..1000 {
        if fs::read_to_string(format!("/proc/{child}/comm"))?.trim() == "victim" {
            return Ok(child);
        }
        pause_ms(1);
    }
    Err("the victim does not start".into())
}

fn limits() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        let victim = started(&victim)?;
        while_attacking(|| {
            let none = limit_of(0);
            let mut old = limit_of(0);
            refused! {
                prlimit(victim, RLIMIT_FSIZE, &none, null_mut()) => EPERM;
                prlimit(victim, RLIMIT_STACK, null(), &mut old) => EPERM;
            }
            let (mut head, mut size) = (0usize, 0usize);
            refused!(
                EPERM,
                syscall(SYS_get_robust_list, victim, &mut head, &mut size)
            );
            refused!(EPERM, syscall(SYS_kcmp, victim, getpid(), 0, 0, 0));
            Ok(())
        })?;
        // Signals still end what one has started: the real user is the same.
        equal!(kill_child(victim)?, End::Signal(SIGKILL));
        Ok(())
    })
}

fn name() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        let child = spawn(|| {
            open_up()?;
            pause_ms(50);
            execute(&victim)
        })?;
        let mut named = None;
        let mut open = None;
        for _ in 0..1000 {
            open = open.or_else(|| {
                let path = format!("/proc/{child}/comm");
                File::options().write(true).open(path).ok()
            });
            let now = fs::read_to_string(format!("/proc/{child}/comm"))?;
            if now.trim() == "victim" {
                named = Some(());
                break;
            }
            pause_ms(1);
        }
        ensure!(named.is_some(), "the victim does not start");
        if let Some(mut file) = open {
            let _ = file.write(b"attacked");
        }
        let now = fs::read_to_string(format!("/proc/{child}/comm"))?;
        kill_child(child)?;
        equal!(now.trim(), "victim");
        Ok(())
    })
}

/// A file that was opened when the process could be looked into shows what it showed then.
fn kept_files() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        while_attacking(|| {
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let child = spawn(|| {
                open_up()?;
                read_bytes(&reader, 1)?;
                execute(&victim)
            })?;
            let mut files = Vec::new();
            for _ in 0..1000 {
                // Not before the child has opened up.
                if let Some(file) = open_about(child, "mem", true) {
                    files.push(file);
                    break;
                }
                pause_ms(1);
            }
            for name in ["environ", "maps", "smaps", "auxv", "pagemap"] {
                files.extend(open_about(child, name, false));
            }
            equal!(files.len(), 6);
            write_bytes(&writer, b"x")?;
            call!(close(reader));
            call!(close(writer));
            for _ in 0..1000 {
                if fs::read_to_string(format!("/proc/{child}/comm"))?.trim() == "victim" {
                    break;
                }
                pause_ms(1);
            }
            let _ = files[0].write_at(&[0; 4], WORD as u64);
            for file in &mut files {
                let mut bytes = [0; 4096];
                let _ = file.seek(SeekFrom::Start(0));
                let count = file.read(&mut bytes).unwrap_or(0);
                let shows = contains(&bytes[..count], MARK.to_bytes())
                    || contains(&bytes[..count], b"/victim")
                    || contains(&bytes[..count], &(WORD as u64 >> 8).to_le_bytes()[..3]);
                ensure!(!shows, "a file shows the victim");
            }
            equal!(kill_child(child)?, End::Signal(SIGKILL));
            Ok(())
        })
    })
}

/// A set-uid program gets a file as its input that its user could not read.
fn deputy() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::copier())?;
    let root = spawn_sleeper()?;
    let outcome = as_user(|| {
        while_attacking(|| {
            for name in ["maps", "smaps", "auxv", "environ", "io", "personality"] {
                let Some(file) = open_about(root, name, false) else {
                    continue;
                };
                let (reader, writer) = pipe(O_CLOEXEC)?;
                let child = spawn(|| {
                    call!(dup2(file.as_raw_fd(), 0));
                    call!(dup2(writer, 1));
                    execute(&victim)
                })?;
                wait_ok(child)?;
                call!(close(writer));
                let told = read_bytes(&reader, 4096)?;
                call!(close(reader));
                ensure!(told.is_empty(), name, told.len());
            }
            Ok(())
        })
    });
    kill_child(root)?;
    outcome
}

/// What is left of a program that may not be read is not for its user's other processes.
fn execute_only() -> Outcome {
    let place = place()?;
    let path = format!("{}/victim", place.folder);
    victims::watch_for_long().write(&path, 0o711)?;
    as_user(|| {
        let victim = started(&c(&path))?;
        while_attacking(|| {
            let mut word = 0u32;
            let (to, from) = (vector(&raw mut word, 4), vector(WORD as *const u8, 4));
            refused!(EPERM, process_vm_readv(victim, &to, 1, &from, 1, 0));
            for name in ["mem", "environ", "maps", "auxv", "fd/0"] {
                let read = about(victim, name);
                ensure!(read.is_empty(), name);
            }
            Ok(())
        })?;
        equal!(kill_child(victim)?, End::Signal(SIGKILL));
        Ok(())
    })
}

/// What root has seen stays in the memory of a process that becomes a user's.
fn gave_up() -> Outcome {
    as_user(|| Ok(()))?;
    let (reader, writer) = pipe(O_CLOEXEC)?;
    let target = spawn(|| {
        let word = map(PAGE)?;
        // SAFETY: a mapping of this process's.
        unsafe { word.cast::<u32>().write(SECRET) };
        become_user(USER)?;
        write_bytes(&writer, &(word as usize).to_le_bytes())?;
        call!(pause());
        Ok(())
    })?;
    let mut address = [0; 8];
    address.copy_from_slice(&read_bytes(&reader, 8)?);
    let address = usize::from_le_bytes(address);
    let outcome = as_user(|| {
        while_attacking(|| {
            let mut word = 0u32;
            let (to, from) = (
                vector(&raw mut word, 4),
                vector(ptr::without_provenance::<u8>(address), 4),
            );
            refused!(EPERM, process_vm_readv(target, &to, 1, &from, 1, 0));
            for name in ["mem", "environ", "maps", "fd/0"] {
                ensure!(about(target, name).is_empty(), name);
            }
            // SAFETY: what is opened ends with the process.
            let process = unsafe { syscall(SYS_pidfd_open, target, 0) };
            refused!(EPERM, syscall(SYS_pidfd_getfd, process, 0, 0));
            call!(close(process as c_int));
            Ok(())
        })
    });
    kill_child(target)?;
    outcome
}

/// `stat` and `wchan` of a process show its addresses to those that may look into it.
fn addresses() -> Outcome {
    let root = spawn_sleeper()?;
    let outcome = as_user(|| {
        let text = fs::read_to_string(format!("/proc/{root}/stat"))?;
        let (_, numbers) = text.rsplit_once(')').ok_or("no name in stat")?;
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        // Counted from the one behind the name: code, stack, its pointers; data and the strings.
        for at in (23..28).chain(42..49) {
            ensure!(numbers[at] <= 1, at, numbers[at]);
        }
        let own = fs::read_to_string("/proc/self/stat")?;
        let (_, numbers) = own.rsplit_once(')').ok_or("no name in stat")?;
        let stack = numbers.split_whitespace().nth(25).unwrap_or("0");
        ensure!(stack != "0", "the own stack is not shown");
        Ok(())
    });
    kill_child(root)?;
    outcome
}
