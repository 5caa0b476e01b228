//! The kernel measures the machine's basic costs without disturbing other work.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[("hw_cost: measured while others run", beside_others)];

/// Costs measured on every machine.
const NAMES: &[&str] = &[
    "trap",
    "page_fault",
    "system_call",
    "int_80",
    "invlpg",
    "invlpg_refill",
    "tlb_flush",
    "space_switch",
    "lock",
    "clock",
    "page_zero",
    "page_copy",
    "word_by_pointer",
    "word_by_mapping",
    "memcpy_cached",
    "memcpy_uncached",
];

/// Reads the file and checks every line.
fn measured() -> Outcome {
    let text = read_text("/proc/causeway/hw_cost")?;
    let mut costs = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, value, unit] = words[..] else {
            return Err(format!("the line `{line}`").into());
        };
        let value: f64 = value
            .parse()
            .map_err(|_| format!("the value of `{line}`"))?;
        let sensible = value.is_finite() && value > 0.0;
        ensure!(sensible, "nothing is for nothing: `{line}`");
        let wanted = if name.starts_with("memcpy") {
            "MiB/s"
        } else {
            "ns"
        };
        ensure!(unit == wanted, "the unit of `{line}`");
        ensure!(costs.insert(name, value).is_none(), name);
    }
    for name in NAMES {
        ensure!(costs.contains_key(name), "{name} is missing in:\n{text}");
    }
    let cpus = cpus() as i64;
    equal!(costs.contains_key("ipi"), (cpus > 1), cpus, text);
    equal!(costs.len(), NAMES.len() + usize::from(cpus > 1), text);
    Ok(())
}

/// Uses registers, system calls by all entries, and breakpoints, whose gates the measuring uses
/// too.
fn uses_the_entries(stop: &AtomicBool, rounds: &AtomicU32) -> Outcome {
    static BREAKPOINTS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: i32, _: *mut siginfo_t, _: *mut c_void) {
        BREAKPOINTS.fetch_add(1, Relaxed);
    }
    handle(SIGTRAP, count, 0)?;
    let pid = i64::from(call!(getpid()));
    let mut number = 0u64;
    while !stop.load(Relaxed) {
        number += 1;
        let value = number.wrapping_mul(0x0101_0101_0101_0101);
        let (first, second, called, called32): (u64, u64, i64, i64);
        // SAFETY: touches only the registers named; the calls take and change no memory, the
        // breakpoint has a handler.
        unsafe {
            asm!(
                "movq xmm0, {value}", "movq xmm1, {value}",
                "mov {count}, 20000",
                "2:", "dec {count}", "jnz 2b",
                "mov eax, 39", "syscall", // getpid
                "mov {called}, rax",
                "mov eax, 20", "int 0x80", // getpid
                "mov {called32}, rax",
                "int3",
                "movq {first}, xmm0", "movq {second}, xmm1",
                value = in(reg) value, count = out(reg) _,
                first = out(reg) first, second = out(reg) second,
                called = out(reg) called, called32 = out(reg) called32,
                out("rax") _, out("rcx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("xmm0") _, out("xmm1") _,
            );
        }
        ensure!(first == value && second == value, value, first, second);
        ensure!(called == pid && called32 == pid, pid, called, called32);
        equal!(u64::from(BREAKPOINTS.load(Relaxed)), number);
        rounds.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Maps and unmaps in two threads, so that CPUs send shootdowns; forks, too.
fn uses_memory(stop: &AtomicBool, rounds: &AtomicU32) -> Outcome {
    let work = |mark: u8| -> Outcome {
        let mut number = mark;
        while !stop.load(Relaxed) {
            number = number.wrapping_add(2);
            let memory = map(8 * PAGE)?;
            for page in 0..8 {
                equal!(peek(memory.wrapping_add(page * PAGE)), 0);
                poke(memory.wrapping_add(page * PAGE), number);
            }
            for page in 0..8 {
                let found = peek(memory.wrapping_add(page * PAGE));
                equal!(found, number, page);
            }
            call!(munmap(memory.cast(), 8 * PAGE));
            rounds.fetch_add(1, Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| work(0));
        let outcome = work(1);
        thread.join()?.and(outcome)
    })
}

fn beside_others() -> Outcome {
    only_causeway()?;
    // SAFETY: zeros are values of both, and the mapping stays to the process's end.
    let (stop, counts) = unsafe {
        let shared = shared_map(PAGE)?;
        (
            &*shared.cast::<AtomicBool>(),
            &*shared.add(64).cast::<[AtomicU32; 2]>(),
        )
    };
    let neighbours = [
        spawn(|| uses_the_entries(stop, &counts[0]))?,
        spawn(|| uses_memory(stop, &counts[1]))?,
    ];
    let readers = [0; 2].map(|_| spawn(|| measured().and_then(|()| measured())));
    let mut outcome: Outcome = Ok(());
    for reader in readers {
        let end = wait(reader?)?;
        if end != crate::End::Exit(0) {
            outcome = Err(format!("a reader ended with {end:?}").into());
        }
    }
    stop.store(true, Relaxed);
    for neighbour in neighbours {
        let end = wait(neighbour)?;
        ensure!(end == crate::End::Exit(0), "a neighbour ended with {end:?}");
    }
    outcome?;
    for count in counts {
        ensure!(count.load(Relaxed) > 0, "a neighbour did not run");
    }
    // Works as before.
    child(measured)
}
