//! From a file to an address space that is ready to run.

use alloc::{sync::Arc, vec::Vec};
use core::{
    iter,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use abi::{Errno, Result, raw::general as raw};
use fs::{Kind, Location, MountFlags, Running, credentials::READ, namespace::Walk};
use nucleus::PAGE_SIZE;
use vm::{Map, Randomness};

use super::{
    elf::{self, Class, Program, Script},
    held::Held,
    image,
    rights::{Grants, Rights, Withheld},
    stack::{self, Contents},
    vdso,
    words::Words,
};
use crate::process::{Credentials, FsContext, Layout, Limits, Space};

/// How deep scripts may be interpreted by scripts, as on Linux.
const SCRIPTS_MAX: usize = 5;
/// The least room for arguments and environment, whatever the stack's limit.
const ARGUMENTS_MIN: u64 = 32 * PAGE_SIZE as u64;
/// The most room for them: three quarters of the usual stack.
const ARGUMENTS_MAX: u64 = raw::_STK_LIM as u64 / 4 * 3;

/// Bits of `personality`.
const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;
const MMAP_PAGE_ZERO: u32 = 0x010_0000;
const ADDR_COMPAT_LAYOUT: u32 = 0x020_0000;
const READ_IMPLIES_EXEC: u32 = 0x040_0000;
/// Those that would make a set-id program easier to attack.
const CLEARED_BY_SET_ID: u32 =
    ADDR_NO_RANDOMIZE | MMAP_PAGE_ZERO | ADDR_COMPAT_LAYOUT | READ_IMPLIES_EXEC;

/// `/proc/sys/kernel/randomize_va_space`: 0 (fixed layouts), 1 (the heap follows the program), 2.
pub static RANDOMIZE: AtomicU32 = AtomicU32::new(2);

/// The program to run, and its credentials.
pub struct Request<'a> {
    pub file: Location,
    /// The path as it was given (`AT_EXECFN`, and the name of the process).
    pub path: Vec<u8>,
    pub arguments: Words,
    pub environment: Words,
    pub credentials: &'a Arc<Credentials>,
    pub fs: &'a FsContext,
    pub limits: &'a Limits,
    /// `personality`: whether anything is randomised.
    pub personality: u32,
    /// Why a set-id file may not have its effect.
    pub withheld: Withheld,
    /// The caller's address space: a small one is to be near it.
    pub beside: Option<&'a Map>,
    /// Charged for what is held until the program runs.
    pub held: Held,
}

pub struct Loaded {
    pub class: Class,
    pub space: Arc<Space>,
    pub entry: u64,
    pub stack: u64,
    pub credentials: Arc<Credentials>,
    /// The process's new name.
    pub name: Vec<u8>,
    /// A set-id program, which the caller's settings are not to hurt.
    pub secure: bool,
    /// It has rights that the caller does not have.
    pub raised: bool,
    /// The caller had renounced further rights.
    pub no_new_privileges: bool,
    /// It acts with other ids than the caller, or may do more.
    pub changed: bool,
    /// The process's new `personality`.
    pub personality: u32,
    /// The soft limit of its stack.
    pub stack_limit: u64,
    /// Dropped when the space is the caller's, which it is weighed with from then on.
    pub held: Held,
}

/// Pointers that `execve` takes at most, for a stack limit.
pub fn words_max(limits: &Limits) -> usize {
    room(limits) / size_of::<u64>()
}

/// Bytes for arguments and environment.
fn room(limits: &Limits) -> usize {
    (limits.soft(raw::RLIMIT_STACK) / 4).clamp(ARGUMENTS_MIN, ARGUMENTS_MAX) as usize
}

/// Builds the address space for a program.
///
/// # Errors
/// `ENOEXEC`, `EACCES`, `ENOENT`, `ELOOP`, `E2BIG`, `ENOMEM`, `EFAULT`, and those of the file
/// system.
pub fn load(request: Request<'_>) -> Result<Loaded> {
    let Request {
        file,
        path,
        arguments,
        mut environment,
        credentials: old,
        fs,
        limits,
        personality,
        withheld,
        beside,
        mut held,
    } = request;
    let (program, file, mut arguments) = interpret(file, &path, arguments, old, fs)?;
    if arguments.len() == 0 {
        // Programs rely on a name at least; Linux does the same.
        arguments.replace_first(iter::once(Vec::new()))?;
    }
    let text = Arc::new(Running::begin(file.vnode())?);
    let rights = old.execute(&Grants::of(&file, withheld)?, withheld)?;
    let Rights {
        secure,
        raised,
        changed,
        ..
    } = rights;
    let mut private = rights.private || !is_readable(&file, old);
    let credentials = Arc::new(rights.credentials);
    let personality = match rights.is_set_id {
        true => personality & !CLEARED_BY_SET_ID,
        false => personality,
    };
    let randomness = match RANDOMIZE.load(Relaxed) {
        _ if personality & ADDR_NO_RANDOMIZE != 0 => Randomness::Nothing,
        0 => Randomness::Nothing,
        1 => Randomness::ButHeap,
        _ => Randomness::Everything,
    };

    let class = program.header.class;
    let stack_limit = match limits.soft(raw::RLIMIT_STACK) {
        limit if secure => limit.min(raw::_STK_LIM.into()),
        limit => limit,
    };
    let of_map = vm::Limits {
        stack: stack_limit,
        ..limits.of_map()
    };
    let places = match class {
        Class::X64 => vm::Layout::new(stack_limit, randomness),
        Class::I386 => vm::Layout::for_32_bits(stack_limit, randomness),
    };
    let map = Map::with_layout(of_map, places).map_err(image::no_memory)?;
    if class == Class::I386
        && !private
        && let Some(user) = credentials.one_uid()
    {
        // One that can be anywhere looks for a place.
        let needed = match program.header.relocatable {
            true => program.end - program.start,
            false => program.end,
        };
        map.make_small(user, stack_limit, randomness, needed, beside);
    }
    let build = || {
        let main = image::map(&map, &program, &file, false)?;
        map.set_heap_start(main.end);
        let interpreter = program.interpreter;
        let loader = interpreter
            .map(|place| load_interpreter(&map, class, &file, place, old, fs, &mut private))
            .transpose()?;
        // 32-bit programs do without: their C library falls back to `int 0x80`.
        let vdso = match class {
            Class::X64 => Some(vdso::map(&map)?),
            Class::I386 => None,
        };
        let built = stack::build(
            &map,
            room(limits),
            program.executable_stack,
            &mut Contents {
                path: &path,
                arguments: &mut arguments,
                environment: &mut environment,
                credentials: &credentials,
                secure,
                main: &main,
                class,
                header_count: program.header.table_count,
                vdso: vdso.map_or(0, |at| at.0 as u64),
                loader_base: loader.as_ref().map_or(0, |loader| loader.bias),
            },
            &mut held,
        )?;
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(&path).to_vec();
        let layout = Layout {
            exe: file,
            _text: Some(text),
            code: main.code,
            arguments: built.arguments,
            environment: built.environment,
            stack_start: built.pointer.0,
            class,
            auxiliary: built.auxiliary,
        };
        let space = Space::new(map.clone(), layout);
        if private {
            space.make_private();
        } else if let Some(user) = credentials.one_uid() {
            space.trust(user);
        }
        Ok(Loaded {
            space,
            class,
            entry: loader.map_or(main.entry, |loader| loader.entry),
            stack: built.pointer.0 as u64,
            credentials,
            name,
            secure,
            raised,
            no_new_privileges: withheld.no_new_privileges,
            changed,
            personality,
            stack_limit,
            held,
        })
    };
    // No space owns the map after an error: it is torn down as after the end of a program.
    build().inspect_err(|_| map.tear_down())
}

/// Goes from a script to its interpreter until there is a program: the program, its file, and the
/// arguments with those of the scripts before them.
fn interpret(
    mut file: Location,
    path: &[u8],
    mut arguments: Words,
    credentials: &Credentials,
    fs: &FsContext,
) -> Result<(Program, Location, Words)> {
    let mut name = path.to_vec();
    for _ in 0..=SCRIPTS_MAX {
        check(&file, credentials)?;
        let mut start = [0; elf::SCRIPT_LINE_MAX];
        let len = image::read(&file, 0, &mut start)?;
        let Some(Script { path, argument }) = elf::script(&start[..len])? else {
            return Ok((image::program(&file, &start[..len])?, file, arguments));
        };
        // interpreter [argument] script arguments...
        let before = [Some(path.clone()), argument, Some(name)];
        arguments.replace_first(before.into_iter().flatten())?;
        file = find(fs, credentials, &path)?;
        name = path;
    }
    Err(Errno::ELOOP)
}

/// Maps the interpreter that a program names (`PT_INTERP`), beside the program. `private` is set if
/// the caller may not read it.
fn load_interpreter(
    map: &Map,
    class: Class,
    file: &Location,
    (offset, len): (u64, usize),
    credentials: &Credentials,
    fs: &FsContext,
    private: &mut bool,
) -> Result<image::Image> {
    let mut path = image::read_exactly(file, offset, len)?;
    if path.pop() != Some(0) {
        return Err(Errno::ENOEXEC);
    }
    let file = find(fs, credentials, &path)?;
    check(&file, credentials)?;
    *private |= !is_readable(&file, credentials);
    let mut start = [0; elf::HEADER_LEN];
    let len = image::read(&file, 0, &mut start)?;
    let loader = image::program(&file, &start[..len]).map_err(|error| match error {
        // As on Linux: the program is good, its interpreter is not.
        Errno::ENOEXEC => Errno::ELIBBAD,
        other => other,
    })?;
    if loader.header.class != class {
        return Err(Errno::ELIBBAD);
    }
    image::map(map, &loader, &file, true)
}

fn check(file: &Location, credentials: &Credentials) -> Result<()> {
    let attributes = file.attributes()?;
    if attributes.kind != Kind::Regular {
        return Err(Errno::EACCES);
    }
    if !credentials.fs.may(&attributes, 1) || file.mount().has(MountFlags::NO_EXECUTE) {
        return Err(Errno::EACCES);
    }
    Ok(())
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

/// Whether the bytes of a program are for those that execute it.
fn is_readable(file: &Location, credentials: &Credentials) -> bool {
    file.vnode().access(&credentials.fs, READ).is_ok()
}
