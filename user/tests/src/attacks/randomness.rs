//! Numbers that should be random, and addresses that should be secret.

use crate::{as_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: random bytes before the generator is seeded",
        before_seeding,
    ),
    (
        "attacks: random bytes of parent, child and all CPUs at once",
        streams,
    ),
    ("attacks: interrupted waits for random bytes", interrupted),
    ("attacks: entropy that a user makes up", made_up_entropy),
];

/// Flag of `getrandom`: whatever there is.
const GRND_INSECURE: c_uint = 4;
/// `ioctl`s of `/dev/random`: add bits, add bytes, make a new key.
const RNDADDTOENTCNT: c_ulong = 0x4004_5201;
const RNDADDENTROPY: c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: c_ulong = 0x5207;
const RNDGETENTCNT: c_ulong = 0x8004_5200;

/// Returns random bytes, or the error of `getrandom`.
fn random_bytes<const N: usize>(flags: c_uint) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let count = call!(getrandom(bytes.as_mut_ptr().cast(), N, flags));
    equal!(count as usize, N);
    Ok(bytes)
}

fn entropy() -> Result<u32> {
    Ok(read_text("/proc/sys/kernel/random/entropy_avail")?
        .trim()
        .parse()?)
}

/// As long as the pool is not full, bytes are refused or waited for, except where a program says
/// that it takes any. The wait ends, on a machine without a source too.
fn before_seeding() -> Outcome {
    as_user(|| {
        let random = call!(open(c"/dev/random".as_ptr(), O_RDONLY | O_NONBLOCK));
        let mut byte = 0u8;
        let start = Instant::now();
        let unseeded = entropy()? < 256;
        if unseeded {
            refused!(EAGAIN, getrandom((&raw mut byte).cast(), 1, GRND_NONBLOCK));
            refused!(EAGAIN, read(random, (&raw mut byte).cast(), 1));
            let mut ready = poll_entry(random, POLLIN);
            equal!(call!(poll(&mut ready, 1, 0)), 0);
        }
        let (first, second) = (
            random_bytes::<16>(GRND_INSECURE)?,
            random_bytes::<16>(GRND_INSECURE)?,
        );
        ensure!(first != second, "the same bytes came twice");
        equal!(read_bytes(&File::open("/dev/urandom")?, 16)?.len(), 16);
        ensure!(start.elapsed() < Duration::from_secs(5), start.elapsed());
        // A writer knows what it writes.
        fs::write("/dev/random", [7; 4096])?;
        if unseeded {
            refused!(EAGAIN, getrandom((&raw mut byte).cast(), 1, GRND_NONBLOCK));
        }
        random_bytes::<16>(0)?;
        ensure!(start.elapsed() < Duration::from_secs(20), start.elapsed());
        equal!(entropy()?, 256);
        random_bytes::<16>(GRND_NONBLOCK)?;
        let mut ready = poll_entry(random, POLLIN);
        equal!(call!(poll(&mut ready, 1, 0)), 1);
        equal!(call!(read(random, (&raw mut byte).cast(), 1)), 1);
        Ok(())
    })
}

/// No eight bytes come twice: not to a parent and its child, not on two CPUs.
fn streams() -> Outcome {
    /// Words of each process in a round.
    const WORDS: usize = 512;
    as_user(|| {
        let processes = 2 * cpus();
        let shared = shared_map(processes * WORDS * 8)?.cast::<u64>();
        let mut seen = BTreeSet::new();
        while_attacking(|| {
            let mut children = Vec::new();
            for place in 0..processes {
                // The parent draws between the forks, from the generator that the child finds.
                ensure!(
                    seen.insert(u64::from_ne_bytes(random_bytes(0)?)),
                    "a word came twice"
                );
                children.push(spawn(|| {
                    // SAFETY: the child's own part of the map.
                    let part =
                        unsafe { std::slice::from_raw_parts_mut(shared.add(place * WORDS), WORDS) };
                    for (n, word) in part.iter_mut().enumerate() {
                        let bytes = match n % 3 {
                            0 => random_bytes(0)?,
                            // Larger than what a generator keeps.
                            1 => *random_bytes::<304>(0)?.last_chunk().unwrap(),
                            _ => {
                                let bytes = read_bytes(&File::open("/dev/urandom")?, 8)?;
                                *bytes.last_chunk().unwrap()
                            }
                        };
                        *word = u64::from_ne_bytes(bytes);
                    }
                    Ok(())
                })?);
            }
            for child in children {
                wait_ok(child)?;
            }
            // SAFETY: the children have ended.
            let all = unsafe { std::slice::from_raw_parts(shared, processes * WORDS) };
            let mut ones = 0;
            for word in all {
                ensure!(seen.insert(*word), format!("{word:#x} came twice"));
                ones += word.count_ones() as i64;
            }
            // Ten standard deviations of the number of ones.
            let bits = (all.len() * 64) as i64;
            let limit = 5 * bits.isqrt();
            ensure!(
                (ones - bits / 2).abs() < limit,
                format!("{ones} ones of {bits} bits")
            );
            if seen.len() > 1 << 20 {
                seen.clear();
            }
            Ok(())
        })
    })
}

/// Many waiters, whose waits signals end: nothing is lost or stuck.
fn interrupted() -> Outcome {
    as_user(|| {
        while_attacking(|| {
            let mut children = Vec::new();
            for _ in 0..8 {
                children.push(spawn(|| {
                    handle(SIGALRM, ignore_signal, 0)?;
                    let timer = timer_val(300, 300);
                    call!(setitimer(ITIMER_REAL, &timer, null_mut()));
                    for _ in 0..20 {
                        let mut bytes = vec![0u8; 1 << 16];
                        // SAFETY: the buffer has this length.
                        let count = unsafe { getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
                        if count == -1 {
                            equal!(errno(), EINTR);
                            continue;
                        }
                        let got = &bytes[..count as usize];
                        // Small requests are not cut.
                        ensure!(got.len() >= 256, got.len());
                        let zeros = got.iter().filter(|byte| **byte == 0).count();
                        ensure!(zeros < 16 + got.len() / 64, zeros);
                    }
                    Ok(())
                })?);
            }
            for child in children {
                wait_ok(child)?;
            }
            Ok(())
        })
    })
}

/// Only root can say that there is entropy, or make a new key.
fn made_up_entropy() -> Outcome {
    as_user(|| {
        let before = entropy()?;
        for name in [c"/dev/random", c"/dev/urandom"] {
            let random = call!(open(name.as_ptr(), O_RDWR));
            let mut bits: c_int = 8;
            let info: [c_int; 10] = [64, 32, 1, 2, 3, 4, 5, 6, 7, 8];
            refused!(EPERM, ioctl(random, RNDADDTOENTCNT, &raw const bits));
            refused!(EPERM, ioctl(random, RNDADDENTROPY, info.as_ptr()));
            refused!(EPERM, ioctl(random, RNDRESEEDCRNG));
            call!(ioctl(random, RNDGETENTCNT, &raw mut bits));
            ensure!(bits as u32 >= before, bits);
            for _ in 0..64 {
                equal!(call!(write(random, info.as_ptr().cast(), 40)), 40);
            }
            call!(close(random));
        }
        while_attacking(|| {
            fs::write("/dev/urandom", [0xff; 8192])?;
            random_bytes::<64>(GRND_INSECURE)?;
            Ok(())
        })
    })
}
