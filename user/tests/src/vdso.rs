//! The vDSO.

use mem::transmute;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("vdso: an object with the names of Linux", names),
    ("vdso: in one order with the system calls", in_order),
    ("vdso: all clocks", clocks),
    ("vdso: the date after a step", step),
    ("vdso: the other functions", others),
    ("vdso: the CPU", cpu),
    ("vdso: programs can't change the numbers", protected),
];

type Gettime = extern "C" fn(c_int, *mut timespec) -> c_int;

/// Reads a 64-bit word of the object.
fn word(base: usize, offset: usize) -> usize {
    // SAFETY: the callers stay inside the object, as its headers describe it.
    unsafe { ((base + offset) as *const usize).read() }
}

fn half(base: usize, offset: usize) -> usize {
    // SAFETY: as above.
    unsafe { ((base + offset) as *const u32).read() as usize }
}

fn base() -> Result<usize> {
    // SAFETY: returns a number.
    let base = unsafe { libc::getauxval(AT_SYSINFO_EHDR) } as usize;
    ensure!(base != 0, "no object");
    ensure!(half(base, 0) == 0x464c_457f, "no ELF header");
    Ok(base)
}

/// Returns the dynamic section's value with this tag.
fn dynamic(base: usize, tag: usize) -> Option<usize> {
    let (table, count) = (base + word(base, 32), half(base, 56) & 0xffff);
    let header = (0..count).map(|n| table + 56 * n);
    let dynamic = header.into_iter().find(|at| half(*at, 0) == 2)?;
    let mut at = base + word(dynamic, 16);
    while word(at, 0) != 0 {
        if word(at, 0) == tag {
            return Some(word(at, 8));
        }
        at += 16;
    }
    None
}

/// Returns a function's address, found through the hash table as the C library finds it.
fn function(name: &str) -> Result<usize> {
    let base = base()?;
    let part = |tag| {
        dynamic(base, tag)
            .map(|at| base + at)
            .ok_or("a missing part".to_string())
    };
    let (hash, names, symbols) = (part(4)?, part(5)?, part(6)?);
    let count = half(hash, 0);
    let mut sum = 0u32;
    for byte in name.bytes() {
        sum = (sum << 4).wrapping_add(byte.into());
        sum ^= (sum & 0xf000_0000) >> 24;
        sum &= 0x0fff_ffff;
    }
    let mut at = half(hash, 8 + 4 * (sum as usize % count));
    while at != 0 {
        let symbol = symbols + 24 * at;
        // SAFETY: names end with a NUL.
        let found = unsafe { CStr::from_ptr((names + half(symbol, 0)) as *const c_char) };
        if found.to_bytes() == name.as_bytes() {
            return Ok(base + word(symbol, 8));
        }
        at = half(hash, 8 + 4 * count + 4 * at);
    }
    Err(format!("no {name}").into())
}

fn gettime() -> Result<Gettime> {
    // SAFETY: the object's function has this type.
    Ok(unsafe { transmute::<usize, Gettime>(function("__vdso_clock_gettime")?) })
}

fn nanoseconds(time: timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn by_object(gettime: Gettime, clock: c_int) -> Result<i128> {
    // SAFETY: all zeros is a valid time.
    let mut time: timespec = unsafe { zeroed() };
    let result = gettime(clock, &mut time);
    ensure!(result == 0, "clock {clock} by the object: {result}");
    ensure!((0..1_000_000_000).contains(&time.tv_nsec), time.tv_nsec);
    Ok(nanoseconds(time))
}

fn by_call(clock: c_int) -> Result<i128> {
    // SAFETY: all zeros is a valid time, and it lives across the call.
    let (time, result) = unsafe {
        let mut time: timespec = zeroed();
        let result = libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time);
        (time, result)
    };
    ensure!(result == 0, "clock {clock} by the call: {}", errno());
    Ok(nanoseconds(time))
}

fn names() -> Outcome {
    for name in [
        "clock_gettime",
        "gettimeofday",
        "time",
        "getcpu",
        "clock_getres",
    ] {
        let long = function(&format!("__vdso_{name}"))?;
        ensure!(function(name)? == long, "{name} is another function");
    }
    ensure!(function("nonsense").is_err(), "found nonsense");
    let base = base()?;
    for tag in [0x6fff_fff0, 0x6fff_fffc] {
        ensure!(dynamic(base, tag).is_some(), "no versions ({tag:#x})");
    }
    let maps = fs::read_to_string("/proc/self/maps")?;
    let line = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .unwrap_or_default();
    let starts = line.starts_with(&format!("{base:x}-")) && line.contains("r-xp");
    ensure!(starts, "maps say {line:?} of {base:x}");
    Ok(())
}

fn in_order() -> Outcome {
    let gettime = gettime()?;
    for clock in [CLOCK_MONOTONIC, CLOCK_REALTIME] {
        let mut last = 0;
        for turn in 0..20_000 {
            let now = match turn % 2 {
                0 => by_object(gettime, clock)?,
                _ => by_call(clock)?,
            };
            ensure!(now >= last, clock, last - now, turn);
            last = now;
        }
    }
    // The same on every CPU.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || -> Outcome {
                for _ in 0..200 {
                    let before = by_call(CLOCK_MONOTONIC)?;
                    thread::yield_now();
                    let after = by_object(gettime, CLOCK_MONOTONIC)?;
                    ensure!(after >= before, "back by {} ns", before - after);
                }
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join()??;
    }
    Ok(())
}

fn clocks() -> Outcome {
    let gettime = gettime()?;
    for clock in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11] {
        let before = by_call(clock)?;
        let between = by_object(gettime, clock)?;
        let after = by_call(clock)?;
        let fits = before <= between && between <= after;
        ensure!(fits, "clock {clock}: {before} {between} {after}");
    }
    // SAFETY: all zeros is a valid time.
    let mut time: timespec = unsafe { zeroed() };
    for clock in [10, 12, 31, 32, 1000, c_int::MAX] {
        let result = gettime(clock, &mut time);
        ensure!(result == -EINVAL, "clock {clock}: {result}");
    }
    let own = !0 << 3 | 2;
    ensure!(by_object(gettime, own)? > 0, "no time of this process");
    Ok(())
}

fn step() -> Outcome {
    let gettime = gettime()?;
    let ahead = Duration::from_secs(100_000);
    let start = by_call(CLOCK_REALTIME)?;
    let set = |to: i128| -> Outcome {
        let time = time_spec((to / 1_000_000_000) as i64, (to % 1_000_000_000) as i64);
        call!(clock_settime(CLOCK_REALTIME, &time));
        Ok(())
    };
    set(start + ahead.as_nanos() as i128)?;
    let (object, called) = (
        by_object(gettime, CLOCK_REALTIME)?,
        by_call(CLOCK_REALTIME)?,
    );
    set(by_call(CLOCK_REALTIME)? - ahead.as_nanos() as i128)?;
    let back = by_object(gettime, CLOCK_REALTIME)?;
    ensure!(object >= start + ahead.as_nanos() as i128);
    ensure!(called >= object, "{called} after {object}");
    ensure!((back - start) / 1_000_000_000 < 60, "not set back");
    Ok(())
}

fn others() -> Outcome {
    type Gettimeofday = extern "C" fn(*mut timeval, *mut [i32; 2]) -> c_int;
    type Time = extern "C" fn(*mut c_long) -> c_long;
    // SAFETY: the object's functions have these types.
    let (day, time, resolution) = unsafe {
        (
            transmute::<usize, Gettimeofday>(function("__vdso_gettimeofday")?),
            transmute::<usize, Time>(function("__vdso_time")?),
            transmute::<usize, Gettime>(function("__vdso_clock_getres")?),
        )
    };
    let before = by_call(CLOCK_REALTIME)? / 1000;
    let mut now = timeval {
        tv_sec: 0,
        tv_usec: -1,
    };
    let mut zone = [7; 2];
    ensure!(day(&mut now, &mut zone) == 0 && zone == [0; 2], zone);
    ensure!((0..1_000_000).contains(&now.tv_usec), "{} us", now.tv_usec);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_usec);
    let after = by_call(CLOCK_REALTIME)? / 1000;
    ensure!(before <= micros && micros <= after, before, micros, after);
    equal!(day(null_mut(), null_mut()), 0);
    let mut seconds = 0;
    let result = time(&mut seconds);
    let fits = result == seconds && (i128::from(result) - before / 1_000_000).abs() < 2;
    ensure!(fits, "{result} {seconds}");
    for clock in [0, 1, 2, 3, 4, 5, 6, 7, 11] {
        // SAFETY: all zeros is a valid time, and they live across the calls.
        unsafe {
            let (mut one, mut two): (timespec, timespec) = (zeroed(), zeroed());
            ensure!(resolution(clock, &mut one) == 0, "clock {clock}");
            libc::syscall(libc::SYS_clock_getres, clock, &raw mut two);
            equal!(nanoseconds(one), nanoseconds(two), clock);
        }
    }
    ensure!(resolution(1, null_mut()) == 0, "nowhere to store");
    equal!(resolution(77, null_mut()), -EINVAL);
    Ok(())
}

fn cpu() -> Outcome {
    type Getcpu = extern "C" fn(*mut u32, *mut u32, usize) -> c_int;
    // SAFETY: the object's function has this type.
    let getcpu = unsafe { transmute::<usize, Getcpu>(function("__vdso_getcpu")?) };
    let count = cpus();
    for wanted in 0..count {
        // SAFETY: all zeros is a valid set.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            libc::CPU_SET(wanted, &mut set);
            call!(sched_setaffinity(0, size_of_val(&set), &set));
        }
        let (mut cpu, mut node) = (99, 99);
        ensure!(getcpu(&mut cpu, &mut node, 0) == 0, "no answer");
        ensure!(cpu as usize == wanted && node == 0, cpu, node, wanted);
    }
    Ok(())
}

fn protected() -> Outcome {
    let base = base()?;
    let numbers = numbers()?;
    faults(SIGSEGV, code::SEGV_ACCERR, numbers, || {
        poke(numbers as *mut u8, 1);
    })?;
    faults(SIGSEGV, code::SEGV_ACCERR, base, || {
        poke(base as *mut u8, 1);
    })?;
    // A private copy may be made of either page, as debuggers do of code.
    let child = spawn(|| {
        for (page, byte) in [(numbers, 0x55), (base, 0x7f)] {
            let all = PROT_READ | PROT_WRITE;
            // SAFETY: pages of this process, which nothing reads meanwhile.
            if unsafe { libc::mprotect(page as *mut _, 4096, all) } != 0 {
                exit(1);
            }
            poke(page as *mut u8, byte);
        }
        exit(0)
    })?;
    wait_ok(child)?;
    // No other process sees them.
    let gettime = gettime()?;
    let before = by_call(CLOCK_MONOTONIC)?;
    let between = by_object(gettime, CLOCK_MONOTONIC)?;
    let after = by_call(CLOCK_MONOTONIC)?;
    ensure!((before..=after).contains(&between), between, before, after);
    Ok(())
}

/// Returns the address of the data page: the last page of the object's entry.
fn numbers() -> Result<usize> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let ours: Vec<_> = maps.lines().filter(|line| line.contains("[v")).collect();
    let [line] = ours[..] else {
        return Err(format!("the kernel's own entries: {ours:?}").into());
    };
    let end = line.split(['-', ' ']).nth(1).unwrap_or_default();
    let end = usize::from_str_radix(end, 16).map_err(|_| format!("a line {line:?}"))?;
    Ok(end - 4096)
}
