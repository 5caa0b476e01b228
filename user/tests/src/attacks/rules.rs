//! Files of others: names, links and rights that are not the attacker's.

use crate::{USER, as_user, become_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: names for files of others", hard_links),
    (
        "attacks: links in a folder that everyone writes to",
        planted_links,
    ),
    (
        "attacks: files that wait for others to create them",
        planted_files,
    ),
    ("attacks: a name for a file that was to have none", unnamed),
    (
        "attacks: rights that survive a change of the file",
        kept_rights,
    ),
    (
        "attacks: rights of a file that root has opened for others",
        lent_file,
    ),
    ("attacks: a group's rights for a stranger", strangers_group),
    (
        "attacks: a name that becomes root's before it is removed",
        names_of_others,
    ),
    (
        "attacks: a name that becomes root's before it is replaced",
        replaced_names,
    ),
    (
        "attacks: a folder that is moved away below a confined walk",
        moved_away,
    ),
    (
        "attacks: a folder that is exchanged for one that is closed",
        exchanged,
    ),
    ("attacks: files larger than allowed", larger_files),
    (
        "attacks: files larger than allowed, by many at a time",
        larger_together,
    ),
    (
        "attacks: contents that change after their rights",
        late_contents,
    ),
    ("attacks: locks on files that are closed", locks_of_nobody),
];

/// Another ordinary user.
const OTHER: u32 = 1001;

/// Makes a folder that everyone may write to, with the sticky bit, as `/tmp` is.
fn public_folder() -> Result<String> {
    let folder = folder("public")?;
    mode(&folder, 0o1777)?;
    Ok(folder)
}

fn mode(path: &str, bits: u32) -> Outcome {
    fs::set_permissions(path, Permissions::from_mode(bits)).map_err(|why| format!("{why}").into())
}

fn write(path: &str, text: &str) -> Outcome {
    fs::write(path, text).map_err(|why| format!("{path}: {why}").into())
}

fn opens(path: &str, flags: c_int) -> Result<(), i32> {
    // SAFETY: the path lives across the call.
    match unsafe { open(c(path).as_ptr(), flags, 0o666) } {
        -1 => Err(errno()),
        file => {
            // SAFETY: just opened.
            unsafe { close(file) };
            Ok(())
        }
    }
}

/// A set-uid program would stay reachable by the attacker's name after it was replaced, and a
/// cleaner of `/tmp` would change what the name leads to.
fn hard_links() -> Outcome {
    let public = public_folder()?;
    let (program, secret, shared) = (
        format!("{public}/program"),
        format!("{public}/secret"),
        format!("{public}/shared"),
    );
    for (path, bits) in [(&program, 0o4755), (&secret, 0o600), (&shared, 0o666)] {
        write(path, "root's")?;
        mode(path, bits)?;
    }
    let name = c(&format!("{public}/name"));
    as_user(|| {
        refused!(EPERM, link(c(&program).as_ptr(), name.as_ptr()));
        refused!(EPERM, link(c(&secret).as_ptr(), name.as_ptr()));
        // What one may read and write oneself is nothing that a name adds to.
        call!(link(c(&shared).as_ptr(), name.as_ptr()));
        Ok(())
    })?;
    call!(unlink(name.as_ptr()));
    call!(link(c(&secret).as_ptr(), name.as_ptr()));
    Ok(())
}

/// Somebody else's link in `/tmp` is not followed, root's own included.
fn planted_links() -> Outcome {
    let public = public_folder()?;
    let (secret, planted) = (format!("{public}/secret"), format!("{public}/planted"));
    write(&secret, "root's")?;
    as_user(|| {
        call!(symlink(c(&secret).as_ptr(), c(&planted).as_ptr()));
        // The attacker's own.
        equal!(opens(&planted, O_RDONLY), Ok(()));
        Ok(())
    })?;
    for flags in [O_RDONLY, O_WRONLY | O_CREAT, O_WRONLY | O_TRUNC] {
        equal!(opens(&planted, flags), Err(EACCES), flags);
    }
    equal!(read_text(&secret)?, "root's");
    // The folder's owner may plant links, and in a folder of one's own nothing changes.
    let roots = format!("{public}/roots");
    call!(symlink(c(&secret).as_ptr(), c(&roots).as_ptr()));
    as_user(|| {
        equal!(opens(&roots, O_RDONLY), Ok(()));
        Ok(())
    })?;
    mode(&public, 0o777)?;
    equal!(opens(&planted, O_RDONLY), Ok(()));
    Ok(())
}

/// A program that creates a file in `/tmp` does not write into somebody else's.
fn planted_files() -> Outcome {
    let public = public_folder()?;
    let (file, fifo) = (format!("{public}/file"), format!("{public}/fifo"));
    as_user(|| {
        write(&file, "")?;
        mode(&file, 0o666)?;
        call!(mkfifo(c(&fifo).as_ptr(), 0o666));
        mode(&fifo, 0o666)
    })?;
    let victim = |user: u32| {
        child(|| {
            if user != 0 {
                become_user(user)?;
            }
            equal!(opens(&file, O_WRONLY | O_CREAT), Err(EACCES), user);
            equal!(opens(&fifo, O_RDWR | O_CREAT), Err(EACCES), user);
            // Not created: its owner's intention.
            equal!(opens(&file, O_WRONLY), Ok(()), user);
            Ok(())
        })
    };
    victim(0)?;
    victim(OTHER)?;
    child(|| {
        become_user(USER)?;
        equal!(opens(&file, O_WRONLY | O_CREAT), Ok(()));
        Ok(())
    })
}

/// `O_TMPFILE` with `O_EXCL`: nobody, the maker included, can give it a name.
fn unnamed() -> Outcome {
    let public = public_folder()?;
    as_user(|| {
        for (flags, may) in [(0, true), (O_EXCL, false)] {
            let at = c(&public);
            let file = call!(open(at.as_ptr(), O_TMPFILE | O_RDWR | flags, 0o600));
            let path = c(&format!("/proc/self/fd/{file}"));
            let name = c(&format!("{public}/name{flags}"));
            // SAFETY: both paths live across the call.
            let linked = unsafe {
                linkat(
                    AT_FDCWD,
                    path.as_ptr(),
                    AT_FDCWD,
                    name.as_ptr(),
                    AT_SYMLINK_FOLLOW,
                )
            };
            equal!(linked == 0, may, flags);
            if !may {
                equal!(errno(), ENOENT);
            }
        }
        Ok(())
    })
}

/// A file that others may write gives no rights any more after its contents have changed, whichever
/// call changed them.
fn kept_rights() -> Outcome {
    type Change = fn(c_int, &str) -> Outcome;
    let changes: &[(&str, Change)] = &[
        ("write", |file, _| {
            call!(write(file, c"x".as_ptr().cast(), 1));
            Ok(())
        }),
        ("ftruncate", |file, _| {
            call!(ftruncate(file, 1));
            Ok(())
        }),
        ("truncate", |_, path| {
            call!(truncate(c(path).as_ptr(), 1));
            Ok(())
        }),
        ("O_TRUNC", |_, path| {
            call!(close(call!(open(c(path).as_ptr(), O_WRONLY | O_TRUNC))));
            Ok(())
        }),
        ("fallocate", |file, _| {
            call!(fallocate(file, 0, 0, 8192));
            Ok(())
        }),
        ("splice", |file, _| {
            let (reader, writer) = pipe(0)?;
            write_bytes(&writer, b"x")?;
            call!(splice(reader, null_mut(), file, null_mut(), 1, 0));
            Ok(())
        }),
        ("sendfile", |file, path| {
            let from = call!(open(c(path).as_ptr(), O_RDONLY));
            call!(sendfile(file, from, null_mut(), 1));
            Ok(())
        }),
    ];
    let path = format!("{}/program", folder("rights")?);
    for (name, change) in changes {
        for (before, after) in [(0o4777, 0o777), (0o2777, 0o777), (0o6777, 0o777)] {
            write(&path, "contents")?;
            mode(&path, before)?;
            as_user(|| change(call!(open(c(&path).as_ptr(), O_RDWR)), &path))?;
            let found = fs::metadata(&path).map_err(|why| why.to_string())?.mode() & 0o7777;
            equal!(found, after, name, before);
        }
    }
    Ok(())
}

/// Rights go with what the writer may do: a user that writes by root's descriptor leaves none, and
/// root takes none by the user's.
fn lent_file() -> Outcome {
    let path = format!("{}/program", folder("lent")?);
    type Write = fn(c_int) -> Outcome;
    let writes: [(&str, Write); 3] = [
        ("write", |file| write_bytes(&file, b"x")),
        ("pwritev2", |file| {
            let part = iovec {
                iov_base: c"x".as_ptr().cast_mut().cast(),
                iov_len: 1,
            };
            call!(pwritev2(file, &part, 1, 3, 0));
            Ok(())
        }),
        ("splice", |file| {
            let (reader, writer) = pipe(0)?;
            write_bytes(&writer, b"x")?;
            call!(splice(reader, null_mut(), file, null_mut(), 1, 0));
            Ok(())
        }),
    ];
    for (name, change) in writes {
        let bits = || Ok::<_, Failure>(fs::metadata(&path)?.mode() & 0o7777);
        write(&path, "contents")?;
        mode(&path, 0o6777)?;
        let roots = call!(open(c(&path).as_ptr(), O_RDWR));
        as_user(|| change(roots))?;
        equal!(bits()?, 0o777, name);
        mode(&path, 0o6777)?;
        child(|| {
            call!(setresuid(USER, USER, 0));
            let users = call!(open(c(&path).as_ptr(), O_RDWR));
            call!(setresuid(0, 0, 0));
            change(users)
        })?;
        equal!(bits()?, 0o6777, name);
        call!(close(roots));
    }
    Ok(())
}

/// A file that a stranger to the group makes in a set-gid folder gives nobody the group's rights
/// (CVE-2018-13405).
fn strangers_group() -> Outcome {
    const GROUP: u32 = 77;
    let folder = folder("group")?;
    call!(chown(c(&folder).as_ptr(), 0, GROUP));
    mode(&folder, 0o2777)?;
    as_user(|| {
        // SAFETY: sets a number of this process.
        unsafe { umask(0) };
        let file = format!("{folder}/file");
        call!(close(call!(open(
            c(&file).as_ptr(),
            O_CREAT | O_RDWR,
            0o2777
        ))));
        let unnamed = call!(open(c(&folder).as_ptr(), O_TMPFILE | O_RDWR, 0o2777));
        let node = format!("{folder}/node");
        call!(mknod(c(&node).as_ptr(), S_IFREG | 0o2777, 0));
        for path in [file, format!("/proc/self/fd/{unnamed}"), node] {
            let found = fs::metadata(&path).map_err(|why| why.to_string())?;
            equal!((found.gid(), found.mode() & 0o7777), (GROUP, 0o777), path);
        }
        Ok(())
    })
}

/// Runs `race` in a process of the user for as long as root's `body` attacks; root's fails first.
fn beside_users(races: &[&dyn Fn() -> Outcome], body: impl FnMut() -> Outcome) -> Outcome {
    let mut racers = Vec::new();
    for race in races {
        racers.push(spawn(|| {
            become_user(USER)?;
            loop {
                race()?;
            }
        })?);
    }
    let outcome = while_attacking(body);
    for racer in racers {
        kill_child(racer)?;
    }
    outcome
}

/// Root makes a file in a folder as `/tmp` is, and nobody else removes it.
fn root_keeps(name: &str) -> Outcome {
    let path = c(name);
    // SAFETY: the path lives across the calls.
    unsafe {
        let file = open(path.as_ptr(), O_CREAT | O_EXCL | O_WRONLY, 0o644);
        if file == -1 {
            return Ok(());
        }
        let mut own: stat = zeroed();
        let mut found: stat = zeroed();
        call!(fstat(file, &mut own));
        for _ in 0..20 {
            sched_yield();
            call!(stat(path.as_ptr(), &mut found));
            equal!(found.st_ino, own.st_ino, "root's file was replaced");
        }
        call!(unlink(path.as_ptr()));
        call!(close(file));
    }
    Ok(())
}

/// Makes a file of the user's own, if the name is free, and removes what has the name by then.
fn make_and_remove(path: &CStr) -> Outcome {
    // SAFETY: the path lives across the calls.
    unsafe {
        let file = open(path.as_ptr(), O_CREAT | O_EXCL | O_WRONLY, 0o600);
        if file != -1 {
            close(file);
        }
        unlink(path.as_ptr());
    }
    Ok(())
}

/// The user removes a file of its own, whose name is root's file's by then.
fn names_of_others() -> Outcome {
    let public = public_folder()?;
    let name = format!("{public}/lock");
    let path = c(&name);
    let make = || make_and_remove(&path);
    // SAFETY: the path lives across the call.
    let remove = || unsafe {
        unlink(path.as_ptr());
        Ok(())
    };
    beside_users(&[&make, &remove, &remove], || root_keeps(&name))
}

/// The user gives a name to another file of its own, moves that away, or exchanges it.
fn replaced_names() -> Outcome {
    let public = public_folder()?;
    let name = format!("{public}/lock");
    let path = c(&name);
    let makers = c(&format!("{public}/own"));
    let make = || make_and_remove(&path);
    let rename_by = |flags: u32, out: bool| {
        let (path, own) = (path.clone(), makers.clone());
        // SAFETY: the paths live across the calls.
        move || unsafe {
            let file = open(own.as_ptr(), O_CREAT | O_WRONLY, 0o600);
            if file != -1 {
                close(file);
            }
            let (from, to) = if out { (&path, &own) } else { (&own, &path) };
            renameat2(AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), flags);
            Ok(())
        }
    };
    let replace = rename_by(0, false);
    let exchange = rename_by(RENAME_EXCHANGE, false);
    let take = rename_by(0, true);
    beside_users(&[&make, &replace, &exchange, &take], || root_keeps(&name))
}

/// `RESOLVE_BENEATH` and `RESOLVE_IN_ROOT` keep a walk in a folder, from which another process
/// moves the one that the walk is in.
fn moved_away() -> Outcome {
    const RESOLVE_BENEATH: u64 = 8;
    const RESOLVE_IN_ROOT: u64 = 16;
    let at = folder("moved")?;
    for inner in ["in/a/b", "out"] {
        fs::create_dir_all(format!("{at}/{inner}"))?;
    }
    write(&format!("{at}/secret"), "outside")?;
    write(&format!("{at}/in/public"), "inside")?;
    let inside = call!(open(c(&format!("{at}/in")).as_ptr(), O_PATH));
    let [here, there] = [format!("{at}/in/a/b"), format!("{at}/out/b")].map(|path| c(&path));
    let mover = spawn(|| {
        loop {
            // SAFETY: both paths live.
            unsafe {
                rename(here.as_ptr(), there.as_ptr());
                rename(there.as_ptr(), here.as_ptr());
            }
        }
    })?;
    let outcome = while_attacking(|| {
        for rules in [RESOLVE_BENEATH, RESOLVE_IN_ROOT] {
            // A name below the folder and one beside it, wherever the middle is.
            for path in [c"a/b/../../secret", c"a/b/../../in/public"] {
                let how = [O_RDONLY as u64, 0, rules];
                // SAFETY: the path and the three words of `struct open_how` live.
                let file = unsafe { syscall(SYS_openat2, inside, path.as_ptr(), &how, 24usize) };
                let why = errno();
                ensure!(file == -1, path, rules, "the walk has left its folder");
                ensure!([ENOENT, EAGAIN, EXDEV].contains(&why), why);
            }
        }
        Ok(())
    });
    kill_child(mover)?;
    outcome?;
    // Without moves there is no reason to refuse.
    // SAFETY: both paths live.
    unsafe { rename(there.as_ptr(), here.as_ptr()) };
    let how = [O_RDONLY as u64, 0, RESOLVE_BENEATH];
    let path = c"a/b/../../public";
    call!(syscall(SYS_openat2, inside, path.as_ptr(), &how, 24usize));
    Ok(())
}

/// Two folders change names all the time, one of which the user may search: it never gets at what
/// is in the other one, by a path, a working directory or a descriptor.
fn exchanged() -> Outcome {
    let at = folder("exchanged")?;
    let [open_one, closed] = ["open", "closed"].map(|name| format!("{at}/{name}"));
    for (folder, bits, text) in [(&open_one, 0o755, "public"), (&closed, 0o700, "secret")] {
        fs::create_dir_all(format!("{folder}/deep"))?;
        write(&format!("{folder}/deep/file"), text)?;
        mode(&format!("{folder}/deep/file"), 0o644)?;
        mode(folder, bits)?;
    }
    let [a, b] = [c(&open_one), c(&closed)];
    let mover = spawn(|| {
        loop {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            call!(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
        }
    })?;
    let outcome = as_user(|| {
        let file = format!("{open_one}/deep/file");
        let deep = c(&format!("{open_one}/deep"));
        while_attacking(|| {
            if let Ok(text) = fs::read_to_string(&file) {
                equal!(text, "public");
            }
            // SAFETY: the path lives.
            if unsafe { chdir(deep.as_ptr()) } == 0 {
                equal!(read_text("file")?, "public");
            }
            // SAFETY: as above.
            let folder = unsafe { open(deep.as_ptr(), O_PATH | O_DIRECTORY) };
            if folder != -1 {
                let file = call!(openat(folder, c"file".as_ptr(), O_RDONLY));
                equal!(read_bytes(&file, 6)?, b"public");
                call!(close(file));
                call!(close(folder));
            }
            Ok(())
        })
    });
    kill_child(mover)?;
    outcome
}

/// `RLIMIT_FSIZE` holds for every call that makes a file larger.
fn larger_files() -> Outcome {
    const MOST: usize = 100;
    let folder = folder("larger")?;
    mode(&folder, 0o777)?;
    as_user(|| {
        let source = call!(memfd_create(c"source".as_ptr(), 0));
        write_bytes(&source, &[7; 4096])?;
        call!(signal(SIGXFSZ, SIG_IGN));
        call!(setrlimit(RLIMIT_FSIZE, &limit_of(MOST as u64)));
        let grow = |call: &str, to: c_int| {
            // SAFETY: these calls read and write files of this program, and its locals.
            unsafe {
                match call {
                    "write" => libc::write(to, [7u8; 300].as_ptr().cast(), 300),
                    "sendfile" => sendfile(to, source, &mut 0, 300),
                    "copy_file_range" => copy_file_range(source, &mut 0, to, null_mut(), 300, 0),
                    "splice" => {
                        let mut ends = [0; 2];
                        libc::pipe(ends.as_mut_ptr());
                        splice(source, &mut 0, ends[1], null_mut(), 300, 0);
                        splice(ends[0], null_mut(), to, null_mut(), 300, 0)
                    }
                    "ftruncate" => ftruncate(to, 300) as ssize_t,
                    _ => fallocate(to, 0, 0, 300) as ssize_t,
                }
            }
        };
        let calls = [
            ("write", true),
            ("sendfile", true),
            ("copy_file_range", true),
            ("splice", true),
            ("ftruncate", false),
            ("fallocate", false),
        ];
        for (name, partly) in calls {
            let path = c(&format!("{folder}/{name}"));
            let to = call!(open(path.as_ptr(), O_CREAT | O_RDWR, 0o600));
            if partly {
                equal!(grow(name, to), MOST as ssize_t, name);
            }
            equal!((grow(name, to), errno()), (-1, EFBIG), name);
            let size = call!(lseek(to, 0, SEEK_END));
            equal!(size, if partly { MOST as off_t } else { 0 }, name);
        }
        Ok(())
    })
}

/// Processes that append to one file at a time: each knows an end that is no longer the end.
fn larger_together() -> Outcome {
    const MOST: u64 = 200_000;
    as_user(|| {
        call!(signal(SIGXFSZ, SIG_IGN));
        call!(setrlimit(RLIMIT_FSIZE, &limit_of(MOST)));
        let path = format!("/tmp/larger-{}", std::process::id());
        let outcome = while_attacking(|| {
            let file = File::create(&path)?;
            let append = |_| {
                spawn(|| {
                    let own = File::options().append(true).open(&path)?;
                    let bytes = vec![7; 9001];
                    // SAFETY: writes bytes that live.
                    while unsafe { libc::write(own.as_raw_fd(), bytes.as_ptr().cast(), 9001) } > 0 {
                    }
                    equal!(errno(), EFBIG);
                    Ok(())
                })
            };
            wait_all((0..4).map(append).collect::<Result<Vec<_>>>()?)?;
            equal!(file.metadata()?.len(), MOST);
            Ok(())
        });
        fs::remove_file(&path)?;
        outcome
    })
}

/// A user writes into root's program, which is open to all, while root gives it a set-id bit: what
/// root then runs as the owner must not be what is written afterwards.
fn late_contents() -> Outcome {
    const SIZE: usize = 4 << 20;
    let folder = folder("late")?;
    let path = format!("{folder}/late");
    let outcome = while_attacking(|| {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.set_len(SIZE as u64)?;
        mode(&path, 0o777)?;
        let writer = spawn(|| {
            become_user(USER)?;
            let own = File::options().write(true).open(&path)?;
            let bytes = vec![7; SIZE];
            equal!(own.write_at(&bytes, 0)?, SIZE);
            Ok(())
        })?;
        let byte = |at: usize| -> Result<u8> {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at as u64)?;
            Ok(byte[0])
        };
        while byte(0)? == 0 {
            thread::yield_now();
        }
        mode(&path, 0o4777)?;
        let comes_later = byte(SIZE - 1)? == 0;
        wait_ok(writer)?;
        let has_right = file.metadata()?.mode() & 0o4000 != 0;
        ensure!(!(comes_later && has_right), comes_later, has_right);
        Ok(())
    });
    fs::remove_dir_all(folder)?;
    outcome
}

/// A thread waits for a record lock while another one closes the file; when the lock is free, the
/// process must not have it: nothing would end it, and it would be on whatever file comes next at
/// the same place.
fn locks_of_nobody() -> Outcome {
    as_user(|| {
        while_attacking(|| {
            let path = format!("/tmp/lock-{}", std::process::id());
            let holder = File::create(&path)?;
            record_lock(&holder, F_SETLK)?;
            let (reader, writer) = pipe(O_CLOEXEC)?;
            let waiter = spawn(|| {
                let own = OwnedFd::from(File::options().write(true).open(&path)?);
                call!(close(holder.as_raw_fd()));
                let fd = own.as_raw_fd();
                let thread = thread::spawn(move || {
                    let lock = whole_file();
                    // SAFETY: a lock of a local; the descriptor is closed by the other thread.
                    let _ = unsafe { libc::fcntl(fd, F_SETLKW, &lock) };
                });
                pause_ms(5);
                drop(own);
                write_bytes(&writer, b"x")?;
                thread.join().map_err(|_| "the thread has panicked")?;
                pause_ms(5);
                Ok(())
            })?;
            read_bytes(&reader, 1)?;
            drop(holder);
            wait_ok(waiter)?;
            record_lock(&File::options().write(true).open(&path)?, F_SETLK)?;
            fs::remove_file(&path)?;
            call!(close(reader));
            call!(close(writer));
            Ok(())
        })
    })
}

/// The record lock of a writer on all bytes of a file.
fn whole_file() -> flock {
    // SAFETY: all zeros is a valid value.
    let mut lock: flock = unsafe { zeroed() };
    lock.l_type = F_WRLCK as c_short;
    lock
}

/// Asks for the record lock of a writer on all bytes.
#[track_caller]
fn record_lock(file: &File, command: c_int) -> Outcome {
    let lock = whole_file();
    call!(fcntl(file.as_raw_fd(), command, &lock));
    Ok(())
}
