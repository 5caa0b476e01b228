//! Files without a name, and seals.

use std::ptr;

use libc::{c_int, c_uint};

use crate::support::{self, Outcome};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("memfds: a file in memory", in_memory),
    ("memfds: seals against writes", sealed_writes),
    ("memfds: seals against other sizes", sealed_sizes),
    ("memfds: seals and mappings", sealed_mappings),
];

/// A file of two pages.
fn make(flags: c_uint) -> Result<c_int, String> {
    let file = call!(memfd_create(c"some name".as_ptr(), flags));
    call!(ftruncate(file, 2 * support::PAGE as i64));
    Ok(file)
}

fn seal(file: c_int, seals: c_int) -> Outcome {
    call!(fcntl(file, libc::F_ADD_SEALS, seals));
    Ok(())
}

fn in_memory() -> Outcome {
    let file = make(libc::MFD_CLOEXEC)?;
    ensure!(
        call!(fcntl(file, libc::F_GETFD)) == libc::FD_CLOEXEC,
        "not close-on-exec"
    );
    let link = format!("/proc/self/fd/{file}");
    let shown = std::fs::read_link(&link).map_err(|error| error.to_string())?;
    ensure!(
        shown.as_os_str() == "/memfd:some name (deleted)",
        "{} shows {shown:?}",
        link
    );
    call!(pwrite(file, c"text".as_ptr().cast(), 4, 4094));
    let shared = support::map_with(
        2 * support::PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED,
        file,
    )?;
    // SAFETY: both pages are mapped.
    ensure!(
        support::peek(unsafe { shared.add(4097) }) == b't',
        "another byte"
    );
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    ensure!(maps.contains("/memfd:some name (deleted)"), "not in maps");
    // Opened again it is the same file.
    let again = std::fs::read(&link).map_err(|error| error.to_string())?;
    ensure!(
        again.len() == 8192 && &again[4094..4098] == b"text",
        "read another file"
    );
    // SAFETY: all zeros is a valid structure to be filled.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    call!(fstat(file, &mut stat));
    ensure!(
        stat.st_mode == libc::S_IFREG | 0o777,
        "mode {:o}",
        stat.st_mode
    );
    ensure!(
        call!(fcntl(file, libc::F_GET_SEALS)) == libc::F_SEAL_SEAL,
        "can be sealed"
    );
    refused!(EPERM, fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_GROW));
    refused!(EINVAL, memfd_create(c"x".as_ptr(), 0x80));
    let long = [b'x'; 250];
    let long = std::ffi::CString::new(long).map_err(|error| error.to_string())?;
    refused!(EINVAL, memfd_create(long.as_ptr(), 0));
    let (reader, _) = support::pipe(0)?;
    refused!(EINVAL, fcntl(reader, libc::F_GET_SEALS));
    Ok(())
}

fn sealed_writes() -> Outcome {
    let file = make(libc::MFD_ALLOW_SEALING)?;
    ensure!(
        call!(fcntl(file, libc::F_GET_SEALS)) == 0,
        "sealed from the start"
    );
    call!(write(file, c"a".as_ptr().cast(), 1));
    seal(file, libc::F_SEAL_WRITE)?;
    refused!(EPERM, write(file, c"a".as_ptr().cast(), 1));
    refused!(
        EPERM,
        fallocate(
            file,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            0,
            4096
        )
    );
    call!(ftruncate(file, 100));
    seal(file, libc::F_SEAL_SEAL)?;
    refused!(EPERM, fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_GROW));
    ensure!(
        call!(fcntl(file, libc::F_GET_SEALS)) == libc::F_SEAL_WRITE | libc::F_SEAL_SEAL,
        "other seals"
    );
    let other = make(libc::MFD_ALLOW_SEALING)?;
    refused!(EINVAL, fcntl(other, libc::F_ADD_SEALS, 0x100));
    let reader = call!(open(
        support::c(&format!("/proc/self/fd/{other}")).as_ptr(),
        libc::O_RDONLY
    ));
    refused!(EPERM, fcntl(reader, libc::F_ADD_SEALS, libc::F_SEAL_GROW));
    Ok(())
}

fn sealed_sizes() -> Outcome {
    let file = make(libc::MFD_ALLOW_SEALING)?;
    seal(file, libc::F_SEAL_SHRINK)?;
    refused!(EPERM, ftruncate(file, 100));
    call!(ftruncate(file, 9000));
    seal(file, libc::F_SEAL_GROW)?;
    refused!(EPERM, ftruncate(file, 9001));
    refused!(EPERM, fallocate(file, 0, 0, 9001));
    call!(pwrite(file, c"ab".as_ptr().cast(), 2, 8998));
    refused!(EPERM, pwrite(file, c"ab".as_ptr().cast(), 2, 8999));
    call!(ftruncate(file, 9000));
    Ok(())
}

fn sealed_mappings() -> Outcome {
    let file = make(libc::MFD_ALLOW_SEALING)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = support::map_with(4096, both, libc::MAP_SHARED, file)?;
    refused!(EBUSY, fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_WRITE));
    call!(fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE));
    // The old mapping goes on, a new one may only read.
    support::poke(shared, 5);
    refused!(
        EPERM,
        mmap(ptr::null_mut(), 4096, both, libc::MAP_SHARED, file, 0)
    );
    let reading = support::map_with(4096, libc::PROT_READ, libc::MAP_SHARED, file)?;
    ensure!(support::peek(reading) == 5, "not the same page");
    refused!(EACCES, mprotect(reading.cast(), 4096, both));
    refused!(EPERM, write(file, c"a".as_ptr().cast(), 1));
    call!(munmap(reading.cast(), 4096));
    call!(munmap(shared.cast(), 4096));
    seal(file, libc::F_SEAL_WRITE)?;
    refused!(
        EPERM,
        mmap(ptr::null_mut(), 4096, both, libc::MAP_SHARED, file, 0)
    );
    let private = support::map_with(4096, both, libc::MAP_PRIVATE, file)?;
    support::poke(private, 6);
    ensure!(support::peek(private) == 6, "a private copy keeps nothing");
    Ok(())
}
