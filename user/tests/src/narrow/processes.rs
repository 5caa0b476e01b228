//! Processes: signals, limits, mappings, users.

use super::{Low, read_bytes, words};
use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("narrow: what is told of signals", signals),
    ("narrow: limits and use", limits),
    ("narrow: mappings", mappings),
    ("narrow: 16-bit ids", ids),
];

fn signals() -> Outcome {
    let mut low = Low::new()?;
    let usr1 = 1u32 << (SIGUSR1 - 1);
    // The old call's mask is one word.
    let (set, old) = (low.words(&[usr1]), low.words(&[0xdead, 0xbeef]));
    call80!(126, SIG_BLOCK, set, old);
    let [_, guard] = words(old);
    ensure!(guard == 0xbeef, "sigprocmask wrote two words");
    call80!(175, SIG_BLOCK, 0, old, 8);
    let [blocked, high] = words(old);
    ensure!(blocked & usr1 != 0 && high == 0, "{blocked:x} {high:x}");
    let me = call!(getpid());
    let info = low.room(128);
    // si_signo, si_errno, si_code, then pid, uid and value.
    let mut given = [0u32; 32];
    given[..6].copy_from_slice(&[0, 0, -1i32 as u32, me as u32, 0, 0x55]);
    call80!(178, me, SIGUSR1, low.words(&given));
    let pending = low.room(8);
    call80!(73, pending);
    ensure!(words(pending) == [usr1], "sigpending");
    for number in [177, 421] {
        let set = low.words(&[usr1, 0]);
        let time = low.words(&[0, 0, 0, 0]);
        equal!(call80!(number, set, info, time, 8), SIGUSR1);
        let w: [u32; 6] = words(info);
        equal!(w, [SIGUSR1 as u32, 0, -1i32 as u32, me as u32, 0, 0x55]);
        refused80!(EAGAIN, number, set, info, time, 8);
        call80!(178, me, SIGUSR1, low.words(&given));
    }
    Ok(())
}

fn limits() -> Outcome {
    let mut low = Low::new()?;
    let to = low.room(128);
    // SAFETY: all zeros is a valid one.
    let mut wanted: rlimit = unsafe { zeroed() };
    call!(getrlimit(RLIMIT_NOFILE, &mut wanted));
    call80!(191, RLIMIT_NOFILE, to);
    let [soft, hard] = words(to);
    ensure!(
        (u64::from(soft), u64::from(hard)) == (wanted.rlim_cur, wanted.rlim_max),
        "{soft} {hard}"
    );
    call80!(191, RLIMIT_AS, to);
    ensure!(words(to) == [u32::MAX; 2], "no limit");
    call80!(76, RLIMIT_AS, to);
    ensure!(words(to) == [i32::MAX as u32; 2], "no limit, of old");
    call80!(75, RLIMIT_CORE, low.words(&[0, u32::MAX]));
    call!(getrlimit(RLIMIT_CORE, &mut wanted));
    equal!((wanted.rlim_cur, wanted.rlim_max), (0, RLIM_INFINITY));
    // SAFETY: all zeros is a valid one.
    let mut system: sysinfo = unsafe { zeroed() };
    call!(sysinfo(&mut system));
    call80!(116, to);
    let w: [u32; 16] = words(to);
    let memory = u64::from(w[4]) * u64::from(w[13].max(1));
    equal!(memory, system.totalram * u64::from(system.mem_unit));
    call80!(77, RUSAGE_SELF, to);
    let w: [u32; 18] = words(to);
    ensure!(w[1] < 1_000_000 && w[4] > 100, "{w:?}");
    let len = call80!(242, 0, 128, to);
    ensure!(
        len % 4 == 0 && len > 0 && read_bytes(to, len as usize).iter().any(|byte| *byte != 0),
        "no CPUs"
    );
    refused80!(EINVAL, 242, 0, 3, to);
    Ok(())
}

fn mappings() -> Outcome {
    let mut low = Low::new()?;
    let (_, fd) = file("narrow-mappings", &[b'a'; 3 * PAGE])?;
    call!(pwrite(fd, c"third".as_ptr().cast(), 5, 2 * PAGE as i64));
    let place = low_map(2 * PAGE)? as u32;
    let fixed = MAP_PRIVATE | MAP_FIXED;
    // The offset is in pages.
    let at = int80(192, [place, PAGE as u32, 1, fixed as u32, fd as u32, 2]) as u32;
    ensure!(at == place && read_bytes(at, 5) == b"third", at);
    let arguments = low.words(&[
        place,
        PAGE as u32,
        1,
        fixed as u32,
        fd as u32,
        2 * PAGE as u32,
    ]);
    let at = int80(90, [arguments]) as u32;
    ensure!(at == place && read_bytes(at, 5) == b"third", at);
    let arguments = low.words(&[place, PAGE as u32, 1, fixed as u32, fd as u32, 100]);
    equal!(int80(90, [arguments]), -EINVAL);
    Ok(())
}

fn ids() -> Outcome {
    let mut low = Low::new()?;
    let result = spawn(|| {
        call80!(81, 2, low.words(&[5 | 6 << 16]));
        let to = low.room(8);
        ensure!(call80!(80, 2, to) == 2 && words(to) == [5 | 6 << 16]);
        call!(setresgid(70_000, 7, 8));
        call80!(171, to, to + 2, to + 4);
        equal!(words(to), [65_534 | 7 << 16, 8], words::<2>(to));
        ensure!(call80!(47, 0) == 65_534 && call80!(200, 0) == 70_000);
        call80!(170, 0xffff, 9, 0xffff);
        call80!(211, to, to + 4, low.room(4));
        equal!(words(to), [70_000, 9], words::<2>(to));
        Ok(())
    })?;
    wait_ok(result)?;
    Ok(())
}
