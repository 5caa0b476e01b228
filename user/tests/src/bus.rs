//! `/sys/bus/pci`: functions, and memory of devices that programs map. The host provides `ivshmem`,
//! whose memory it compares afterwards, and `edu`, which has registers.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("bus: what /sys tells of functions", listed),
    ("bus: the memory of a device is mapped", memory),
    ("bus: it follows what becomes of its map", changes),
    ("bus: calls get no frame of it", frames),
    ("bus: registers of a device", registers),
    ("bus: mappings of a device share their futexes", futexes),
    ("bus: a device is lent while it is mapped", lent),
    ("bus: who may not", rights),
];

const DEVICES: &str = "/sys/bus/pci/devices";
const READ_WRITE: c_int = PROT_READ | PROT_WRITE;
/// Bytes of the host's `ivshmem`.
const SIZE: usize = 1 << 20;

/// The folder of the first function with this vendor and device.
fn find(vendor: &str, device: &str) -> Result<String> {
    for entry in fs::read_dir(DEVICES)? {
        let folder = entry?.path().display().to_string();
        let is = |name: &str, wanted: &str| {
            read_text(&format!("{folder}/{name}")).is_ok_and(|text| text.trim() == wanted)
        };
        if is("vendor", vendor) && is("device", device) {
            return Ok(folder);
        }
    }
    Err(skip(format!("there is no device {vendor}:{device}")))
}

fn shared_memory() -> Result<String> {
    Ok(format!("{}/resource2", find("0x1af4", "0x1110")?))
}

fn open_it(path: &str) -> Result<c_int> {
    let path = c(path);
    Ok(call!(open(path.as_ptr(), O_RDWR | O_CLOEXEC)))
}

fn map_it(path: &str, size: usize) -> Result<*mut u8> {
    let file = open_it(path)?;
    let memory = map_with(size, READ_WRITE, MAP_SHARED, file)?;
    call!(close(file));
    Ok(memory)
}

fn listed() -> Outcome {
    let mut count = 0;
    for entry in fs::read_dir(DEVICES)? {
        let folder = entry?.path().display().to_string();
        for name in ["vendor", "device", "class", "revision"] {
            let text = read_text(&format!("{folder}/{name}"))?;
            ensure!(text.starts_with("0x"), text);
        }
        let resource = read_text(&format!("{folder}/resource"))?;
        equal!(resource.lines().count(), 6);
        for (number, line) in resource.lines().enumerate() {
            let numbers: Vec<u64> = line
                .split(' ')
                .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
                .collect();
            let [first, last, flags] = numbers[..] else {
                return Err(Failure::from(format!("{folder}: {line}")));
            };
            let file = format!("{folder}/resource{number}");
            let is_memory = flags & 0x200 != 0 && first != 0;
            ensure!(
                first <= last && Path::new(&file).exists() == is_memory,
                line
            );
        }
        let real = fs::canonicalize(&folder)?;
        ensure!(real.starts_with("/sys/devices/pci0000:00"), real);
        count += 1;
    }
    ensure!(count > 0, "no function");
    Ok(())
}

fn memory() -> Outcome {
    let path = shared_memory()?;
    let memory = map_it(&path, SIZE)?;
    for page in 0..SIZE / PAGE {
        poke(memory.wrapping_add(page * PAGE + page), page as u8 ^ 0x5a);
    }
    // Another mapping shows the same, and so does a child's.
    let other = map_it(&path, SIZE)?;
    child(|| {
        for page in 0..SIZE / PAGE {
            let at = other.wrapping_add(page * PAGE + page);
            equal!(peek(at), page as u8 ^ 0x5a, page);
            poke(at.wrapping_add(1), page as u8 ^ 0xa5);
        }
        Ok(())
    })?;
    for page in 0..SIZE / PAGE {
        let at = memory.wrapping_add(page * PAGE + page + 1);
        equal!(peek(at), page as u8 ^ 0xa5, page);
    }
    let maps = read_text("/proc/self/maps")?;
    ensure!(maps.lines().any(|line| line.ends_with("/resource2")), maps);
    unmap(memory, SIZE)?;
    unmap(other, SIZE)
}

fn changes() -> Outcome {
    let memory = map_it(&shared_memory()?, SIZE)?;
    let at = memory.wrapping_add(3 * PAGE + 100);
    poke(at, 1);
    // Rights.
    call!(mprotect(memory.cast(), SIZE, PROT_READ));
    let place = at as usize;
    faults(SIGSEGV, SEGV_ACCERR, place, || poke(at, 2))?;
    equal!(peek(at), 1);
    call!(mprotect(memory.cast(), SIZE, READ_WRITE));
    poke(at, 2);
    // Both sides of a fork write, and see each other.
    child(|| {
        equal!(peek(at), 2);
        poke(at, 3);
        Ok(())
    })?;
    equal!(peek(at), 3);
    poke(at, 4);
    // Discarding takes nothing from the device, and moves keep it.
    call!(madvise(memory.cast(), SIZE, MADV_DONTNEED));
    equal!(peek(at), 4);
    let target = map(SIZE)?;
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    let moved = call!(mremap(memory.cast(), SIZE, SIZE, flags, target));
    ensure!(moved.cast() == target);
    equal!(peek(target.wrapping_add(3 * PAGE + 100)), 4);
    faults(SIGSEGV, SEGV_MAPERR, place, || _ = peek(at))?;
    // What was unmapped is gone.
    let rest = target.wrapping_add(2 * PAGE);
    unmap(rest, SIZE - 2 * PAGE)?;
    faults(SIGSEGV, SEGV_MAPERR, rest as usize, || _ = peek(rest))?;
    unmap(target, 2 * PAGE)?;
    // Behind the device's end.
    let file = open_it(&shared_memory()?)?;
    let end = call!(mmap(
        null_mut(),
        PAGE,
        READ_WRITE,
        MAP_SHARED,
        file,
        SIZE as off_t
    ));
    faults(SIGBUS, BUS_ADRERR, end as usize, || _ = peek(end.cast()))?;
    unmap(end.cast(), PAGE)?;
    // Private: to be read only.
    let private = map_with(PAGE, READ_WRITE, MAP_PRIVATE, file)?;
    peek(private);
    faults(SIGBUS, BUS_ADRERR, private as usize, || poke(private, 1))?;
    call!(close(file));
    unmap(private, PAGE)
}

fn frames() -> Outcome {
    let memory = map_it(&shared_memory()?, SIZE)?;
    let text = b"through a call";
    let (reader, writer) = pipe(0)?;
    for (at, byte) in text.iter().enumerate() {
        poke(memory.wrapping_add(at), *byte);
    }
    // Calls that copy by the program's own addresses reach the device.
    equal!(
        call!(write(writer, memory.cast(), text.len())),
        text.len() as isize
    );
    let to = memory.wrapping_add(PAGE);
    equal!(
        call!(read(reader, to.cast(), text.len())),
        text.len() as isize
    );
    for (at, byte) in text.iter().enumerate() {
        equal!(peek(to.wrapping_add(at)), *byte);
    }
    // Those that need a frame do not, and say so.
    let own = [0u8; 8];
    let local = iovec {
        iov_base: own.as_ptr().cast_mut().cast(),
        iov_len: 8,
    };
    let remote = iovec {
        iov_base: memory.cast(),
        iov_len: 8,
    };
    // SAFETY: asks for a number.
    let me = unsafe { getpid() };
    refused!(EFAULT, process_vm_readv(me, &local, 1, &remote, 1, 0));
    refused!(EFAULT, process_vm_writev(me, &local, 1, &remote, 1, 0));
    refused!(
        EINVAL,
        read(
            open_it(&shared_memory()?)?,
            own.as_ptr().cast_mut().cast(),
            8
        )
    );
    for advice in [MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED] {
        call!(madvise(memory.cast(), SIZE, advice));
    }
    call!(msync(memory.cast(), SIZE, MS_SYNC));
    call!(mlock(memory.cast(), 4 * PAGE));
    call!(munlock(memory.cast(), 4 * PAGE));
    equal!(peek(memory), text[0]);
    for descriptor in [reader, writer] {
        call!(close(descriptor));
    }
    unmap(memory, SIZE)
}

fn registers() -> Outcome {
    let folder = find("0x1234", "0x11e8")?;
    let memory = map_it(&format!("{folder}/resource0"), SIZE)?;
    let load = |at: usize| {
        // SAFETY: a register in the mapping, aligned.
        unsafe { memory.wrapping_add(at).cast::<u32>().read_volatile() }
    };
    let store = |at: usize, value: u32| {
        // SAFETY: as in `load`.
        unsafe { memory.wrapping_add(at).cast::<u32>().write_volatile(value) }
    };
    equal!(load(0) & 0xff, 0xed, "its identity");
    // The register inverts what is stored.
    for value in [0, 0x1234_5678, 0xffff_0000] {
        store(4, value);
        equal!(load(4), !value);
    }
    // It computes: a factorial, some time later.
    store(8, 6);
    let mut tries = 0;
    while load(0x20) & 1 != 0 {
        tries += 1;
        ensure!(tries < 1000, "the device does not answer");
        pause_ms(1);
    }
    equal!(load(8), 720);
    unmap(memory, SIZE)
}

/// Two processes take turns by words in mappings of their own.
fn futexes() -> Outcome {
    const ROUNDS: u32 = 50;
    let path = shared_memory()?;
    let words = |memory: *mut u8| {
        let first = memory.cast::<AtomicU32>();
        // SAFETY: two words in the mapping, aligned, which stays.
        unsafe { (&*first, &*first.wrapping_add(1)) }
    };
    let wait = |word: &AtomicU32, before: u32| -> Outcome {
        let most = timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        while word.load(SeqCst) == before {
            let result = futex(word, FUTEX_WAIT, before, Some(&most));
            ensure!(result == 0 || errno() != ETIMEDOUT, "no wake-up");
        }
        Ok(())
    };
    let memory = map_it(&path, PAGE)?;
    let (mine, theirs) = words(memory);
    mine.store(0, SeqCst);
    theirs.store(0, SeqCst);
    let other = spawn(|| {
        let memory = map_it(&path, PAGE)?;
        let (theirs, mine) = words(memory);
        for round in 0..ROUNDS {
            wait(theirs, round)?;
            mine.store(round + 1, SeqCst);
            futex(mine, FUTEX_WAKE, 1, None);
        }
        Ok(())
    })?;
    for round in 0..ROUNDS {
        mine.store(round + 1, SeqCst);
        futex(mine, FUTEX_WAKE, 1, None);
        wait(theirs, round)?;
    }
    wait_all(vec![other])?;
    unmap(memory, PAGE)
}

/// The host shares a folder by a device that the kernel takes when it is mounted.
fn lent() -> Outcome {
    let folder = find("0x1af4", "0x1049")?;
    let (at, tag) = (c("/tmp/lent"), c("lent"));
    call!(mkdir(at.as_ptr(), 0o700));
    let mount_it = || {
        let (kind, options) = (c("9p"), c("trans=virtio"));
        // SAFETY: texts that end.
        let result = unsafe {
            mount(
                tag.as_ptr(),
                at.as_ptr(),
                kind.as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        if result == 0 { Ok(()) } else { Err(errno()) }
    };
    // Another mapping of the same memory accesses it in the same way.
    let (plain, merged) = (
        format!("{folder}/resource4"),
        format!("{folder}/resource4_wc"),
    );
    let merged = open_it(&merged)?;
    let memory = map_it(&plain, PAGE)?;
    let other = map_it(&plain, PAGE)?;
    unmap(memory, PAGE)?;
    let merge = || map_with(PAGE, READ_WRITE, MAP_SHARED, merged);
    ensure!(merge().is_err() && errno() == EBUSY);
    equal!(mount_it(), Err(ENOENT), "while programs have it");
    unmap(other, PAGE)?;
    unmap(merge()?, PAGE)?;
    // An open file does not keep it.
    equal!(mount_it(), Ok(()));
    ensure!(merge().is_err() && errno() == EBUSY);
    call!(close(merged));
    call!(umount2(at.as_ptr(), 0));
    Ok(())
}

fn rights() -> Outcome {
    let path = shared_memory()?;
    let mut busy = 0;
    for entry in fs::read_dir(DEVICES)? {
        let folder = entry?.path().display().to_string();
        // Disks.
        if read_text(&format!("{folder}/device"))?.trim() != "0x1042" {
            continue;
        }
        // The kernel drives the host's disks: their registers would reach all memory.
        for number in 0..6 {
            let file = format!("{folder}/resource{number}");
            if Path::new(&file).exists() {
                let file = open_it(&file)?;
                refused!(
                    EBUSY,
                    mmap(null_mut(), PAGE, PROT_READ, MAP_SHARED, file, 0)
                );
                call!(close(file));
                busy += 1;
            }
        }
    }
    ensure!(busy > 0, "no device of the kernel's was tried");
    child(|| {
        call!(setgid(1000));
        call!(setuid(1000));
        let path = c(&path);
        refused!(EACCES, open(path.as_ptr(), O_RDONLY));
        Ok(())
    })
}
