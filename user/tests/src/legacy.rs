//! The entry for 32-bit system calls, `int 0x80`, from a 64-bit program.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("legacy: int 0x80", calls),
    ("legacy: an unknown call of int 0x80", unknown),
];

fn calls() -> Outcome {
    const GETPID: u32 = 20;
    const WRITE: u32 = 4;
    const CLOSE: u32 = 6;
    equal!(int80(GETPID, []), call!(getpid()));
    equal!(int80(CLOSE, [9999, 0, 0]), -EBADF);
    let memory = low_map(PAGE)?;
    // SAFETY: the map is as long as what is written there.
    unsafe { memory.copy_from(b"through int 0x80".as_ptr(), 16) };
    let (reader, writer) = pipe(0)?;
    let count = int80(WRITE, [writer as u32, memory as u32, 16]);
    ensure!(count == 16, "write: {count}");
    let mut back = [0u8; 16];
    call!(read(reader, back.as_mut_ptr().cast(), 16));
    ensure!(&back == b"through int 0x80", "{back:?}");
    equal!(int80(WRITE, [writer as u32, 8, 16]), -EFAULT);
    Ok(())
}

fn unknown() -> Outcome {
    let result = int80(5000, []);
    ensure!(result == -ENOSYS, "call 5000 gave {result}");
    Ok(())
}
