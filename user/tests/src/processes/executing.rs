//! `exec`: programs, scripts, refusals.

use std::os::unix::fs::FileExt;

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("processes: exec passes words and environment", exec),
    (
        "processes: pointers to words up to the end of a page",
        pointers,
    ),
    ("processes: words without memory", words_without_memory),
    ("processes: exec refuses", exec_refusals),
    ("processes: scripts", scripts),
    ("processes: close on exec", close_on_exec),
    ("processes: record locks and exec", kept_locks),
    ("processes: descriptors of its own", unshared),
    ("processes: randomize_va_space", randomize),
];

/// A lock on all of a file.
fn write_lock() -> flock {
    // SAFETY: all zeros is a valid one.
    let mut lock: flock = unsafe { zeroed() };
    lock.l_type = F_WRLCK as i16;
    lock
}

/// The process keeps its record locks when it executes a program, whatever threads it had, and
/// whoever looks at it.
fn kept_locks() -> Outcome {
    let (path, own) = file("kept_locks", b"x")?;
    let (reader, writer) = pipe(0)?;
    let child = spawn(|| {
        call!(close(writer));
        call!(dup2(reader, 0));
        call!(fcntl(own, F_SETLK, &write_lock()));
        for _ in 0..3 {
            thread::spawn(|| thread::sleep(Duration::from_secs(1000)));
        }
        let words = [c"cat".as_ptr(), null()];
        call!(execv(c"/bin/cat".as_ptr(), words.as_ptr()));
        Ok(())
    })?;
    call!(close(own));
    while read_text(&format!("/proc/{child}/comm"))? != "cat\n" {
        read_text(&format!("/proc/{child}/status"))?;
    }
    let other = call!(open(c(&path).as_ptr(), O_RDWR));
    refused!(EAGAIN, fcntl(other, F_SETLK, &write_lock()));
    call!(close(writer));
    equal!(wait(child)?, End::Exit(0));
    call!(fcntl(other, F_SETLK, &write_lock()));
    call!(close(other));
    call!(close(reader));
    Ok(())
}

/// A process that asks for descriptors of its own, and has them, keeps its locks; nothing else
/// keeps the files that it closes.
fn unshared() -> Outcome {
    let (path, own) = file("unshared", b"x")?;
    for by_close_range in [true, false] {
        call!(fcntl(own, F_SETLK, &write_lock()));
        let (reader, writer) = pipe(O_NONBLOCK)?;
        let number = writer as u32;
        match by_close_range {
            true => drop(call!(close_range(
                number,
                number,
                CLOSE_RANGE_UNSHARE as c_int
            ))),
            false => {
                call!(unshare(CLONE_FILES));
                call!(close(writer));
            }
        }
        equal!(read_bytes(&reader, 1)?, b"");
        call!(close(reader));
        child(|| {
            let other = call!(open(c(&path).as_ptr(), O_RDWR));
            refused!(EAGAIN, fcntl(other, F_SETLK, &write_lock()));
            Ok(())
        })?;
    }
    call!(close(own));
    Ok(())
}

/// 0 gives each program the same addresses, 1 leaves the heap right behind the program, 2 nothing.
fn randomize() -> Outcome {
    let setting = "/proc/sys/kernel/randomize_va_space";
    let maps = || -> Result<String, Failure> {
        let output = std::process::Command::new("/bin/cat")
            .arg("/proc/self/maps")
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // Bytes between the end of the program and its heap.
    let gap = |maps: &str| {
        let lines: Vec<_> = maps.lines().collect();
        let heap = lines.iter().position(|line| line.ends_with("[heap]"))?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, _) = lines[heap].split_once('-')?;
        let (_, rest) = lines[heap.checked_sub(1)?].split_once('-')?;
        Some(number(start)? - number(rest.split(' ').next()?)?)
    };
    let check = || {
        equal!(read_text(setting)?, "2\n");
        let (one, other) = (maps()?, maps()?);
        ensure!(one != other && gap(&one) != gap(&other), "{one}\n{other}");
        fs::write(setting, "1")?;
        let (one, other) = (maps()?, maps()?);
        ensure!(one != other, "{one}");
        equal!((gap(&one), gap(&other)), (Some(0), Some(0)), one);
        fs::write(setting, "0")?;
        equal!(maps()?, maps()?);
        let error = fs::write(setting, "3").map_err(|error| error.raw_os_error());
        equal!(error, Err(Some(EINVAL)));
        Ok(())
    };
    let outcome = check();
    fs::write(setting, "2")?;
    outcome
}

fn exec() -> Outcome {
    let long = "x".repeat(100_000);
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--as", "words", "one", "", "two words", &long])
        .env_clear()
        .env("GREETING", "hello")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    equal!(text.trim(), format!("one||two words|{long}|hello"), text);
    let many: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    let output = std::process::Command::new("/proc/self/exe")
        .args(["--as", "words"])
        .args(&many)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    equal!(text.trim(), format!("{}|", many.join("|")));
    Ok(())
}

fn exec_refusals() -> Outcome {
    let folder = folder("exec")?;
    let none = [null()];
    let environment = || none.as_ptr();
    let make = |name: &str, bytes: &[u8], mode: u32| -> Result<CString> {
        let path = format!("{folder}/{name}");
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(c(&path))
    };
    let words = [c"x".as_ptr(), null()];
    let plain = make("plain", b"no program", 0o755)?;
    refused! { execve(plain.as_ptr(), words.as_ptr(), environment()) => ENOEXEC; }
    let empty = make("empty", b"", 0o755)?;
    refused! { execve(empty.as_ptr(), words.as_ptr(), environment()) => ENOEXEC; }
    let data = make("data", b"\x7fELF", 0o644)?;
    refused! {
        execve(data.as_ptr(), words.as_ptr(), environment()) => EACCES;
        execve(c"/none".as_ptr(), words.as_ptr(), environment()) => ENOENT;
        execve(c"/".as_ptr(), words.as_ptr(), environment()) => EACCES;
        execve(c"/proc/self/exe/x".as_ptr(), words.as_ptr(), environment()) => ENOTDIR;
        execve(8 as *const _, words.as_ptr(), environment()) => EFAULT;
        execve(c"/proc/self/exe".as_ptr(), 0x1000 as *const _, environment()) => EFAULT;
    }
    let bad = [8 as *const c_char, null()];
    refused! { execve(c"/proc/self/exe".as_ptr(), bad.as_ptr(), environment()) => EFAULT; }
    let huge = c(&"y".repeat(200_000));
    let words = [huge.as_ptr(), null()];
    refused! { execve(c"/proc/self/exe".as_ptr(), words.as_ptr(), environment()) => E2BIG; }
    Ok(())
}

fn scripts() -> Outcome {
    let folder = folder("scripts")?;
    let path = format!("{folder}/script");
    // The interpreter is this program; the script's own name and words follow its option.
    let program = fs::read_link("/proc/self/exe")?;
    fs::write(&path, format!("#! {} --as\n", program.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let status = std::process::Command::new(&path).arg("x").status()?;
    equal!(status.code(), Some(99), status);
    fs::write(&path, "#!/does/not/exist\n")?;
    let error = std::process::Command::new(&path).status().err();
    let number = error.and_then(|error| error.raw_os_error());
    equal!(number, Some(ENOENT));
    Ok(())
}

fn close_on_exec() -> Outcome {
    for (flags, expected) in [(O_CLOEXEC, 0), (0, 1)] {
        let open = call!(open(c"/dev/null".as_ptr(), O_RDONLY | flags));
        let child = spawn(|| {
            let number = c(&open.to_string());
            let words = [
                c"t".as_ptr(),
                c"--as".as_ptr(),
                c"descriptor".as_ptr(),
                number.as_ptr(),
                null(),
            ];
            call!(execv(c"/proc/self/exe".as_ptr(), words.as_ptr()));
            Ok(())
        })?;
        let end = wait(child)?;
        ensure!(end == End::Exit(expected), "flags {flags:#o}: {end:?}");
    }
    Ok(())
}

/// The pointers to a program's words end where memory ends, whatever their number and alignment.
fn pointers() -> Outcome {
    let words: Vec<_> = (0..1500).map(|n| c(&n.to_string())).collect();
    let memory = map(5 * PAGE)?;
    unmap(memory.wrapping_add(4 * PAGE), PAGE)?;
    let end = memory as usize + 4 * PAGE;
    let script = c("echo $#; echo $@ | wc -c");
    let first = [c("sh"), c("-c"), script, c("name")];
    for (count, shift) in [
        (0, 0),
        (1, 3),
        (59, 0),
        (60, 0),
        (61, 5),
        (508, 0),
        (509, 7),
        (1500, 1),
    ] {
        let all: Vec<_> = first.iter().chain(&words[..count]).collect();
        let mut at = (end - (all.len() + 1) * 8 - shift) as *mut u64;
        let array = at;
        for word in all.iter().map(|word| word.as_ptr() as u64).chain([0]) {
            // SAFETY: the mapping has room up to its end.
            unsafe { at.write_unaligned(word) };
            at = at.wrapping_add(1);
        }
        let (reader, writer) = pipe(0)?;
        let child = spawn(|| {
            call!(dup2(writer, 1));
            call!(execve(c"/bin/sh".as_ptr(), array.cast(), null()));
            Ok(())
        })?;
        call!(close(writer));
        let mut answer = String::new();
        // SAFETY: the descriptor is open, and this its only owner.
        unsafe { fs::File::from_raw_fd(reader) }.read_to_string(&mut answer)?;
        equal!(wait(child)?, End::Exit(0));
        let told: Vec<_> = (0..count).map(|n| n.to_string()).collect();
        let len = told.join(" ").len() + 1;
        let lines: Vec<_> = answer.lines().collect();
        equal!(lines[0], count.to_string());
        equal!(lines[1].trim(), len.to_string());
    }
    unmap(memory, 4 * PAGE)
}

/// Words for which the kernel has no memory are refused for that.
fn words_without_memory() -> Outcome {
    let word = c(&"x".repeat(100_000));
    let words = [word.as_ptr(), word.as_ptr(), null()];
    let program = c("/bin/true");
    let switch = fs::File::options()
        .write(true)
        .open("/proc/causeway/failalloc")?;
    let fail_each = |n: u64| while switch.write_at(n.to_string().as_bytes(), 0).is_err() {};
    child(|| {
        // Room for one word.
        call!(setrlimit(RLIMIT_STACK, &limit_of(512 << 10)));
        let mut refused = 0;
        for each in (2..40).cycle().take(200) {
            fail_each(each);
            // SAFETY: the list ends with null.
            let answer = unsafe { execve(program.as_ptr(), words.as_ptr(), null()) };
            let error = errno();
            fail_each(0);
            equal!(answer, -1);
            ensure!([E2BIG, ENOMEM].contains(&error), error, each);
            refused += u32::from(error == ENOMEM);
        }
        ensure!(refused > 0, "memory was never refused");
        Ok(())
    })
}
