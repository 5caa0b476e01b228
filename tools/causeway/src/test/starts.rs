//! Starts: one command with its status, input and output as they are, damaged archives and options,
//! all numbers of CPUs, the GRUB image, a panic, a hang.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use super::Report;
use super::boot::{Bench, Finished, Plan, finish};
use crate::guest::Ending;
use crate::outcome;
use crate::qemu::Boot;
use crate::root::Root;

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    let root = match bench.root() {
        Ok(root) => root,
        Err(error) => return report.note("the guests' root", Err(format!("{error:#}"))),
    };
    if report.wants("starts: one command") {
        for (line, output, status) in [
            ("echo hello", "hello\n", 0),
            ("echo one; echo two; exit 37", "one\ntwo\n", 37),
            ("kill -9 $$", "", 137),
            (
                "printf 'a\\tb\\r\\n\\001\\377' | od -c | head -1",
                "0000000   a  \\t   b  \\r  \\n 001 377\n",
                0,
            ),
            ("ls / | wc -l", "14\n", 0),
            (
                "cat /proc/sys/kernel/hostname 2>/dev/null || hostname",
                "causeway\n",
                0,
            ),
            (
                "echo \"it's \\\"quoted\\\" \\$HOME\"",
                "it's \"quoted\" $HOME\n",
                0,
            ),
            ("none-such 2>/dev/null", "", 127),
        ] {
            report.run(&format!("command: {line}"), || {
                let finished = command(bench, &root, &["/bin/sh", "-c", line], b"")?;
                is(bench, &finished, status, output.as_bytes())
            });
        }
        report.run("command: words are not split", || {
            let finished = command(bench, &root, &["echo", "a  b", "", "*", "$x", "'"], b"")?;
            is(bench, &finished, 0, b"a  b  * $x '\n")
        });
        report.run("command: input comes as it is", || {
            let input: Vec<u8> = (0..40_000u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect();
            let finished = command(bench, &root, &["cat"], &input)?;
            is(bench, &finished, 0, &input)
        });
        report.run("command: a long line of input", || {
            let input = [&[b'x'; 20_000][..], b"\nend"].concat();
            let finished = command(bench, &root, &["cat"], &input)?;
            is(bench, &finished, 0, &input)
        });
        report.run("command: much output", || {
            let line = ["/bin/sh", "-c", "seq 1 100000 | md5sum; seq 1 60000"];
            let finished = command(bench, &root, &line, b"")?;
            let numbers: String = (1..=60_000).map(|n| format!("{n}\n")).collect();
            let expected = format!("dea9193b768319cbb4ff1a137ac03113  -\n{numbers}");
            is(bench, &finished, 0, expected.as_bytes())
        });
    }
    if report.wants("starts: the host command") {
        host_command(bench, report);
    }
    if report.wants("starts: CPUs") {
        for cpus in [1, 2, 3, 4, 8, 16] {
            report.run(&format!("{cpus} CPUs start"), || {
                let words = ["nproc"];
                let mut plan = Plan::new(&root, &words);
                plan.cpus = cpus;
                let finished = bench.boot(&plan)?;
                is(bench, &finished, 0, format!("{cpus}\n").as_bytes())
            });
        }
        for memory in ["64M", "128M", "3G", "5G"] {
            report.run(&format!("{memory} of memory"), || {
                let words = ["awk", "/MemTotal/{print ($2 > 40000)}", "/proc/meminfo"];
                let mut plan = Plan::new(&root, &words);
                plan.memory = memory;
                let finished = bench.boot(&plan)?;
                is(bench, &finished, 0, b"1\n")
            });
        }
    }
    if report.wants("starts: that must fail") {
        bad_starts(bench, report, &root);
    }
    if report.wants("starts: a folder as root") {
        report.run("a folder as root", || folder_as_root(bench));
    }
    if report.wants("starts: GRUB image") {
        report.run("a GRUB image boots", || grub_image(bench));
    }
}

fn command(bench: &Bench, root: &Path, words: &[&str], input: &[u8]) -> Result<Finished, String> {
    let mut plan = Plan::new(root, words);
    plan.input = input;
    bench.boot(&plan)
}

/// Whether a guest ended with this status and printed exactly this.
fn is(bench: &Bench, finished: &Finished, status: u8, output: &[u8]) -> Result<(), String> {
    if finished.ending != Ending::Status(status) {
        return Err(finished.why(&bench.checked));
    }
    if finished.output != output {
        let at = finished
            .output
            .iter()
            .zip(output)
            .take_while(|(a, b)| a == b)
            .count();
        let part = |bytes: &[u8]| {
            let end = bytes.len().min(at + 60);
            String::from_utf8_lossy(&bytes[at.min(end)..end]).into_owned()
        };
        return Err(format!(
            "the output ({} bytes, {} expected) differs at byte {at}: {:?} in place of {:?}",
            finished.output.len(),
            output.len(),
            part(&finished.output),
            part(output)
        ));
    }
    Ok(())
}

/// What is done to an archive.
type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Guests that must refuse to start, with one line that says why.
fn bad_starts(bench: &Bench, report: &mut Report, root: &Path) {
    let archive = fs::read(root).unwrap_or_default();
    let damage = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = bench.path(name);
        let mut bytes = archive.clone();
        change(&mut bytes);
        fs::write(&path, bytes)
            .map(|()| path)
            .map_err(|error| error.to_string())
    };
    // The second entry begins behind the first: its header, its name and no contents.
    let archives: [(&str, Damage); 6] = [
        ("no archive at all", &|bytes| bytes[..4096].fill(b'?')),
        ("an archive with a bad second header", &|bytes| {
            bytes[112..118].fill(b'x')
        }),
        ("an archive with a bad number", &|bytes| {
            bytes[14..22].fill(b'z')
        }),
        ("an archive cut off in a file", &|bytes| {
            bytes.truncate(bytes.len() / 2)
        }),
        ("an archive without its trailer", &|bytes| {
            bytes.truncate(bytes.len() - 124)
        }),
        ("an empty archive", &|bytes| bytes.clear()),
    ];
    for (name, change) in archives {
        report.run(&format!("refused: {name}"), || {
            let path = damage("damaged.cpio", change)?;
            refused(bench, &bench.boot(&Plan::new(&path, &["true"]))?)
        });
    }
    for (name, line) in [
        ("an unknown option", "nonsense=1 -- true"),
        ("a bad value", "onlcr=maybe -- true"),
        ("a mechanism that there is not", "ephemeral=window -- true"),
        ("a quote that is not closed", "-- sh -c 'true"),
        ("a first program that is missing", "init=/none"),
        ("a first program that is no program", "init=/etc/passwd"),
        ("a command that is missing", "-- /none"),
    ] {
        report.run(&format!("refused: {name}"), || {
            refused(bench, &bench.boot_line(&Plan::new(root, &[]), line)?)
        });
    }
    report.run("refused: too little memory for the archive", || {
        let large = bench.path("large");
        fs::write(&large, vec![7; 40 << 20]).map_err(|error| error.to_string())?;
        let path = bench.path("large.cpio");
        Root::busybox()
            .and_then(|mut root| {
                root.host_file("large", &large, 0o644)?;
                root.write(&path)
            })
            .map_err(|error| format!("{error:#}"))?;
        let words = ["true"];
        let mut plan = Plan::new(&path, &words);
        plan.memory = "64M";
        let finished = bench.boot(&plan)?;
        match finished.ending {
            Ending::BadStart | Ending::Status(_) => Ok(()),
            _ => Err(finished.why(&bench.checked)),
        }
    });
}

fn refused(bench: &Bench, finished: &Finished) -> Result<(), String> {
    if finished.ending != Ending::BadStart {
        return Err(finished.why(&bench.checked));
    }
    let text = finished.text();
    if text.trim().is_empty() || text.trim().lines().count() != 1 {
        return Err(format!("the console shows {text:?} in place of one line"));
    }
    println!("  says: {}", text.trim());
    Ok(())
}

/// `causeway run` as a user calls it.
fn host_command(bench: &Bench, report: &mut Report) {
    let host = |what: &str, words: &[&str]| -> Result<Output, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        Command::new(program)
            .arg(what)
            .arg("--kernel")
            .arg(&bench.checked)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())
    };
    let run = |words: &[&str]| host("run", words);
    let ended = |output: &Output, status: u8| {
        if output.status.code() == Some(status.into()) {
            Ok(())
        } else {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("{}, {status} expected: {errors}", output.status))
        }
    };
    report.run("host command: status and output", || {
        let output = run(&["--", "sh", "-c", "echo out; exit 5"])?;
        ended(&output, 5)?;
        if output.stdout == b"out\n" && output.stderr.is_empty() {
            Ok(())
        } else {
            Err(format!("{output:?}"))
        }
    });
    report.run("host command: a hang", || {
        let output = run(&["--timeout", "5", "--", "sleep", "1000"])?;
        ended(&output, outcome::TIMEOUT)
    });
    report.run("host command: a panic has a symbolised backtrace", || {
        for drill in ["panic", "overflow", "fault"] {
            let option = format!("drill={drill}");
            let output = run(&["--append", &option, "--timeout", "30", "--", "true"])?;
            ended(&output, outcome::PANIC)?;
            let errors = String::from_utf8_lossy(&output.stderr);
            if !(errors.contains("panic:") && errors.contains("drill.rs:")) {
                return Err(format!("{drill}: no function and line in: {errors}"));
            }
        }
        Ok(())
    });
    report.run("host command: a profile names what ran", || {
        // A loop that asks for a name again and again, and the same loop without the question.
        for (body, asks) in [("[ -e /etc/none ]", true), (":", false)] {
            let line = format!("i=0; while [ $i -lt 3000 ]; do {body}; i=$((i+1)); done; exit 3");
            let words = ["--top", "20", "--", "/bin/sh", "-c", &line];
            let output = host("profile", &words)?;
            ended(&output, 3)?;
            let table = String::from_utf8_lossy(&output.stderr);
            let named = table.contains("fs::namespace::walk::");
            if named != asks || !table.contains("programs, in all") {
                return Err(format!("after {line:?}: {table}"));
            }
        }
        Ok(())
    });
    report.run("host command: the machine's own drill", || {
        for cpus in ["1", "4"] {
            let output = run(&[
                "--append",
                "drill=machine",
                "--smp",
                cpus,
                "--timeout",
                "60",
            ])?;
            ended(&output, 0)?;
        }
        Ok(())
    });
    report.run("host command: a kernel that hangs", || {
        let output = run(&["--append", "drill=hang", "--timeout", "3", "--", "true"])?;
        ended(&output, outcome::TIMEOUT)
    });
    report.run("host command: a bad option of the kernel", || {
        let output = run(&["--append", "nonsense=1", "--", "true"])?;
        ended(&output, outcome::BAD_START)
    });
    report.run("host command: a machine that QEMU refuses", || {
        let image = bench.path("twice");
        fs::write(&image, [0; 4096]).map_err(|error| error.to_string())?;
        let disk = image.display().to_string();
        // Of two disks with one file the second one finds it locked.
        let output = run(&["--disk", &disk, "--disk", &disk, "--", "true"])?;
        ended(&output, outcome::FAILURE)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        match errors.contains(&disk) && errors.contains("causeway: QEMU cannot start") {
            true => Ok(()),
            false => Err(errors.into_owned()),
        }
    });
    report.run("host command: a root that is not there", || {
        let output = run(&["--root", "/does/not/exist", "--", "true"])?;
        ended(&output, outcome::FAILURE)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("/does/not/exist") {
            Ok(())
        } else {
            Err(errors.into_owned())
        }
    });
}

/// Permissions, links, hard links and contents of a folder arrive as they are.
fn folder_as_root(bench: &Bench) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let folder = bench
        .fresh_folder("folder")
        .map_err(|error| error.to_string())?;
    let at = |name: &str| folder.join(name);
    for name in ["bin", "d", "proc", "dev", "tmp"] {
        fs::create_dir(at(name)).map_err(text)?;
    }
    fs::copy(crate::root::BUSYBOX, at("bin/busybox")).map_err(text)?;
    symlink("busybox", at("bin/sh")).map_err(text)?;
    fs::write(at("d/file"), "contents\n").map_err(text)?;
    fs::set_permissions(at("d/file"), fs::Permissions::from_mode(0o4751)).map_err(text)?;
    fs::hard_link(at("d/file"), at("second")).map_err(text)?;
    symlink("d/file", at("link")).map_err(text)?;
    fs::set_permissions(at("tmp"), fs::Permissions::from_mode(0o1777)).map_err(text)?;
    let archive = bench.path("folder.cpio");
    let root = Root::folder(&folder).map_err(|error| format!("{error:#}"))?;
    root.write(&archive).map_err(|error| format!("{error:#}"))?;
    let line = "b=/bin/busybox; $b stat -c '%A %h %s' /d/file /second /tmp; $b readlink /link; \
                $b cat /link; [ /second -ef /d/file ] || $b stat -c %i /second /d/file";
    let finished = command(bench, &archive, &["/bin/busybox", "sh", "-c", line], b"")?;
    let expected = "-rwsr-x--x 2 9\n-rwsr-x--x 2 9\ndrwxrwxrwt 2 ";
    if !finished.text().starts_with(expected) || !finished.text().contains("\nd/file\ncontents\n") {
        return Err(format!(
            "{:?}; {}",
            finished.text(),
            finished.why(&bench.checked)
        ));
    }
    Ok(())
}

/// `causeway image` and a boot from it.
fn grub_image(bench: &Bench) -> Result<(), String> {
    let image = bench.path("test.iso");
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let made = Command::new(program)
        .args(["image", "--kernel"])
        .arg(&bench.checked)
        .arg("-o")
        .arg(&image)
        .args([
            "--append",
            "onlcr=0",
            "--",
            "sh",
            "-c",
            "echo \"it's up\"; exit 9",
        ])
        .output()
        .map_err(|error| error.to_string())?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    let root = bench.root().map_err(|error| format!("{error:#}"))?;
    let mut machine = bench.machine(&Plan::new(&root, &[]), "");
    machine.boot = Boot::Image(image);
    let finished = finish(&machine, b"", Duration::from_secs(90), |_| ())
        .map_err(|error| format!("{error:#}"))?;
    is(bench, &finished, 9, b"it's up\n")
}
