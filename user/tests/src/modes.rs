//! The files of the kernel, as an ordinary user finds them.

use support::prelude::*;

pub const TESTS: &[Test] = &[("modes: what a user may open in /proc, /sys and /dev", walk)];

const USER: u32 = 1000;

/// Bytes of a file that are read: some never end.
const MOST: usize = 1 << 20;

/// Those of another's process that everybody may open by the mode, but that tell only who may look
/// into it, as on Linux.
const JUDGED: &[&str] = &["maps", "smaps", "smaps_rollup", "numa_maps", "pagemap"];

/// What was found.
#[derive(Default)]
struct Found {
    files: usize,
    opened: usize,
    wrong: Vec<String>,
}

/// Every file opens by its mode or is refused as the mode says, and reading one does not hang.
fn walk() -> Outcome {
    let roots = spawn_sleeper()?;
    let outcome = child(|| {
        call!(setgroups(0, null()));
        call!(setresgid(USER, USER, USER));
        call!(setresuid(USER, USER, USER));
        // A read of the controlling terminal would stop it.
        call!(setsid());
        // As after an `execve`: its own files are its own.
        call!(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
        let mut found = Found::default();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_process = name.parse::<u32>().is_ok();
            if !is_process || name == "1" || name == roots.to_string() {
                look(&entry.path().display().to_string(), &mut found)?;
            }
        }
        look("/proc/self/", &mut found)?;
        look("/sys", &mut found)?;
        look("/dev", &mut found)?;
        println!("  {} files, {} of them opened", found.files, found.opened);
        ensure!(found.wrong.is_empty(), found.wrong);
        ensure!(found.opened > 300, found.opened);
        Ok(())
    });
    kill_child(roots)?;
    outcome
}

/// Looks at a file, and at those in it if it is a folder.
fn look(path: &str, found: &mut Found) -> Outcome {
    // SAFETY: sets a timer whose signal ends this process: a file that hangs fails the test.
    unsafe { alarm(20) };
    let Ok(about) = fs::symlink_metadata(path) else {
        // Gone meanwhile.
        return Ok(());
    };
    found.files += 1;
    let kind = about.mode() & S_IFMT;
    let bits = match (about.uid(), about.gid()) {
        (USER, _) => about.mode() >> 6,
        (_, USER) => about.mode() >> 3,
        _ => about.mode(),
    };
    match kind {
        S_IFLNK => {
            let _ = fs::read_link(path);
            return Ok(());
        }
        S_IFSOCK => return Ok(()),
        S_IFDIR => {
            let listed = fs::read_dir(path);
            let may = bits & 4 != 0;
            if listed.is_ok() != may {
                found.wrong.push(format!("{path} {:o}", about.mode()));
            }
            for entry in listed.into_iter().flatten().flatten() {
                look(&entry.path().display().to_string(), found)?;
            }
            return Ok(());
        }
        _ => {}
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_judged = JUDGED.contains(&last) && about.uid() != USER;
    // Its mode is Linux's; `dmesg_restrict` keeps it from users.
    let is_log = path == "/dev/kmsg";
    for (flags, bit) in [(O_RDONLY, 4), (O_WRONLY, 2)] {
        let name = c(path);
        let flags = flags | O_NONBLOCK | O_NOCTTY;
        // SAFETY: the path lives across the call.
        let file = unsafe { open(name.as_ptr(), flags) };
        let why = errno();
        let may = bits & bit != 0;
        let agrees = match file {
            -1 if may => is_judged || is_log || ![EACCES, EPERM].contains(&why),
            -1 => [EACCES, ENOENT].contains(&why),
            _ => may,
        };
        if !agrees {
            let why = if file == -1 { why } else { 0 };
            let line = format!("{path} {:o} flags {flags:o}: {why}", about.mode());
            found.wrong.push(line);
        }
        if file == -1 {
            continue;
        }
        found.opened += 1;
        // SAFETY: the descriptor is new.
        let mut open = unsafe { File::from_raw_fd(file) };
        let (mut bytes, mut left) = ([0; 4096], MOST);
        while bit == 4 && left > 0 {
            match open.read(&mut bytes) {
                Ok(n) if n > 0 => left -= n.min(left),
                _ => break,
            }
        }
    }
    Ok(())
}
