//! Ids of threads that have ended, which processes of root's get.

use crate::{PID_MAX, USER, become_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: a timer for a thread whose id is root's", taken_id),
    (
        "attacks: the time of a thread whose id is root's",
        taken_clock,
    ),
];

/// A timer that was to signal a thread does not signal the process of root's that got its id.
fn taken_id() -> Outcome {
    let before = fs::read_to_string(PID_MAX)?;
    fs::write(PID_MAX, "400")?;
    let outcome = while_attacking(|| {
        let (reader, writer) = pipe(O_CLOEXEC)?;
        let attacker = spawn(|| {
            become_user(USER)?;
            let (sender, ids) = mpsc::channel();
            let one = thread::spawn(move || {
                // SAFETY: a question without memory.
                let _ = sender.send(unsafe { gettid() });
                pause_ms(20);
            });
            let tid = ids.recv()?;
            // SAFETY: all zeros is a valid event.
            let mut event: sigevent = unsafe { zeroed() };
            event.sigev_notify = SIGEV_THREAD_ID;
            event.sigev_signo = SIGKILL;
            event.sigev_notify_thread_id = tid;
            let mut timer = null_mut();
            call!(timer_create(CLOCK_MONOTONIC, &mut event, &mut timer));
            let later = timer_spec(time_spec(1, 0), 0);
            call!(timer_settime(timer, 0, &later, null_mut()));
            let _ = one.join();
            write_bytes(&writer, &tid.to_le_bytes())?;
            pause_ms(1500);
            Ok(())
        })?;
        let mut tid = [0; 4];
        tid.copy_from_slice(&read_bytes(&reader, 4)?);
        call!(close(reader));
        call!(close(writer));
        let tid = c_int::from_le_bytes(tid);
        let mut victim = None;
        for _ in 0..1000 {
            let child = spawn_sleeper()?;
            if child == tid {
                victim = Some(child);
                break;
            }
            kill_child(child)?;
        }
        let victim = victim.ok_or("the id does not come again")?;
        wait(attacker)?;
        let mut status = 0;
        equal!(call!(waitpid(victim, &mut status, WNOHANG)), 0);
        kill_child(victim)?;
        Ok(())
    });
    fs::write(PID_MAX, before)?;
    outcome
}

/// A timer on the processor time of a thread that has ended shows nothing of the process that gets
/// its id.
fn taken_clock() -> Outcome {
    let before = fs::read_to_string(PID_MAX)?;
    fs::write(PID_MAX, "400")?;
    let outcome = while_attacking(clock_of_taken_id);
    fs::write(PID_MAX, before)?;
    outcome
}

fn clock_of_taken_id() -> Outcome {
    let [attackers, own] = socket_pair(SOCK_STREAM)?;
    let attacker = spawn(|| {
        become_user(USER)?;
        let (sender, answers) = mpsc::channel();
        let one = thread::spawn(move || {
            let mut timer = null_mut();
            // SAFETY: no event is the default, and the call fills a local.
            let made = unsafe { timer_create(CLOCK_THREAD_CPUTIME_ID, null_mut(), &mut timer) };
            // SAFETY: a question without memory.
            let _ = sender.send((made, timer as usize, unsafe { gettid() }));
        });
        let (made, timer, tid) = answers.recv()?;
        equal!(made, 0);
        let _ = one.join();
        let timer = timer as timer_t;
        let later = timer_spec(time_spec(1000, 0), 0);
        call!(timer_settime(timer, TIMER_ABSTIME, &later, null_mut()));
        write_bytes(&attackers, &tid.to_le_bytes())?;
        // The id is root's now, and its process has used some time.
        read_bytes(&attackers, 1)?;
        // SAFETY: all zeros is a valid setting.
        let mut left: itimerspec = unsafe { zeroed() };
        call!(timer_gettime(timer, &mut left));
        equal!(left.it_value.tv_sec, 1000);
        Ok(())
    })?;
    let mut tid = [0; 4];
    tid.copy_from_slice(&read_bytes(&own, 4)?);
    let tid = c_int::from_le_bytes(tid);
    let mut victim = None;
    for _ in 0..1000 {
        let child = spawn(|| {
            let end = Instant::now() + Duration::from_millis(300);
            // SAFETY: a question without memory.
            while unsafe { gettid() } == tid && Instant::now() < end {}
            sleep_forever()
        })?;
        if child == tid {
            victim = Some(child);
            break;
        }
        kill_child(child)?;
    }
    let victim = victim.ok_or("the id does not come again")?;
    pause_ms(400);
    write_bytes(&own, b"x")?;
    wait_ok(attacker)?;
    kill_child(victim)?;
    Ok(())
}
