//! Starts: one command with its status, input and output as they are, damaged archives and options,
//! all numbers of CPUs, the GRUB image, a panic, a hang.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Report;
use super::boot::{Bench, FAULTY_CPU, Finished, causeway, finish, shown, text};
use crate::guest::Ending;
use crate::outcome;
use crate::qemu::Boot;
use crate::root::Root;

/// Lines of the shell with their outputs and statuses.
const LINES: &[(&str, &str, u8)] = &[
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
];

/// Runs them.
pub fn run(bench: &Bench, report: &mut Report) {
    if report.wants("starts: one command") {
        for &(line, output, status) in LINES {
            report.run(&format!("command: {line}"), || {
                bench.shell(line).run()?.is(status, output.as_bytes())
            });
        }
        report.run("command: words are not split", || {
            let words = ["echo", "a  b", "", "*", "$x", "'"];
            bench.guest(&words).run()?.is(0, b"a  b  * $x '\n")
        });
        let bytes = (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8);
        for (name, input) in [
            ("input comes as it is", bytes.collect()),
            (
                "a long line of input",
                [&[b'x'; 20_000][..], b"\nend"].concat(),
            ),
        ] {
            report.run(&format!("command: {name}"), || {
                bench.guest(&["cat"]).input(&input).run()?.is(0, &input)
            });
        }
        report.run("command: much output", || {
            let numbers: String = (1..=60_000).map(|n| format!("{n}\n")).collect();
            let expected = format!("dea9193b768319cbb4ff1a137ac03113  -\n{numbers}");
            let guest = bench.shell("seq 1 100000 | md5sum; seq 1 60000");
            guest.run()?.is(0, expected.as_bytes())
        });
    }
    if report.wants("starts: the host command") {
        host_command(bench, report);
    }
    if report.wants("starts: CPUs") {
        for cpus in [1, 2, 3, 4, 8, 16, 64] {
            report.run(&format!("{cpus} CPUs start"), || {
                let finished = bench.guest(&["nproc"]).cpus(cpus).run()?;
                finished.is(0, format!("{cpus}\n").as_bytes())
            });
        }
        for memory in ["64M", "128M", "3G", "5G"] {
            report.run(&format!("{memory} of memory"), || {
                let words = ["awk", "/MemTotal/{print ($2 > 40000)}", "/proc/meminfo"];
                bench.guest(&words).memory(memory).run()?.is(0, b"1\n")
            });
        }
    }
    if report.wants("starts: that must fail") {
        bad_starts(bench, report);
    }
    if report.wants("starts: randomness") {
        randomness(bench, report);
    }
    if report.wants("starts: placement") {
        placement(bench, report);
    }
    if report.wants("starts: a folder as root") {
        report.run("a folder as root", || folder_as_root(bench));
    }
    if report.wants("starts: GRUB image") {
        report.run("a GRUB image boots", || grub_image(bench));
    }
}

/// What a guest with each source of random numbers, or none, gives its programs.
fn randomness(bench: &Bench, report: &mut Report) {
    // The attack's own output is not compared.
    let line = "read bits </proc/sys/kernel/random/entropy_avail; echo $bits; \
        /tests/attacks 'before the generator is seeded' >/tmp/out || cat /tmp/out; \
        cat /proc/sys/kernel/random/entropy_avail";
    let shell = || bench.shell(line);
    report.run(
        "random bytes: without any source, the first are waited for",
        || {
            let finished = shell().without_entropy().run()?;
            finished.ended(0)?;
            let text = finished.text();
            let bits: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            let [before, after] = bits[..] else {
                bail!("{text}");
            };
            ensure!(
                text.lines().count() == 2 && before < 256 && after == 256,
                "{text}"
            );
            Ok(())
        },
    );
    report.run(
        "random bytes: a device is there before the first program",
        || shell().without_rdrand().run()?.is(0, b"256\n256\n"),
    );
    report.run(
        "random bytes: the loader's seed is there and not shown",
        || {
            let seed = format!("seed={}", "5a".repeat(32));
            let shown = bench.shell("cat /proc/sys/kernel/random/entropy_avail; cat /proc/cmdline");
            let finished = shown.without_entropy().option(&seed).run()?;
            finished.ended(0)?;
            let text = finished.text();
            ensure!(
                text.starts_with("256\n") && !text.contains("5a5a"),
                "{text}"
            );
            Ok(())
        },
    );
}

/// Two starts put the kernel and a program's memory elsewhere; `kaslr=off` leaves the kernel where
/// it was linked.
fn placement(bench: &Bench, report: &mut Report) {
    let places = |option: &str| -> Result<[u64; 2]> {
        let plan = bench.shell("sleep 5").option("fault_injection=panic");
        let finished = match option {
            "" => plan.run()?,
            option => plan.option(option).run()?,
        };
        let line = finished.log.iter().find_map(|line| {
            let line = line.strip_prefix("slide: ")?;
            line.split_once(", direct map: ")
        });
        let (slide, direct_map) = line.context("no panic with a slide")?;
        let number = |digits| u64::from_str_radix(digits, 16);
        Ok([number(slide)?, number(direct_map)?])
    };
    report.run("placement: a kernel moves, unless it shall not", || {
        ensure!(places("kaslr=off")? == [0, 0xffff_8000_0000_0000]);
        let places: Vec<_> = (0..3).map(|_| places("")).collect::<Result<_>>()?;
        for (n, step) in [2 << 20, 1 << 30].into_iter().enumerate() {
            let moved: BTreeSet<u64> = places.iter().map(|place| place[n]).collect();
            // Twice the same of 2^10 places is rare, three times no chance.
            ensure!(moved.len() > 1, "{places:x?}");
            ensure!(moved.iter().all(|at| at % step == 0), "{places:x?}");
        }
        Ok(())
    });
    report.run("placement: programs differ from start to start", || {
        let line = "grep -e stack -e heap -e vdso /proc/self/maps; cat /proc/sys/kernel/random/*id";
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            let text = bench.shell(line).run()?.text();
            for line in text.lines() {
                ensure!(seen.insert(line.to_owned()), "{line} twice");
            }
        }
        ensure!(seen.len() >= 8, "{seen:?}");
        Ok(())
    });
}

/// A change to an archive.
type Damage = fn(&mut Vec<u8>);

/// Archives with these changes must be refused. The second entry begins behind the first: its
/// header, its name and no contents.
const DAMAGES: [(&str, Damage); 6] = [
    ("no archive at all", |bytes| bytes[..4096].fill(b'?')),
    ("an archive with a bad second header", |bytes| {
        bytes[112..118].fill(b'x');
    }),
    ("an archive with a bad number", |bytes| {
        bytes[14..22].fill(b'z');
    }),
    ("an archive cut off in a file", |bytes| {
        bytes.truncate(bytes.len() / 2);
    }),
    ("an archive without its trailer", |bytes| {
        bytes.truncate(bytes.len() - 124);
    }),
    ("an empty archive", Vec::clear),
];

/// Command lines that must be refused.
const BAD_LINES: [(&str, &str); 7] = [
    ("an unknown option", "nonsense=1 -- true"),
    ("a bad value", "onlcr=maybe -- true"),
    (
        "a mechanism that does not exist",
        "ephemeral=cached -- true",
    ),
    ("a quote that is not closed", "-- sh -c 'true"),
    ("a first program that is missing", "init=/none"),
    ("a first program that is no program", "init=/etc/passwd"),
    ("a command that is missing", "-- /none"),
];

/// Guests that must refuse to start, with one line that says why.
fn bad_starts(bench: &Bench, report: &mut Report) {
    for (name, change) in DAMAGES {
        report.run(&format!("refused: {name}"), || {
            let mut bytes = fs::read(bench.root()?)?;
            change(&mut bytes);
            let path = bench.file("damaged.cpio", &bytes)?;
            refused(&bench.guest(&["true"]).root(&path).run()?)
        });
    }
    for (name, line) in BAD_LINES {
        report.run(&format!("refused: {name}"), || {
            refused(&bench.guest(&[]).line(line).run()?)
        });
    }
    report.run("refused: too little memory for the archive", || {
        let large = bench.file("large", &vec![7; 40 << 20])?;
        let path = bench.path("large.cpio");
        let mut root = Root::busybox()?;
        root.host_file("large", &large, 0o644)?;
        root.write(&path)?;
        let guest = bench.guest(&["true"]).root(&path).memory("64M");
        let finished = guest.run()?;
        let ending = &finished.ending;
        ensure!(
            matches!(ending, Ending::BadStart | Ending::Status(_)),
            "{}",
            finished.why()
        );
        Ok(())
    });
}

fn refused(finished: &Finished) -> Result<()> {
    ensure!(finished.ending == Ending::BadStart, "{}", finished.why());
    let text = finished.text();
    ensure!(
        text.trim().lines().count() == 1,
        "the console shows {text:?} in place of one line"
    );
    println!("  says: {}", text.trim());
    Ok(())
}

/// `causeway run` as a user calls it.
fn host_command(bench: &Bench, report: &mut Report) {
    let host = |what: &str, words: &[&str], status: u8| -> Result<Output> {
        let mut command = causeway(&[what, "--kernel"]);
        let output = command.arg(&bench.checked).args(words).output()?;
        let ended = output.status.code() == Some(status.into());
        ensure!(ended, "{status} expected: {}", shown(&output));
        Ok(output)
    };
    let run = |words: &[&str], status: u8| host("run", words, status);
    report.run("host command: status and output", || {
        let output = run(&["--", "sh", "-c", "echo out; exit 5"], 5)?;
        let plain = output.stdout == b"out\n" && output.stderr.is_empty();
        ensure!(plain, "{output:?}");
        Ok(())
    });
    report.run("host command: a panic has a symbolised backtrace", || {
        for fault in ["panic", "overflow", "fault"] {
            let option = format!("fault_injection={fault}");
            let words = ["--append", &option, "--timeout", "30", "--", "true"];
            let errors = text(&run(&words, outcome::PANIC)?.stderr);
            ensure!(
                errors.contains("panic:") && errors.contains("fault_injection.rs:"),
                "{fault}: no function and line in: {errors}"
            );
        }
        Ok(())
    });
    report.run(
        "guard: the kernel cannot write tables where it reads them",
        || {
            let faults = [
                ("table", "a write to a page table, which the guard refused"),
                (
                    "kept-table",
                    "a write to a page table, which the guard refused",
                ),
                ("interrupts", "a write to a descriptor table"),
                ("segments", "a write to a descriptor table"),
                ("fault", "a write to the kernel's text or constants"),
            ];
            for (fault, why) in faults {
                let option = format!("fault_injection={fault}");
                let words = ["--append", &option, "--timeout", "30", "--", "true"];
                let errors = text(&run(&words, outcome::PANIC)?.stderr);
                ensure!(errors.contains(why), "{fault}: not `{why}` in: {errors}");
                if fault == "fault" {
                    continue;
                }
                let option = format!("{option} guard=off");
                let words = ["--append", &option, "--timeout", "30", "--", "true"];
                let errors = text(&run(&words, outcome::PANIC)?.stderr);
                ensure!(
                    errors.contains("went through"),
                    "{fault} without a guard: {errors}"
                );
            }
            Ok(())
        },
    );
    report.run("host command: a profile names what ran", || {
        // A loop that asks for a name again and again, and the same loop without the question.
        for (body, asks) in [("[ -e /etc/none ]", true), (":", false)] {
            let line = format!("i=0; while [ $i -lt 3000 ]; do {body}; i=$((i+1)); done; exit 3");
            let words = ["--top", "20", "--", "/bin/sh", "-c", &line];
            let table = text(&host("profile", &words, 3)?.stderr);
            let named = table.contains("fs::namespace::walk::");
            if named != asks || !table.contains("programs, in all") {
                bail!("after {line:?}: {table}");
            }
        }
        Ok(())
    });
    report.run("host command: the machine's own test", || {
        for cpus in ["1", "4"] {
            let machine = ["--append", "fault_injection=machine", "--smp", cpus];
            run(&[&machine[..], &["--timeout", "60"]].concat(), 0)?;
        }
        Ok(())
    });
    report.run("host command: the ways in and out with mitigations", || {
        // What the emulator's own CPU does not need, one by one; then processors that need it, with
        // registers that the emulator only says it has, and ignores.
        for (cpu, option) in [
            ("max", "pti=on"),
            ("max", "mds=full"),
            ("max", "spectre_v1=on"),
            ("max", "mitigations=full"),
            (FAULTY_CPU, "mitigations=auto"),
            (FAULTY_CPU, "mitigations=off"),
            (FAULTY_CPU, "mitigations=off spectre_v2=on"),
            ("EPYC-Rome,x-force-features=on", "mitigations=auto"),
        ] {
            let option = format!("fault_injection=machine {option}");
            let machine = ["--append", &option, "--smp", "2", "--timeout", "60"];
            let qemu = ["--qemu=-cpu".to_owned(), format!("--qemu={cpu}")];
            let qemu = qemu.each_ref().map(String::as_str);
            run(&[&machine[..], &qemu].concat(), 0).with_context(|| format!("{cpu}: {option}"))?;
        }
        Ok(())
    });
    for (name, words, status) in [
        (
            "a hang",
            &["--timeout", "5", "--", "sleep", "1000"][..],
            outcome::TIMEOUT,
        ),
        (
            "a kernel that hangs",
            &[
                "--append",
                "fault_injection=hang",
                "--timeout",
                "3",
                "--",
                "true",
            ],
            outcome::TIMEOUT,
        ),
        (
            "a bad option of the kernel",
            &["--append", "nonsense=1", "--", "true"],
            outcome::BAD_START,
        ),
    ] {
        report.run(&format!("host command: {name}"), || {
            run(words, status).map(drop)
        });
    }
    report.run("host command: a machine that QEMU refuses", || {
        let image = bench.file("twice", &[0; 4096])?;
        let disk = image.display().to_string();
        // Of two disks with one file the second one finds it locked.
        let words = ["--disk", &disk, "--disk", &disk, "--", "true"];
        let errors = text(&run(&words, outcome::FAILURE)?.stderr);
        let told = errors.contains("causeway: QEMU cannot start");
        ensure!(errors.contains(&disk) && told, errors);
        Ok(())
    });
    report.run("host command: an image that does not boot", || {
        let image = bench.file("no-image", &[0; 1 << 20])?.display().to_string();
        let errors = text(&run(&["--image", &image], outcome::FAILURE)?.stderr);
        ensure!(errors.contains("no bootable CD image"), errors);
        Ok(())
    });
    report.run("host command: too little memory", || {
        let errors = text(&run(&["--mem", "1M", "--", "true"], outcome::FAILURE)?.stderr);
        let least = errors.split_once("the least is ");
        let least = least.and_then(|(_, least)| least.split_whitespace().next());
        run(&["--mem", least.context(errors.clone())?, "--", "true"], 0).map(drop)
    });
    report.run("host command: a root that is not there", || {
        let words = ["--root", "/does/not/exist", "--", "true"];
        let errors = text(&run(&words, outcome::FAILURE)?.stderr);
        ensure!(errors.contains("/does/not/exist"), errors);
        Ok(())
    });
}

/// Permissions, links, hard links and contents of a folder arrive as they are.
fn folder_as_root(bench: &Bench) -> Result<()> {
    let folder = bench.fresh_folder("folder")?;
    let at = |name: &str| folder.join(name);
    for name in ["bin", "d", "proc", "dev", "tmp"] {
        fs::create_dir(at(name))?;
    }
    fs::copy(crate::root::BUSYBOX, at("bin/busybox"))?;
    symlink("busybox", at("bin/sh"))?;
    fs::write(at("d/file"), "contents\n")?;
    fs::set_permissions(at("d/file"), fs::Permissions::from_mode(0o4751))?;
    fs::hard_link(at("d/file"), at("second"))?;
    symlink("d/file", at("link"))?;
    fs::set_permissions(at("tmp"), fs::Permissions::from_mode(0o1777))?;
    let archive = bench.path("folder.cpio");
    Root::folder(&folder)?.write(&archive)?;
    let line = "b=/bin/busybox; $b stat -c '%A %h %s' /d/file /second /tmp; $b readlink /link; \
                $b cat /link; [ /second -ef /d/file ] || $b stat -c %i /second /d/file";
    let guest = bench.guest(&["/bin/busybox", "sh", "-c", line]);
    let finished = guest.root(&archive).run()?;
    let text = finished.text();
    let modes = "-rwsr-x--x 2 9\n-rwsr-x--x 2 9\ndrwxrwxrwt 2 ";
    ensure!(
        text.starts_with(modes) && text.contains("\nd/file\ncontents\n"),
        "{text:?}; {}",
        finished.why()
    );
    Ok(())
}

/// `causeway image` and a boot from it.
fn grub_image(bench: &Bench) -> Result<()> {
    let image = bench.path("test.iso");
    let mut command = causeway(&["image", "--kernel"]);
    command.arg(&bench.checked).arg("-o").arg(&image);
    let line = "echo \"it's up\"; exit 9";
    command.args(["--append", "onlcr=0", "--", "sh", "-c", line]);
    let made = command.output()?;
    ensure!(made.status.success(), "{}", shown(&made));
    let mut machine = bench.guest(&[]).machine()?;
    machine.boot = Boot::Image(image);
    let timeout = Duration::from_secs(90);
    let finished = finish(&machine, Path::new(&bench.checked), b"", timeout, |_| ())?;
    finished.is(9, b"it's up\n")
}
