//! Files.

use super::{Low, pair, read_bytes, words};
use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("narrow: status of files", status),
    ("narrow: status of file systems", systems),
    ("narrow: positions and sizes", positions),
    ("narrow: buffers in pieces", pieces),
    ("narrow: record locks", locks),
    ("narrow: listings", listings),
];

fn status() -> Outcome {
    let mut low = Low::new()?;
    let (path, fd) = file("narrow-status", b"12345")?;
    call!(ftruncate(fd, (5 << 32) + 1));
    call!(chmod(c(&path).as_ptr(), 0o4751));
    let link = format!("{path}-link");
    call!(symlink(c(&path).as_ptr(), c(&link).as_ptr()));
    // SAFETY: all zeros is a valid one.
    let mut wanted: stat = unsafe { zeroed() };
    let (name, to) = (low.text(&path), low.room(96));
    let check = |wanted: &stat| -> Outcome {
        let w: [u32; 24] = words(to);
        let got = (
            pair(w[0], w[1]),
            pair(w[22], w[23]),
            w[4],
            w[5],
            pair(w[11], w[12]),
        );
        let want = (
            wanted.st_dev,
            wanted.st_ino,
            wanted.st_mode,
            wanted.st_nlink as u32,
            wanted.st_size as u64,
        );
        ensure!(got == want, "{got:?} in place of {want:?}");
        ensure!((w[6], w[7]) == (wanted.st_uid, wanted.st_gid), "owner");
        ensure!(pair(w[14], w[15]) == wanted.st_blocks as u64, "blocks");
        let times = [
            wanted.st_atime,
            wanted.st_atime_nsec,
            wanted.st_mtime,
            wanted.st_mtime_nsec,
            wanted.st_ctime,
            wanted.st_ctime_nsec,
        ];
        ensure!(times.map(|time| time as u32) == w[16..22], "times");
        Ok(())
    };
    call!(stat(c(&path).as_ptr(), &mut wanted));
    call80!(195, name, to);
    check(&wanted)?;
    call80!(197, fd, to);
    check(&wanted)?;
    call80!(300, AT_FDCWD, name, to, 0);
    check(&wanted)?;
    call!(lstat(c(&link).as_ptr(), &mut wanted));
    let link = low.text(&link);
    call80!(196, link, to);
    check(&wanted)?;
    // The oldest structure cannot hold such a size.
    refused80!(EOVERFLOW, 108, fd, to);
    call!(ftruncate(fd, 7));
    call!(fstat(fd, &mut wanted));
    if u32::try_from(wanted.st_ino).is_ok()
        && libc::major(wanted.st_dev) < 256
        && libc::minor(wanted.st_dev) < 256
    {
        call80!(108, fd, to);
        let w: [u32; 16] = words(to);
        ensure!(
            (w[1], w[2] as u16, w[5]) == (wanted.st_ino as u32, wanted.st_mode as u16, 7),
            "{w:x?}"
        );
    }
    refused80!(EFAULT, 195, name, 8);
    refused80!(ENOENT, 195, low.text("/none"), to);
    Ok(())
}

fn systems() -> Outcome {
    let mut low = Low::new()?;
    // SAFETY: all zeros is a valid one.
    let mut wanted: libc::statfs64 = unsafe { zeroed() };
    call!(statfs64(c"/tmp".as_ptr(), &mut wanted));
    let (name, to) = (low.text("/tmp"), low.room(96));
    call80!(268, name, 84, to);
    let w: [u32; 21] = words(to);
    ensure!(
        (w[0], w[1], pair(w[2], w[3]))
            == (wanted.f_type as u32, wanted.f_bsize as u32, wanted.f_blocks),
        "{w:?}"
    );
    ensure!(w[14] == wanted.f_namelen as u32, "names of {}", w[14]);
    refused80!(EINVAL, 268, name, 88, to);
    call80!(99, name, to);
    let w: [u32; 16] = words(to);
    ensure!(
        (w[0], w[2]) == (wanted.f_type as u32, wanted.f_blocks as u32),
        "{w:?}"
    );
    ensure!(w[9] == wanted.f_namelen as u32, "names of {}", w[9]);
    Ok(())
}

fn positions() -> Outcome {
    let mut low = Low::new()?;
    let (path, fd) = file("narrow-positions", b"0123456789")?;
    let to = low.room(16);
    call80!(140, fd, 3, 5, to, SEEK_SET);
    let [one, two] = words(to);
    let here = call!(lseek(fd, 0, SEEK_CUR));
    ensure!(
        pair(one, two) == (3 << 32 | 5) && here == 3 << 32 | 5,
        "{one} {two}, {here}"
    );
    // Values that do not fit are truncated, as on Linux.
    ensure!(call80!(19, fd, 0, SEEK_CUR) == 5, "lseek");
    ensure!(call80!(19, fd, 4, SEEK_SET) == 4, "lseek");
    refused80!(EINVAL, 19, fd, u32::MAX, SEEK_SET);
    ensure!(
        call80!(180, fd, to, 3, 6, 0) == 3 && read_bytes(to, 3) == b"678",
        "pread64"
    );
    let text = low.bytes(b"abc");
    ensure!(call80!(181, fd, text, 3, 1, 1) == 3, "pwrite64");
    ensure!(
        call80!(180, fd, to, 3, 1, 1) == 3 && read_bytes(to, 3) == b"abc",
        "far away"
    );
    let size = || fs::metadata(&path).map_or(0, |found| found.len());
    ensure!(size() == (1 << 32) + 4, "{}", size());
    call80!(194, fd, 9, 2);
    ensure!(size() == (2 << 32) + 9, "ftruncate64: {}", size());
    call80!(193, low.text(&path), 7, 1);
    ensure!(size() == (1 << 32) + 7, "truncate64: {}", size());
    call80!(93, fd, 100);
    ensure!(size() == 100, "ftruncate: {}", size());
    call80!(324, fd, 0, 0, 0, 5000, 0);
    ensure!(size() == 5000, "fallocate: {}", size());
    call80!(272, fd, 0, 1, 0, 1, 0);
    refused80!(EINVAL, 272, fd, 0, 1, 0, 1, 77);
    // sendfile moves the position that it is given.
    let (reader, writer) = pipe(0)?;
    let offset = low.words(&[4]);
    ensure!(call80!(187, writer, fd, offset, 3) == 3, "sendfile");
    let mut got = [0u8; 3];
    call!(read(reader, got.as_mut_ptr().cast(), 3));
    let [offset] = words(offset);
    ensure!(&got == b"456" && offset == 7, "{got:?}, {offset}");
    let offset = low.words(&[2, 0]);
    ensure!(call80!(239, writer, fd, offset, 3) == 3, "sendfile64");
    let [offset, high] = words(offset);
    ensure!((offset, high) == (5, 0), "{offset} {high}");
    Ok(())
}

fn pieces() -> Outcome {
    let mut low = Low::new()?;
    let (_, fd) = file("narrow-pieces", b"")?;
    let (one, two) = (low.bytes(b"hello "), low.bytes(b"world"));
    let vector = low.words(&[one, 6, two, 5]);
    ensure!(call80!(146, fd, vector, 2) == 11, "writev");
    ensure!(call80!(334, fd, vector, 2, 11, 0) == 11, "pwritev");
    let (one, two) = (low.room(8), low.room(20));
    let vector = low.words(&[one, 4, two, 20]);
    ensure!(call80!(333, fd, vector, 2, 0, 0) == 22, "preadv");
    ensure!(
        read_bytes(one, 4) == b"hell" && read_bytes(two, 18) == b"o worldhello world",
        "bytes"
    );
    ensure!(
        call80!(378, fd, vector, 2, 20, 0, 0) == 2 && read_bytes(one, 2) == b"ld",
        "preadv2"
    );
    call!(lseek(fd, 1, SEEK_SET));
    ensure!(
        call80!(145, fd, vector, 2) == 21 && read_bytes(one, 4) == b"ello",
        "readv"
    );
    refused80!(EINVAL, 145, fd, vector, 1025);
    refused80!(EFAULT, 145, fd, 8, 1);
    refused80!(EINVAL, 145, fd, low.words(&[one, 0x8000_0000]), 1);
    let me = call!(getpid());
    let remote = low.words(&[two, 7]);
    let local = low.words(&[one, 7]);
    equal!(call80!(347, me, local, 1, remote, 1, 0), 7);
    ensure!(read_bytes(one, 7) == read_bytes(two, 7), "other bytes");
    Ok(())
}

fn locks() -> Outcome {
    let mut low = Low::new()?;
    let (_, fd) = file("narrow-locks", b"")?;
    // Bytes 5 to 14, and some far away.
    let near = low.words(&[F_WRLCK as u32, 5, 10, 0]);
    call80!(221, fd, 6, near);
    let far = low.words(&[F_RDLCK as u32, 0, 3, 100, 0, 0]);
    call80!(221, fd, 13, far);
    let me = call!(getpid()) as u32;
    child(|| {
        let find = |start: i64| -> Result<flock> {
            // SAFETY: all zeros is a valid one.
            let mut lock: flock = unsafe { zeroed() };
            (lock.l_type, lock.l_start, lock.l_len) = (F_WRLCK as i16, start, 1);
            call!(fcntl(fd, F_GETLK, &mut lock));
            Ok(lock)
        };
        let lock = find(14)?;
        ensure!(
            (lock.l_start, lock.l_len, lock.l_pid) == (5, 10, me as i32),
            "{}",
            lock.l_start
        );
        let lock = find((3 << 32) + 50)?;
        equal!((lock.l_start, lock.l_len), (3 << 32, 100), lock.l_start);
        equal!(find(20)?.l_type, F_UNLCK as i16);
        // The same by 32-bit calls.
        let lock = low.words(&[F_WRLCK as u32, 7, 1, 0]);
        call80!(221, fd, 5, lock);
        let w: [u32; 4] = words(lock);
        ensure!(w == [F_WRLCK as u32, 5, 10, me], "{w:?}");
        let lock = low.words(&[F_WRLCK as u32, 3, 3, 1, 0, 0]);
        call80!(221, fd, 12, lock);
        let w: [u32; 6] = words(lock);
        ensure!(w == [F_RDLCK as u32, 0, 3, 100, 0, me], "{w:?}");
        let lock = low.words(&[F_RDLCK as u32, 1, 3, 1, 0, 0]);
        call80!(221, fd, 12, lock);
        let [kind, ..]: [u32; 6] = words(lock);
        ensure!(kind as u16 == F_UNLCK as u16, "kind {kind}");
        // A start that 32 bits cannot hold.
        let whole = low.words(&[F_WRLCK as u32, 15, 0, 0]);
        refused80!(EOVERFLOW, 221, fd, 5, whole);
        refused80!(EAGAIN, 221, fd, 6, low.words(&[F_WRLCK as u32, 5, 1, 0]));
        refused80!(EINVAL, 55, fd, 12, lock);
        Ok(())
    })?;
    // Locks of the open file.
    let own = low.words(&[F_WRLCK as u32, 200, 0, 5, 0, 0]);
    call80!(221, fd, 37, own);
    Ok(())
}

fn listings() -> Outcome {
    let mut low = Low::new()?;
    let at = folder("narrow-listings")?;
    let mut wanted = vec![".".to_owned(), "..".to_owned()];
    for n in 0..40 {
        let name = format!("file-{n}-{}", "x".repeat(n * 5));
        fs::write(format!("{at}/{name}"), b"")?;
        wanted.push(name);
    }
    wanted.sort();
    let open = || -> Result<i32> { Ok(call!(open(c(&at).as_ptr(), O_RDONLY))) };
    let to = low.room(1000);
    for (number, head) in [(141, 10), (220, 19)] {
        let (fd, mut found) = (open()?, Vec::new());
        loop {
            let len = call80!(number, fd, to, 700) as usize;
            let bytes = read_bytes(to, len);
            let mut from = 0;
            while from < len {
                let size = usize::from(u16::from_le_bytes([
                    bytes[from + head - 2 - (head - 10) / 9],
                    bytes[from + head - 1 - (head - 10) / 9],
                ]));
                let name = &bytes[from + head..from + size];
                let end = name
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(name.len());
                found.push(String::from_utf8_lossy(&name[..end]).into_owned());
                let kind = if number == 141 {
                    bytes[from + size - 1]
                } else {
                    bytes[from + 18]
                };
                ensure!([DT_REG, DT_DIR].contains(&kind), "kind {kind}");
                from += size;
            }
            if len == 0 {
                break;
            }
        }
        found.sort();
        ensure!(found == wanted, "call {number}: {found:?}");
        call!(close(fd));
    }
    refused80!(EINVAL, 141, open()?, to, 8);
    // One at a time.
    let (fd, mut found) = (open()?, Vec::new());
    while call80!(89, fd, to, 1) == 1 {
        let bytes = read_bytes(to, 300);
        let len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        found.push(String::from_utf8_lossy(&bytes[10..10 + len]).into_owned());
    }
    found.sort();
    ensure!(found == wanted, "readdir: {found:?}");
    Ok(())
}
