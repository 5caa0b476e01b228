//! A root on ext2: what a guest left there is sound by the host's `e2fsck`, and there at the next boot, also after the machine was killed.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Plan, finish};
use crate::disk::Disk;
use crate::guest::{Ending, Guest};
use crate::qemu::Machine;
use crate::root::ext2;
use crate::run::Console;

const SIZE: u64 = 32 << 20;

/// Makes trees, links and archives, and prints what is in them.
const MAKE: &str = "
mkdir -p /a/b /a/git/objects && cp -a /bin/busybox /a/b/ && ln -s b /a/link && ln /a/b/busybox /a/twice
seq 1 20000 > /a/numbers && mv /a/numbers /a/b/moved && mkfifo /a/pipe
for i in $(seq 1 60); do mkdir -p /a/git/objects/$((i % 7)); echo $i > /a/git/objects/$((i % 7))/$i; done
rm -r /a/git/objects/3 && tar cf /a.tar /a 2>/dev/null && mkdir /copy && tar xf /a.tar -C /copy && rm /a.tar
truncate -s 5000000 /a/sparse && echo end >> /a/sparse";
/// Prints what is there.
const SHOW: &str = "cd / && find a copy | sort | md5sum; find a copy -type f | sort | xargs md5sum | md5sum; \
readlink /copy/a/link; stat -c %h /a/twice; stat -f -c %t /; grep -c ' / ext2 ' /proc/mounts";

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if !report.wants("ext2") {
        return;
    }
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    for cpus in [1, 2, 4] {
        report.run(&format!("ext2: a root that stays, {cpus} CPUs"), || {
            stays(bench, &root, cpus)
        });
        let name = format!("ext2: a root whose machine is killed, {cpus} CPUs");
        report.run(&name, || killed(bench, &root, cpus));
    }
    for (cpus, fast) in [(1, false), (2, true), (4, false)] {
        report.run(&format!("ext2: files of programs, {cpus} CPUs"), || {
            files(bench, &root, cpus, fast)
        });
    }
}

fn image(bench: &Bench, name: &str) -> Result<PathBuf, String> {
    let path = bench.path(name);
    ext2::make(None, &path, Some(SIZE)).map_err(|error| format!("{error:#}"))?;
    Ok(path)
}

fn machine(
    bench: &Bench,
    root: &Path,
    image: &Path,
    cpus: u32,
    script: &str,
) -> Result<Machine, String> {
    let command = ["/bin/sh", "-c", script];
    let mut plan = Plan::new(root, &command);
    plan.cpus = cpus;
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    let line = Console::pipes().command_line(&["root=/dev/vda".into()], &command);
    let mut machine = bench.machine(&plan, &line);
    machine.extra.extend(Disk::at(image)?.qemu(0));
    Ok(machine)
}

/// What a script printed that ended well.
fn output(
    bench: &Bench,
    root: &Path,
    image: &Path,
    cpus: u32,
    script: &str,
) -> Result<String, String> {
    let machine = machine(bench, root, image, cpus, script)?;
    let finished = finish(&machine, b"", Duration::from_secs(120), |_| ());
    let finished = finished.map_err(|error| format!("{error:#}"))?;
    match finished.ending {
        Ending::Status(0) => Ok(finished.text()),
        _ => Err(finished.why(&bench.checked)),
    }
}

/// Runs `e2fsck` with `how`.
///
/// # Errors
/// Its complaint, if its status is above `most`.
pub fn check(image: &Path, how: &str, most: i32) -> Result<(), String> {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let ran = Command::new("e2fsck")
        .env("PATH", path)
        .arg(how)
        .arg(image)
        .output();
    let ran = ran.map_err(|error| format!("e2fsck: {error}"))?;
    match ran.status.code() {
        Some(code) if code <= most => Ok(()),
        _ => Err(format!(
            "e2fsck {how}: {}",
            String::from_utf8_lossy(&ran.stdout)
        )),
    }
}

fn stays(bench: &Bench, root: &Path, cpus: u32) -> Result<(), String> {
    let image = image(bench, &format!("ext2-stays-{cpus}"))?;
    let made = output(bench, root, &image, cpus, &format!("{MAKE}\n{SHOW}"))?;
    check(&image, "-fn", 0)?;
    if !made.ends_with("b\n2\nef53\n1\n") {
        return Err(format!("{made:?}"));
    }
    let found = output(bench, root, &image, cpus, SHOW)?;
    check(&image, "-fn", 0)?;
    match found == made {
        true => Ok(()),
        false => Err(format!("it was {made:?}, and is {found:?}")),
    }
}

/// Runs a machine until it has printed `last`, and kills it in the midst of what it does then.
///
/// # Errors
/// It ended before, or printed something else for so long.
pub fn killed_after(machine: &Machine, last: &[u8], patience: Duration) -> Result<(), String> {
    let started = Guest::start(machine, false).map_err(|error| format!("{error:#}"))?;
    let (mut guest, pipe, mut from) = started;
    let (sender, said) = mpsc::channel();
    let wanted = last.to_owned();
    let reader = thread::spawn(move || {
        let (mut said, mut buffer) = (Vec::new(), [0; 256]);
        while !said.ends_with(&wanted) {
            match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => said.extend_from_slice(&buffer[..count]),
            }
        }
        let _ = sender.send(said);
        from
    });
    let said = said.recv_timeout(patience).unwrap_or_default();
    if said.ends_with(last) {
        // In the midst of the changes that follow, on most machines.
        thread::sleep(Duration::from_millis(300));
    }
    guest.kill();
    drop(pipe);
    guest.wait(None).map_err(|error| format!("{error:#}"))?;
    drop(reader.join());
    match said.ends_with(last) {
        true => Ok(()),
        false => Err(format!(
            "{:?}; {}",
            String::from_utf8_lossy(&said),
            guest.log().join("\n    ")
        )),
    }
}

fn killed(bench: &Bench, root: &Path, cpus: u32) -> Result<(), String> {
    let image = image(bench, &format!("ext2-killed-{cpus}"))?;
    let script =
        "mkdir /kept && cp /bin/busybox /kept/ && seq 1 5000 > /kept/numbers && sync && echo synced
while true; do cp -r /kept /more; rm -r /more; done";
    let machine = machine(bench, root, &image, cpus, script)?;
    killed_after(&machine, b"synced\n", Duration::from_secs(120))?;
    check(&image, "-fy", 3)?;
    let found = output(
        bench,
        root,
        &image,
        cpus,
        "cmp /kept/busybox /bin/busybox && seq 1 5000 | cmp - /kept/numbers && echo there",
    )?;
    check(&image, "-fn", 0)?;
    match found == "there\n" {
        true => Ok(()),
        false => Err(format!("{found:?}")),
    }
}

/// Runs `user/tests/src/mounted.rs` on a disk: all of it with the fast kernel, what does not take many calls with the other one.
fn files(bench: &Bench, root: &Path, cpus: u32, fast: bool) -> Result<(), String> {
    const FEW_CALLS: [&str; 3] = ["ext2: a mapping", "ext2: a full", "ext2: large"];
    let image = bench.path(&format!("ext2-files-{cpus}"));
    let prepare = || {
        let folder = bench.fresh_folder("ext2-almost-empty")?;
        std::fs::write(folder.join("log"), "line\n")?;
        ext2::make(Some(&folder), &image, Some(2 * SIZE))?;
        // Append-only.
        ext2::edit(&image, b"set_inode_field /log flags 0x20\n")
    };
    prepare().map_err(|error| format!("{error:#}"))?;
    let mut command = vec!["/tests/guest-tests"];
    match fast {
        true => command.push("ext2:"),
        false => command.extend(FEW_CALLS),
    }
    let mut plan = Plan::new(root, &command);
    plan.cpus = cpus;
    plan.fast = fast;
    let words: Vec<String> = command.iter().map(ToString::to_string).collect();
    let mut machine = bench.machine(&plan, &Console::pipes().command_line(&[], &words));
    machine.extra.extend(Disk::at(&image)?.qemu(0));
    let finished = finish(&machine, b"", Duration::from_secs(180), |_| ());
    let finished = finished.map_err(|error| format!("{error:#}"))?;
    let text = finished.text();
    if finished.ending != Ending::Status(0) || text.contains("skip") {
        let kernel = if fast { &bench.fast } else { &bench.checked };
        return Err(format!("{text}; {}", finished.why(kernel)));
    }
    check(&image, "-fn", 0)
}
