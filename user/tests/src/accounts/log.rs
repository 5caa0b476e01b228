//! The kernel's log.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("accounts: the log by syslog", log),
    ("accounts: a reader that the log overtakes", overtaken),
];

fn log() -> Outcome {
    let log = |action: i32, buffer: &mut [u8]| {
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the buffer is that long.
        unsafe { libc::syscall(libc::SYS_syslog, action, at, len) }
    };
    let size = log(10, &mut []);
    ensure!(size > 4096, "the log's size is {size}");
    let mut buffer = vec![0; size as usize];
    fs::write("/dev/kmsg", "a line for the log's test\n")?;
    let n = log(3, &mut buffer);
    let all = String::from_utf8_lossy(&buffer[..n.max(0) as usize]).into_owned();
    let last = all.lines().last().unwrap_or("");
    ensure!(
        last.starts_with('<') && last.contains("a line for the log's test"),
        "the last line is {last:?}"
    );
    ensure!(all.lines().all(|line| line.starts_with('<')));
    // A smaller buffer gets the log's end.
    let n = log(3, &mut buffer[..200]);
    ensure!((1..=200).contains(&n), "200 bytes get {n}");
    ensure!(buffer[..n as usize].ends_with(b"\n") && buffer[0] == b'<');
    let n = log(11, &mut []);
    ensure!(n == -1 && errno() == EINVAL, n);
    child(|| {
        call!(setuid(1000));
        refused!(EPERM, syscall(libc::SYS_syslog, 5, 0, 0));
        // `dmesg_restrict`: reading it is root's as well.
        refused!(
            EPERM,
            syscall(libc::SYS_syslog, 3, buffer.as_mut_ptr(), 200)
        );
        refused!(EPERM, syscall(libc::SYS_syslog, 10, 0, 0));
        refused!(EPERM, open(c"/dev/kmsg".as_ptr(), O_RDONLY));
        Ok(())
    })?;
    let setting = "/proc/sys/kernel/dmesg_restrict";
    equal!(read_text(setting)?, "1\n");
    fs::write(setting, "0")?;
    let outcome = child(|| {
        call!(setuid(1000));
        call!(syscall(libc::SYS_syslog, 3, buffer.as_mut_ptr(), 200));
        call!(open(c"/dev/kmsg".as_ptr(), O_RDONLY));
        Ok(())
    });
    fs::write(setting, "1")?;
    outcome
}

/// A reader of `/dev/kmsg` that falls behind is told, and goes on with the oldest line left.
fn overtaken() -> Outcome {
    let log = call!(open(c"/dev/kmsg".as_ptr(), O_RDONLY | O_NONBLOCK));
    let first = read_bytes(&log, 8192)?;
    ensure!(first.ends_with(b"\n"), first);
    let line = format!("{}\n", "x".repeat(400));
    for _ in 0..200 {
        fs::write("/dev/kmsg", &line)?;
    }
    let mut bytes = [0u8; 8192];
    refused!(EPIPE, read(log, bytes.as_mut_ptr().cast(), bytes.len()));
    let next = String::from_utf8_lossy(&read_bytes(&log, 8192)?).into_owned();
    ensure!(next.contains(";x") && next.ends_with("x\n"), next);
    Ok(())
}
