//! Looking into processes that have gained rights: races of a check with the target's `execve`,
//! and what a program leaves behind for a set-id program that it executes.

use crate::victims::{self, BEATEN, SECRET, WORD};
use crate::{PID_MAX, USER, as_user, become_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: writing into a set-uid program", write_memory),
    ("attacks: reading from a set-uid program", read_memory),
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
    (
        "attacks: a directory shared with a set-uid program",
        shared_directory,
    ),
    ("attacks: a directory shared during an execve", shared_late),
    (
        "attacks: a set-uid program without random addresses",
        fixed_addresses,
    ),
    (
        "attacks: the signal for a set-uid program's end",
        exit_signal,
    ),
    (
        "attacks: a child's end kills a set-uid program",
        childs_signal,
    ),
    (
        "attacks: a parent's end kills a set-uid program",
        parents_signal,
    ),
    ("attacks: a message kills a set-uid program", queues_signal),
    ("attacks: filters that come during an execve", late_filters),
    ("attacks: a link that moves during an execve", moving_link),
    ("attacks: a file that changes hands", changing_owner),
    ("attacks: a file that gives capabilities", capabilities),
    ("attacks: a timer for a thread whose id is root's", taken_id),
    (
        "attacks: the time of a thread whose id is root's",
        taken_clock,
    ),
];

/// The folder that only root enters, and that victims hold.
struct Place {
    folder: String,
    secret: String,
}

/// Makes a folder that the attacker may write to, and a secret one in it.
fn place() -> Result<Place> {
    let folder = folder("view")?;
    fs::set_permissions(&folder, Permissions::from_mode(0o777))?;
    let secret = format!("{folder}/secret");
    fs::create_dir_all(&secret)?;
    fs::set_permissions(&secret, Permissions::from_mode(0o700))?;
    Ok(Place { folder, secret })
}

impl Place {
    /// Installs a set-uid program of root's.
    fn victim(&self, code: victims::Code) -> Result<CString> {
        let path = format!("{}/victim", self.folder);
        code.write(&path, 0o4755)?;
        Ok(c(&path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The environment of each victim.
const MARK: &CStr = c"VICTIM=yes";

/// Replaces this process's program; never returns.
fn execute(path: &CStr) -> Outcome {
    let (words, environment) = ([path.as_ptr(), null()], [MARK.as_ptr(), null()]);
    call!(execve(path.as_ptr(), words.as_ptr(), environment.as_ptr()));
    Ok(())
}

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

fn contains(bytes: &[u8], part: &[u8]) -> bool {
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

/// Makes a process with these flags of `clone`, which runs `body` in a copy of the memory.
fn clone_with(flags: c_int, body: impl FnOnce() -> Outcome) -> Result<c_int> {
    let child = call!(syscall(SYS_clone, c_long::from(flags), 0, 0, 0, 0)) as c_int;
    if child != 0 {
        return Ok(child);
    }
    if let Err(why) = body() {
        say(&format!("  in a child: {why}\n"));
        exit(99);
    }
    exit(0)
}

/// A set-uid program's relative names lead where another process wants, if that shares the working
/// directory: it gets no rights then.
fn shared_directory() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::rights())?;
    as_user(|| {
        while_attacking(|| {
            let child = clone_with(CLONE_FS | SIGCHLD, || execute(&victim))?;
            equal!(wait(child)?, End::Exit(0));
            // By itself it has them.
            let child = spawn(|| execute(&victim))?;
            equal!(wait(child)?, End::Exit(BEATEN));
            Ok(())
        })
    })
}

/// One thread executes a set-uid program while another makes processes that share the directory.
fn shared_late() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::holder(&place.secret))?;
    as_user(|| {
        while_attacking(|| {
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let child = spawn(|| {
                call!(close(reader));
                thread::spawn(move || {
                    loop {
                        let sharer = clone_with(CLONE_FS | SIGCHLD, || {
                            for _ in 0..20 {
                                let mut place = [0u8; 256];
                                // SAFETY: the buffer has that length.
                                let asked =
                                    unsafe { syscall(SYS_getcwd, place.as_mut_ptr(), place.len()) };
                                if asked > 0 && contains(&place, b"/secret") {
                                    write_bytes(&writer, b"!")?;
                                }
                                pause_ms(1);
                            }
                            Ok(())
                        });
                        if sharer.is_err() {
                            exit(99);
                        }
                    }
                });
                thread::sleep(Duration::from_micros(300));
                execute(&victim)
            })?;
            call!(close(writer));
            equal!(wait(child)?, End::Exit(0));
            // The sharers end when they have looked.
            let seen = read_bytes(&reader, 1)?;
            call!(close(reader));
            ensure!(seen.is_empty(), "a process shares the victim's directory");
            Ok(())
        })
    })
}

fn fixed_addresses() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::stack())?;
    as_user(|| {
        let mut seen = BTreeSet::new();
        for _ in 0..12 {
            let child = spawn(|| {
                call!(personality(ADDR_NO_RANDOMIZE as c_ulong));
                execute(&victim)
            })?;
            seen.insert(format!("{:?}", wait(child)?));
        }
        ensure!(seen.len() > 2, seen);
        Ok(())
    })
}

/// One thread executes a set-uid program while others put filters before its system calls: these
/// would decide what a program of root's is told.
fn late_filters() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::filtered())?;
    let long = CString::new(vec![b'x'; 100_000]).unwrap_or_default();
    let filter = || {
        let mut allow = sock_filter {
            code: (BPF_RET | BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: SECCOMP_RET_ALLOW,
        };
        let program = sock_fprog {
            len: 1,
            filter: &mut allow,
        };
        // SAFETY: the call reads a program that outlives it.
        unsafe {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let flags = SECCOMP_FILTER_FLAG_TSYNC;
            syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
        }
    };
    as_user(|| {
        let (mut ends, mut delay) = (BTreeSet::new(), 0);
        while_attacking(|| {
            delay = (delay + 37) % 1500;
            let child = spawn(|| {
                for n in 0..3 {
                    thread::spawn(move || {
                        thread::sleep(Duration::from_micros(delay + 20 * n));
                        filter();
                    });
                }
                // It takes time to copy long arguments.
                let mut words = vec![long.as_ptr(); 15];
                words.push(null());
                call!(execve(victim.as_ptr(), words.as_ptr(), null()));
                Ok(())
            })?;
            let end = wait(child)?;
            ensure!(end != End::Exit(BEATEN), delay);
            ends.insert(format!("{end:?}"));
            Ok(())
        })?;
        equal!(ends, BTreeSet::from([format!("{:?}", End::Exit(0))]));
        Ok(())
    })
}

/// A set-uid program's end is told to its parent by SIGCHLD, whatever that asked for before.
fn exit_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch())?;
    as_user(|| {
        while_attacking(|| {
            child(|| {
                handle(SIGUSR1, ignore_signal, 0)?;
                let signals = block(&[SIGUSR1, SIGCHLD])?;
                let child = clone_with(SIGUSR1, || execute(&victim))?;
                let told = take_signal(&signals, 5000)?;
                equal!(told.map(|told| told.si_signo), Some(SIGCHLD));
                equal!(wait(child)?, End::Exit(0));
                Ok(())
            })
        })
    })
}

/// A child that asked for another signal than SIGCHLD at its end does not send that to a set-uid
/// program that its parent has executed meanwhile.
fn childs_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        while_attacking(|| {
            let victim = spawn(|| {
                clone_with(SIGKILL, || {
                    pause_ms(30);
                    Ok(())
                })?;
                execute(&victim)
            })?;
            pause_ms(60);
            let mut status = 0;
            equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
            kill_child(victim)?;
            Ok(())
        })
    })
}

/// A set-uid program does not get the signal that was asked for by what it replaced.
fn parents_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        call!(prctl(PR_SET_CHILD_SUBREAPER, 1 as c_ulong, 0, 0, 0));
        while_attacking(|| {
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let parent = spawn(|| {
                let child = spawn(|| {
                    call!(prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong, 0, 0, 0));
                    execute(&victim)
                })?;
                pause_ms(30);
                write_bytes(&writer, &child.to_le_bytes())
            })?;
            wait_ok(parent)?;
            let mut child = [0; 4];
            child.copy_from_slice(&read_bytes(&reader, 4)?);
            call!(close(reader));
            call!(close(writer));
            pause_ms(20);
            let mut status = 0;
            let child = c_int::from_le_bytes(child);
            equal!(call!(waitpid(child, &mut status, WNOHANG)), 0);
            kill_child(child)?;
            Ok(())
        })
    })
}

/// A message in a queue does not send a set-uid program the signal that what it replaced asked for.
fn queues_signal() -> Outcome {
    let place = place()?;
    let victim = place.victim(victims::watch_for_long())?;
    as_user(|| {
        let name = c"/attack-by-message";
        let queue = call!(mq_open(
            name.as_ptr(),
            O_CREAT | O_RDWR,
            0o600,
            null::<mq_attr>()
        ));
        call!(mq_unlink(name.as_ptr()));
        let mut buffer = [0; 8192];
        while_attacking(|| {
            let victim = spawn(|| {
                // SAFETY: all zeros is a valid event.
                let mut event: sigevent = unsafe { zeroed() };
                event.sigev_notify = SIGEV_SIGNAL;
                event.sigev_signo = SIGKILL;
                call!(mq_notify(queue, &event));
                call!(fcntl(queue, F_SETFD, 0));
                execute(&victim)
            })?;
            pause_ms(30);
            call!(mq_send(queue, c"x".as_ptr(), 1, 0));
            call!(mq_receive(
                queue,
                buffer.as_mut_ptr(),
                buffer.len(),
                null_mut()
            ));
            pause_ms(20);
            let mut status = 0;
            equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
            kill_child(victim)?;
            Ok(())
        })
    })
}

/// A link leads to a set-uid program and to one of the attacker's in turn: it is root that runs, or
/// the attacker's program.
fn moving_link() -> Outcome {
    let place = place()?;
    // The set-uid program only waits; that of the attacker finds out who it is.
    let victim = place.victim(victims::watch())?;
    let folder = place.folder.clone();
    as_user(|| {
        let own = format!("{folder}/own");
        victims::rights().write(&own, 0o755)?;
        let (link, next) = (format!("{folder}/link"), format!("{folder}/next"));
        std::os::unix::fs::symlink(&own, &link)?;
        let mover = spawn(|| {
            for turn in 0u64.. {
                let to = if turn % 2 == 0 {
                    c(&own)
                } else {
                    victim.clone()
                };
                call!(symlink(to.as_ptr(), c(&next).as_ptr()));
                fs::rename(&next, &link)?;
            }
            Ok(())
        })?;
        let outcome = while_attacking(|| {
            let child = spawn(|| execute(&c(&link)))?;
            equal!(wait(child)?, End::Exit(0));
            Ok(())
        });
        kill_child(mover)?;
        outcome
    })
}

/// Root gives a file away and takes it back, while its owner of the moment sets the set-uid bit
/// and executes it: the bit never counts for root.
fn changing_owner() -> Outcome {
    let place = place()?;
    let path = format!("{}/own", place.folder);
    victims::rights().write(&path, 0o755)?;
    let path = c(&path);
    let giver = spawn(|| {
        loop {
            call!(chown(path.as_ptr(), USER, USER));
            call!(sched_yield());
            call!(chown(path.as_ptr(), 0, 0));
        }
    })?;
    let outcome = as_user(|| {
        let setter = spawn(|| {
            loop {
                // SAFETY: a plain call; refused while the file is root's.
                unsafe { chmod(path.as_ptr(), 0o4755) };
            }
        })?;
        let outcome = while_attacking(|| {
            let child = spawn(|| execute(&path))?;
            equal!(wait(child)?, End::Exit(0));
            Ok(())
        });
        kill_child(setter)?;
        outcome
    });
    kill_child(giver)?;
    outcome
}

/// A file's capabilities are for its program as it was when it got them, and not for a process that
/// may gain nothing.
fn capabilities() -> Outcome {
    const CHROOT: u32 = 18;
    let place = place()?;
    let path = format!("{}/own", place.folder);
    victims::changes_root().write(&path, 0o777)?;
    let path = c(&path);
    let give = || -> Outcome {
        // Version 2, in effect; permitted and inheritable, in two words each.
        let words = [0x0200_0001u32, 1 << CHROOT, 0, 0, 0];
        let name = c"security.capability".as_ptr();
        call!(setxattr(path.as_ptr(), name, words.as_ptr().cast(), 20, 0));
        Ok(())
    };
    let status = |prepare: fn() -> Outcome| {
        let child = spawn(|| {
            become_user(USER)?;
            prepare()?;
            execute(&path)
        })?;
        wait(child)
    };
    while_attacking(|| {
        give()?;
        equal!(status(|| Ok(()))?, End::Exit(BEATEN));
        let bound = || {
            call!(prctl(PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0));
            Ok(())
        };
        equal!(status(bound)?, End::Exit(0));
        // A write takes them away, and so does a new owner.
        as_user(|| {
            let mut file = File::options().write(true).open(path.to_str()?)?;
            file.write_all(b"\x7f")?;
            Ok(())
        })?;
        equal!(status(|| Ok(()))?, End::Exit(0));
        give()?;
        call!(chown(path.as_ptr(), USER, USER));
        equal!(status(|| Ok(()))?, End::Exit(0));
        call!(chown(path.as_ptr(), 0, 0));
        Ok(())
    })
}

/// A timer that was to signal a thread does not signal the process of root's that got its id.
fn taken_id() -> Outcome {
    let before = fs::read_to_string(PID_MAX)?;
    fs::write(PID_MAX, "400")?;
    let outcome = while_attacking(|| {
        let (reader, writer) = pipe(O_CLOEXEC)?;
        let attacker = spawn(|| {
            become_user(USER)?;
            let (sender, ids) = mpsc::channel();
            let one = thread::spawn(move || {
                // SAFETY: a question without memory.
                let _ = sender.send(unsafe { gettid() });
                pause_ms(20);
            });
            let tid = ids.recv()?;
            // SAFETY: all zeros is a valid event.
            let mut event: sigevent = unsafe { zeroed() };
            event.sigev_notify = SIGEV_THREAD_ID;
            event.sigev_signo = SIGKILL;
            event.sigev_notify_thread_id = tid;
            let mut timer = null_mut();
            call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
            let later = timer_spec(time_spec(1, 0), 0);
            call!(timer_settime(timer, 0, &later, null_mut()));
            let _ = one.join();
            write_bytes(&writer, &tid.to_le_bytes())?;
            pause_ms(1500);
            Ok(())
        })?;
        let mut tid = [0; 4];
        tid.copy_from_slice(&read_bytes(&reader, 4)?);
        call!(close(reader));
        call!(close(writer));
        let tid = c_int::from_le_bytes(tid);
        let mut victim = None;
        for _ in 0..1000 {
            let child = spawn_sleeper()?;
            if child == tid {
                victim = Some(child);
                break;
            }
            kill_child(child)?;
        }
        let victim = victim.ok_or("the id does not come again")?;
        wait(attacker)?;
        let mut status = 0;
        equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
        kill_child(victim)?;
        Ok(())
    });
    fs::write(PID_MAX, before)?;
    outcome
}

/// A timer on the processor time of a thread that has ended shows nothing of the process that gets
/// its id.
fn taken_clock() -> Outcome {
    let before = fs::read_to_string(PID_MAX)?;
    fs::write(PID_MAX, "400")?;
    let outcome = while_attacking(clock_of_taken_id);
    fs::write(PID_MAX, before)?;
    outcome
}

fn clock_of_taken_id() -> Outcome {
    let [attackers, own] = socket_pair(SOCK_STREAM)?;
    let attacker = spawn(|| {
        become_user(USER)?;
        let (sender, answers) = mpsc::channel();
        let one = thread::spawn(move || {
            let mut timer = null_mut();
            // SAFETY: no event is the default, and the call fills a local.
            let made = unsafe { timer_create(CLOCK_THREAD_CPUTIME_ID, null_mut(), &mut timer) };
            // SAFETY: a question without memory.
            let _ = sender.send((made, timer as usize, unsafe { gettid() }));
        });
        let (made, timer, tid) = answers.recv()?;
        equal!(made, 0);
        let _ = one.join();
        let timer = timer as timer_t;
        let later = timer_spec(time_spec(1000, 0), 0);
        call!(timer_settime(timer, TIMER_ABSTIME, &later, null_mut()));
        write_bytes(&attackers, &tid.to_le_bytes())?;
        // The id is root's now, and its process has used some time.
        read_bytes(&attackers, 1)?;
        // SAFETY: all zeros is a valid setting.
        let mut left: itimerspec = unsafe { zeroed() };
        call!(timer_gettime(timer, &mut left));
        equal!(left.it_value.tv_sec, 1000);
        Ok(())
    })?;
    let mut tid = [0; 4];
    tid.copy_from_slice(&read_bytes(&own, 4)?);
    let tid = c_int::from_le_bytes(tid);
    let mut victim = None;
    for _ in 0..1000 {
        let child = spawn(|| {
            let end = Instant::now() + Duration::from_millis(300);
            // SAFETY: a question without memory.
            while unsafe { gettid() } == tid && Instant::now() < end {}
            loop {
                pause_ms(1000);
            }
        })?;
        if child == tid {
            victim = Some(child);
            break;
        }
        kill_child(child)?;
    }
    let victim = victim.ok_or("the id does not come again")?;
    pause_ms(400);
    write_bytes(&own, b"x")?;
    wait_ok(attacker)?;
    kill_child(victim)?;
    Ok(())
}
