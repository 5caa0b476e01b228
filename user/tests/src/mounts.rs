//! Mounts, their flags, restricted path walks (`openat2`).

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("mounts: flags forbid what they say", flags),
    ("mounts: binds, trees and moves", trees),
    ("mounts: a mount expires", expiry),
    ("mounts: walks by openat2's rules", walks),
    ("mounts: whiteouts", whiteouts),
    ("mounts: what runs is not written", busy_text),
    ("mounts: roots show in statx and ustat", roots),
];

fn mount(source: &str, at: &str, kind: &str, flags: c_ulong) -> Outcome {
    let (source, at, kind) = (c(source), c(at), c(kind));
    let nothing = null();
    call!(mount(
        source.as_ptr(),
        at.as_ptr(),
        kind.as_ptr(),
        flags,
        nothing
    ));
    Ok(())
}

fn unmount(at: &str, flags: i32) -> Outcome {
    let at = c(at);
    call!(umount2(at.as_ptr(), flags));
    Ok(())
}

/// Mounts a tmpfs over a new folder.
fn mounted(name: &str, flags: c_ulong) -> Result<String> {
    let at = folder(name)?;
    mount("test", &at, "tmpfs", flags)?;
    Ok(at)
}

/// Returns the fields of the last line of `/proc/self/mountinfo` for this mount point.
fn info(at: &str) -> Result<Vec<String>> {
    let all = fs::read_to_string("/proc/self/mountinfo")?;
    let line = all
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(4) == Some(at));
    let line = line.ok_or_else(|| format!("{at} is not in mountinfo:\n{all}"))?;
    Ok(line.split(' ').map(str::to_string).collect())
}

fn flags() -> Outcome {
    let at = mounted("flags", 0)?;
    let program = format!("{at}/program");
    fs::copy("/proc/self/exe", &program)?;
    let path = c(&program);
    let run = || {
        let words = [path.as_ptr(), c"--list".as_ptr(), null()];
        call!(execv(path.as_ptr(), words.as_ptr()));
        Ok(())
    };
    let remount = |flags| mount("", &at, "", MS_REMOUNT | MS_BIND | flags);
    remount(MS_NOEXEC)?;
    child(|| {
        refused!(EACCES, execv(path.as_ptr(), null()));
        let open = call!(open(path.as_ptr(), O_RDONLY));
        let (exec, private) = (PROT_READ | PROT_EXEC, MAP_PRIVATE);
        let none = null_mut();
        refused!(EPERM, mmap(none, 4096, exec, private, open, 0));
        Ok(())
    })?;
    ensure!(info(&at)?[5].contains("noexec"), info(&at)?);
    remount(MS_RDONLY)?;
    refused!(EROFS, open(path.as_ptr(), O_WRONLY));
    refused!(EROFS, unlink(path.as_ptr()));
    refused!(EROFS, mkdir(c(&format!("{at}/new")).as_ptr(), 0o755));
    refused!(EROFS, access(path.as_ptr(), W_OK));
    remount(MS_NODEV)?;
    let null = c(&format!("{at}/null"));
    call!(mknod(null.as_ptr(), S_IFCHR | 0o666, libc::makedev(1, 3)));
    refused!(EACCES, open(null.as_ptr(), O_RDONLY));
    remount(0)?;
    call!(open(null.as_ptr(), O_RDONLY));
    let listed = spawn(|| {
        // Its list of groups does not matter.
        call!(close(1));
        call!(open(c"/dev/null".as_ptr(), O_WRONLY));
        run()
    })?;
    wait(listed)?;
    unmount(&at, MNT_DETACH)
}

fn trees() -> Outcome {
    let at = mounted("trees", 0)?;
    for name in ["a", "b", "c"] {
        fs::create_dir(format!("{at}/{name}"))?;
    }
    fs::create_dir(format!("{at}/a/inner"))?;
    mount("test", &format!("{at}/a/inner"), "tmpfs", 0)?;
    fs::write(format!("{at}/a/inner/file"), "deep")?;
    let (a, b) = (format!("{at}/a"), format!("{at}/b"));
    mount(&a, &b, "", MS_BIND)?;
    ensure!(!fs::exists(format!("{b}/inner/file"))?);
    ensure!(info(&b)?[3] == "/a", "the bind's root: {:?}", info(&b)?);
    unmount(&b, 0)?;
    mount(&a, &b, "", MS_BIND | MS_REC)?;
    let deep = fs::read_to_string(format!("{b}/inner/file"))?;
    ensure!(deep == "deep", "a recursive bind shows {deep}");
    refused!(EBUSY, umount2(c(&b).as_ptr(), 0));
    let moved = format!("{at}/c");
    mount(&b, &moved, "", MS_MOVE)?;
    ensure!(
        fs::exists(format!("{moved}/inner/file"))? && !fs::exists(format!("{b}/inner"))?,
        "the tree did not move"
    );
    unmount(&at, MNT_DETACH)?;
    ensure!(info(&at).is_err(), "still mounted");
    Ok(())
}

fn expiry() -> Outcome {
    let at = mounted("expiry", 0)?;
    let path = c(&at);
    refused!(EAGAIN, umount2(path.as_ptr(), MNT_EXPIRE));
    unmount(&at, MNT_EXPIRE)?;
    refused!(EINVAL, umount2(path.as_ptr(), MNT_EXPIRE | MNT_DETACH));
    refused!(EINVAL, umount2(path.as_ptr(), 0));
    Ok(())
}

/// `openat2` with these rules for the walk.
fn open_by(directory: i32, path: &str, resolve: u64) -> Result<i32, i32> {
    let path = c(path);
    let how = [O_PATH as u64, 0, resolve];
    // SAFETY: the path and the three words of `struct open_how` live.
    let open = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory,
            path.as_ptr(),
            how.as_ptr(),
            24usize,
        )
    };
    match open {
        -1 => Err(errno()),
        open => Ok(open as i32),
    }
}

fn walks() -> Outcome {
    let at = mounted("walks", 0)?;
    fs::create_dir_all(format!("{at}/in/deep"))?;
    fs::write(format!("{at}/secret"), "")?;
    fs::write(format!("{at}/in/file"), "")?;
    std::os::unix::fs::symlink("../secret", format!("{at}/in/out"))?;
    std::os::unix::fs::symlink("/file", format!("{at}/in/absolute"))?;
    std::os::unix::fs::symlink("file", format!("{at}/in/near"))?;
    let inside = format!("{at}/in");
    let dir = call!(open(c(&inside).as_ptr(), O_PATH));
    let expect = |path: &str, resolve: u64, result: Result<(), i32>| {
        let found = open_by(dir, path, resolve).map(drop);
        equal!(found, result, path, resolve);
        Ok(())
    };
    expect("deep/../file", RESOLVE_BENEATH, Ok(()))?;
    expect("../secret", RESOLVE_BENEATH, Err(EXDEV))?;
    expect("out", RESOLVE_BENEATH, Err(EXDEV))?;
    expect("/etc", RESOLVE_BENEATH, Err(EXDEV))?;
    expect("absolute", RESOLVE_IN_ROOT, Ok(()))?;
    expect("out", RESOLVE_IN_ROOT, Err(ENOENT))?;
    expect("/../../file", RESOLVE_IN_ROOT, Ok(()))?;
    expect("near", 0, Ok(()))?;
    expect("deep/.", RESOLVE_NO_SYMLINKS, Ok(()))?;
    expect("out", RESOLVE_NO_XDEV, Ok(()))?;
    expect("../..", RESOLVE_NO_XDEV, Err(EXDEV))?;
    expect("/proc/self/exe", RESOLVE_NO_MAGICLINKS, Err(ELOOP))?;
    expect("near", 1 << 20, Err(EINVAL))?;
    unmount(&at, MNT_DETACH)
}

fn whiteouts() -> Outcome {
    let at = mounted("whiteouts", 0)?;
    let (from, to) = (format!("{at}/from"), format!("{at}/to"));
    fs::write(&from, "moved")?;
    let (old, new) = (c(&from), c(&to));
    call!(renameat2(
        AT_FDCWD,
        old.as_ptr(),
        AT_FDCWD,
        new.as_ptr(),
        RENAME_WHITEOUT
    ));
    let left = fs::symlink_metadata(&from)?;
    ensure!(
        left.mode() & S_IFMT == S_IFCHR && left.rdev() == 0,
        "{:o} {} is left",
        left.mode(),
        left.rdev()
    );
    let moved = fs::read_to_string(&to)?;
    ensure!(moved == "moved", "what was moved holds {moved}");
    unmount(&at, MNT_DETACH)
}

fn busy_text() -> Outcome {
    let at = mounted("text", 0)?;
    let program = format!("{at}/program");
    fs::copy("/proc/self/exe", &program)?;
    let path = c(&program);
    let (reader, writer) = pipe(O_CLOEXEC)?;
    // The pipe closes when the child executes the file.
    let running = spawn(|| {
        let words = [path.as_ptr(), c"--as".as_ptr(), c"sleep".as_ptr(), null()];
        call!(execv(path.as_ptr(), words.as_ptr()));
        Ok(())
    })?;
    call!(close(writer));
    read_bytes(&reader, 1)?;
    refused!(ETXTBSY, open(path.as_ptr(), O_WRONLY));
    refused!(ETXTBSY, truncate(path.as_ptr(), 0));
    kill_child(running)?;
    let open = call!(open(path.as_ptr(), O_WRONLY));
    child(|| {
        refused!(ETXTBSY, execv(path.as_ptr(), null()));
        Ok(())
    })?;
    call!(close(open));
    unmount(&at, MNT_DETACH)
}

fn roots() -> Outcome {
    let at = mounted("roots", 0)?;
    let show = |path: &str| -> Result<statx> {
        // SAFETY: a structure of numbers.
        let mut out: statx = unsafe { zeroed() };
        let path = c(path);
        let mask = STATX_BASIC_STATS | 0x1000;
        call!(statx(AT_FDCWD, path.as_ptr(), 0, mask, &mut out));
        Ok(out)
    };
    let (root, above) = (show(&at)?, show("/tmp/..")?);
    fs::create_dir(format!("{at}/inner"))?;
    let inner = show(&format!("{at}/inner"))?;
    let is_root = |x: &statx| x.stx_attributes & STATX_ATTR_MOUNT_ROOT as u64 != 0;
    ensure!(
        is_root(&root) && !is_root(&inner),
        "mount roots: {} {}",
        is_root(&root),
        is_root(&inner)
    );
    let id = info(&at)?[0].clone();
    ensure!(
        root.stx_mnt_id == inner.stx_mnt_id && root.stx_mnt_id.to_string() == id,
        "mount ids: {} {} {id}",
        root.stx_mnt_id,
        inner.stx_mnt_id
    );
    ensure!(root.stx_mnt_id != above.stx_mnt_id, "one id for two mounts");
    let device = libc::makedev(root.stx_dev_major, root.stx_dev_minor);
    let mut words = [u64::MAX; 4];
    call!(syscall(libc::SYS_ustat, device, words.as_mut_ptr()));
    ensure!(words[0] as u32 > 0 && words[2] == 0, "ustat says {words:?}");
    refused! { syscall(libc::SYS_ustat, 0xfffff, words.as_mut_ptr()) => EINVAL; }
    unmount(&at, MNT_DETACH)
}
