//! Map entries of programs (`uvm.txt` 3.2, Table 1).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::partner::Program;
use crate::{Bench, Experiment, Failure, Unit};

/// Map entries.
pub const EXPERIMENT: Experiment = Experiment {
    name: "map-entries",
    title: "Map entries of programs",
    help: "\
Counts the lines of /proc/PID/maps. Each is a map entry, the kernel's own pages for programs (vdso)
included.

Rows, the paper's where they can be had:
  map-entries/cat-static    a statically linked cat (busybox) that waits for input
  map-entries/od-dynamic    a dynamically linked od, where the root has one
  map-entries/system        all processes of the machine",
    run,
};

fn run(bench: &mut Bench) -> Result<(), Failure> {
    bench
        .row("map-entries/cat-static")
        .unit(Unit::Entries)
        .run(|meter| {
            meter.value(of_command(Path::new("/bin/busybox"), &["cat"])?);
            Ok(())
        })?;
    bench
        .row("map-entries/od-dynamic")
        .unit(Unit::Entries)
        .run(|meter| {
            let program = Path::new("/usr/bin/od");
            let is_own = fs::symlink_metadata(program).is_ok_and(|meta| meta.is_file());
            if !is_own {
                return Err(Failure::Missing("this root has no dynamic od".into()));
            }
            meter.value(of_command(program, &[])?);
            Ok(())
        })?;
    bench
        .row("map-entries/system")
        .unit(Unit::Entries)
        .run(|meter| {
            meter.value(of_all()?);
            Ok(())
        })
}

/// Counts the entries of a program that waits for its input.
fn of_command(program: &Path, words: &[&str]) -> Result<f64, Failure> {
    let child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Failure::Missing(format!("{}: {error}", program.display())))?;
    let mut child = Program(child);
    let pid = child.0.id();
    // It has loaded everything when it sleeps in its read.
    for _ in 0..1000 {
        let state = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let state = state
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        if state == Some('S') {
            return entries(pid);
        }
        if let Some(status) = child.0.try_wait()? {
            return Err(format!("{}: {status}", program.display()).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{} does not wait for input", program.display()).into())
}

fn entries(pid: u32) -> Result<f64, Failure> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(maps.lines().count() as f64)
}

fn of_all() -> Result<f64, Failure> {
    let mut sum = 0.0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            // A program that has ended has none.
            sum += entries(pid).unwrap_or(0.0);
        }
    }
    Ok(sum)
}
