//! A Unix pipeline: `cat FILE | wc`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::movement::{self, Buffer, Peer, checked, wrong};
use crate::{Bench, Experiment, Failure, Meter};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pipeline",
    title: "a pipeline like cat | wc over a big file",
    help: "\
A file of lines under /tmp, 8 MiB, or 64 MiB with --full, goes through pipes; MiB/s of the file.

pipeline/cat-wc           two programs that are there already: one reads the file and writes it to a
                          pipe, 128 KiB at a time, the other reads and counts lines and bytes
pipeline/cat-wc-2cpu      on two CPUs
pipeline/cat-cat-wc       three programs: the one in the middle reads and writes, too
pipeline/sendfile-wc      the first one uses sendfile
pipeline/busybox-cat-wc   busybox cat FILE | busybox wc: forks and execs included
pipeline/busybox-tar-gzip busybox tar c FILE | busybox gzip -1, which writes to /dev/null
pipeline/busybox-dd       busybox dd bs=1M: the file is copied to another one
pipeline/busybox-dd-wc    busybox dd bs=1M, which writes to busybox wc

The counts must be right, and the copy as long as the file.",
    run,
};

/// Bytes per call, as in cat and wc.
const PIECE: usize = 128 << 10;

const LINE: &[u8] = b"A page of data meets the kernel, and goes on as it is.\n";
const WORDS_A_LINE: u64 = 13;

/// The counts of wc.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    lines: u64,
    bytes: u64,
}

/// Possible paths of busybox.
const BUSYBOX: [&str; 3] = ["/bin/busybox", "/usr/bin/busybox", "/busybox"];

/// The one act of every program.
const WORK: u8 = 0;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let size = if bench.is_full() { 64 << 20 } else { 8 << 20 };
    let path = PathBuf::from(format!("/tmp/bench-pipeline-{}", std::process::id()));
    let counts = write_lines(&path, size)?;
    let outcome = rows(bench, &path, counts);
    // Files that cannot be removed vanish with the guest.
    let _ = fs::remove_file(&path);
    outcome
}

fn rows(bench: &mut Bench, path: &Path, counts: Counts) -> Result<(), Failure> {
    type First = fn(&Path, &File) -> io::Result<()>;
    let own: [(&str, &[usize], First); 4] = [
        ("cat-wc", &[0], cat),
        ("cat-wc-2cpu", &[1], cat),
        ("cat-cat-wc", &[0, 0], cat),
        ("sendfile-wc", &[0], send),
    ];
    for (name, cpus, first) in own {
        let row = bench.row(format!("pipeline/{name}")).bytes(counts.bytes);
        let row = row.cpus(cpus.iter().max().map_or(0, |&last| last + 1));
        row.run(|meter| own_programs(meter, path, counts, cpus, first))?;
    }
    type Whole = fn(&mut Meter, &Path, Counts) -> Result<(), Failure>;
    let whole: [(&str, Whole); 4] = [
        ("cat-wc", busybox_cat_wc),
        ("tar-gzip", busybox_tar_gzip),
        ("dd", busybox_dd),
        ("dd-wc", busybox_dd_wc),
    ];
    for (name, work) in whole {
        let row = bench.row(format!("pipeline/busybox-{name}"));
        row.bytes(counts.bytes)
            .run(|meter| work(meter, path, counts))?;
    }
    Ok(())
}

/// Writes the file of about `size` bytes; returns its counts.
fn write_lines(path: &Path, size: usize) -> io::Result<Counts> {
    let count = size / LINE.len();
    fs::write(path, LINE.repeat(count))?;
    Ok(Counts {
        lines: count as u64,
        bytes: (count * LINE.len()) as u64,
    })
}

/// Runs `first` in this program and one more program on each of the CPUs: the last one counts, the
/// others pass bytes on.
fn own_programs(
    meter: &mut Meter,
    path: &Path,
    counts: Counts,
    cpus: &[usize],
    first: fn(&Path, &File) -> io::Result<()>,
) -> Result<(), Failure> {
    let (mut out, start) = movement::pipe()?;
    let mut programs = Vec::new();
    for (at, &cpu) in cpus.iter().enumerate() {
        if at + 1 == cpus.len() {
            programs.push(Peer::start(cpu, move |_| wc(&out, counts))?);
            break;
        }
        let (next, into) = movement::pipe()?;
        programs.push(Peer::start(cpu, move |_| {
            pass_on(&out, &into, counts.bytes)
        })?);
        out = next;
    }
    meter.measure(|count| {
        for _ in 0..count {
            all(&mut programs, &mut || first(path, &start))?;
        }
        Ok(())
    })
}

/// Lets all programs work while `work` runs here.
fn all(programs: &mut [Peer], work: &mut dyn FnMut() -> io::Result<()>) -> Result<(), Failure> {
    match programs {
        [] => Ok(work()?),
        [only] => only.with(WORK, 1, work),
        [one, rest @ ..] => {
            let mut failure = None;
            let outcome = one.with(WORK, 1, || {
                failure = all(rest, work).err();
                match failure {
                    Some(_) => Err(wrong("another program failed")),
                    None => Ok(()),
                }
            });
            failure.map_or(outcome, Err)
        }
    }
}

/// Reads the file and writes it.
fn cat(path: &Path, mut into: &File) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            count => into.write_all(&piece[..count])?,
        }
    }
}

/// Sends the file.
fn send(path: &Path, into: &File) -> io::Result<()> {
    let file = File::open(path)?;
    loop {
        // SAFETY: the descriptors are open; a null place means the file's own.
        let moved = checked(unsafe {
            libc::sendfile(
                into.as_raw_fd(),
                file.as_raw_fd(),
                std::ptr::null_mut(),
                PIECE,
            )
        })?;
        if moved == 0 {
            return Ok(());
        }
    }
}

/// Reads and writes `bytes` bytes.
fn pass_on(mut out: &File, mut into: &File, bytes: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        match out.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                into.write_all(&piece[..count])?;
                left -= count as u64;
            }
        }
    }
    Ok(())
}

/// Counts until all bytes have arrived.
fn wc(mut out: &File, expected: Counts) -> io::Result<()> {
    let mut buffer = Buffer::new(PIECE, 0)?;
    let mut found = Counts::default();
    while found.bytes < expected.bytes {
        let count = out.read(buffer.bytes_mut())?;
        if count == 0 {
            break;
        }
        found.bytes += count as u64;
        found.lines += newlines(&buffer.bytes()[..count]);
    }
    match found == expected {
        true => Ok(()),
        false => Err(wrong(format!("{found:?} in place of {expected:?}"))),
    }
}

/// Counts newlines, by sums of bytes that cannot overflow, which the compiler vectorises.
fn newlines(bytes: &[u8]) -> u64 {
    let few = |few: &[u8]| few.iter().map(|&byte| u8::from(byte == b'\n')).sum::<u8>();
    bytes.chunks(192).map(|chunk| u64::from(few(chunk))).sum()
}

/// Makes a command of busybox.
fn busybox<S: AsRef<OsStr>>(words: &[S]) -> Result<Command, Failure> {
    let path = BUSYBOX.into_iter().find(|path| Path::new(path).exists());
    let path = path.ok_or(Failure::Missing("no busybox".into()))?;
    let mut command = Command::new(path);
    command.args(words).stderr(Stdio::null());
    Ok(command)
}

/// Waits for the end of a command, which has to be a success.
fn done(mut child: Child) -> Result<(), Failure> {
    match child.wait()?.success() {
        true => Ok(()),
        false => Err("a program of busybox failed".to_string().into()),
    }
}

/// Starts `first` before `wc`, whose counts have to be right.
fn counted(first: &mut Command, expected: Counts) -> Result<(), Failure> {
    let mut first = first.stdout(Stdio::piped()).spawn()?;
    let out = first.stdout.take().map_or(Stdio::null(), Stdio::from);
    let wc = busybox(&["wc"])?.stdin(out).output()?;
    done(first)?;
    let text = String::from_utf8_lossy(&wc.stdout);
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    let words = expected.lines * WORDS_A_LINE;
    match numbers == [expected.lines, words, expected.bytes] {
        true => Ok(()),
        false => Err(format!("wc printed {text:?} in place of {expected:?}").into()),
    }
}

/// Two programs of busybox, started each time.
fn busybox_cat_wc(meter: &mut Meter, path: &Path, expected: Counts) -> Result<(), Failure> {
    let mut cat = busybox(&[OsStr::new("cat"), path.as_os_str()])?;
    meter.measure(|count| (0..count).try_for_each(|_| counted(&mut cat, expected)))
}

fn busybox_dd_wc(meter: &mut Meter, path: &Path, expected: Counts) -> Result<(), Failure> {
    let mut dd = busybox(&["dd".into(), "bs=1M".into(), option("if", path)])?;
    meter.measure(|count| (0..count).try_for_each(|_| counted(&mut dd, expected)))
}

/// Returns an option of dd.
fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push("=");
    option.push(path);
    option
}

fn busybox_dd(meter: &mut Meter, path: &Path, expected: Counts) -> Result<(), Failure> {
    let copy = path.with_extension("copy");
    let words = [
        "dd".into(),
        "bs=1M".into(),
        option("if", path),
        option("of", &copy),
    ];
    let mut dd = busybox(&words)?;
    let outcome = meter.measure(|count| {
        for _ in 0..count {
            done(dd.spawn()?)?;
            let bytes = fs::metadata(&copy)?.len();
            if bytes != expected.bytes {
                return Err(format!("the copy has {bytes} bytes").into());
            }
        }
        Ok(())
    });
    let is_same = fs::read(path)? == fs::read(&copy)?;
    fs::remove_file(&copy)?;
    outcome?;
    match is_same {
        true => Ok(()),
        false => Err(wrong("the copy is not the file").into()),
    }
}

fn busybox_tar_gzip(meter: &mut Meter, path: &Path, _: Counts) -> Result<(), Failure> {
    let (folder, name) = (path.parent(), path.file_name());
    let (folder, name) = folder
        .zip(name)
        .ok_or("a file without a folder".to_string())?;
    let words = ["tar", "c", "-C"].map(OsStr::new);
    let mut tar = busybox(&[&words[..], &[folder.as_os_str(), name]].concat())?;
    let mut gzip = busybox(&["gzip", "-1"])?;
    meter.measure(|count| {
        for _ in 0..count {
            let mut first = tar.stdout(Stdio::piped()).spawn()?;
            let out = first.stdout.take().map_or(Stdio::null(), Stdio::from);
            done(gzip.stdin(out).stdout(Stdio::null()).spawn()?)?;
            done(first)?;
        }
        Ok(())
    })
}
