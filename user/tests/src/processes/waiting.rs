//! Waiting for children.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("processes: a signal to all that may have it", signal_to_all),
    ("processes: exit statuses", statuses),
    ("processes: waiting", waiting),
    ("processes: wait4 and waitid tell more", wait_more),
    ("processes: orphans find a parent", orphans),
    ("processes: zombies stay until waited for", zombies),
];

fn statuses() -> Outcome {
    for status in [0, 1, 77, 255, 256 + 3] {
        let end = wait(spawn(|| exit(status))?)?;
        equal!(end, End::Exit(status & 255), status);
    }
    Ok(())
}

fn waiting() -> Outcome {
    let mut status = 0;
    refused!(ECHILD, waitpid(-1, &mut status, 0));
    refused!(ECHILD, waitpid(1, &mut status, 0));
    let (reader, writer) = pipe(0)?;
    let slow = spawn(|| {
        read_bytes(&reader, 1)?;
        exit(4)
    })?;
    equal!(call!(waitpid(-1, &mut status, WNOHANG)), 0);
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
        let start = Instant::now();
        while start.elapsed().as_millis() < 60 {
            std::hint::spin_loop();
        }
        exit(6)
    })?;
    // SAFETY: all zeros is a valid siginfo to be overwritten.
    let mut info: siginfo_t = unsafe { zeroed() };
    let options = WEXITED | WNOWAIT;
    call!(waitid(P_PID, child as u32, &mut info, options));
    // SAFETY: waitid has filled it in for a child.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    ensure!(
        info.si_code == CLD_EXITED && pid == child && status == 6,
        "waitid: {pid} {status}"
    );
    // SAFETY: all zeros is a valid rusage to be overwritten.
    let mut usage: rusage = unsafe { zeroed() };
    let mut status = 0;
    let found = call!(wait4(child, &mut status, 0, &mut usage));
    ensure!(found == child && End::of(status) == End::Exit(6));
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
    ensure!(adopter >= 1 && adopter != parent, adopter);
    Ok(())
}

fn zombies() -> Outcome {
    let children: Vec<_> = (0..20)
        .map(|_| spawn(|| Ok(())))
        .collect::<Result<_, _>>()?;
    pause_ms(100);
    for &child in &children {
        let stat = fs::read_to_string(format!("/proc/{child}/stat"))?;
        ensure!(stat.contains(") Z "), "not a zombie: {stat}");
        call!(kill(child, 0));
    }
    for child in children {
        wait(child)?;
        refused!(ESRCH, kill(child, 0));
        ensure!(!fs::exists(format!("/proc/{child}")).unwrap_or(true), child);
    }
    Ok(())
}

/// Those that may not be signalled are no error.
fn signal_to_all() -> Outcome {
    child(|| {
        call!(setresgid(4711, 4711, 4711));
        call!(setresuid(4711, 4711, 4711));
        call!(kill(-1, SIGTERM));
        let one = spawn_sleeper()?;
        call!(kill(-1, SIGTERM));
        equal!(wait(one)?, End::Signal(SIGTERM));
        call!(kill(-1, 0));
        refused!(EPERM, kill(1, 0));
        Ok(())
    })
}
