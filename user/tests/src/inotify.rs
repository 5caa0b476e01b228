//! inotify: events of files and directories, and their order.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("inotify: a file's life in a directory", life),
    ("inotify: renames", renames),
    ("inotify: the end of what is watched", ends),
    ("inotify: a reader is woken", woken),
    ("inotify: a watch keeps no file system mounted", unmounted),
    ("inotify: what is refused", bad),
];

/// Watch, mask, cookie, name.
type Event = (c_int, u32, u32, String);

/// Reads all pending events.
fn events(fd: c_int) -> Result<Vec<Event>> {
    let mut bytes = [0u8; 8192];
    // SAFETY: reads into a live buffer.
    let count = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    let mut rest = &bytes[..count.max(0) as usize];
    let mut found = Vec::new();
    while rest.len() >= 16 {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| rest[at + i]));
        let len = word(12) as usize;
        let name: Vec<u8> = rest[16..16 + len]
            .iter()
            .copied()
            .take_while(|b| *b != 0)
            .collect();
        found.push((
            word(0) as c_int,
            word(4),
            word(8),
            String::from_utf8_lossy(&name).into_owned(),
        ));
        rest = &rest[16 + len..];
    }
    ensure!(rest.is_empty(), "half an event");
    Ok(found)
}

/// Checks the pending events without their cookies.
fn expect(fd: c_int, wanted: &[(c_int, u32, &str)]) -> Outcome {
    let found = events(fd)?;
    let found: Vec<_> = found.iter().map(|e| (e.0, e.1, e.3.as_str())).collect();
    ensure!(found == wanted, "{found:x?}\nin place of {wanted:x?}");
    Ok(())
}

fn make() -> Result<c_int> {
    Ok(call!(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)))
}

fn add(fd: c_int, path: &str, mask: u32) -> Result<c_int> {
    Ok(call!(inotify_add_watch(fd, c(path).as_ptr(), mask)))
}

fn life() -> Outcome {
    let (at, fd) = (folder("inotify-life")?, make()?);
    let d = add(fd, &at, IN_ALL_EVENTS)?;
    let path = format!("{at}/file");
    let file = call!(open(c(&path).as_ptr(), O_CREAT | O_RDWR, 0o600));
    call!(write(file, b"abc".as_ptr().cast(), 3));
    call!(write(file, b"abc".as_ptr().cast(), 3));
    let mut byte = 0u8;
    call!(pread(file, (&raw mut byte).cast(), 1, 0));
    call!(fchmod(file, 0o644));
    call!(ftruncate(file, 1));
    call!(close(file));
    expect(
        fd,
        &[
            (d, IN_CREATE, "file"),
            (d, IN_OPEN, "file"),
            (d, IN_MODIFY, "file"),
            (d, IN_ACCESS, "file"),
            (d, IN_ATTRIB, "file"),
            (d, IN_MODIFY, "file"),
            (d, IN_CLOSE_WRITE, "file"),
        ],
    )?;
    fs::hard_link(&path, format!("{at}/other"))?;
    fs::create_dir(format!("{at}/inner"))?;
    call!(unlink(c(&format!("{at}/other")).as_ptr()));
    call!(rmdir(c(&format!("{at}/inner")).as_ptr()));
    call!(unlink(c(&path).as_ptr()));
    expect(
        fd,
        &[
            (d, IN_CREATE, "other"),
            (d, IN_CREATE | IN_ISDIR, "inner"),
            (d, IN_DELETE, "other"),
            (d, IN_DELETE | IN_ISDIR, "inner"),
            (d, IN_DELETE, "file"),
        ],
    )?;
    let open = call!(open(c(&at).as_ptr(), O_RDONLY));
    call!(close(open));
    expect(
        fd,
        &[
            (d, IN_OPEN | IN_ISDIR, ""),
            (d, IN_CLOSE_NOWRITE | IN_ISDIR, ""),
        ],
    )?;
    call!(inotify_rm_watch(fd, d));
    expect(fd, &[(d, IN_IGNORED, "")])?;
    fs::write(&path, b"x")?;
    expect(fd, &[])
}

fn renames() -> Outcome {
    let (at, fd) = (folder("inotify-rename")?, make()?);
    let (one, two) = (format!("{at}/one"), format!("{at}/two"));
    for path in [&one, &two] {
        fs::create_dir(path)?;
    }
    let (a, b) = (format!("{one}/a"), format!("{two}/b"));
    fs::write(&a, b"a")?;
    fs::write(&b, b"b")?;
    let moves = IN_MOVED_FROM | IN_MOVED_TO;
    let (d1, d2) = (add(fd, &one, moves)?, add(fd, &two, moves)?);
    let all = IN_MOVE_SELF | IN_DELETE_SELF;
    let (f1, f2) = (add(fd, &a, all)?, add(fd, &b, all)?);
    call!(rename(c(&a).as_ptr(), c(&b).as_ptr()));
    let found = events(fd)?;
    let plain: Vec<_> = found.iter().map(|e| (e.0, e.1, e.3.as_str())).collect();
    let wanted = [
        (d1, IN_MOVED_FROM, "a"),
        (d2, IN_MOVED_TO, "b"),
        (f1, IN_MOVE_SELF, ""),
        (f2, IN_DELETE_SELF, ""),
        (f2, IN_IGNORED, ""),
    ];
    ensure!(plain == wanted, "{plain:x?}\nin place of {wanted:x?}");
    ensure!(
        found[0].2 == found[1].2 && found[0].2 != 0,
        "cookies {} and {}",
        found[0].2,
        found[1].2
    );
    Ok(())
}

fn ends() -> Outcome {
    let (at, fd) = (folder("inotify-end")?, make()?);
    let path = format!("{at}/file");
    fs::write(&path, b"x")?;
    let w = add(fd, &path, IN_ATTRIB | IN_DELETE_SELF)?;
    equal!(add(fd, &path, IN_ATTRIB | IN_DELETE_SELF)?, w);
    let open = call!(open(c(&path).as_ptr(), O_RDONLY));
    call!(unlink(c(&path).as_ptr()));
    // The file lives as long as it is open.
    expect(fd, &[(w, IN_ATTRIB, "")])?;
    call!(close(open));
    expect(fd, &[(w, IN_DELETE_SELF, ""), (w, IN_IGNORED, "")])?;
    fs::write(&path, b"x")?;
    let once = add(fd, &path, IN_ATTRIB | IN_ONESHOT)?;
    ensure!(once != w, "a number that was just used");
    call!(chmod(c(&path).as_ptr(), 0o600));
    call!(chmod(c(&path).as_ptr(), 0o644));
    expect(fd, &[(once, IN_ATTRIB, ""), (once, IN_IGNORED, "")])
}

fn woken() -> Outcome {
    let at = folder("inotify-woken")?;
    let fd = call!(inotify_init1(0));
    let d = add(fd, &at, IN_CREATE)?;
    for round in 0..3 {
        let path = format!("{at}/{round}");
        let child = spawn(|| {
            pause_ms(3);
            Ok(fs::write(&path, b"")?)
        })?;
        if round == 1 {
            let mut poll = poll_entry(fd, POLLIN);
            ensure!(call!(poll(&mut poll, 1, 5000)) == 1, "poll was not woken");
            let mut bytes = 0i32;
            call!(ioctl(fd, FIONREAD, &mut bytes));
            ensure!(bytes == 32, "FIONREAD: {bytes}");
        }
        expect(fd, &[(d, IN_CREATE, &round.to_string())])?;
        wait_ok(child)?;
    }
    Ok(())
}

fn bad() -> Outcome {
    let (at, fd) = (folder("inotify-bad")?, make()?);
    let path = format!("{at}/file");
    fs::write(&path, b"x")?;
    let path = c(&path);
    refused! {
        inotify_init1(1) => EINVAL;
        inotify_add_watch(fd, path.as_ptr(), 0) => EINVAL;
        inotify_add_watch(0, path.as_ptr(), IN_OPEN) => EINVAL;
        inotify_add_watch(999, path.as_ptr(), IN_OPEN) => EBADF;
        inotify_add_watch(fd, c"/none".as_ptr(), IN_OPEN) => ENOENT;
        inotify_add_watch(fd, path.as_ptr(), IN_OPEN | IN_ONLYDIR) => ENOTDIR;
        inotify_rm_watch(fd, 77) => EINVAL;
    }
    let mut bytes = [0u8; 16];
    refused!(EAGAIN, read(fd, bytes.as_mut_ptr().cast(), 16));
    add(fd, &at, IN_DELETE)?;
    call!(unlink(path.as_ptr()));
    refused!(EINVAL, read(fd, bytes.as_mut_ptr().cast(), 16));
    Ok(())
}

fn unmounted() -> Outcome {
    let (at, fd) = (folder("inotify-mount")?, make()?);
    let (name, kind) = (c(&at), c"tmpfs".as_ptr());
    call!(mount(kind, name.as_ptr(), kind, 0, null()));
    let path = format!("{at}/file");
    fs::write(&path, b"x")?;
    let root = add(fd, &at, IN_ALL_EVENTS)?;
    let file = add(fd, &path, IN_ALL_EVENTS)?;
    call!(umount2(name.as_ptr(), 0));
    let mut events = [0u8; 4096];
    let count = call!(read(fd, events.as_mut_ptr().cast(), events.len())) as usize;
    let mut seen = BTreeSet::new();
    for event in events[..count].chunks(size_of::<inotify_event>()) {
        let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| event[at + byte]));
        seen.insert((word(0), word(4) as u32));
    }
    let wanted = [root, file].map(|watch| [(watch, IN_UNMOUNT), (watch, IN_IGNORED)]);
    equal!(seen, wanted.concat().into_iter().collect());
    Ok(())
}
