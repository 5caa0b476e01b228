//! New processes: their own state and the inherited one.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("processes: vfork", vfork),
    ("processes: many children", many),
    ("processes: a deep line of descent", deep),
    (
        "processes: limits, umask and folder are inherited",
        inherited,
    ),
    ("processes: names and identities", identities),
    ("processes: fork among threads", fork_among_threads),
    ("processes: fork with large memory", large),
    ("processes: one counts until it is waited for", zombies),
];

fn vfork() -> Outcome {
    let memory = map(4096)?;
    // SAFETY: the child only writes a byte of a map and leaves, before the parent goes on.
    let end = unsafe {
        #[allow(deprecated)]
        let child = libc::vfork();
        if child == 0 {
            memory.write_volatile(7);
            libc::_exit(8);
        }
        wait(child)?
    };
    ensure!(end == End::Exit(8), "ended with {end:?}");
    ensure!(peek(memory) == 7, "the child's memory was not the parent's");
    // std uses vfork or clone with CLONE_VFORK for this.
    let status = std::process::Command::new("/proc/self/exe")
        .args(["--as", "exit", "31"])
        .status();
    let status = status?;
    ensure!(status.code() == Some(31), "{status}");
    let error = std::process::Command::new("/does/not/exist").status().err();
    ensure!(error.is_some(), "a program that does not exist ran");
    Ok(())
}

fn many() -> Outcome {
    for _ in 0..4 {
        let children: Vec<_> = (0..60)
            .map(|number| spawn(move || exit(number)))
            .collect::<Result<_, _>>()?;
        let mut sum = 0;
        for _ in &children {
            let mut status = 0;
            call!(waitpid(-1, &mut status, 0));
            let End::Exit(number) = End::of(status) else {
                return Err(format!("{status:#x}").into());
            };
            sum += number;
        }
        ensure!(sum == 59 * 60 / 2, "the statuses sum up to {sum}");
    }
    Ok(())
}

fn deep() -> Outcome {
    fn descend(depth: i32) -> Outcome {
        if depth == 0 {
            Ok(())
        } else {
            child(|| descend(depth - 1))
        }
    }
    descend(40)
}

fn inherited() -> Outcome {
    call!(umask(0o027));
    call!(chdir(c"/tmp".as_ptr()));
    call!(setrlimit(RLIMIT_NOFILE, &limit_of(50)));
    child(|| {
        ensure!(call!(umask(0)) == 0o027, "the mask was not inherited");
        let here = std::env::current_dir()?;
        equal!(here.as_os_str(), "/tmp", here.display());
        let mut limit = limit_of(0);
        call!(getrlimit(RLIMIT_NOFILE, &mut limit));
        ensure!(limit.rlim_cur == 50, "the limit is {}", limit.rlim_cur);
        for _ in 0..50 {
            // SAFETY: opens a device.
            if unsafe { libc::open(c"/dev/null".as_ptr(), O_RDONLY) } == -1 {
                ensure!(errno() == EMFILE, "errno {}", errno());
                return Ok(());
            }
        }
        Err("more than 50 descriptors".into())
    })
}

fn identities() -> Outcome {
    // SAFETY: all zeros is a valid utsname to be overwritten.
    let mut name: utsname = unsafe { zeroed() };
    call!(uname(&mut name));
    let machine: String = name
        .machine
        .iter()
        .take_while(|&&b| b != 0)
        .map(|&b| b as u8 as char)
        .collect();
    ensure!(machine == "x86_64", "the machine is {machine}");
    call!(prctl(PR_SET_NAME, c"renamed".as_ptr(), 0, 0, 0));
    let mut buffer = [0u8; 16];
    call!(prctl(PR_GET_NAME, buffer.as_mut_ptr(), 0, 0, 0));
    ensure!(buffer.starts_with(b"renamed\0"), "the name is {buffer:?}");
    if call!(getuid()) == 0 {
        child(|| {
            call!(setgid(100));
            call!(setuid(1000));
            ensure!(call!(geteuid()) == 1000 && call!(getegid()) == 100);
            refused!(EPERM, setuid(0));
            refused!(EPERM, kill(1, SIGTERM));
            Ok(())
        })?;
    }
    Ok(())
}

fn fork_among_threads() -> Outcome {
    let memory = map(4096)? as usize;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(move || {
                for _ in 0..20 {
                    poke(memory as *mut u8, 1);
                    child(|| Ok(()))?;
                }
                Ok::<(), Failure>(())
            })
        })
        .collect();
    for thread in threads {
        thread.join()??;
    }
    let mut status = 0;
    refused!(ECHILD, waitpid(-1, &mut status, 0));
    say("");
    let _ = wait_with;
    Ok(())
}

/// A process that has ended keeps its place among those of its user until its parent asks for it.
fn zombies() -> Outcome {
    const MOST: u64 = 20;
    child(|| {
        call!(setrlimit(RLIMIT_NPROC, &limit_of(MOST)));
        // No other test has processes of this user.
        call!(setresuid(4711, 4711, 4711));
        let fork_one = || -> Result<bool> {
            // SAFETY: the child ends at once.
            match unsafe { fork() } {
                0 => exit(0),
                -1 => {
                    equal!(errno(), EAGAIN);
                    Ok(false)
                }
                _ => Ok(true),
            }
        };
        for round in 0..3 {
            let mut made = 0;
            while fork_one()? {
                made += 1;
                ensure!(made < MOST, round);
            }
            equal!(made, MOST - 1, round);
            for _ in 0..made {
                let mut status = 0;
                call!(waitpid(-1, &mut status, 0));
            }
        }
        Ok(())
    })
}

/// A fork that shares page tables at first: the child finds the parent's memory, neither sees the
/// other's writes, and no entry is left over for later children.
fn large() -> Outcome {
    const PAGE: usize = 4096;
    const PAGES: usize = (128 << 20) / PAGE;
    let memory = map(PAGES * PAGE)?;
    let at = |page: usize| {
        memory
            .wrapping_add(page * PAGE + page % 61 * 8)
            .cast::<u64>()
    };
    let put = |page: usize, value: u64| {
        // SAFETY: inside the mapping, aligned, and not otherwise used.
        unsafe { at(page).write_volatile(value) }
    };
    let check = |expected: &dyn Fn(usize) -> u64| -> Outcome {
        for page in 0..PAGES {
            // SAFETY: as above.
            let found = unsafe { at(page).read_volatile() };
            let expected = expected(page);
            equal!(found, expected, page);
        }
        Ok(())
    };
    let first = |page: usize| page as u64 * 3 + 1;
    (0..PAGES).for_each(|page| put(page, first(page)));
    // In a row, so that tables are replaced, and sparsely, so that they are copied.
    let in_a_row = 5000..7100;
    let childs = |page: usize| match in_a_row.contains(&page) || page % 1021 == 7 {
        true => !first(page),
        false => first(page),
    };
    let parents = |page: usize| match page % 997 == 5 {
        true => first(page) << 8,
        false => first(page),
    };
    let reader = spawn(|| check(&first))?;
    let writer = spawn(|| {
        check(&first)?;
        let written = (0..PAGES).filter(|&page| childs(page) != first(page));
        written.for_each(|page| put(page, childs(page)));
        check(&childs)?;
        // A grandchild, while its parent owns some of the tables.
        child(|| check(&childs))
    })?;
    let written = || (0..PAGES).filter(|&page| parents(page) != first(page));
    written().for_each(|page| put(page, parents(page)));
    check(&parents)?;
    for one in [reader, writer] {
        wait_ok(one)?;
    }
    check(&parents)?;
    // The parent owns all tables again.
    written().for_each(|page| put(page, first(page)));
    (6000..9000).for_each(|page| put(page, first(page)));
    child(|| check(&first))?;
    check(&first)?;
    call!(munmap(memory.cast(), PAGES * PAGE));
    Ok(())
}
