//! Several attacks at a time, chosen at random again and again among those that are not at work; or
//! all of them at once, each begun again when it has ended: each meets what others leave for a
//! moment. Whether one gains something is the business of its own test; here the machine must
//! answer all the while, and its memory must be back at the end.

use support::numbers::Numbers;
use support::prelude::*;

use crate::{PID_MAX, bombs, memory_is_back, nothing_runs};

/// How long one attack goes on, and after how long it is ended.
pub const EACH: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(60);
/// How long a program of root's may take to start and end beside them.
const PATIENCE: Duration = Duration::from_secs(300);

/// An attack at work.
struct Attack {
    /// Its place among the attacks.
    place: usize,
    /// Also its process group.
    pid: pid_t,
    begun: Instant,
}

/// Keeps `at_once` of the attacks at work for `time`.
pub fn run(attacks: &[Test], at_once: usize, time: Duration) -> Outcome {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    println!("  seed {}", seed.as_nanos() as u64);
    let mut numbers = Numbers::new(seed.as_nanos() as u64);
    let mut at_work: Vec<Attack> = Vec::new();
    let (mut count, mut worst) = (0, Duration::ZERO);
    let at_once = at_once.min(attacks.len());
    let end = Instant::now() + time;
    while Instant::now() < end {
        while at_work.len() < at_once {
            let place = numbers.below(attacks.len() as u64) as usize;
            if at_work.iter().any(|attack| attack.place == place) {
                continue;
            }
            // Memory may be short for a moment.
            let Some(pid) = begin(attacks[place].1)? else {
                break;
            };
            let begun = Instant::now();
            at_work.push(Attack { place, pid, begun });
            count += 1;
        }
        worst = worst.max(program_of_root()?);
        let mut status = 0;
        // Also those that lost their parents.
        // SAFETY: the status is a local.
        while let pid @ 1.. = unsafe { waitpid(-1, &mut status, WNOHANG) } {
            at_work.retain(|attack| attack.pid != pid || finish(attack));
        }
        at_work.retain(|attack| attack.begun.elapsed() < MOST || finish(attack));
        pause_ms(20);
    }
    at_work.retain(finish);
    nothing_runs()?;
    clear()?;
    println!("  {count} attacks; a program of root's took {worst:?} at most");
    memory_is_back()
}

/// Starts an attack, if there is memory; its output and outcome are dropped.
fn begin(attack: fn() -> Outcome) -> Result<Option<pid_t>> {
    // SAFETY: this program has one thread.
    let pid = unsafe { fork() };
    match pid {
        0 => {
            call!(setpgid(0, 0));
            let nowhere = File::options().write(true).open("/dev/null")?;
            call!(dup2(nowhere.as_raw_fd(), 1));
            call!(dup2(nowhere.as_raw_fd(), 2));
            exit(i32::from(attack().is_err()))
        }
        -1 => Ok(None),
        pid => {
            // SAFETY: both sides set the group, so that it exists before either goes on.
            unsafe { setpgid(pid, pid) };
            Ok(Some(pid))
        }
    }
}

/// Ends an attack with all of its group; returns false, for it is no longer at work.
fn finish(attack: &Attack) -> bool {
    // SAFETY: the group is this attack's own; a process that was waited for is not found.
    unsafe {
        kill(-attack.pid, SIGKILL);
        waitpid(attack.pid, null_mut(), 0);
    }
    // It may have had no time to set it back. Without ids nothing can be tried again but this.
    let _ = fs::write(PID_MAX, "32768");
    false
}

/// How long a program of root's takes that does nothing.
fn program_of_root() -> Result<Duration> {
    let (start, mut refused) = (Instant::now(), 0);
    // Memory for it may be missing for a moment.
    loop {
        let outcome = Command::new("/bin/true").status();
        if outcome.as_ref().is_ok_and(|status| status.success()) {
            return Ok(start.elapsed());
        }
        refused += 1;
        // All ids may be taken, where an attack has had root leave few.
        fs::write(PID_MAX, "32768")?;
        let time = start.elapsed();
        ensure!(time < PATIENCE, time, refused, outcome);
        pause_ms(20);
    }
}

/// Removes what ended attacks would have removed.
fn clear() -> Outcome {
    for folder in ["/tmp", "/dev/shm"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
    bombs::remove_objects()
}
