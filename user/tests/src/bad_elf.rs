//! Damaged programs: they may cause an error of `execve` or a killed process, nothing else.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("bad ELF: a small program runs", good),
    ("bad ELF: damaged headers", headers),
    ("bad ELF: random damage", random),
    ("bad ELF: cut off", cut_off),
    ("bad ELF: a real program with random damage", real_program),
];

/// Address at which the small program is loaded.
const BASE: u64 = 0x40_0000;

/// The smallest program: one segment, whose code exits with 42.
fn small() -> Vec<u8> {
    let code: &[u8] = &[
        0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
        0xbf, 42, 0, 0, 0, // mov edi, 42
        0x0f, 0x05, // syscall
        0x0f, 0x0b, // ud2
    ];
    let mut bytes = Vec::new();
    bytes.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |bytes: &mut Vec<u8>, value: u16| bytes.extend_from_slice(&value.to_le_bytes());
    let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend_from_slice(&value.to_le_bytes());
    let long = |bytes: &mut Vec<u8>, value: u64| bytes.extend_from_slice(&value.to_le_bytes());
    half(&mut bytes, 2); // e_type: executable
    half(&mut bytes, 62); // e_machine: x86-64
    word(&mut bytes, 1);
    long(&mut bytes, BASE + 120); // e_entry
    long(&mut bytes, 64); // e_phoff
    long(&mut bytes, 0);
    word(&mut bytes, 0);
    for value in [64, 56, 1, 0, 0, 0] {
        half(&mut bytes, value); // e_ehsize, e_phentsize, e_phnum, ...
    }
    word(&mut bytes, 1); // p_type: load
    word(&mut bytes, 5); // p_flags: read, execute
    long(&mut bytes, 0); // p_offset
    long(&mut bytes, BASE);
    long(&mut bytes, BASE);
    let size = (120 + code.len()) as u64;
    long(&mut bytes, size); // p_filesz
    long(&mut bytes, size); // p_memsz
    long(&mut bytes, 4096); // p_align
    bytes.extend_from_slice(code);
    bytes
}

/// How a program ended, or the error of `execve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Ended(End),
    Refused(i32),
}

fn run(bytes: &[u8]) -> Result<Fate> {
    let path = format!("{}/program", folder("elf")?);
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let path = c(&path);
    // The error comes back through shared memory.
    let shared = shared_map(4096)?.cast::<i32>();
    // SAFETY: a live shared map.
    unsafe { shared.write(0) };
    let child = spawn(|| {
        let null = call_open_null();
        // SAFETY: plain calls with valid arguments; a damaged program may run into anything, so it
        // gets no output, a short time, and not much memory.
        unsafe {
            libc::dup2(null, 0);
            libc::dup2(null, 1);
            libc::dup2(null, 2);
            libc::alarm(3);
            let limit = limit_of(256 << 20);
            libc::setrlimit(RLIMIT_AS, &limit);
            let words = [path.as_ptr(), c"--list".as_ptr(), ptr::null()];
            libc::execve(path.as_ptr(), words.as_ptr(), words[2..].as_ptr());
            shared.write(errno());
        }
        exit(0)
    })?;
    let end = wait(child)?;
    // SAFETY: the child is gone.
    let error = unsafe { shared.read() };
    // SAFETY: not used any more.
    unsafe { libc::munmap(shared.cast(), 4096) };
    Ok(if error == 0 {
        Fate::Ended(end)
    } else {
        Fate::Refused(error)
    })
}

fn call_open_null() -> i32 {
    // SAFETY: opens a device.
    unsafe { libc::open(c"/dev/null".as_ptr(), O_RDWR) }
}

fn good() -> Outcome {
    let fate = run(&small())?;
    ensure!(fate == Fate::Ended(End::Exit(42)), "{fate:?}");
    Ok(())
}

fn headers() -> Outcome {
    let enoexec = Fate::Refused(ENOEXEC);
    let refused: &[(&str, usize, u8)] = &[
        ("the magic number", 0, 0),
        ("the machine", 18, 3),
        ("the type", 16, 9),
        ("the size of a program header", 54, 11),
        ("no program headers", 56, 0),
    ];
    for &(what, at, value) in refused {
        let mut bytes = small();
        bytes[at] = value;
        let fate = run(&bytes)?;
        ensure!(fate == enoexec, "{what}: {fate:?}");
    }
    // The kernel only has to survive these: Linux refuses some and kills others.
    let survived: &[(usize, u64)] = &[
        (24, 0),                     // entry
        (24, 0xffff_8000_0000_0000), // entry in the kernel
        (24, 0x8000_0000_0000_0000), // entry not canonical
        (32, u64::MAX),              // program headers far away
        (32, 1 << 40),               //
        (72, u64::MAX - 4095),       // offset
        (72, 1 << 62),               //
        (80, 0xffff_8000_0000_0000), // address in the kernel
        (80, 0x7fff_ffff_f000),      // address at the top
        (80, u64::MAX - 4095),       //
        (80, 0),                     // address zero
        (96, u64::MAX),              // size in the file
        (96, 1 << 40),               //
        (104, 0),                    // size in memory below that in the file
        (104, u64::MAX),             //
        (104, 1 << 46),              //
        (112, 3),                    // alignment
    ];
    for &(at, value) in survived {
        let mut bytes = small();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let fate = run(&bytes)?;
        let ran = fate == Fate::Ended(End::Exit(42));
        ensure!(!ran || at == 112 || at == 72, at, value);
    }
    Ok(())
}

fn random() -> Outcome {
    let seed = u64::from(std::process::id());
    let mut numbers = Numbers::new(seed);
    for _ in 0..150 {
        let mut bytes = small();
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(120) as usize;
            bytes[at] = numbers.next() as u8;
        }
        run(&bytes).map_err(|why| format!("{why} (seed {seed})"))?;
    }
    Ok(())
}

fn cut_off() -> Outcome {
    let bytes = small();
    for size in [1, 4, 15, 16, 17, 40, 63, 64, 65, 100, 119] {
        let fate = run(&bytes[..size])?;
        ensure!(fate != Fate::Ended(End::Exit(42)), "{size} bytes ran");
    }
    Ok(())
}

fn real_program() -> Outcome {
    let seed = u64::from(std::process::id());
    let mut numbers = Numbers::new(seed);
    let program = fs::read("/proc/self/exe")?;
    for _ in 0..25 {
        let mut bytes = program.clone();
        for _ in 0..1 + numbers.below(6) {
            let at = numbers.below(64 + 56 * 12) as usize;
            bytes[at] = numbers.next() as u8;
        }
        if numbers.below(4) == 0 {
            bytes.truncate(numbers.below(bytes.len() as u64) as usize);
        }
        run(&bytes).map_err(|why| format!("{why} (seed {seed})"))?;
    }
    Ok(())
}
