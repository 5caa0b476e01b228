//! Bytes of files, pipes and sockets that become contents of fbufs.

use super::raw::{Path, *};
use super::{LEN, Receiver};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("fbufs: a file's pages are sent without a copy", files),
    ("fbufs: bytes of pipes and sockets", streams),
    ("fbufs: what cannot be taken", refusals),
];

/// No offset in a file.
const NONE: u64 = u64::MAX;

/// Pages of a file get to receivers without a copy, and neither sees later writes of the other.
fn files() -> Outcome {
    let name = "/tmp/fbuf-file";
    for mode in ALL_MODES {
        let len = LEN + 100;
        fs::write(name, [vec![1u8; PAGE], vec![2; len]].concat())?;
        let file = File::options().read(true).write(true).open(name)?;
        let path = Path::new(mode)?;
        let chunk = path.grow(1)?;
        let receiver = Receiver::start(&path, |path, line| {
            for value in [2, 4] {
                let message = path.receive()?;
                check_leaf(message.root, LEN, value)?;
                line.tell()?;
                line.hear()?;
                check_leaf(message.root, LEN, value)?;
                path.free(message.id)?;
                line.tell()?;
            }
            Ok(())
        })?;
        let data = chunk.wrapping_add(PAGE);
        fill(data, LEN + PAGE, 9);
        let before = counter("fbuf_bytes_taken")?;
        let fd = file.as_raw_fd();
        equal!(path.take(fd, PAGE as u64, data, LEN + PAGE), Ok(len));
        equal!(counter("fbuf_bytes_taken")? - before, LEN as u64);
        // The rest of the last page was not the file's, nor is it what was there.
        ensure!(is_filled(data, len, 2) && is_filled(data.wrapping_add(len), PAGE - 100, 0));
        set_leaf(chunk, data, LEN);
        path.send(chunk)?;
        receiver.line.hear()?;
        file.write_all_at(&vec![3; LEN], PAGE as u64)?;
        equal!(path.take(fd, 0, data, PAGE), Err(EBUSY));
        receiver.line.tell()?;
        receiver.line.hear()?;
        // The other way.
        equal!(path.take(fd, PAGE as u64, data, LEN), Ok(LEN));
        fill(data, LEN, 4);
        ensure!(fs::read(name)?[PAGE..PAGE + LEN] == vec![3; LEN]);
        path.send(chunk)?;
        receiver.line.hear()?;
        receiver.line.tell()?;
        receiver.line.hear()?;
        receiver.end()?;
        // Not at a page's start.
        let odd = data.wrapping_add(7);
        equal!(path.take(fd, 100, odd, 2 * PAGE), Ok(2 * PAGE));
        ensure!(is_filled(data, 7, 0) && is_filled(odd, PAGE - 100, 1));
        ensure!(is_filled(odd.wrapping_add(PAGE - 100), PAGE + 100, 3));
    }
    fs::remove_file(name)?;
    Ok(())
}

/// Whole pages in a queue are not copied, and the others are.
fn streams() -> Outcome {
    let path = Path::new(CACHED)?;
    let chunk = path.grow(1)?;
    let source = map(4 * PAGE)?;
    let sockets = socket_pair(SOCK_STREAM)?;
    let line = pipe(0)?;
    let ends = [
        (line.0, line.1),
        (sockets[0].as_raw_fd(), sockets[1].as_raw_fd()),
    ];
    for (value, (from, to)) in (1..).zip(ends) {
        fill(source, 4 * PAGE, value);
        equal!(call!(write(to, source.cast(), 4 * PAGE)), 4 * PAGE as isize);
        let before = counter("fbuf_bytes_taken")?;
        equal!(path.take(from, NONE, chunk, 4 * PAGE), Ok(4 * PAGE));
        equal!(counter("fbuf_bytes_taken")? - before, 4 * PAGE as u64);
        ensure!(is_filled(chunk, 4 * PAGE, value));
        // Both sides write on.
        fill(source, 4 * PAGE, 50);
        ensure!(is_filled(chunk, 4 * PAGE, value));
        fill(chunk, 4 * PAGE, 60);
        ensure!(is_filled(source, 4 * PAGE, 50));
        for part in [10, PAGE, 5] {
            equal!(call!(write(to, source.cast(), part)), part as isize);
        }
        let mut done = 0;
        while done < PAGE + 15 {
            // A page that is filled in part begins anew.
            let at = chunk.wrapping_add(done.next_multiple_of(PAGE));
            let count = path.take(from, NONE, at, 2 * PAGE)?;
            ensure!(count > 0 && is_filled(at, count, 50));
            done += count;
        }
        equal!(done, PAGE + 15);
    }
    call!(close(line.1));
    equal!(path.take(line.0, NONE, chunk, PAGE), Ok(0));
    call!(close(line.0));
    unmap(source, 4 * PAGE)
}

fn refusals() -> Outcome {
    let path = Path::new(UNCACHED)?;
    let chunk = path.grow(1)?;
    let file = File::open("/proc/self/exe")?;
    let fd = file.as_raw_fd();
    let line = pipe(O_NONBLOCK)?;
    equal!(path.take(-1, 0, chunk, PAGE), Err(EBADF));
    equal!(path.take(line.1, NONE, chunk, PAGE), Err(EBADF));
    equal!(path.take(line.0, NONE, chunk, PAGE), Err(EAGAIN));
    equal!(path.take(line.0, 0, chunk, PAGE), Err(EINVAL));
    equal!(path.take(fd, NONE, chunk, PAGE), Err(EINVAL));
    equal!(path.take(fd, NONE - 1, chunk, PAGE), Err(EINVAL));
    equal!(path.take(path.as_raw_fd(), NONE, chunk, PAGE), Err(EINVAL));
    equal!(path.take(fd, 1 << 40, chunk, PAGE), Ok(0));
    let end = chunk.wrapping_add(CHUNK);
    equal!(path.take(fd, 0, end.wrapping_sub(5), 6), Err(EFAULT));
    equal!(path.take(fd, 0, end, 1), Err(EFAULT));
    equal!(
        path.take(fd, 0, (&raw const file) as *mut u8, 1),
        Err(EFAULT)
    );
    equal!(
        path.take(fd, 0, chunk.wrapping_add(PAGE), CHUNK),
        Ok(1 << 20)
    );
    child(|| {
        path.join()?;
        equal!(path.take(fd, 0, chunk, PAGE), Err(EPERM));
        Ok(())
    })?;
    call!(close(line.0));
    call!(close(line.1));
    Ok(())
}
