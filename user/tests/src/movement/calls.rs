//! All other calls that move bytes: what a program gives away, and writes at random at once, never
//! changes on the other side, nor does what that writes show here.

use std::ptr::{null, null_mut};

use libcauseway::{Causeway, Passing, Receiver};

use super::{Buffer, Message, PAGES, SWITCH, WAYS, connection, move_all, receive, send, write_all};
use crate::large::Switched;
use crate::mounted::Mounted;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "movement: all calls to a descriptor, both sides write",
        to_descriptors,
    ),
    (
        "ext2: movement, all calls to a descriptor, both sides write",
        from_a_disk,
    ),
    (
        "movement: all calls to a process, both sides write",
        to_processes,
    ),
    ("movement: what the calls refuse first", refusals),
];

/// Messages of each call.
const MESSAGES: u64 = 24;

/// A way of bytes from a buffer to a descriptor.
type Give = fn(&Sender, at: *mut u8, len: usize) -> Outcome;

const CALLS: [(&str, Give); 9] = [
    ("send", |own, at, len| {
        move_all(len, |done| {
            let at = at.wrapping_add(done).cast();
            Ok(call!(sendto(own.socket, at, len - done, 0, null_mut(), 0)))
        })
    }),
    ("writev", |own, at, len| {
        move_all(len, |done| {
            let half = (len - done).div_ceil(2);
            let parts = [(done, half), (done + half, len - done - half)];
            let parts = parts.map(|(from, len)| part(at.wrapping_add(from), len));
            Ok(call!(writev(own.socket, parts.as_ptr(), 2)))
        })
    }),
    ("vmsplice", |own, at, len| own.vmsplice(at, len, 0)),
    ("vmsplice of gifts", |own, at, len| {
        own.vmsplice(at, len, SPLICE_F_GIFT)
    }),
    ("splice", |own, at, len| {
        own.put(own.files[0], at, len)?;
        own.splice(own.files[0], len)?;
        spoil(own.files[0], len)
    }),
    ("tee", Sender::tee),
    ("sendfile", |own, at, len| {
        let file = own.files[0];
        own.put(file, at, len)?;
        move_all(len, |done| {
            let mut from = done as off_t;
            Ok(call!(sendfile(own.socket, file, &mut from, len - done)))
        })?;
        spoil(file, len)
    }),
    ("copy_file_range", |own, at, len| {
        let [one, other] = own.files;
        own.put(one, at, len)?;
        move_all(len, |done| {
            let [mut from, mut to] = [done as off64_t; 2];
            let left = len - done;
            Ok(call!(copy_file_range(
                one, &mut from, other, &mut to, left, 0
            )))
        })?;
        spoil(one, len)?;
        own.splice(other, len)?;
        spoil(other, len)
    }),
    ("O_DIRECT", Sender::past_the_cache),
];

fn part(at: *mut u8, len: usize) -> iovec {
    iovec {
        iov_base: at.cast(),
        iov_len: len,
    }
}

/// What one side uses to send.
struct Sender {
    /// For calls to any descriptor: a pipe or a socket; the others take a pipe.
    socket: c_int,
    pipe: c_int,
    files: [c_int; 2],
    /// Another pipe: to read, to write.
    between: (c_int, c_int),
    /// A file on a disk, open for transfers past the cache.
    disk: Option<c_int>,
    own: Buffer,
}

impl Sender {
    /// Writes a message into a file.
    fn put(&self, file: c_int, at: *const u8, len: usize) -> Outcome {
        move_all(len, |done| {
            let at = at.wrapping_add(done).cast();
            Ok(call!(pwrite(file, at, len - done, done as off_t)))
        })
    }

    fn vmsplice(&self, at: *mut u8, len: usize, flags: c_uint) -> Outcome {
        move_all(len, |done| {
            let part = part(at.wrapping_add(done), len - done);
            Ok(call!(vmsplice(self.pipe, &part, 1, flags)))
        })
    }

    /// Moves a file's bytes to the pipe.
    fn splice(&self, file: c_int, len: usize) -> Outcome {
        move_all(len, |done| {
            let mut from = done as off64_t;
            let left = len - done;
            Ok(call!(splice(
                file,
                &mut from,
                self.pipe,
                null_mut(),
                left,
                0
            )))
        })
    }

    /// Sends what another reader has as well, who writes into it.
    fn tee(&self, at: *mut u8, len: usize) -> Outcome {
        move_all(len, |done| {
            // With bytes that do not begin a page a pipe may hold one page less.
            let part = (len - done).min(15 * PAGE);
            write_all(self.between.1, at.wrapping_add(done), part)?;
            let n = call!(tee(self.between.0, self.pipe, part, 0));
            let mut left = part;
            while left > 0 {
                left -= call!(read(self.between.0, self.own.0.cast(), left)) as usize;
                (0..PAGES).for_each(|page| self.own.set(page * PAGE, !0));
            }
            Ok(n)
        })
    }

    /// Sends what was written to a disk and read from there, into a buffer whose last bytes may
    /// still be on their way.
    fn past_the_cache(&self, at: *mut u8, len: usize) -> Outcome {
        let Some(disk) = self.disk else {
            return write_all(self.pipe, at, len);
        };
        let own = self.own.0;
        match at.addr() % PAGE {
            0 => self.put(disk, at, len)?,
            _ => {
                // SAFETY: both buffers are longer than a message.
                unsafe { own.copy_from_nonoverlapping(at, len) };
                self.put(disk, own, len)?;
            }
        }
        move_all(len, |done| {
            let to = own.wrapping_add(done).cast();
            Ok(call!(pread(disk, to, len - done, done as off_t)))
        })?;
        write_all(self.pipe, own, len)
    }
}

/// Writes other bytes into all pages of a file, by calls and by a mapping.
fn spoil(file: c_int, len: usize) -> Outcome {
    let memory = map_with(len, PROT_READ | PROT_WRITE, MAP_SHARED, file)?;
    for page in (0..len).step_by(PAGE) {
        call!(pwrite(file, [!0u8; 8].as_ptr().cast(), 8, page as off_t));
        poke(memory.wrapping_add(page + PAGE - 1), 0xee);
    }
    unmap(memory, len)
}

fn to_descriptors() -> Outcome {
    let (one, one_file) = file("movement-one", &[])?;
    let (other, other_file) = file("movement-other", &[])?;
    let done = every_call([one_file, other_file], None);
    for (path, file) in [(one, one_file), (other, other_file)] {
        call!(close(file));
        fs::remove_file(path)?;
    }
    done
}

/// As [`to_descriptors`], with files on a disk, and past its cache.
fn from_a_disk() -> Outcome {
    let disk = Mounted::new()?;
    let names = ["movement-one", "movement-other"];
    let [one, other] = [disk.file(names[0])?, disk.file(names[1])?];
    drop(disk.file("movement-direct")?);
    let path = c(&Mounted::path("movement-direct"));
    let direct = call!(open(path.as_ptr(), O_RDWR | O_DIRECT | O_CLOEXEC));
    let done = every_call([one.as_raw_fd(), other.as_raw_fd()], Some(direct));
    call!(close(direct));
    drop([one, other]);
    for name in names.iter().chain(&["movement-direct"]) {
        fs::remove_file(Mounted::path(name))?;
    }
    disk.end()?;
    done
}

fn every_call(files: [c_int; 2], disk: Option<c_int>) -> Outcome {
    for (seed, way) in (100..).zip(WAYS) {
        let _way = Switched::to(SWITCH, way)?;
        for (name, give) in CALLS {
            let takes_sockets = ["send", "writev", "sendfile"].contains(&name);
            let (reader, writer) = match takes_sockets {
                true => connection()?,
                false => pipe(0)?,
            };
            let child = spawn(|| {
                call!(close(reader));
                let sender = Sender {
                    socket: writer,
                    pipe: writer,
                    files,
                    between: pipe(0)?,
                    disk,
                    own: Buffer::new()?,
                };
                send(seed, MESSAGES, &|at, len| give(&sender, at, len))
            })?;
            call!(close(writer));
            let received = receive(reader, seed, MESSAGES);
            call!(close(reader));
            let done = received.and(wait_ok(child));
            ensure!(done.is_ok(), "{name}, {way}: {}", done.unwrap_err());
        }
    }
    Ok(())
}

/// The ways of bytes to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// `process_vm_writev`.
    Written,
    /// `process_vm_readv` by the receiver.
    Read,
    Passed(Passing),
}

const TO_PROCESSES: [Way; 6] = [
    Way::Written,
    Way::Read,
    Way::Passed(Passing::Lend),
    Way::Passed(Passing::Transfer),
    Way::Passed(Passing::Copy),
    Way::Passed(Passing::Move),
];

/// What is said to the receiver of a message.
type Word = [u64; 3];

fn say_to(to: c_int, word: Word) -> Outcome {
    write_all(to, word.as_ptr().cast(), size_of::<Word>())
}

/// Returns what was said, or nothing at the end.
fn hear(from: c_int) -> Result<Option<Word>> {
    let mut word: Word = [0; 3];
    let n = call!(read(from, word.as_mut_ptr().cast(), size_of::<Word>()));
    Ok((n > 0).then_some(word))
}

/// The receiver: checks each message in its place, while the sender writes into its own memory.
fn wait_for_messages(place: &Buffer, sender: pid_t, words: c_int, answers: c_int) -> Outcome {
    let mut numbers = Numbers::new(7);
    while let Some([number, pages, from]) = hear(words)? {
        let message = Message::aligned(number, pages as usize);
        if from > 0 {
            let len = message.pages * PAGE;
            let (here, there) = (part(place.0, len), part(from as *mut u8, len));
            let n = call!(process_vm_readv(sender, &here, 1, &there, 1, 0));
            equal!(n as usize, len);
        }
        say_to(answers, [number, 0, 0])?;
        for _ in 0..8 {
            place.check(0, &message)?;
            call!(sched_yield());
        }
        place.spoil(&mut numbers, 0, &message)?;
        say_to(answers, [number, 1, 0])?;
    }
    Ok(())
}

fn to_processes() -> Outcome {
    let sender = std::process::id() as pid_t;
    for (seed, movement) in (200..).zip(WAYS) {
        let _way = Switched::to(SWITCH, movement)?;
        let mut numbers = Numbers::new(seed);
        let place = Buffer::new()?;
        let ((words, say), (hear_from, answers)) = (pipe(0)?, pipe(0)?);
        let child = spawn(|| {
            call!(close(say));
            wait_for_messages(&place, sender, words, answers)
        })?;
        call!(close(words));
        call!(close(answers));
        let sent = (|| {
            let mut buffer = Buffer::new()?;
            for number in 0..MESSAGES * TO_PROCESSES.len() as u64 {
                let way = TO_PROCESSES[numbers.below(TO_PROCESSES.len() as u64) as usize];
                let message = Message::aligned(number, 1 + numbers.below(PAGES as u64) as usize);
                buffer.stamp(0, &message);
                give(&buffer, &message, way, child, &place)?;
                let from = if way == Way::Read { buffer.0.addr() } else { 0 };
                say_to(say, [number, message.pages as u64, from as u64])?;
                // It has the message; from here on both write.
                ensure!(hear(hear_from)?.is_some(), "{way:?}, {movement}");
                match way {
                    Way::Passed(Passing::Move) => buffer = Buffer::new()?,
                    Way::Passed(Passing::Transfer) => {
                        equal!(buffer.get(0), 0);
                        buffer.spoil(&mut numbers, 0, &message)?;
                    }
                    _ => {
                        buffer.check(0, &message)?;
                        buffer.spoil(&mut numbers, 0, &message)?;
                    }
                }
                buffer.stamp(0, &message);
                ensure!(hear(hear_from)?.is_some(), "{way:?}, {movement}");
                // What the other one has written does not show here.
                buffer.check(0, &message)?;
            }
            Ok(())
        })();
        call!(close(say));
        let done: Outcome = sent;
        done.and(wait_ok(child))?;
        call!(close(hear_from));
    }
    Ok(())
}

/// Puts a message in the receiver's place, unless that reads it itself.
fn give(buffer: &Buffer, message: &Message, way: Way, to: pid_t, place: &Buffer) -> Outcome {
    let len = message.pages * PAGE;
    match way {
        Way::Read => Ok(()),
        Way::Written => {
            let (here, there) = (part(buffer.0, len), part(place.0, len));
            let n = call!(process_vm_writev(to, &here, 1, &there, 1, 0));
            equal!(n as usize, len);
            Ok(())
        }
        Way::Passed(how) => {
            let range = buffer.0.addr()..buffer.0.addr() + len;
            let receiver = Receiver::Id(to as u32);
            let place = Some(place.0.addr());
            // SAFETY: the memory is used by pointers, and not used where it is gone.
            unsafe { Causeway::open()?.pass_range(range, receiver, how, place) }?;
            Ok(())
        }
    }
}

/// The errors of Linux, and which of two comes first.
fn refusals() -> Outcome {
    let none = null_mut::<off_t>();
    let (reader, writer) = pipe(O_NONBLOCK)?;
    let directory = call!(open(c"/tmp".as_ptr(), O_RDONLY | O_DIRECTORY));
    let file = call!(memfd_create(c"refusals".as_ptr(), 0));
    call!(ftruncate(file, PAGE as off_t));
    let mut at: off_t = 0;
    // Nothing is to be moved: flags and descriptors are not looked at.
    equal!(call!(splice(-1, none, writer, none, 0, !0)), 0);
    refused!(EINVAL, splice(file, none, writer, none, 1, !0));
    refused!(EINVAL, splice(directory, none, writer, none, 1, 0));
    refused!(EINVAL, sendfile(writer, file, &mut at, usize::MAX));
    refused!(ESPIPE, sendfile(file, reader, &mut at, 1));
    refused!(EINVAL, sendfile(file, reader, none, 1));
    // The descriptors, then flags, then what they are, then what they are open for.
    refused!(EBADF, copy_file_range(-1, none, file, none, 1, 1));
    refused!(EINVAL, copy_file_range(file, none, directory, none, 1, 1));
    refused!(EISDIR, copy_file_range(file, none, directory, none, 1, 0));
    refused!(EISDIR, copy_file_range(directory, none, file, none, 1, 0));
    refused!(EINVAL, copy_file_range(file, none, reader, none, 1, 0));
    // Without ranges no process is looked for.
    let memory = map(PAGE)?;
    let (some, empty) = (part(memory, 8), part(memory, 0));
    equal!(call!(process_vm_readv(-1, &empty, 1, null(), 1, 0)), 0);
    equal!(call!(process_vm_writev(-1, &some, 1, &empty, 1, 0)), 0);
    refused!(EFAULT, process_vm_readv(-1, &some, 1, null(), 1, 0));
    refused!(ESRCH, process_vm_readv(-1, &some, 1, &some, 1, 0));
    for fd in [reader, writer, directory, file] {
        call!(close(fd));
    }
    unmap(memory, PAGE)
}
