//! Bytes moved by the kernel alone: splice, vmsplice, tee, sendfile, copy_file_range.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr;

use crate::movement::{
    self, Buffer, Line, PAGE, Peer, check_pattern, check_stamp, checked, fill_pattern, read_whole,
    size_name, stamp, wrong,
};
use crate::{Bench, Experiment, Failure, Meter};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "splice",
    title: "splice, vmsplice, tee, sendfile and copy_file_range",
    help: "\
Bytes that go from one descriptor to another without a program's buffer. SIZE bytes at once, MiB/s.

file-null-SIZE         splice from a file to a pipe, from there to /dev/null
pipe-pipe-64KiB        splice from one pipe to another one, and back
tee-64KiB              tee from a full pipe to another one, which is spliced to /dev/null
file-file-64KiB        splice from a file to a pipe, from there to another file
vmsplice-SIZE          one program gives its stamped buffers to a pipe, the other reads them
vmsplice-gift-SIZE     likewise, new pages each time, given away for good (SPLICE_F_GIFT)
vmsplice-file-64KiB    new pages given away to a pipe, spliced from there to a file (SPLICE_F_MOVE)
sendfile-pipe-SIZE     sendfile to a pipe that another program reads
sendfile-unix-SIZE     sendfile to a stream socket that another program reads
sendfile-tcp-SIZE      sendfile to a TCP connection that another program reads
copy-file-range-SIZE   copy_file_range to another file

Files are in memory, under /tmp. What arrives is compared with what was sent.",
    run,
};

/// Bytes that a batch moves.
const BATCH_BYTES: usize = 4 << 20;

/// Default capacity of a pipe in whole pages.
const PIPE_BYTES: usize = 64 << 10;

/// The acts of a reader.
const RECEIVE: u8 = 0;
const RECEIVE_STAMPED: u8 = 1;

/// Measures with files in a folder, a size of bytes.
type Measure = fn(&mut Meter, &Folder, usize) -> Result<(), Failure>;

/// The rows: the start of the name, the sizes, what measures them.
const ROWS: [(&str, &[usize], Measure); 11] = [
    ("file-null", &[4 << 10, 64 << 10], file_to_null),
    ("pipe-pipe", &[64 << 10], pipe_to_pipe),
    ("tee", &[64 << 10], tee),
    ("file-file", &[64 << 10], file_to_file),
    ("vmsplice", &[4 << 10, 64 << 10, 1 << 20], vmsplice_lent),
    (
        "vmsplice-gift",
        &[4 << 10, 64 << 10, 1 << 20],
        vmsplice_gift,
    ),
    ("vmsplice-file", &[64 << 10], vmsplice_to_file),
    (
        "sendfile-pipe",
        &[4 << 10, 64 << 10, 1 << 20],
        |meter, folder, size| send_file(meter, folder, Line::Pipe, size),
    ),
    (
        "sendfile-unix",
        &[4 << 10, 64 << 10, 1 << 20],
        |meter, folder, size| send_file(meter, folder, Line::Unix(libc::SOCK_STREAM), size),
    ),
    (
        "sendfile-tcp",
        &[4 << 10, 64 << 10, 1 << 20],
        |meter, folder, size| send_file(meter, folder, Line::Tcp, size),
    ),
    ("copy-file-range", &[64 << 10, 1 << 20], copy_range),
];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let path = PathBuf::from(format!("/tmp/bench-splice-{}", std::process::id()));
    fs::create_dir_all(&path)?;
    let outcome = rows(bench, &Folder(path.clone()));
    // Files that cannot be removed vanish with the guest.
    let _ = fs::remove_dir_all(&path);
    outcome
}

fn rows(bench: &mut Bench, folder: &Folder) -> Result<(), Failure> {
    for (name, sizes, measure) in ROWS {
        for &size in sizes {
            let row = bench.row(format!("splice/{name}-{}", size_name(size)));
            let row = row.bytes(size as u64).batch(batch(size));
            row.run(|meter| measure(meter, folder, size))?;
        }
    }
    Ok(())
}

/// Returns the repetitions that move [`BATCH_BYTES`].
fn batch(size: usize) -> u64 {
    (BATCH_BYTES / size).clamp(1, 256) as u64
}

/// Folder of an experiment's files.
struct Folder(PathBuf);

impl Folder {
    /// Makes an empty file of this name, open for reading and writing.
    fn empty(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.0.join(name))
    }

    /// Makes a file with a pattern of `size` bytes.
    fn patterned(&self, name: &str, size: usize, seed: u64) -> io::Result<File> {
        let file = self.empty(name)?;
        let mut bytes = vec![0; size];
        fill_pattern(&mut bytes, seed);
        file.write_all_at(&bytes, 0)?;
        Ok(file)
    }
}

/// Moves `len` bytes by as many calls as needed. `from_at` is the offset in a file.
fn splice(
    from: &File,
    from_at: Option<u64>,
    to: &File,
    to_at: Option<u64>,
    len: usize,
) -> io::Result<()> {
    let mut places = [from_at, to_at].map(|at| at.unwrap_or(0) as libc::loff_t);
    let mut left = len;
    while left > 0 {
        let [mut place, mut target] = places.each_mut().map(ptr::from_mut);
        if from_at.is_none() {
            place = ptr::null_mut();
        }
        if to_at.is_none() {
            target = ptr::null_mut();
        }
        // SAFETY: the descriptors are open, the places null or live and this function's own.
        let moved = checked(unsafe {
            libc::splice(
                from.as_raw_fd(),
                place,
                to.as_raw_fd(),
                target,
                left,
                libc::SPLICE_F_MOVE,
            )
        })?;
        match moved {
            0 => return Err(wrong("splice came to an end too early")),
            moved => left -= moved as usize,
        }
    }
    Ok(())
}

/// Splices memory into a pipe by as many calls as needed.
fn vmsplice(bytes: &[u8], to: &File, flags: libc::c_uint) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let part = libc::iovec {
            iov_base: left.as_ptr().cast_mut().cast(),
            iov_len: left.len(),
        };
        // SAFETY: the part describes memory that is borrowed, and the kernel only reads it.
        let moved = checked(unsafe { libc::vmsplice(to.as_raw_fd(), &raw const part, 1, flags) })?;
        left = &left[moved as usize..];
    }
    Ok(())
}

fn null() -> io::Result<File> {
    OpenOptions::new().write(true).open("/dev/null")
}

/// Reads a pipe's contents and compares them with a pattern.
fn check_pipe(out: &File, len: usize, seed: u64) -> io::Result<()> {
    let mut bytes = vec![0; len];
    read_whole(out, &mut bytes)?;
    check_pattern(&bytes, seed)
}

fn check_file(file: &File, len: usize, seed: u64) -> io::Result<()> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    check_pattern(&bytes, seed)
}

fn file_to_null(meter: &mut Meter, folder: &Folder, size: usize) -> Result<(), Failure> {
    let file = folder.patterned("source", size, 1)?;
    let (out, into) = movement::pipe()?;
    splice(&file, Some(0), &into, None, size)?;
    check_pipe(&out, size, 1)?;
    let null = null()?;
    meter.measure(|count| {
        for _ in 0..count {
            splice(&file, Some(0), &into, None, size)?;
            splice(&out, None, &null, None, size)?;
        }
        Ok(())
    })
}

fn pipe_to_pipe(meter: &mut Meter, _: &Folder, size: usize) -> Result<(), Failure> {
    let (one_out, mut one_into) = movement::pipe()?;
    let (other_out, other_into) = movement::pipe()?;
    let mut bytes = vec![0; size];
    fill_pattern(&mut bytes, 2);
    one_into.write_all(&bytes)?;
    meter.measure(|count| {
        for _ in 0..count / 2 {
            splice(&one_out, None, &other_into, None, size)?;
            splice(&other_out, None, &one_into, None, size)?;
        }
        Ok(())
    })?;
    check_pipe(&one_out, size, 2)?;
    Ok(())
}

fn tee(meter: &mut Meter, _: &Folder, size: usize) -> Result<(), Failure> {
    let (one_out, mut one_into) = movement::pipe()?;
    let (other_out, other_into) = movement::pipe()?;
    let mut bytes = vec![0; size];
    fill_pattern(&mut bytes, 3);
    one_into.write_all(&bytes)?;
    let duplicate = || {
        // SAFETY: a plain call on open descriptors.
        let copied =
            checked(unsafe { libc::tee(one_out.as_raw_fd(), other_into.as_raw_fd(), size, 0) })?;
        match copied as usize == size {
            true => Ok(()),
            false => Err(wrong(format!("tee gave {copied} bytes"))),
        }
    };
    let null = null()?;
    meter.measure(|count| {
        for _ in 0..count {
            duplicate()?;
            splice(&other_out, None, &null, None, size)?;
        }
        Ok(())
    })?;
    duplicate()?;
    check_pipe(&other_out, size, 3)?;
    check_pipe(&one_out, size, 3)?;
    Ok(())
}

fn file_to_file(meter: &mut Meter, folder: &Folder, size: usize) -> Result<(), Failure> {
    let from = folder.patterned("source", size, 4)?;
    let to = folder.empty("target")?;
    let (out, into) = movement::pipe()?;
    meter.measure(|count| {
        for _ in 0..count {
            splice(&from, Some(0), &into, None, size)?;
            splice(&out, None, &to, Some(0), size)?;
        }
        Ok(())
    })?;
    check_file(&to, size, 4)?;
    Ok(())
}

/// Serves as a receiver of messages of `size` bytes: stamped ones, or identical ones with a
/// pattern.
fn reader(from: File, size: usize, seed: u64) -> Result<Peer, Failure> {
    let mut buffer = Buffer::new(size, 0)?;
    let mut number = 0;
    Peer::start(0, move |order| {
        for _ in 0..order.count {
            read_whole(&from, buffer.bytes_mut())?;
            if order.act == RECEIVE_STAMPED {
                check_stamp(buffer.bytes(), number)?;
                number += 1;
            }
        }
        match order.act {
            RECEIVE => check_pattern(&buffer.bytes()[..size.min(PAGE)], seed),
            _ => Ok(()),
        }
    })
}

fn vmsplice_lent(meter: &mut Meter, _: &Folder, size: usize) -> Result<(), Failure> {
    vmsplice_to_reader(meter, size, false)
}

fn vmsplice_gift(meter: &mut Meter, _: &Folder, size: usize) -> Result<(), Failure> {
    vmsplice_to_reader(meter, size, true)
}

fn vmsplice_to_reader(meter: &mut Meter, size: usize, gift: bool) -> Result<(), Failure> {
    let (out, into) = movement::pipe()?;
    let mut peer = reader(out, size, 0)?;
    // A buffer may be stamped again once the reader has it: after as many later bytes as the pipe
    // holds.
    let mut ring = Vec::new();
    if !gift {
        for _ in 0..PIPE_BYTES / size + 2 {
            ring.push(Buffer::new(size, 0)?);
        }
    }
    let mut number = 0;
    meter.measure(|count| {
        peer.with(RECEIVE_STAMPED, count, || {
            for _ in 0..count {
                if gift {
                    let mut given = Buffer::new(size, 0)?;
                    stamp(given.bytes_mut(), number);
                    vmsplice(given.bytes(), &into, libc::SPLICE_F_GIFT)?;
                } else {
                    let at = number as usize % ring.len();
                    stamp(ring[at].bytes_mut(), number);
                    vmsplice(ring[at].bytes(), &into, 0)?;
                }
                number += 1;
            }
            Ok(())
        })
    })
}

fn vmsplice_to_file(meter: &mut Meter, folder: &Folder, size: usize) -> Result<(), Failure> {
    let target = folder.empty("target")?;
    let (out, into) = movement::pipe()?;
    let mut number = 0;
    meter.measure(|count| {
        for _ in 0..count {
            number += 1;
            let mut given = Buffer::new(size, 0)?;
            stamp(given.bytes_mut(), number);
            vmsplice(given.bytes(), &into, libc::SPLICE_F_GIFT)?;
            splice(&out, None, &target, Some(0), size)?;
        }
        Ok(())
    })?;
    let mut bytes = vec![0; size];
    target.read_exact_at(&mut bytes, 0)?;
    check_stamp(&bytes, number)?;
    Ok(())
}

fn send_file(meter: &mut Meter, folder: &Folder, line: Line, size: usize) -> Result<(), Failure> {
    let file = folder.patterned("source", size, 5)?;
    let (to, out) = line.one_way()?;
    let mut peer = reader(out, size, 5)?;
    meter.measure(|count| {
        peer.with(RECEIVE, count, || {
            for _ in 0..count {
                movement::send_file(&to, &file, size)?;
            }
            Ok(())
        })
    })
}

fn copy_range(meter: &mut Meter, folder: &Folder, size: usize) -> Result<(), Failure> {
    let from = folder.patterned("source", size, 6)?;
    let to = folder.empty("target")?;
    meter.measure(|count| {
        for _ in 0..count {
            let (mut from_at, mut to_at) = (0, 0);
            while to_at < size as libc::loff_t {
                // SAFETY: the descriptors are open, the places are live and this function's own.
                let moved = checked(unsafe {
                    libc::copy_file_range(
                        from.as_raw_fd(),
                        &raw mut from_at,
                        to.as_raw_fd(),
                        &raw mut to_at,
                        size - to_at as usize,
                        0,
                    )
                })?;
                if moved == 0 {
                    return Err(wrong("copy_file_range came to an end too early").into());
                }
            }
        }
        Ok(())
    })?;
    check_file(&to, size, 6)?;
    Ok(())
}
