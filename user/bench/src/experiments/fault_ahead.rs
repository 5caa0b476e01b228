//! Page faults of programs, and the savings of fault-ahead (`uvm.txt` 5.4, Table 2).

use std::process::{Command, Stdio};

use crate::mapping::{self, Mapping, PAGE};
use crate::{Bench, Experiment, Failure, Unit, call};

/// Fault-ahead.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fault-ahead",
    title: "Fault-ahead: neighbours mapped with a fault",
    help: "\
Rows, where one operation maps 64 resident pages of a file, reads each, and unmaps them; the
counters tell how many faults that took:
  fault-ahead/file-normal      as a program gets it
  fault-ahead/file-sequential  after MADV_SEQUENTIAL
  fault-ahead/file-random      after MADV_RANDOM, which asks for no neighbours
  fault-ahead/file-populate    with MAP_POPULATE: no fault at all
and where one operation forks a child that reads 64 pages which its parent has written:
  fault-ahead/child-normal, fault-ahead/child-random

Rows in faults, all that a command takes from fork to end (the paper counts ls, finger, cc, man and
newaliases):
  fault-ahead/faults-true, fault-ahead/faults-ls, fault-ahead/faults-sh, fault-ahead/faults-grep",
    run,
};

const PAGES: usize = 64;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, advice, flags) in [
        ("normal", None, 0),
        ("sequential", Some(libc::MADV_SEQUENTIAL), 0),
        ("random", Some(libc::MADV_RANDOM), 0),
        ("populate", None, libc::MAP_POPULATE),
    ] {
        bench
            .row(format!("fault-ahead/file-{name}"))
            .batch(20)
            .run(|meter| {
                let file = mapping::file(PAGES * PAGE)?;
                meter.measure(|n| {
                    for _ in 0..n {
                        let memory = Mapping::new(
                            Some(&file),
                            PAGES * PAGE,
                            libc::PROT_READ,
                            libc::MAP_SHARED | flags,
                        )?;
                        if let Some(advice) = advice {
                            memory.advise(advice)?;
                        }
                        memory.read_pages();
                    }
                    Ok(())
                })
            })?;
    }
    for (name, advice) in [("normal", libc::MADV_NORMAL), ("random", libc::MADV_RANDOM)] {
        bench
            .row(format!("fault-ahead/child-{name}"))
            .batch(5)
            .run(|meter| {
                let memory = Mapping::zero_fill(PAGES * PAGE)?.small();
                memory.write_pages();
                memory.advise(advice)?;
                meter.measure(|n| {
                    for _ in 0..n {
                        let child = call!(fork())?;
                        if child == 0 {
                            memory.read_pages();
                            // SAFETY: ends the child.
                            unsafe { libc::_exit(0) };
                        }
                        call!(waitpid(child, std::ptr::null_mut(), 0))?;
                    }
                    Ok(())
                })
            })?;
    }
    for (name, words) in [
        ("true", &["true"][..]),
        ("ls", &["ls", "/"]),
        ("sh", &["sh", "-c", "for i in 1 2 3; do echo $i; done"]),
        ("grep", &["grep", "root", "/etc/passwd"]),
    ] {
        bench
            .row(format!("fault-ahead/faults-{name}"))
            .unit(Unit::Faults)
            .run(|meter| {
                meter.value(faults(words)?);
                Ok(())
            })?;
    }
    Ok(())
}

/// Counts the faults of a busybox command.
fn faults(words: &[&str]) -> Result<f64, Failure> {
    let before = children_faults()?;
    let status = Command::new("/bin/busybox")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| Failure::Missing(format!("/bin/busybox: {error}")))?;
    if !status.success() {
        return Err(format!("{words:?}: {status}").into());
    }
    Ok((children_faults()? - before) as f64)
}

/// Returns the minor faults of all children that ended.
fn children_faults() -> Result<i64, Failure> {
    // SAFETY: plain numbers, for the call to fill.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    call!(getrusage(libc::RUSAGE_CHILDREN, &mut usage))?;
    Ok(usage.ru_minflt)
}
