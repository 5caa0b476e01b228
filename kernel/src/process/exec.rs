//! `execve`: from a file to a running program.
//!
//! [`load`] builds the whole new address space beside the old one, so that every error comes
//! back to the caller; [`replace`] then can't fail any more.

use alloc::{sync::Arc, vec, vec::Vec};

use abi::{Errno, Result, raw::auxvec, raw::general as raw};
use core::sync::atomic::Ordering::Relaxed;
use fbuf::BytesSink;
use fs::{Kind, Location, namespace::Walk};
use nucleus::{
    PAGE_SIZE, Prot, VirtAddr, VirtRange, addr::USER_END, processor, random, task, trap,
};
use vm::{Backing, Map, MapError, MapRequest, Place};

pub use super::stack::{Word, words};
use super::{Credentials, FsContext, Layout, Limits, Own, Space, Thread, family, stack::Stack};
use crate::{
    elf::{self, Program},
    files, futex, syscall,
};

/// How deep scripts may be interpreted by scripts, as on Linux.
const SCRIPTS_MAX: usize = 5;
/// Bytes of stack that are mapped at once; more by faults.
const STACK_START: usize = 33 * PAGE_SIZE;
/// The least room for arguments and environment, whatever the stack's limit.
const ARGUMENTS_MIN: u64 = 32 * PAGE_SIZE as u64;
/// The most room for them: three quarters of the usual stack.
const ARGUMENTS_MAX: u64 = raw::_STK_LIM as u64 / 4 * 3;

/// What to run, and as whom.
pub struct Request<'a> {
    pub file: Location,
    /// The path as it was given (`AT_EXECFN`, and the name of the process).
    pub path: Vec<u8>,
    pub arguments: Vec<Word>,
    pub environment: Vec<Word>,
    pub credentials: &'a Arc<Credentials>,
    pub fs: &'a FsContext,
    pub limits: &'a Limits,
    /// Nothing is randomised.
    pub fixed_layout: bool,
    /// Set-id bits have no effect.
    pub no_new_privileges: bool,
}

/// A program, ready to run.
pub struct Loaded {
    pub space: Arc<Space>,
    pub entry: u64,
    pub stack: u64,
    pub credentials: Arc<Credentials>,
    /// The process's new name.
    pub name: Vec<u8>,
    /// A set-id program gained rights.
    pub secure: bool,
}

/// Pointers that `execve` takes at most, for a stack limit.
pub fn words_max(limits: &Limits) -> usize {
    (room(limits) / 8) as usize
}

fn room(limits: &Limits) -> u64 {
    (limits.soft(raw::RLIMIT_STACK) / 4).clamp(ARGUMENTS_MIN, ARGUMENTS_MAX)
}

fn no_memory(error: MapError) -> Errno {
    match error {
        MapError::Invalid | MapError::Exists => Errno::ENOEXEC,
        _ => Errno::ENOMEM,
    }
}

/// Checks that `file` may be executed.
fn check(file: &Location, credentials: &Credentials) -> Result<()> {
    let attributes = file.attributes()?;
    if attributes.kind != Kind::Regular {
        return Err(Errno::EACCES);
    }
    if !credentials.fs.may(&attributes, 1) {
        return Err(Errno::EACCES);
    }
    Ok(())
}

fn read(file: &Location, offset: u64, to: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < to.len() {
        let mut sink = BytesSink {
            to: &mut to[filled..],
            filled: 0,
        };
        let n = file.vnode().read(offset + filled as u64, &mut sink)?;
        if n == 0 {
            break;
        }
        filled += n;
    }
    Ok(filled)
}

/// Reads a program's headers.
fn program(file: &Location, start: &[u8]) -> Result<Program> {
    let header = elf::header(start)?;
    let mut table = vec![0; header.table_count * elf::PROGRAM_HEADER_LEN];
    if read(file, header.table_offset, &mut table)? != table.len() {
        return Err(Errno::ENOEXEC);
    }
    elf::program(header, &table)
}

/// Builds the address space for a program.
///
/// # Errors
/// `ENOEXEC`, `EACCES`, `ENOENT`, `ELOOP`, `E2BIG`, `ENOMEM`, `EFAULT`, and what the file system answers.
pub fn load(request: Request<'_>) -> Result<Loaded> {
    let Request {
        mut file,
        path,
        mut arguments,
        environment,
        credentials,
        fs,
        limits,
        fixed_layout,
        no_new_privileges,
    } = request;
    let mut interpreter_path = path.clone();
    let mut start = [0; elf::SCRIPT_LINE_MAX];
    let mut depth = 0;
    let program = loop {
        check(&file, credentials)?;
        let len = read(&file, 0, &mut start)?;
        let Some((interpreter, argument)) = elf::script(&start[..len])? else {
            break program(&file, &start[..len])?;
        };
        depth += 1;
        if depth > SCRIPTS_MAX {
            return Err(Errno::ELOOP);
        }
        // interpreter [argument] script arguments...
        let mut words = vec![Word::Bytes(interpreter.clone())];
        words.extend(argument.map(Word::Bytes));
        words.push(Word::Bytes(interpreter_path));
        words.extend(arguments.into_iter().skip(1));
        arguments = words;
        file = find(fs, credentials, &interpreter)?;
        interpreter_path = interpreter;
    };
    if arguments.is_empty() {
        // Programs rely on a name at least; Linux does the same.
        arguments.push(Word::Bytes(Vec::new()));
    }

    let map = Map::new(limits.of_map(), fixed_layout).map_err(no_memory)?;
    // On an error from here on the map is given up like one whose program has ended.
    let map = Unfinished(Some(map));
    let (space, entry, stack, credentials, secure) = fill(
        map,
        &program,
        &file,
        &path,
        &arguments,
        &environment,
        credentials_for(&file, credentials, no_new_privileges)?,
        credentials,
        fs,
        limits,
    )?;
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or(&path).to_vec();
    Ok(Loaded {
        space,
        entry,
        stack,
        credentials,
        name,
        secure,
    })
}

/// A map that no [`Space`] owns yet.
struct Unfinished(Option<Arc<Map>>);

impl Unfinished {
    fn map(&self) -> &Arc<Map> {
        match &self.0 {
            Some(map) => map,
            None => unreachable!("the map is taken once, at the end"),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(map) = self.0.take() {
            map.tear_down();
        }
    }
}

fn find(fs: &FsContext, credentials: &Credentials, path: &[u8]) -> Result<Location> {
    let (root, cwd) = (fs.root(), fs.cwd());
    Walk {
        root: &root,
        start: &cwd,
        who: &credentials.fs,
    }
    .resolve(path, true)
}

#[allow(clippy::too_many_arguments)]
fn fill(
    mut unfinished: Unfinished,
    program: &Program,
    file: &Location,
    path: &[u8],
    arguments: &[Word],
    environment: &[Word],
    (new_credentials, secure): (Arc<Credentials>, bool),
    credentials: &Arc<Credentials>,
    fs: &FsContext,
    limits: &Limits,
) -> Result<(Arc<Space>, u64, u64, Arc<Credentials>, bool)> {
    let map = unfinished.map();
    let bias = place(map, program, false)?;
    segments(map, program, file, bias)?;
    let end = bias
        .wrapping_add(program.end)
        .next_multiple_of(PAGE_SIZE as u64);
    map.set_heap_start(VirtAddr(end as usize));
    let own_entry = bias.wrapping_add(program.header.entry);
    let mut entry = own_entry;
    let mut base = 0;
    if let Some((offset, len)) = program.interpreter {
        let mut interpreter = vec![0; len];
        if read(file, offset, &mut interpreter)? != len || interpreter.pop() != Some(0) {
            return Err(Errno::ENOEXEC);
        }
        let file = find(fs, credentials, &interpreter)?;
        check(&file, credentials)?;
        let mut start = [0; elf::HEADER_LEN];
        let len = read(&file, 0, &mut start)?;
        let loader = self::program(&file, &start[..len]).map_err(|error| match error {
            // As on Linux: the program is good, its interpreter is not.
            Errno::ENOEXEC => Errno::ELIBBAD,
            other => other,
        })?;
        let bias = place(map, &loader, true)?;
        segments(map, &loader, &file, bias)?;
        entry = bias.wrapping_add(loader.header.entry);
        base = bias;
    }

    let credentials = new_credentials;
    let top = map.layout().stack_top;
    map.map(MapRequest {
        place: Place::FixedNoReplace(VirtAddr(top.0 - STACK_START)),
        grows_down: true,
        label: "[stack]",
        ..MapRequest::zero(STACK_START, stack_prot(program))
    })
    .map_err(no_memory)?;
    let mut stack = Stack::new(map, top, room(limits) as usize + PAGE_SIZE);
    stack.push_word(0)?;
    stack.push_string(&Word::Bytes(path.to_vec()))?;
    let path_at = stack.pointer().0 as u64;
    let (environment_at, environment) = stack.push_strings(environment)?;
    let (arguments_at, arguments) = stack.push_strings(arguments)?;
    stack.push_string(&Word::Bytes(b"x86_64".to_vec()))?;
    let platform_at = stack.pointer().0 as u64;
    let mut seed = [0; 16];
    random::fill(&mut seed);
    stack.push(&seed)?;
    let random_at = stack.pointer().0 as u64;

    let table = match program.table_address {
        0 => 0,
        address => bias.wrapping_add(address),
    };
    let processor = processor::processor();
    let auxiliary = auxiliary(&[
        (auxvec::AT_HWCAP, processor.capabilities),
        (auxvec::AT_PAGESZ, PAGE_SIZE as u64),
        (auxvec::AT_CLKTCK, u64::from(syscall::CLOCK_TICKS)),
        (auxvec::AT_PHDR, table),
        (auxvec::AT_PHENT, elf::PROGRAM_HEADER_LEN as u64),
        (auxvec::AT_PHNUM, program.header.table_count as u64),
        (auxvec::AT_BASE, base),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, own_entry),
        (auxvec::AT_UID, u64::from(credentials.real_uid)),
        (auxvec::AT_EUID, u64::from(credentials.effective_uid)),
        (auxvec::AT_GID, u64::from(credentials.real_gid)),
        (auxvec::AT_EGID, u64::from(credentials.effective_gid)),
        (auxvec::AT_SECURE, u64::from(secure)),
        (auxvec::AT_RANDOM, random_at),
        (auxvec::AT_HWCAP2, processor.capabilities2),
        (auxvec::AT_EXECFN, path_at),
        (auxvec::AT_PLATFORM, platform_at),
        (
            auxvec::AT_MINSIGSTKSZ,
            trap::UserContext::fpu_size() as u64 + 512 + 256,
        ),
        (auxvec::AT_NULL, 0),
    ]);
    let pointers = 1 + arguments_at.len() + 1 + environment_at.len() + 1 + auxiliary.len();
    stack.align_for(pointers)?;
    for word in auxiliary.iter().rev() {
        stack.push_word(*word)?;
    }
    // The addresses come last string first, which is the order in which they are pushed.
    for list in [&environment_at, &arguments_at] {
        stack.push_word(0)?;
        for address in list {
            stack.push_word(*address)?;
        }
    }
    stack.push_word(arguments_at.len() as u64)?;
    stack.flush()?;
    let pointer = stack.pointer().0;

    let layout = Layout {
        exe: file.clone(),
        code: code(program, bias),
        arguments,
        environment,
        stack_start: pointer,
        auxiliary,
    };
    let Some(map) = unfinished.0.take() else {
        unreachable!("the map is taken once, here");
    };
    let space = Space::new(map, layout);
    Ok((space, entry, pointer as u64, credentials, secure))
}

fn stack_prot(program: &Program) -> Prot {
    let mut prot = Prot::READ | Prot::WRITE;
    prot.set(Prot::EXEC, program.executable_stack);
    prot
}

fn auxiliary(pairs: &[(u32, u64)]) -> Vec<u64> {
    pairs
        .iter()
        .flat_map(|(key, value)| [u64::from(*key), *value])
        .collect()
}

/// From the first to the last executable segment.
fn code(program: &Program, bias: u64) -> VirtRange {
    let code = || {
        program
            .segments
            .iter()
            .filter(|s| s.prot.contains(Prot::EXEC))
    };
    let start = code().map(|s| s.address).min().unwrap_or(program.start);
    let end = code()
        .map(|s| s.address + s.file_len)
        .max()
        .unwrap_or(program.start);
    VirtRange::new(
        VirtAddr(bias.wrapping_add(start) as usize),
        VirtAddr(bias.wrapping_add(end) as usize),
    )
}

/// What is to be added to the program's addresses; the room for it is free.
fn place(map: &Map, program: &Program, anywhere: bool) -> Result<u64> {
    if !program.header.relocatable {
        return Ok(0);
    }
    // Room for the alignment, of which the part that is not used is free again.
    let slack = program.align - PAGE_SIZE as u64;
    let len = program
        .end
        .checked_sub(program.start)
        .and_then(|len| len.checked_add(slack))
        .ok_or(Errno::ENOEXEC)?;
    let found = map
        .map(MapRequest {
            place: if anywhere {
                Place::Any
            } else {
                Place::Hint(map.layout().program_base)
            },
            ..MapRequest::zero(
                usize::try_from(len).map_err(|_| Errno::ENOMEM)?,
                Prot::empty(),
            )
        })
        .map_err(no_memory)?;
    let end = found
        .checked_add(len as usize)
        .and_then(VirtAddr::page_ceil)
        .ok_or(Errno::ENOMEM)?;
    map.unmap(VirtRange::new(found, end)).map_err(no_memory)?;
    let aligned = (found.0 as u64).next_multiple_of(program.align);
    // The first segment keeps its offset from the alignment.
    Ok(aligned.wrapping_sub(program.start & !(program.align - 1)))
}

/// Maps the segments of a program: file pages by the file's pager, zeros after them.
fn segments(map: &Map, program: &Program, file: &Location, bias: u64) -> Result<()> {
    let pager = file.pager().ok_or(Errno::ENOEXEC)?;
    let page = PAGE_SIZE as u64;
    for segment in &program.segments {
        let start = bias.wrapping_add(segment.address);
        let offset_in_page = start % page;
        let first = start - offset_in_page;
        let file_end = start + segment.file_len;
        let end = start + segment.memory_len;
        let file_pages_end = file_end.next_multiple_of(page);
        let pages_end = end.next_multiple_of(page);
        if pages_end > USER_END.0 as u64 || first < nucleus::addr::USER_START.0 as u64 {
            return Err(Errno::ENOEXEC);
        }
        let mut request = MapRequest {
            place: Place::Fixed(VirtAddr(first as usize)),
            backing: Backing::Object {
                pager: pager.clone(),
                offset: segment.file_offset - offset_in_page,
            },
            ..MapRequest::zero((file_pages_end - first) as usize, segment.prot)
        };
        if segment.file_len > 0 {
            map.map(request.clone()).map_err(no_memory)?;
        }
        let zeros_from = if segment.file_len > 0 {
            file_pages_end
        } else {
            first
        };
        if pages_end > zeros_from {
            request.place = Place::Fixed(VirtAddr(zeros_from as usize));
            request.len = (pages_end - zeros_from) as usize;
            request.backing = Backing::Zero;
            map.map(request).map_err(no_memory)?;
        }
        // The last page of the file part goes on with zeros, where the program may write at all.
        if segment.file_len > 0
            && segment.memory_len > segment.file_len
            && segment.prot.contains(Prot::WRITE)
        {
            let tail = (file_pages_end - file_end) as usize;
            let zeros = [0; PAGE_SIZE];
            if map.write(VirtAddr(file_end as usize), &zeros[..tail]) != tail {
                return Err(Errno::ENOEXEC);
            }
        }
    }
    Ok(())
}

/// The credentials that a program runs with: set-id bits applied.
fn credentials_for(
    file: &Location,
    old: &Arc<Credentials>,
    no_new_privileges: bool,
) -> Result<(Arc<Credentials>, bool)> {
    let mut attributes = file.attributes()?;
    if no_new_privileges {
        attributes.mode &= 0o777;
    }
    let mut new = Credentials::clone(old);
    if attributes.mode & raw::S_ISUID != 0 {
        new.effective_uid = attributes.uid;
    }
    if attributes.mode & (raw::S_ISGID | raw::S_IXGRP) == raw::S_ISGID | raw::S_IXGRP {
        new.effective_gid = attributes.gid;
    }
    let secure = new.effective_uid != new.real_uid || new.effective_gid != new.real_gid;
    new.saved_uid = new.effective_uid;
    new.saved_gid = new.effective_gid;
    new.fs.uid = new.effective_uid;
    new.fs.gid = new.effective_gid;
    Ok((Arc::new(new), secure))
}

/// Makes the current thread run what was loaded: the other threads of its process end, and what does not
/// outlive `execve` is given up.
///
/// # Errors
/// `EAGAIN` if the process is ending; `ENOMEM`. Nothing has changed then, but the other threads may be gone.
pub fn replace(
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &mut trap::UserContext,
    loaded: Loaded,
) -> Result<()> {
    // A table shared with another process stays as it is for that one.
    let files: Arc<files::Table> = own.files.duplicate()?;
    let process = thread.process();
    process.signals.become_only(thread)?;
    let leader = process.pid();
    if thread.tid() != leader {
        let old = thread.tid();
        thread.set_tid(leader);
        family::rename_thread(thread, old, leader);
    }

    futex::leave(thread, own);
    process.signals.own_actions();
    process.timers.clear_posix();
    files.close_on_exec();
    own.files = files;
    own.alt_stack = Default::default();
    own.restart = None;
    own.credentials = loaded.credentials;
    process.set_real_uid(own.credentials.real_uid);
    if loaded.secure {
        thread.set_parent_death_signal(0);
    }
    process.dumpable.store(u32::from(!loaded.secure), Relaxed);
    let old = core::mem::replace(&mut own.space, loaded.space);
    thread.publish(Some(own.shared()));
    task::set_pmap(Some(own.space.map().pmap().clone()));
    // Torn down here unless others still run in it.
    drop(old);
    if let Some(release) = own.vfork.take() {
        release.release();
    }
    thread.set_name(&loaded.name);
    process.has_executed.store(true, Relaxed);
    begin(context, loaded.entry, loaded.stack);
    Ok(())
}

/// Sets the registers for the start of a program.
pub fn begin(context: &mut trap::UserContext, entry: u64, stack: u64) {
    context.reset_fpu();
    context.regs = trap::Registers {
        rip: entry,
        rsp: stack,
        cs: 0x33,
        ss: 0x2b,
        rflags: 0x202,
        orig_rax: u64::MAX,
        ..trap::Registers::default()
    };
}
