//! 32-bit programs in small spaces: what they see, how they become large, and who their neighbours
//! are. The program is [`narrow`](support::narrow); it judges itself by what holds in a space of
//! its own, too.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::proc::only_causeway;
use support::narrow::program;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "small: programs see what they see in large spaces",
        sees_the_same,
    ),
    ("small: what outgrows a region becomes large", outgrows),
    (
        "small: neighbours are switched to without a root",
        ping_pong,
    ),
    ("small: neighbours are of one user, unless all share", users),
    ("small: a map ends where the region does", maps),
    ("small: private programs have no neighbours", is_private),
];

const SPACES: &str = "/proc/causeway/spaces";
const REGION: &str = "/proc/causeway/region";

/// Runs the program to its end.
fn run(way: &str, number: usize) -> Outcome {
    let output = Command::new(program()?)
        .args([way, &number.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{way} {number}: {:?}, {said}",
        output.status
    );
    Ok(())
}

/// Calls `test` with spaces like these, and sets back what was.
fn with_spaces(mode: &str, region: &str, test: impl FnOnce() -> Outcome) -> Outcome {
    only_causeway()?;
    let before = read_text(SPACES)?;
    let before = before
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("mode "));
    let before = before.ok_or("no mode")?.to_owned();
    let old_region = read_text(REGION)?;
    fs::write(SPACES, mode)?;
    fs::write(REGION, region)?;
    let outcome = test();
    fs::write(SPACES, before)?;
    fs::write(REGION, old_region.trim())?;
    outcome
}

fn count(name: &str) -> Result<u64> {
    field(SPACES, name)
}

/// The groups' lines.
fn groups() -> Result<Vec<String>> {
    let text = read_text(SPACES)?;
    let groups = text.lines().filter(|line| line.starts_with("group "));
    Ok(groups.map(str::to_owned).collect())
}

/// Bytes of a region.
fn bytes(region: &str) -> Result<usize> {
    let mebibytes = region
        .strip_suffix('M')
        .and_then(|it| it.parse::<usize>().ok());
    Ok(mebibytes.ok_or("a region in M")? << 20)
}

fn everything(region: &str) -> Outcome {
    let size = bytes(region)?;
    let beyond = (size >> 20) + 8;
    for (way, number) in [
        ("basics", 0),
        ("basics", size),
        ("grow", size >> 20),
        ("fixed", beyond),
        ("block", beyond),
        // In pages: less than the part of the smallest region that a stack has.
        ("stack", 200),
        ("segments", 100),
        ("segments", 2000),
        ("threads", beyond),
        ("pingpong", 200),
    ] {
        // The machine must have the memory of one mapping.
        if way != "block" || number <= 300 {
            run(way, number)?;
        }
    }
    Ok(())
}

fn sees_the_same() -> Outcome {
    for (mode, region) in [
        ("large", "256M"),
        ("small", "4M"),
        ("small", "64M"),
        ("small", "256M"),
        ("small", "512M"),
        ("small,shared", "256M"),
    ] {
        with_spaces(mode, region, || everything(region))?;
    }
    // None is left.
    equal!(groups()?, Vec::<String>::new());
    Ok(())
}

fn outgrows() -> Outcome {
    let region = "64M";
    let size = bytes(region)?;
    with_spaces("small", region, || {
        for (way, number, why) in [
            ("basics", size, "promotions_access"),
            ("grow", size >> 20, "promotions_mapping"),
            ("block", size >> 20, "promotions_mapping"),
            ("fixed", (size >> 20) + 8, "promotions_fixed"),
            ("threads", (size >> 20) + 8, "promotions_fixed"),
        ] {
            let (joins, before) = (count("joins")?, count(why)?);
            run(way, number)?;
            ensure!(count("joins")? > joins, "{way} was not small");
            equal!(count(why)?, before + 1, way);
        }
        Ok(())
    })
}

fn ping_pong() -> Outcome {
    const ROUNDS: u64 = 1000;
    with_spaces("small", "64M", || {
        child(|| {
            pin(0)?;
            let names = [
                "switches_without_load",
                "switches_with_load",
                "switches_with_flush",
            ];
            let counts = || -> Result<Vec<u64>> { names.iter().map(|name| count(name)).collect() };
            let before = counts()?;
            run("pingpong", ROUNDS as usize)?;
            let now = counts()?;
            let [stayed, loaded, flushed] = [0, 1, 2].map(|i| now[i] - before[i]);
            ensure!(stayed >= ROUNDS * 3 / 2, "{stayed} switches without a load");
            // The tick, the start and the end, and others of the kernel's tasks, of which a slow
            // host sees more; in spaces of their own there are twice as many.
            ensure!(loaded < ROUNDS, "{loaded} switches with a load");
            ensure!(flushed < ROUNDS, "{flushed} switches with a flush");
            Ok(())
        })
    })
}

/// The program of this user, which waits for input.
fn waiting(user: u32) -> Result<Child> {
    let mut child = Command::new(program()?)
        .args(["wait", "0"])
        .uid(user)
        .gid(user)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .ok_or("no output")?
        .read_exact(&mut ready)?;
    Ok(child)
}

fn end(mut child: Child) -> Outcome {
    child.stdin.take().ok_or("no input")?.write_all(b"x")?;
    let status = child.wait()?;
    ensure!(status.success(), "{status:?}");
    Ok(())
}

fn users() -> Outcome {
    with_spaces("small", "256M", || {
        let children = [1001, 1001, 1002]
            .map(waiting)
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let groups_now = groups()?;
        let of = |user: u32, in_use: usize| {
            let wanted = format!(" user {user} region 256M regions 4 in_use {in_use} ");
            groups_now
                .iter()
                .filter(|line| line.contains(&wanted))
                .count()
        };
        equal!((of(1001, 2), of(1002, 1)), (1, 1), groups_now);
        children.into_iter().try_for_each(end)
    })?;
    with_spaces("small,shared", "256M", || {
        let before = groups()?.len();
        let children = [1001, 1002]
            .map(waiting)
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let groups_now = groups()?;
        ensure!(groups_now.len() <= before.max(1), "{groups_now:?}");
        children.into_iter().try_for_each(end)
    })
}

fn maps() -> Outcome {
    for region in ["4M", "32M", "256M"] {
        let size = bytes(region)?;
        with_spaces("small", region, || {
            let child = waiting(1001)?;
            let maps = read_text(&format!("/proc/{}/maps", child.id()))?;
            let mut has_stack = false;
            for line in maps.lines() {
                let (_, last) = line.split_once('-').ok_or("no range")?;
                let last = last.split(' ').next().unwrap_or_default();
                let last = usize::from_str_radix(last, 16).map_err(|_| "no address")?;
                ensure!(last <= size, "beyond {region}: {line}");
                has_stack |= line.ends_with("[stack]") && last > size / 2;
            }
            ensure!(has_stack, "{maps}");
            // As a debugger sees it.
            let memory = fs::File::open(format!("/proc/{}/mem", child.id()))?;
            let mut magic = [0; 4];
            std::os::unix::fs::FileExt::read_exact_at(&memory, &mut magic, 0x10_0000)?;
            equal!(&magic, b"\x7fELF");
            end(child)
        })?;
    }
    Ok(())
}

fn is_private() -> Outcome {
    with_spaces("small", "64M", || {
        // A program that its user may not read, or a set-id one, has no neighbours. Any other has.
        let path = "/tmp/small32.private";
        fs::copy(program()?, path)?;
        for (mode, is_private) in [
            (0o111, true),
            (0o4755, true),
            (0o2755, true),
            (0o755, false),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            let joins = count("joins")?;
            let status = Command::new(path)
                .args(["pingpong", "5"])
                .uid(1001)
                .gid(1001)
                .status()?;
            ensure!(status.success(), "{mode:o}: {status:?}");
            equal!((mode, count("joins")? == joins), (mode, is_private));
        }
        Ok(())
    })
}
