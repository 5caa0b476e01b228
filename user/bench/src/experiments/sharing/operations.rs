//! The operations, each with the objects that a worker prepares for it.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::{mem, ptr, thread};

use crate::mapping::{Mapping, PAGE};
use crate::options::NOTHING;
use crate::partner::{futex_wait, futex_wake};
use crate::{Failure, call};

/// Does it once.
pub type Operation = Box<dyn FnMut() -> Result<(), Failure>>;

/// Who the workers are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Processes,
    Threads,
}

/// A row.
pub struct Kind {
    pub name: &'static str,
    pub who: Who,
    /// Operations that a worker does in a batch.
    pub batch: u64,
    /// Makes the objects of the worker with this number; those that all share are made by each.
    pub prepare: fn(usize) -> Result<Operation, Failure>,
}

use Who::{Processes, Threads};

/// In the order of the help.
pub const ALL: &[Kind] = &[
    kind("getppid", Processes, 100, getppid),
    kind("map", Processes, 50, map_apart),
    kind("map-threads", Threads, 50, map_apart),
    kind("placed-threads", Threads, 50, map_placed),
    kind("dontneed-threads", Threads, 50, dont_need),
    kind("protect-threads", Threads, 50, protect),
    kind("shared-fault", Processes, 50, shared_fault),
    kind("brk", Processes, 50, brk),
    kind("open-close", Processes, 50, open_close),
    kind("stat", Processes, 50, stat),
    kind("create-unlink", Processes, 50, create_in_own),
    kind("create-unlink-one", Processes, 50, create_in_one),
    kind("rename", Processes, 50, rename),
    kind("getdents", Processes, 50, list),
    kind("pread", Processes, 50, pread),
    kind("pwrite", Processes, 50, pwrite),
    kind("pipe", Processes, 50, pipe),
    kind("unix-socket", Processes, 50, unix_socket),
    kind("tcp", Processes, 50, tcp),
    kind("futex-threads", Threads, 50, futex),
    kind("epoll", Processes, 50, epoll),
    kind("signal", Processes, 50, signal),
    kind("timer", Processes, 50, timer),
    kind("dup-threads", Threads, 50, dup),
    kind("kill", Processes, 50, kill),
    kind("stat-of-process", Processes, 50, stat_of_process),
    kind("clone", Processes, 20, clone),
    kind("fork", Processes, 20, fork),
    kind("exec", Processes, 10, exec),
];

const fn kind(
    name: &'static str,
    who: Who,
    batch: u64,
    prepare: fn(usize) -> Result<Operation, Failure>,
) -> Kind {
    Kind {
        name,
        who,
        batch,
        prepare,
    }
}

/// Bytes of the mappings.
const MAPPED: usize = 4 * PAGE;
/// Where the mappings of workers stand, and how far apart: none shares a page table's page.
const FIRST: usize = 0x2000_0000_0000;
const APART: usize = 64 << 20;
const RIGHTS: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A folder for the workers' files.
fn folder() -> Result<PathBuf, Failure> {
    let folder = std::env::temp_dir().join("sharing");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Removes all files of a row.
pub fn clean() {
    // There may be none.
    let _ = fs::remove_dir_all(std::env::temp_dir().join("sharing"));
}

fn path(path: &Path) -> Result<CString, Failure> {
    let bytes = path.as_os_str().as_encoded_bytes();
    CString::new(bytes).map_err(|_| "a zero in a path".into())
}

/// Returns a file that all workers share, with a page for each of them.
fn one_file() -> Result<File, Failure> {
    let options = || File::options().read(true).write(true).create(true).clone();
    let file = options().open(folder()?.join("one"))?;
    file.set_len(256 * PAGE as u64)?;
    Ok(file)
}

fn getppid(_: usize) -> Result<Operation, Failure> {
    Ok(Box::new(|| call!(syscall(libc::SYS_getppid)).map(drop)))
}

/// Writes a byte into each page.
fn write_pages(at: *mut u8, len: usize) {
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: the caller's own mapping, of that length.
        unsafe { at.add(offset).write_volatile(1) };
    }
}

/// Maps at an address of the worker's own.
fn mapped_apart(index: usize) -> Result<*mut u8, Failure> {
    let place = ptr::without_provenance_mut(FIRST + index * APART);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    Ok(call!(mmap(place, MAPPED, RIGHTS, flags, -1, 0))?.cast())
}

fn map_apart(index: usize) -> Result<Operation, Failure> {
    Ok(Box::new(move || {
        let at = mapped_apart(index)?;
        write_pages(at, MAPPED);
        call!(munmap(at.cast(), MAPPED)).map(drop)
    }))
}

fn map_placed(_: usize) -> Result<Operation, Failure> {
    Ok(Box::new(|| {
        Mapping::zero_fill(MAPPED)?.write_pages();
        Ok(())
    }))
}

fn dont_need(index: usize) -> Result<Operation, Failure> {
    let at = mapped_apart(index)?;
    Ok(Box::new(move || {
        write_pages(at, MAPPED);
        call!(madvise(at.cast(), MAPPED, libc::MADV_DONTNEED)).map(drop)
    }))
}

fn protect(index: usize) -> Result<Operation, Failure> {
    let at = mapped_apart(index)?;
    Ok(Box::new(move || {
        call!(mprotect(at.cast(), MAPPED, libc::PROT_READ))?;
        call!(mprotect(at.cast(), MAPPED, RIGHTS))?;
        write_pages(at, MAPPED);
        Ok(())
    }))
}

fn shared_fault(index: usize) -> Result<Operation, Failure> {
    let file = one_file()?;
    let flags = libc::MAP_SHARED;
    let memory = Mapping::new(Some(&file), 256 * PAGE, RIGHTS, flags)?.small();
    // No fault-ahead maps a neighbour's page.
    memory.advise(libc::MADV_RANDOM)?;
    let page = index % 256 * PAGE;
    memory.write_part(page, page + PAGE);
    Ok(Box::new(move || {
        // SAFETY: a page of the mapping, which the closure owns.
        let own = unsafe { memory.at().add(page) };
        call!(madvise(own.cast(), PAGE, libc::MADV_DONTNEED))?;
        memory.read_part(page, page + PAGE);
        Ok(())
    }))
}

fn brk(_: usize) -> Result<Operation, Failure> {
    Ok(Box::new(|| {
        // By bare calls: the library's heap does not know of them, and is not used in between.
        let end = call!(syscall(libc::SYS_brk, 0))? as usize;
        call!(syscall(libc::SYS_brk, end + PAGE))?;
        write_pages(ptr::with_exposed_provenance_mut(end), 1);
        call!(syscall(libc::SYS_brk, end)).map(drop)
    }))
}

fn open_close(index: usize) -> Result<Operation, Failure> {
    let own = folder()?.join(format!("open-{index}"));
    File::create(&own)?;
    let own = path(&own)?;
    Ok(Box::new(move || {
        let file = call!(open(own.as_ptr(), libc::O_RDONLY))?;
        call!(close(file)).map(drop)
    }))
}

fn stat(_: usize) -> Result<Operation, Failure> {
    one_file()?;
    let one = path(&folder()?.join("one"))?;
    Ok(Box::new(move || {
        // SAFETY: plain numbers, which the call fills in.
        let mut found: libc::stat = unsafe { mem::zeroed() };
        call!(stat(one.as_ptr(), &raw mut found)).map(drop)
    }))
}

/// Creates this file and removes it.
fn create(file: &Path) -> Result<Operation, Failure> {
    let file = path(file)?;
    Ok(Box::new(move || {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let made = call!(open(file.as_ptr(), flags, 0o644))?;
        call!(close(made))?;
        call!(unlink(file.as_ptr())).map(drop)
    }))
}

/// Returns a folder of the worker's own.
fn own_folder(index: usize) -> Result<PathBuf, Failure> {
    let own = folder()?.join(format!("of-{index}"));
    fs::create_dir_all(&own)?;
    Ok(own)
}

fn create_in_own(index: usize) -> Result<Operation, Failure> {
    create(&own_folder(index)?.join("file"))
}

fn create_in_one(index: usize) -> Result<Operation, Failure> {
    create(&folder()?.join(format!("file-{index}")))
}

fn rename(index: usize) -> Result<Operation, Failure> {
    let own = own_folder(index)?;
    File::create(own.join("a"))?;
    let names = [path(&own.join("a"))?, path(&own.join("b"))?];
    Ok(Box::new(move || {
        call!(rename(names[0].as_ptr(), names[1].as_ptr()))?;
        call!(rename(names[1].as_ptr(), names[0].as_ptr())).map(drop)
    }))
}

fn list(_: usize) -> Result<Operation, Failure> {
    one_file()?;
    let one = path(&folder()?)?;
    let file = call!(open(one.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY))?;
    Ok(Box::new(move || {
        let mut entries = [0u64; 512];
        let bytes = mem::size_of_val(&entries);
        call!(lseek(file, 0, libc::SEEK_SET))?;
        call!(syscall(
            libc::SYS_getdents64,
            file,
            entries.as_mut_ptr(),
            bytes
        ))
        .map(drop)
    }))
}

fn pread(_: usize) -> Result<Operation, Failure> {
    let file = one_file()?;
    file.write_all_at(&[1; PAGE], 0)?;
    Ok(Box::new(move || {
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 0).map_err(Into::into)
    }))
}

fn pwrite(index: usize) -> Result<Operation, Failure> {
    let file = one_file()?;
    let place = (index % 256 * PAGE) as u64;
    Ok(Box::new(move || {
        file.write_all_at(&[1; PAGE], place).map_err(Into::into)
    }))
}

/// Writes a byte at one end and reads it at the other.
fn pass(mut to: impl Write + 'static, mut from: impl Read + 'static) -> Operation {
    Box::new(move || {
        let mut byte = [1];
        to.write_all(&byte)?;
        from.read_exact(&mut byte).map_err(Into::into)
    })
}

/// Returns the ends of a pipe: to read from, and to write to.
fn new_pipe() -> Result<[File; 2], Failure> {
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    Ok(ends.map(owned))
}

fn pipe(_: usize) -> Result<Operation, Failure> {
    let [from, to] = new_pipe()?;
    Ok(pass(to, from))
}

fn unix_socket(_: usize) -> Result<Operation, Failure> {
    let (to, from) = UnixStream::pair()?;
    Ok(pass(to, from))
}

fn tcp(_: usize) -> Result<Operation, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = TcpStream::connect(listener.local_addr()?)?;
    let (from, _) = listener.accept()?;
    to.set_nodelay(true)?;
    Ok(pass(to, from))
}

fn futex(_: usize) -> Result<Operation, Failure> {
    /// A word on cache lines of its own.
    #[repr(align(128))]
    struct Word(AtomicU32);

    let word = Box::new(Word(AtomicU32::new(1)));
    Ok(Box::new(move || {
        futex_wake(&word.0, 1)?;
        futex_wait(&word.0, 0)
    }))
}

/// Takes the descriptor that a call has made.
fn owned(descriptor: libc::c_int) -> File {
    // SAFETY: the caller's call has just made it, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }.into()
}

fn epoll(_: usize) -> Result<Operation, Failure> {
    let poller = owned(call!(epoll_create1(0))?);
    let mut events = owned(call!(eventfd(0, 0))?);
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    let (poll, file) = (poller.as_raw_fd(), events.as_raw_fd());
    call!(epoll_ctl(poll, libc::EPOLL_CTL_ADD, file, &raw mut event))?;
    Ok(Box::new(move || {
        let mut count = 1u64.to_ne_bytes();
        events.write_all(&count)?;
        call!(epoll_wait(poller.as_raw_fd(), &raw mut event, 1, -1))?;
        events.read_exact(&mut count).map_err(Into::into)
    }))
}

fn signal(_: usize) -> Result<Operation, Failure> {
    extern "C" fn handler(_: libc::c_int) {}

    call!(signal(
        libc::SIGUSR1,
        handler as *const () as libc::sighandler_t
    ))?;
    Ok(Box::new(|| call!(raise(libc::SIGUSR1)).map(drop)))
}

fn timer(_: usize) -> Result<Operation, Failure> {
    let timer = owned(call!(timerfd_create(libc::CLOCK_MONOTONIC, 0))?);
    Ok(Box::new(move || {
        for seconds in [100, 0] {
            // SAFETY: plain numbers.
            let mut value: libc::itimerspec = unsafe { mem::zeroed() };
            value.it_value.tv_sec = seconds;
            let old = ptr::null_mut();
            call!(timerfd_settime(timer.as_raw_fd(), 0, &raw const value, old))?;
        }
        Ok(())
    }))
}

fn dup(_: usize) -> Result<Operation, Failure> {
    let [_from, to] = new_pipe()?;
    Ok(Box::new(move || {
        let copy = call!(dup(to.as_raw_fd()))?;
        call!(close(copy)).map(drop)
    }))
}

fn kill(_: usize) -> Result<Operation, Failure> {
    // SAFETY: asks for a number. The process waits for the row.
    let group = unsafe { libc::getpgrp() };
    Ok(Box::new(move || call!(kill(group, 0)).map(drop)))
}

fn stat_of_process(_: usize) -> Result<Operation, Failure> {
    let own = path(Path::new("/proc/self/stat"))?;
    Ok(Box::new(move || {
        let mut text = [0u8; 1024];
        let file = call!(open(own.as_ptr(), libc::O_RDONLY))?;
        call!(read(file, text.as_mut_ptr().cast(), text.len()))?;
        call!(close(file)).map(drop)
    }))
}

fn clone(_: usize) -> Result<Operation, Failure> {
    Ok(Box::new(|| {
        let thread = thread::Builder::new().spawn(|| ())?;
        thread.join().map_err(|_| "a thread panicked".into())
    }))
}

/// Waits for the end of a child.
fn wait(child: libc::pid_t) -> Result<(), Failure> {
    call!(waitpid(child, ptr::null_mut(), 0)).map(drop)
}

fn fork(_: usize) -> Result<Operation, Failure> {
    Ok(Box::new(|| {
        let child = call!(fork())?;
        if child == 0 {
            // SAFETY: ends the process without the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        wait(child)
    }))
}

fn exec(_: usize) -> Result<Operation, Failure> {
    let own: OsString = std::env::current_exe()?.into();
    Ok(Box::new(move || {
        let word = NOTHING.to_str().unwrap_or_default();
        let status = Command::new(&own).arg(word).status()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the program ended with {status}").into()),
        }
    }))
}
