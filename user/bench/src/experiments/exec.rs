//! Starting programs in each way.

use std::ffi::{CString, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::{fs, ptr};

use crate::options::NOTHING;
use crate::{Bench, Experiment, Failure, call};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "exec",
    title: "Starting programs: fork, vfork, posix_spawn, and exec",
    help: "Each row starts a program, which ends at once, and waits for its end. `least` is a
program of 200 bytes that only exits, `static` is a real one: this one, static, of about 2 MiB,
which starts its libraries first.

exec/fork-least          fork, exec, exit, wait
exec/vfork-least         vfork, exec, exit, wait
exec/spawn-least         posix_spawn, exit, wait
exec/fork-shell          fork, exec of /bin/sh -c PROGRAM with that program, exit, wait: fork+sh of
                         lmbench
exec/fork-static         the same with the real program
exec/vfork-static
exec/spawn-static
exec/again-static        exec alone: the real program starts itself again",
    run,
};

/// Starts of the real program in a batch: an emulated machine translates it anew each time.
const STATIC_BATCH: u64 = 5;

/// Possible paths of a shell.
const SHELLS: [&str; 2] = ["/bin/sh", "/usr/bin/sh"];

/// How a program is started.
#[derive(Clone, Copy)]
enum Way {
    Fork,
    Vfork,
    Spawn,
}

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let least = write_least()?;
    let own = std::env::current_exe()?.into_os_string().into_vec();
    let own = CString::new(own).map_err(|_| "this program's path has a zero byte")?;
    for (program, size, batch) in [(&least, "least", 20), (&own, "static", STATIC_BATCH)] {
        for (way, name) in [
            (Way::Fork, "fork"),
            (Way::Vfork, "vfork"),
            (Way::Spawn, "spawn"),
        ] {
            let row = format!("exec/{name}-{size}");
            bench.row(row).batch(batch).measure(|n| {
                for _ in 0..n {
                    wait(start(way, program, &[])?)?;
                }
                Ok(())
            })?;
        }
    }
    if let Some(shell) = SHELLS
        .iter()
        .find(|shell| fs::exists(shell).is_ok_and(|it| it))
    {
        let shell = CString::new(*shell).map_err(|_| "a path has a zero byte")?;
        let words = [c"-c".into(), least.clone()];
        bench.row("exec/fork-shell").batch(20).measure(|n| {
            for _ in 0..n {
                wait(start_with(Way::Fork, &shell, &words)?)?;
            }
            Ok(())
        })?;
    }
    bench
        .row("exec/again-static")
        .batch(STATIC_BATCH)
        .measure(|n| {
            // The program starts itself again until the count is 0.
            wait(start(Way::Vfork, &own, &[count(n)?])?)
        })?;
    fs::remove_file(OsString::from_vec(least.into_bytes()))?;
    Ok(())
}

/// Returns the word that makes this program start itself so many times.
fn count(times: u64) -> Result<CString, Failure> {
    CString::new(times.to_string()).map_err(|_| "a number has a zero byte".into())
}

/// Runs this program started as [`NOTHING`]: it starts itself as often as its second word says;
/// returns the exit status.
pub fn again(times: Option<OsString>) -> i32 {
    let times = times
        .and_then(|word| word.to_str()?.parse::<u64>().ok())
        .unwrap_or(0);
    let (Some(less), Some(own)) = (times.checked_sub(1), std::env::args_os().next()) else {
        return 0;
    };
    let (Ok(own), Ok(word)) = (CString::new(own.into_vec()), count(less)) else {
        return 1;
    };
    let _ = call!(execv(
        own.as_ptr(),
        arguments(&own, &[NOTHING.into(), word]).as_ptr()
    ));
    1
}

/// Returns the arguments of a started program: its path, and these.
fn arguments(program: &CString, words: &[CString]) -> Vec<*const libc::c_char> {
    let rest = words.iter().map(|word| word.as_ptr());
    let all = [program.as_ptr()].into_iter().chain(rest);
    all.chain([ptr::null()]).collect()
}

/// Starts the program with the word [`NOTHING`] and these; returns its process id.
fn start(way: Way, program: &CString, words: &[CString]) -> Result<libc::pid_t, Failure> {
    start_with(way, program, &[&[NOTHING.into()], words].concat())
}

/// Starts the program with these words; returns its process id.
fn start_with(way: Way, program: &CString, words: &[CString]) -> Result<libc::pid_t, Failure> {
    let arguments = arguments(program, words);
    let none = [ptr::null::<libc::c_char>()];
    let child = match way {
        Way::Fork => call!(fork())?,
        // The child only calls exec, or ends.
        #[allow(deprecated)]
        Way::Vfork => call!(vfork())?,
        Way::Spawn => {
            let mut child = 0;
            // SAFETY: the path and the words live and end with zero.
            let error = unsafe {
                libc::posix_spawn(
                    &mut child,
                    program.as_ptr(),
                    ptr::null(),
                    ptr::null(),
                    arguments.as_ptr().cast(),
                    none.as_ptr().cast(),
                )
            };
            return match error {
                0 => Ok(child),
                _ => Err(Failure::of(
                    "posix_spawn",
                    &std::io::Error::from_raw_os_error(error),
                )),
            };
        }
    };
    if child == 0 {
        // SAFETY: the path and the words live and end with zero; the child does nothing else.
        unsafe {
            libc::execve(program.as_ptr(), arguments.as_ptr(), none.as_ptr());
            libc::_exit(127)
        }
    }
    Ok(child)
}

/// Waits for a program, which must exit with 0.
fn wait(child: libc::pid_t) -> Result<(), Failure> {
    let mut status = 0;
    call!(waitpid(child, &mut status, 0))?;
    match status {
        0 => Ok(()),
        _ => Err(format!("the program ended with status {status:#x}").into()),
    }
}

/// Writes the smallest program to a file; returns its path.
fn write_least() -> Result<CString, Failure> {
    let path = std::env::temp_dir().join(format!("bench-least-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o755);
    options.open(&path)?.write_all(&least())?;
    CString::new(path.into_os_string().into_vec()).map_err(|_| "a path has a zero byte".into())
}

/// Returns a program of one segment, whose code exits with 0.
fn least() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // xor edi, edi; mov eax, 60 (exit); syscall.
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let size = HEADERS + CODE.len() as u64;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // e_type: executable; e_machine: x86-64; e_version.
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    // e_entry, e_phoff, e_shoff.
    for long in [BASE + HEADERS, 64, 0] {
        bytes.extend(long.to_le_bytes());
    }
    // e_flags; then e_ehsize, e_phentsize, e_phnum, and no sections.
    bytes.extend([0; 4]);
    for half in [64u16, 56, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    // p_type: load; p_flags: read, execute.
    bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    // p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    for long in [0, BASE, BASE, size, size, 4096] {
        bytes.extend(long.to_le_bytes());
    }
    bytes.extend(CODE);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_program_runs_by_every_way() {
        let least = write_least().expect("a file");
        for way in [Way::Fork, Way::Vfork, Way::Spawn] {
            assert_eq!(start(way, &least, &[]).and_then(wait), Ok(()));
        }
        fs::remove_file(OsString::from_vec(least.into_bytes())).expect("the file is there");
        let gone = CString::new("/nosuch").expect("no zero");
        assert!(start(Way::Fork, &gone, &[]).and_then(wait).is_err());
    }
}
