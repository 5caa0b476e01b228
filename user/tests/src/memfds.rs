//! Anonymous files and seals.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("memfds: a file in memory", in_memory),
    ("memfds: seals against writes", sealed_writes),
    ("memfds: seals against other sizes", sealed_sizes),
    ("memfds: seals and mappings", sealed_mappings),
];

/// A file of two pages.
fn make(flags: c_uint) -> Result<c_int> {
    let file = call!(memfd_create(c"some name".as_ptr(), flags));
    call!(ftruncate(file, 2 * PAGE as i64));
    Ok(file)
}

fn seal(file: c_int, seals: c_int) -> Outcome {
    call!(fcntl(file, F_ADD_SEALS, seals));
    Ok(())
}

fn in_memory() -> Outcome {
    let file = make(MFD_CLOEXEC)?;
    equal!(call!(fcntl(file, F_GETFD)), FD_CLOEXEC);
    let link = format!("/proc/self/fd/{file}");
    let shown = fs::read_link(&link)?;
    equal!(shown.as_os_str(), "/memfd:some name (deleted)", link, shown);
    call!(pwrite(file, c"text".as_ptr().cast(), 4, 4094));
    let shared = map_with(2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file)?;
    // SAFETY: both pages are mapped.
    equal!(peek(unsafe { shared.add(4097) }), b't');
    let maps = fs::read_to_string("/proc/self/maps")?;
    ensure!(maps.contains("/memfd:some name (deleted)"), "not in maps");
    // Opened by `/proc` it is the same file.
    let again = fs::read(&link)?;
    ensure!(again.len() == 8192 && &again[4094..4098] == b"text");
    // SAFETY: all zeros is a valid structure to be filled.
    let mut stat: stat = unsafe { zeroed() };
    call!(fstat(file, &mut stat));
    equal!(stat.st_mode, S_IFREG | 0o777);
    equal!(call!(fcntl(file, F_GET_SEALS)), F_SEAL_SEAL);
    refused!(EPERM, fcntl(file, F_ADD_SEALS, F_SEAL_GROW));
    refused!(EINVAL, memfd_create(c"x".as_ptr(), 0x80));
    let long = [b'x'; 250];
    let long = CString::new(long)?;
    refused!(EINVAL, memfd_create(long.as_ptr(), 0));
    let (reader, _) = pipe(0)?;
    refused!(EINVAL, fcntl(reader, F_GET_SEALS));
    Ok(())
}

fn sealed_writes() -> Outcome {
    let file = make(MFD_ALLOW_SEALING)?;
    equal!(call!(fcntl(file, F_GET_SEALS)), 0);
    call!(write(file, c"a".as_ptr().cast(), 1));
    seal(file, F_SEAL_WRITE)?;
    refused! {
        write(file, c"a".as_ptr().cast(), 1) => EPERM;
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) => EPERM;
    }
    call!(ftruncate(file, 100));
    seal(file, F_SEAL_SEAL)?;
    refused!(EPERM, fcntl(file, F_ADD_SEALS, F_SEAL_GROW));
    equal!(call!(fcntl(file, F_GET_SEALS)), F_SEAL_WRITE | F_SEAL_SEAL);
    let other = make(MFD_ALLOW_SEALING)?;
    refused!(EINVAL, fcntl(other, F_ADD_SEALS, 0x100));
    let reader = call!(open(
        c(&format!("/proc/self/fd/{other}")).as_ptr(),
        O_RDONLY
    ));
    refused!(EPERM, fcntl(reader, F_ADD_SEALS, F_SEAL_GROW));
    Ok(())
}

fn sealed_sizes() -> Outcome {
    let file = make(MFD_ALLOW_SEALING)?;
    seal(file, F_SEAL_SHRINK)?;
    refused!(EPERM, ftruncate(file, 100));
    call!(ftruncate(file, 9000));
    seal(file, F_SEAL_GROW)?;
    refused!(EPERM, ftruncate(file, 9001));
    refused!(EPERM, fallocate(file, 0, 0, 9001));
    call!(pwrite(file, c"ab".as_ptr().cast(), 2, 8998));
    refused!(EPERM, pwrite(file, c"ab".as_ptr().cast(), 2, 8999));
    call!(ftruncate(file, 9000));
    Ok(())
}

fn sealed_mappings() -> Outcome {
    let file = make(MFD_ALLOW_SEALING)?;
    let both = PROT_READ | PROT_WRITE;
    let shared = map_with(4096, both, MAP_SHARED, file)?;
    refused!(EBUSY, fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
    call!(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    // The old mapping stays writable, a new one may only read.
    poke(shared, 5);
    refused!(EPERM, mmap(null_mut(), 4096, both, MAP_SHARED, file, 0));
    let reading = map_with(4096, PROT_READ, MAP_SHARED, file)?;
    ensure!(peek(reading) == 5, "not the same page");
    refused!(EACCES, mprotect(reading.cast(), 4096, both));
    refused!(EPERM, write(file, c"a".as_ptr().cast(), 1));
    call!(munmap(reading.cast(), 4096));
    call!(munmap(shared.cast(), 4096));
    seal(file, F_SEAL_WRITE)?;
    refused!(EPERM, mmap(null_mut(), 4096, both, MAP_SHARED, file, 0));
    let private = map_with(4096, both, MAP_PRIVATE, file)?;
    poke(private, 6);
    ensure!(peek(private) == 6, "a private copy keeps nothing");
    Ok(())
}
