//! `exec`: programs, scripts, and what is refused.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::ptr;

use crate::support::{End, Outcome, c, folder, spawn, wait};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("processes: exec passes words and environment", exec),
    ("processes: exec refuses", exec_refusals),
    ("processes: scripts", scripts),
    ("processes: close on exec", close_on_exec),
];

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
