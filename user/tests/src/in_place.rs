//! Files that are used where they lie on a memory disk (`dax`), of a file system that the host's
//! test has mounted.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("in place: receivers keep the bytes that they got", received),
    ("in place: reading a long hole ahead ends", hole),
];

/// Where it is mounted; this file there says so.
const MOUNTED: &str = "/d/in-place";
const SIZE: usize = 16 * PAGE;

fn make(name: &str) -> Result<File> {
    if !Path::new(MOUNTED).exists() {
        return Err(skip("no file system is in place"));
    }
    let mut options = fs::File::options();
    options.read(true).write(true).create(true).truncate(true);
    Ok(options.open(format!("/d/{name}"))?)
}

/// A pipe with room for them all.
fn wide_pipe() -> Result<(c_int, c_int)> {
    let (reader, writer) = pipe(0)?;
    call!(fcntl(writer, F_SETPIPE_SZ, 2 * SIZE));
    Ok((reader, writer))
}

/// Bytes of a file on their way by all calls that may pass pages, whose blocks become another
/// file's.
fn received() -> Outcome {
    let file = make("received")?;
    file.write_all_at(&[0xa1; SIZE], 0)?;
    let source = file.as_raw_fd();
    let memory = map_with(SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, source)?;
    let pipes = [wide_pipe()?, wide_pipe()?, wide_pipe()?, wide_pipe()?];
    let writers = pipes.map(|(_, writer)| writer);
    let (null, all) = (null_mut(), SIZE as isize);
    equal!(call!(splice(source, null, writers[0], null, SIZE, 0)), all);
    let mut from = 0;
    equal!(
        call!(sendfile(writers[1], source, &raw mut from, SIZE)),
        all
    );
    let part = iovec {
        iov_base: memory.cast(),
        iov_len: SIZE,
    };
    equal!(call!(vmsplice(writers[2], &part, 1, 0)), all);
    equal!(call!(write(writers[3], memory.cast(), SIZE)), all);
    let read_to = map(SIZE)?;
    equal!(call!(pread(source, read_to.cast(), SIZE, 0)), all);
    let private = map_with(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, source)?;
    for page in 0..SIZE / PAGE {
        poke(private.wrapping_add(page * PAGE), 0xa1);
    }
    unmap(memory, SIZE)?;
    file.set_len(0)?;
    file.sync_all()?;
    let other = make("other")?;
    let mut pages = 0;
    while other
        .write_all_at(&[0xb2; PAGE], pages * PAGE as u64)
        .is_ok()
    {
        pages += 1;
    }
    other.sync_all()?;
    for (number, (reader, writer)) in pipes.into_iter().enumerate() {
        let mut bytes = vec![0u8; SIZE];
        equal!(call!(read(reader, bytes.as_mut_ptr().cast(), SIZE)), all);
        let wrong = bytes.iter().position(|&byte| byte != 0xa1);
        let wrong = wrong.map(|at| (at, bytes[at]));
        ensure!(wrong.is_none(), "call {number}: {wrong:?}");
        call!(close(reader));
        call!(close(writer));
    }
    for at in 0..SIZE {
        equal!(peek(read_to.wrapping_add(at)), 0xa1, at);
    }
    for page in 0..SIZE / PAGE {
        equal!(peek(private.wrapping_add(page * PAGE)), 0xa1, page);
    }
    unmap(read_to, SIZE)?;
    unmap(private, SIZE)?;
    fs::remove_file("/d/other")?;
    Ok(fs::remove_file("/d/received")?)
}

/// A hole of a terabyte takes neither the memory nor the time of one.
fn hole() -> Outcome {
    const LONG: usize = 1 << 40;
    let file = make("hole")?;
    file.set_len(LONG as u64)?;
    let memory = map_with(LONG, PROT_READ, MAP_SHARED, file.as_raw_fd())?;
    call!(madvise(memory.cast(), LONG, MADV_WILLNEED));
    call!(posix_fadvise(file.as_raw_fd(), 0, 0, POSIX_FADV_WILLNEED));
    equal!(peek(memory.wrapping_add(LONG / 2)), 0);
    unmap(memory, LONG)?;
    Ok(fs::remove_file("/d/hole")?)
}
