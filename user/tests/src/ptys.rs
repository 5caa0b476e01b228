//! Pseudo terminals: both sides, job control, packet mode, hang-up.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("ptys: both sides", both_sides),
    ("ptys: names, numbers, locks", names),
    ("ptys: closing", closing),
    ("ptys: job control", job_control),
    ("ptys: the master hangs up", hanging_up),
    ("ptys: packet mode", packet_mode),
    ("ptys: waiting for room", waiting_for_room),
    ("ptys: quoted keys behind a full terminal", quoted_keys),
    ("ptys: an instance of its own", instance),
    ("ptys: their number is limited", limited),
];

const TIOCGPTPEER: c_ulong = 0x5441;
const TIOCPKT: c_ulong = 0x5420;
const TIOCSIG: c_ulong = 0x4004_5436;
const TIOCSPTLCK: c_ulong = 0x4004_5431;

/// Opens a new pair, unlocked: master, terminal.
fn pair() -> Result<(c_int, c_int)> {
    let master = call!(open(c"/dev/ptmx".as_ptr(), O_RDWR | O_NOCTTY | O_CLOEXEC));
    let unlocked = 0;
    call!(ioctl(master, TIOCSPTLCK, &unlocked));
    let terminal = call!(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    Ok((master, terminal))
}

fn write(fd: c_int, text: &[u8]) -> Outcome {
    let n = call!(write(fd, text.as_ptr().cast(), text.len()));
    ensure!(n as usize == text.len(), "{n} bytes of {text:?} written");
    Ok(())
}

fn read(fd: c_int) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 8192];
    let n = call!(read(fd, bytes.as_mut_ptr().cast(), bytes.len()));
    bytes.truncate(n as usize);
    Ok(bytes)
}

fn expect(fd: c_int, text: &[u8]) -> Outcome {
    let mut got = Vec::new();
    while got.len() < text.len() {
        got.extend(read(fd)?);
    }
    equal!(got, text, String::from_utf8_lossy(text));
    Ok(())
}

fn change(fd: c_int, change: impl FnOnce(&mut termios)) -> Outcome {
    // SAFETY: all zeros is a valid structure to be filled.
    let mut settings: termios = unsafe { zeroed() };
    call!(tcgetattr(fd, &mut settings));
    change(&mut settings);
    call!(tcsetattr(fd, TCSANOW, &settings));
    Ok(())
}

fn both_sides() -> Outcome {
    let (master, terminal) = pair()?;
    write(terminal, b"one\ntwo\n")?;
    expect(master, b"one\r\ntwo\r\n")?;
    ensure!(
        poll_for(&terminal, POLLIN | POLLOUT | POLLPRI, 0)? == POLLOUT,
        "ready without a line"
    );
    write(master, b"typed")?;
    expect(master, b"typed")?;
    equal!(poll_for(&terminal, POLLIN | POLLOUT | POLLPRI, 0)?, POLLOUT);
    write(master, b"\r")?;
    expect(master, b"\r\n")?;
    expect(terminal, b"typed\n")?;
    // The master shows the terminal's settings.
    change(master, |settings| {
        settings.c_lflag &= !(ECHO | ICANON);
        settings.c_oflag &= !OPOST;
    })?;
    write(master, b"x")?;
    expect(terminal, b"x")?;
    write(terminal, b"\n")?;
    expect(master, b"\n")?;
    let mut waiting = 0;
    write(terminal, b"12345")?;
    call!(ioctl(master, FIONREAD, &mut waiting));
    ensure!(waiting == 5, "{waiting} bytes wait");
    refused!(ESPIPE, lseek(master, 0, SEEK_SET));
    Ok(())
}

fn names() -> Outcome {
    let master = call!(open(c"/dev/ptmx".as_ptr(), O_RDWR | O_NOCTTY | O_NONBLOCK));
    let mut number: u32 = u32::MAX;
    call!(ioctl(master, TIOCGPTN, &mut number));
    let path = format!("/dev/pts/{number}");
    let name = c(&path);
    refused!(EIO, open(name.as_ptr(), O_RDWR | O_NOCTTY));
    refused!(EIO, ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    call!(grantpt(master));
    call!(unlockpt(master));
    let mut buffer = [0 as c_char; 64];
    let failed = call!(ptsname_r(master, buffer.as_mut_ptr(), buffer.len()));
    ensure!(failed == 0, "ptsname_r gave {failed}");
    // SAFETY: the call above wrote a string.
    let said = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    ensure!(said == &*name, "{said:?} in place of {name:?}");
    let terminal = call!(open(name.as_ptr(), O_RDWR | O_NOCTTY));
    ensure!(call!(isatty(terminal)) == 1, "not a terminal");
    let failed = call!(ttyname_r(terminal, buffer.as_mut_ptr(), buffer.len()));
    ensure!(failed == 0, "ttyname_r gave {failed}");
    // SAFETY: as above.
    let said = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    ensure!(said == &*name, "{said:?} in place of {name:?}");
    let listed: Vec<_> = fs::read_dir("/dev/pts")?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for name in ["ptmx", &number.to_string()] {
        ensure!(listed.iter().any(|it| it == name), name, listed);
    }
    // SAFETY: all zeros is a valid structure to be filled.
    let mut stat: stat = unsafe { zeroed() };
    call!(stat(name.as_ptr(), &mut stat));
    equal!(libc::major(stat.st_rdev), 136);
    ensure!(
        stat.st_mode & 0o7777 == 0o620 && stat.st_gid == 5,
        "mode {:o}",
        stat.st_mode
    );
    // A second pair has another number, and the number comes back.
    let other = call!(open(c"/dev/pts/ptmx".as_ptr(), O_RDWR | O_NOCTTY));
    let mut second = number;
    call!(ioctl(other, TIOCGPTN, &mut second));
    ensure!(second != number, "both have number {number}");
    call!(close(other));
    call!(close(master));
    refused!(ENOENT, open(name.as_ptr(), O_RDWR | O_NOCTTY));
    call!(close(terminal));
    Ok(())
}

fn closing() -> Outcome {
    let (master, terminal) = pair()?;
    write(terminal, b"last words")?;
    call!(close(terminal));
    ensure!(
        poll_for(&master, POLLIN | POLLOUT | POLLPRI, 0)? & POLLHUP != 0,
        "no POLLHUP"
    );
    expect(master, b"last words")?;
    let mut byte = 0u8;
    refused!(EIO, read(master, (&raw mut byte).cast(), 1));
    // Opened again, it works as before.
    let terminal = call!(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    ensure!(
        poll_for(&master, POLLIN | POLLOUT | POLLPRI, 0)? & POLLHUP == 0,
        "POLLHUP stays"
    );
    write(terminal, b"again")?;
    expect(master, b"again")?;
    write(master, b"more")?;
    call!(close(master));
    ensure!(read(terminal)?.is_empty(), "no end of file");
    refused!(EIO, write(terminal, (&raw const byte).cast(), 1));
    let hung = poll_for(&terminal, POLLIN | POLLOUT | POLLPRI, 0)?;
    ensure!(hung & POLLHUP != 0, "poll gives {hung:x}");
    call!(close(terminal));
    Ok(())
}

/// Makes the caller lead a session on `terminal`.
fn lead(terminal: c_int) -> Outcome {
    call!(setsid());
    call!(ioctl(terminal, TIOCSCTTY, 0));
    Ok(())
}

fn job_control() -> Outcome {
    let (master, terminal) = pair()?;
    let leader = spawn(|| {
        lead(terminal)?;
        call!(close(master));
        let own = call!(open(c"/dev/tty".as_ptr(), O_RDWR));
        // SAFETY: no arguments that could be wrong.
        let me = unsafe { libc::getpid() };
        ensure!(call!(tcgetpgrp(own)) == me, "not in the foreground");
        ensure!(call!(tcgetsid(own)) == me, "not the leader's session");
        // A foreground job gets the keys and the window's size.
        let job = spawn(|| {
            pause_ms(10_000);
            Ok(())
        })?;
        call!(setpgid(job, job));
        // SAFETY: the leader must not be stopped by its own change.
        unsafe { libc::signal(SIGTTOU, SIG_IGN) };
        call!(tcsetpgrp(own, job));
        write(own, b"ready\n")?;
        let end = wait_with(job, WUNTRACED)?;
        ensure!(end == End::Stopped(SIGTSTP), "^Z: {end:?}");
        call!(kill(-job, SIGCONT));
        write(own, b"ready\n")?;
        let end = wait(job)?;
        ensure!(end == End::Signal(SIGINT), "^C: {end:?}");
        call!(tcsetpgrp(own, me));
        // A background job stops when it reads.
        let job = spawn(|| {
            call!(setpgid(0, 0));
            read(terminal).map(|_| ())
        })?;
        let end = wait_with(job, WUNTRACED)?;
        ensure!(end == End::Stopped(SIGTTIN), "a read: {end:?}");
        kill_child(job)?;
        write(own, b"done\n")
    })?;
    call!(close(terminal));
    expect(master, b"ready\r\n")?;
    write(master, b"\x1a")?;
    expect(master, b"^Zready\r\n")?;
    write(master, b"\x03")?;
    expect(master, b"^Cdone\r\n")?;
    wait_ok(leader)?;
    call!(close(master));
    Ok(())
}

fn hanging_up() -> Outcome {
    let (master, terminal) = pair()?;
    let (reader, writer) = pipe(0)?;
    let leader = spawn(|| {
        call!(close(master));
        lead(terminal)?;
        // SIGWINCH is ignored by default: it is blocked and taken.
        let set = block(&[SIGWINCH, SIGQUIT, SIGHUP])?;
        write(writer, b"r")?;
        for wanted in [SIGWINCH, SIGQUIT, SIGHUP] {
            let mut got = 0;
            call!(sigwait(&set, &mut got));
            ensure!(got == wanted, "signal {got} in place of {wanted}");
            if got == SIGWINCH {
                // SAFETY: all zeros is a valid structure to be filled.
                let mut size: winsize = unsafe { zeroed() };
                call!(ioctl(terminal, TIOCGWINSZ, &mut size));
                ensure!(size.ws_row == 50 && size.ws_col == 132, "wrong size");
            }
            write(writer, b"s")?;
        }
        refused!(ENXIO, open(c"/dev/tty".as_ptr(), O_RDWR));
        Ok(())
    })?;
    call!(close(terminal));
    expect(reader, b"r")?;
    let size = winsize {
        ws_row: 50,
        ws_col: 132,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    call!(ioctl(master, TIOCSWINSZ, &size));
    expect(reader, b"s")?;
    call!(ioctl(master, TIOCSIG, SIGQUIT));
    expect(reader, b"s")?;
    refused!(EINVAL, ioctl(master, TIOCSIG, SIGHUP));
    call!(close(master));
    expect(reader, b"s")?;
    wait_ok(leader)?;
    Ok(())
}

fn packet_mode() -> Outcome {
    let (master, terminal) = pair()?;
    let on = 1;
    call!(ioctl(master, TIOCPKT, &on));
    write(terminal, b"data")?;
    expect(master, b"\0data")?;
    call!(tcflush(terminal, TCIFLUSH));
    ensure!(
        poll_for(&master, POLLIN | POLLOUT | POLLPRI, 0)? & POLLPRI != 0,
        "no POLLPRI"
    );
    expect(master, &[1])?;
    call!(tcflow(terminal, TCOOFF));
    expect(master, &[4])?;
    call!(tcflow(terminal, TCOON));
    expect(master, &[8])?;
    change(terminal, |settings| settings.c_iflag &= !IXON)?;
    expect(master, &[16])?;
    change(terminal, |settings| settings.c_iflag |= IXON)?;
    expect(master, &[32])?;
    write(terminal, b"more")?;
    expect(master, b"\0more")?;
    Ok(())
}

fn waiting_for_room() -> Outcome {
    let (master, terminal) = pair()?;
    change(terminal, |settings| {
        settings.c_lflag &= !(ECHO | ICANON);
        settings.c_oflag &= !OPOST;
    })?;
    for fd in [master, terminal] {
        call!(fcntl(fd, F_SETFL, O_NONBLOCK));
        let piece = [7u8; 1000];
        let mut total = 0;
        loop {
            // SAFETY: the buffer lives across the call.
            let n = unsafe { libc::write(fd, piece.as_ptr().cast(), piece.len()) };
            if n < 0 {
                equal!(errno(), EAGAIN);
                break;
            }
            total += n as usize;
            ensure!(total < 1 << 20, "a terminal keeps a MiB");
        }
        ensure!(
            poll_for(&fd, POLLIN | POLLOUT | POLLPRI, 0)? & POLLOUT == 0,
            "POLLOUT without room"
        );
        let other = if fd == master { terminal } else { master };
        let mut got = 0;
        while got < total {
            got += read(other)?.len();
        }
        ensure!(got == total, "{got} bytes of {total}");
        ensure!(
            poll_for(&fd, POLLIN | POLLOUT | POLLPRI, 0)? & POLLOUT != 0,
            "no POLLOUT with room"
        );
    }
    Ok(())
}

/// A quoted signal key is an ordinary byte, even while it waits because the terminal's buffer is
/// full.
fn quoted_keys() -> Outcome {
    let (master, terminal) = pair()?;
    change(terminal, |settings| settings.c_lflag &= !ECHO)?;
    // With any number of bytes before it: it may come just when the buffer becomes full.
    for length in 4080..4100 {
        let line = [&vec![b'x'; 4000][..], b"\n"].concat();
        let rest = vec![b'y'; length - line.len()];
        write(master, &line)?;
        write(master, &rest)?;
        write(master, b"\x16\x03\x16\x16\x16\x1c\n")?;
        expect(terminal, &line)?;
        expect(terminal, &[&rest[..], b"\x03\x16\x1c\n"].concat())?;
    }
    // An unquoted one still acts at once.
    write(master, &[&vec![b'x'; 4000][..], b"\n"].concat())?;
    write(
        master,
        &[&vec![b'y'; 200][..], b"\x16\x16\x03end\n"].concat(),
    )?;
    expect(terminal, b"end\n")
}

fn limited() -> Outcome {
    const MAX: &str = "/proc/sys/kernel/pty/max";
    let count = || Ok::<u64, Failure>(read_text("/proc/sys/kernel/pty/nr")?.trim().parse()?);
    let (before, max) = (count()?, read_text(MAX)?);
    // As on Linux, the last one of the number is never made.
    fs::write(MAX, format!("{}", before + 3))?;
    let outcome = child(|| {
        let first = call!(posix_openpt(O_RDWR | O_NOCTTY));
        let _second = call!(posix_openpt(O_RDWR | O_NOCTTY));
        equal!(count()?, before + 2);
        refused!(ENOSPC, posix_openpt(O_RDWR | O_NOCTTY));
        equal!(count()?, before + 2);
        call!(close(first));
        equal!(count()?, before + 1);
        call!(posix_openpt(O_RDWR | O_NOCTTY));
        Ok(())
    });
    fs::write(MAX, max)?;
    outcome?;
    equal!(count()?, before);
    Ok(())
}

fn instance() -> Outcome {
    let folder = folder("devpts")?;
    let at = c(&folder);
    refused!(
        EINVAL,
        mount(
            c"x".as_ptr(),
            at.as_ptr(),
            c"devpts".as_ptr(),
            0,
            c"speed=1".as_ptr().cast()
        )
    );
    call!(mount(
        c"x".as_ptr(),
        at.as_ptr(),
        c"devpts".as_ptr(),
        0,
        c"newinstance,ptmxmode=600,mode=600".as_ptr().cast()
    ));
    let master = call!(open(c(&format!("{folder}/ptmx")).as_ptr(), O_RDWR));
    let mut number = 9u32;
    call!(ioctl(master, TIOCGPTN, &mut number));
    ensure!(number == 0, "number {number}");
    ensure!(fs::metadata(format!("{folder}/0")).is_ok());
    refused!(EBUSY, umount(at.as_ptr()));
    call!(close(master));
    call!(umount(at.as_ptr()));
    Ok(())
}
