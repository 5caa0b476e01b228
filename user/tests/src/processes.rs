//! Processes: fork, exec, wait, groups, sessions.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::ptr;

use crate::support::{
    End, Outcome, c, child, errno, exit, folder, map, pause_ms, peek, pipe, poke, say, spawn, wait,
    wait_with,
};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("processes: exit statuses", statuses),
    ("processes: waiting", waiting),
    ("processes: wait4 and waitid tell more", wait_more),
    ("processes: orphans find a parent", orphans),
    ("processes: zombies stay until waited for", zombies),
    ("processes: vfork", vfork),
    ("processes: exec passes words and environment", exec),
    ("processes: exec refuses", exec_refusals),
    ("processes: scripts", scripts),
    ("processes: close on exec", close_on_exec),
    ("processes: groups and sessions", groups),
    ("processes: signals to a group", group_signals),
    ("processes: many children", many),
    ("processes: a deep line of descent", deep),
    (
        "processes: limits, umask and folder are inherited",
        inherited,
    ),
    ("processes: names and identities", identities),
    ("processes: fork among threads", fork_among_threads),
];

/// What this program does when a test runs it as `--as ROLE ARGUMENTS`; the exit status.
pub fn act(words: &[String]) -> i32 {
    let role = words.first().map_or("", String::as_str);
    match role {
        "exit" => words
            .get(1)
            .and_then(|word| word.parse().ok())
            .unwrap_or(99),
        "addresses" => {
            let here = 0u8;
            let map = map(1 << 20).map_or(0, |map| map as usize);
            println!(
                "{:x} {:x} {:x}",
                &raw const here as usize, map, act as *const () as usize
            );
            0
        }
        "words" => {
            println!(
                "{}|{}",
                words[1..].join("|"),
                std::env::var("GREETING").unwrap_or_default()
            );
            0
        }
        "descriptor" => {
            let number = words
                .get(1)
                .and_then(|word| word.parse().ok())
                .unwrap_or(-1);
            // SAFETY: asks for a descriptor's flags.
            i32::from(unsafe { libc::fcntl(number, libc::F_GETFD) } != -1)
        }
        "sleep" => loop {
            crate::support::pause_ms(1000);
        },
        "signals" => signal_state(),
        _ => 99,
    }
}

/// Bit 0: SIGUSR1 has its default action; bit 1: SIGUSR2 is ignored; bit 2: SIGHUP is blocked.
fn signal_state() -> i32 {
    // SAFETY: all zeros are valid values to be overwritten by the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut set = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR1, ptr::null(), &mut action);
        let caught = action.sa_sigaction == libc::SIG_DFL;
        libc::sigaction(libc::SIGUSR2, ptr::null(), &mut action);
        let ignored = action.sa_sigaction == libc::SIG_IGN;
        libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut set);
        let blocked = libc::sigismember(&set, libc::SIGHUP) == 1;
        i32::from(caught) | i32::from(ignored) << 1 | i32::from(blocked) << 2
    }
}

fn statuses() -> Outcome {
    for status in [0, 1, 77, 255, 256 + 3] {
        let end = wait(spawn(|| exit(status))?)?;
        ensure!(
            end == End::Exit(status & 255),
            "exit({status}) gave {end:?}"
        );
    }
    Ok(())
}

fn waiting() -> Outcome {
    let mut status = 0;
    refused!(ECHILD, waitpid(-1, &mut status, 0));
    refused!(ECHILD, waitpid(1, &mut status, 0));
    let (reader, writer) = pipe(0)?;
    let slow = spawn(|| {
        let mut byte = 0u8;
        call!(read(reader, (&raw mut byte).cast(), 1));
        exit(4)
    })?;
    ensure!(
        call!(waitpid(-1, &mut status, libc::WNOHANG)) == 0,
        "a child ended too early"
    );
    let quick = spawn(|| exit(5))?;
    let found = call!(waitpid(-1, &mut status, 0));
    ensure!(
        found == quick && End::of(status) == End::Exit(5),
        "found {found}, not {quick}"
    );
    call!(write(writer, b"x".as_ptr().cast(), 1));
    let found = call!(waitpid(0, &mut status, 0));
    ensure!(
        found == slow && End::of(status) == End::Exit(4),
        "found {found}, not {slow}"
    );
    refused!(EINVAL, waitpid(-1, &mut status, 0x1000_0000));
    Ok(())
}

fn wait_more() -> Outcome {
    let child = spawn(|| {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 60 {
            std::hint::spin_loop();
        }
        exit(6)
    })?;
    // SAFETY: all zeros is a valid siginfo to be overwritten.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT;
    call!(waitid(libc::P_PID, child as u32, &mut info, options));
    // SAFETY: waitid has filled it in for a child.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    ensure!(
        info.si_code == libc::CLD_EXITED && pid == child && status == 6,
        "waitid: {pid} {status}"
    );
    // SAFETY: all zeros is a valid rusage to be overwritten.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    let found = call!(wait4(child, &mut status, 0, &mut usage));
    ensure!(
        found == child && End::of(status) == End::Exit(6),
        "WNOWAIT took the child"
    );
    let time = usage.ru_utime.tv_sec * 1_000_000 + usage.ru_utime.tv_usec;
    ensure!(time >= 20_000, "60 ms of spinning count as {time} us");
    Ok(())
}

fn orphans() -> Outcome {
    let (reader, writer) = pipe(0)?;
    let parent = spawn(|| {
        let me = call!(getpid());
        spawn(|| {
            while call!(getppid()) == me {
                pause_ms(1);
            }
            let parent = call!(getppid());
            call!(write(writer, (&raw const parent).cast(), 4));
            Ok(())
        })?;
        Ok(())
    })?;
    wait(parent)?;
    let mut adopter = 0i32;
    call!(read(reader, (&raw mut adopter).cast(), 4));
    ensure!(
        adopter >= 1 && adopter != parent,
        "the orphan's parent is {adopter}"
    );
    Ok(())
}

fn zombies() -> Outcome {
    let children: Vec<_> = (0..20)
        .map(|_| spawn(|| Ok(())))
        .collect::<Result<_, _>>()?;
    pause_ms(100);
    for &child in &children {
        let stat = fs::read_to_string(format!("/proc/{child}/stat"))
            .map_err(|error| format!("/proc/{child}/stat: {error}"))?;
        ensure!(stat.contains(") Z "), "not a zombie: {stat}");
        call!(kill(child, 0));
    }
    for child in children {
        wait(child)?;
        refused!(ESRCH, kill(child, 0));
        ensure!(
            !fs::exists(format!("/proc/{child}")).unwrap_or(true),
            "/proc/{child} stays"
        );
    }
    Ok(())
}

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
    let status = status.map_err(|error| error.to_string())?;
    ensure!(status.code() == Some(31), "{status}");
    let error = std::process::Command::new("/does/not/exist").status().err();
    ensure!(error.is_some(), "a program that does not exist ran");
    Ok(())
}

fn exec() -> Outcome {
    let long = "x".repeat(100_000);
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--as", "words", "one", "", "two words", &long])
        .env_clear()
        .env("GREETING", "hello")
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        text.trim() == format!("one||two words|{long}|hello"),
        "words: {:.80}",
        text
    );
    let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--as", "words"])
        .args(&many)
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        text.trim() == format!("{}|", many.join("|")),
        "5000 words arrived wrong"
    );
    Ok(())
}

fn exec_refusals() -> Outcome {
    let folder = folder("exec")?;
    let none = [ptr::null()];
    let environment = || none.as_ptr();
    let make = |name: &str, bytes: &[u8], mode: u32| -> Result<CString, String> {
        let path = format!("{folder}/{name}");
        fs::write(&path, bytes).map_err(|error| error.to_string())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .map_err(|error| error.to_string())?;
        Ok(c(&path))
    };
    let words = [c"x".as_ptr(), ptr::null()];
    let plain = make("plain", b"no program", 0o755)?;
    refused!(
        ENOEXEC,
        execve(plain.as_ptr(), words.as_ptr(), environment())
    );
    let empty = make("empty", b"", 0o755)?;
    refused!(
        ENOEXEC,
        execve(empty.as_ptr(), words.as_ptr(), environment())
    );
    let data = make("data", b"\x7fELF", 0o644)?;
    refused!(EACCES, execve(data.as_ptr(), words.as_ptr(), environment()));
    refused!(
        ENOENT,
        execve(c"/none".as_ptr(), words.as_ptr(), environment())
    );
    refused!(EACCES, execve(c"/".as_ptr(), words.as_ptr(), environment()));
    refused!(
        ENOTDIR,
        execve(c"/proc/self/exe/x".as_ptr(), words.as_ptr(), environment())
    );
    refused!(EFAULT, execve(8 as *const _, words.as_ptr(), environment()));
    refused!(
        EFAULT,
        execve(
            c"/proc/self/exe".as_ptr(),
            0x1000 as *const _,
            environment()
        )
    );
    let bad = [8 as *const libc::c_char, ptr::null()];
    refused!(
        EFAULT,
        execve(c"/proc/self/exe".as_ptr(), bad.as_ptr(), environment())
    );
    let huge = c(&"y".repeat(200_000));
    let words = [huge.as_ptr(), ptr::null()];
    refused!(
        E2BIG,
        execve(c"/proc/self/exe".as_ptr(), words.as_ptr(), environment())
    );
    Ok(())
}

fn scripts() -> Outcome {
    let folder = folder("scripts")?;
    let path = format!("{folder}/script");
    // The interpreter is this program; the script's own name and words follow its option.
    let program = fs::read_link("/proc/self/exe").map_err(|error| error.to_string())?;
    fs::write(&path, format!("#! {} --as\n", program.display())).map_err(|e| e.to_string())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let status = std::process::Command::new(&path)
        .arg("x")
        .status()
        .map_err(|e| e.to_string())?;
    ensure!(
        status.code() == Some(99),
        "the interpreter was not run: {status}"
    );
    fs::write(&path, "#!/does/not/exist\n").map_err(|error| error.to_string())?;
    let error = std::process::Command::new(&path).status().err();
    let number = error.and_then(|error| error.raw_os_error());
    ensure!(
        number == Some(libc::ENOENT),
        "no interpreter gave {number:?}"
    );
    Ok(())
}

fn close_on_exec() -> Outcome {
    for (flags, expected) in [(libc::O_CLOEXEC, 0), (0, 1)] {
        let open = call!(open(c"/dev/null".as_ptr(), libc::O_RDONLY | flags));
        let child = spawn(|| {
            let number = c(&open.to_string());
            let words = [
                c"t".as_ptr(),
                c"--as".as_ptr(),
                c"descriptor".as_ptr(),
                number.as_ptr(),
                ptr::null(),
            ];
            call!(execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
            Ok(())
        })?;
        let end = wait(child)?;
        ensure!(end == End::Exit(expected), "flags {flags:#o}: {end:?}");
    }
    Ok(())
}

fn groups() -> Outcome {
    let me = call!(getpid());
    ensure!(call!(getpgrp()) == me, "a test leads its own group");
    refused!(EPERM, setsid());
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        let mut byte = 0u8;
        call!(read(reader, (&raw mut byte).cast(), 1));
        ensure!(
            call!(setsid()) == call!(getpid()),
            "setsid gave another number"
        );
        ensure!(
            call!(getsid(0)) == call!(getpid()),
            "the session is another"
        );
        ensure!(call!(getpgrp()) == call!(getpid()), "the group is another");
        refused!(EPERM, setpgid(0, 0));
        Ok(())
    })?;
    ensure!(
        call!(getpgid(child)) == me,
        "a child begins in its parent's group"
    );
    refused!(EPERM, setpgid(child, 0x3fff_fff0));
    refused!(ESRCH, setpgid(0x3fff_fff0, 0));
    refused!(EINVAL, setpgid(child, -5));
    refused!(ESRCH, getpgid(0x3fff_fff0));
    call!(write(writer, b"x".as_ptr().cast(), 1));
    ensure!(wait(child)? == End::Exit(0), "the child failed");
    let child = spawn(|| {
        loop {
            pause_ms(1000);
        }
    })?;
    call!(setpgid(child, child));
    ensure!(call!(getpgid(child)) == child, "the group did not change");
    let mut status = 0;
    refused!(ECHILD, waitpid(0, &mut status, 0));
    call!(kill(-child, libc::SIGTERM));
    let found = call!(waitpid(-child, &mut status, 0));
    ensure!(
        found == child && End::of(status) == End::Signal(libc::SIGTERM),
        "{found} {status}"
    );
    refused!(ESRCH, kill(-child, 0));
    Ok(())
}

fn group_signals() -> Outcome {
    let leader = spawn(|| {
        call!(setpgid(0, 0));
        let children: Vec<_> = (0..5)
            .map(|_| {
                spawn(|| {
                    loop {
                        pause_ms(1000);
                    }
                })
            })
            .collect::<Result<_, _>>()?;
        // SAFETY: ignores the signal in this process only.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        call!(kill(0, libc::SIGTERM));
        for child in children {
            let end = wait(child)?;
            ensure!(
                end == End::Signal(libc::SIGTERM),
                "a member ended with {end:?}"
            );
        }
        Ok(())
    })?;
    let end = wait(leader)?;
    ensure!(end == End::Exit(0), "the leader ended with {end:?}");
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
                return Err(format!("{status:#x}"));
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
    crate::growth::limit(libc::RLIMIT_NOFILE, 50)?;
    child(|| {
        ensure!(call!(umask(0)) == 0o027, "the mask was not inherited");
        let here = std::env::current_dir().map_err(|error| error.to_string())?;
        ensure!(
            here.as_os_str() == "/tmp",
            "the folder is {}",
            here.display()
        );
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        call!(getrlimit(libc::RLIMIT_NOFILE, &mut limit));
        ensure!(limit.rlim_cur == 50, "the limit is {}", limit.rlim_cur);
        for _ in 0..50 {
            // SAFETY: opens a device.
            if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } == -1 {
                ensure!(errno() == libc::EMFILE, "errno {}", errno());
                return Ok(());
            }
        }
        Err("more than 50 descriptors".into())
    })
}

fn identities() -> Outcome {
    // SAFETY: all zeros is a valid utsname to be overwritten.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    call!(uname(&mut name));
    let machine: String = name
        .machine
        .iter()
        .take_while(|&&b| b != 0)
        .map(|&b| b as u8 as char)
        .collect();
    ensure!(machine == "x86_64", "the machine is {machine}");
    call!(prctl(libc::PR_SET_NAME, c"renamed".as_ptr(), 0, 0, 0));
    let mut buffer = [0u8; 16];
    call!(prctl(libc::PR_GET_NAME, buffer.as_mut_ptr(), 0, 0, 0));
    ensure!(buffer.starts_with(b"renamed\0"), "the name is {buffer:?}");
    if call!(getuid()) == 0 {
        child(|| {
            call!(setgid(100));
            call!(setuid(1000));
            ensure!(
                call!(geteuid()) == 1000 && call!(getegid()) == 100,
                "not changed"
            );
            refused!(EPERM, setuid(0));
            refused!(EPERM, kill(1, libc::SIGTERM));
            Ok(())
        })?;
    }
    Ok(())
}

fn fork_among_threads() -> Outcome {
    let memory = map(4096)? as usize;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..20 {
                    poke(memory as *mut u8, 1);
                    child(|| Ok(()))?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for thread in threads {
        thread
            .join()
            .map_err(|_| "a thread panicked".to_string())??;
    }
    let mut status = 0;
    refused!(ECHILD, waitpid(-1, &mut status, 0));
    say("");
    let _ = wait_with;
    Ok(())
}
