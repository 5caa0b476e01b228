//! What keeps a 32-bit program in its segments and out of 64-bit code: `walls/walls.c` has the
//! attacks, each with the end that it must have.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("walls: limits", limits),
    ("walls: limits that are too wide", wide),
    ("walls: other segments", selectors),
    ("walls: 32-bit code of a 64-bit program", both_modes),
    ("walls: there are no local segments", no_local_table),
];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/walls"));

/// Runs the program; it prints the attacks that did not end as they must, and returns their number.
fn failures(words: &[&str]) -> Result<(i32, String)> {
    let path = format!("{}/walls", folder("walls")?);
    fs::write(&path, PROGRAM)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let output = Command::new(&path).args(words).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output.status.code().unwrap_or(-1), text))
}

fn attack(words: &[&str]) -> Outcome {
    let (failures, text) = failures(words)?;
    ensure!(failures == 0, "{failures} failures:\n{text}");
    Ok(())
}

/// Whether the processor checks limits of segments: QEMU's emulator, which says its name, does not.
fn checks_limits() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    (leaf.ebx, leaf.ecx) != (u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"))
}

/// What the program is told: the size of its region, if the kernel was told one.
fn words() -> Vec<String> {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let words = line.split_whitespace();
    let mut sizes = words.filter_map(|word| word.strip_prefix("region="));
    let size = sizes.next_back().and_then(|size| size.strip_suffix('M'));
    size.map(|size| format!("region={size}"))
        .into_iter()
        .collect()
}

fn limits() -> Outcome {
    if !checks_limits() {
        return Err(skip("the processor checks no limits of segments"));
    }
    let words = words();
    let words = words.iter().map(String::as_str).chain(["limits"]);
    attack(&words.collect::<Vec<_>>())
}

/// A limit that is one page too wide is found by nearly all attacks.
fn wide() -> Outcome {
    if !checks_limits() {
        return Err(skip("the processor checks no limits of segments"));
    }
    let (failures, text) = failures(&["limits", "wide"])?;
    ensure!(failures > 70, "{failures} failures:\n{text}");
    Ok(())
}

fn selectors() -> Outcome {
    attack(&[])
}

/// A 64-bit program has no local segments, on no CPU: not even in its own memory, where a table
/// would be that no one has set up.
fn no_local_table() -> Outcome {
    const FIRST: usize = 0x1000;
    /// Writable data of programs' privilege, all addresses.
    const FLAT: u64 = 0x00cf_f300_0000_ffff;
    for cpu in 0..cpus() {
        let child = spawn(|| {
            pin(cpu)?;
            let at = std::ptr::without_provenance_mut::<c_void>(FIRST);
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            let memory = call!(mmap(at, 0xf000, PROT_READ | PROT_WRITE, flags, -1, 0));
            for n in 0..0xf000 / 8 {
                // SAFETY: within the mapping.
                unsafe { memory.cast::<u64>().add(n).write(FLAT) };
            }
            // SAFETY: the register is not used; with a table the load succeeds.
            unsafe { std::arch::asm!("mov gs, {0:x}", in(reg) FIRST as u16 | 7) };
            Ok(())
        })?;
        equal!(wait(child)?, End::Signal(SIGSEGV), cpu);
    }
    Ok(())
}

/// 32-bit code, and 64-bit code behind it that goes back to where the test is.
const BOTH: &[u8] = &[
    // mov eax, 20; int 0x80; mov edi, eax; int3; jmp 0x33:0
    0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x89, 0xc7, 0xcc, 0xea, 0, 0, 0, 0, 0x33, 0,
    // mov rsp, [rip + 6]; jmp [rip + 8]
    0x48, 0x8b, 0x25, 6, 0, 0, 0, 0xff, 0x25, 8, 0, 0, 0,
];
/// Where the address behind the far jump is, and what it names.
const BACK: usize = 11;
const BACK_AT: usize = 17;
/// Where the stack pointer and the address in the test are, and then the far address of the 32-bit
/// code. A far return would not do: QEMU's emulator reads its stack as the kernel would.
const SLOTS: usize = BOTH.len();

/// A 64-bit program goes to 32-bit code, which makes a call and takes a signal, and comes back.
fn both_modes() -> Outcome {
    use super::signals::{count, note};
    let memory = low_map(4 * PAGE)?;
    let at = memory as usize;
    // SAFETY: the map is longer than the code.
    unsafe {
        memory.copy_from(BOTH.as_ptr(), BOTH.len());
        memory
            .add(BACK)
            .cast::<u32>()
            .write_unaligned((at + BACK_AT) as u32);
        let far = memory.add(SLOTS + 16);
        far.cast::<u32>().write_unaligned(at as u32);
        far.add(4).cast::<u16>().write_unaligned(0x23);
    }
    call!(mprotect(
        memory.cast(),
        4 * PAGE,
        PROT_READ | PROT_WRITE | PROT_EXEC
    ));
    signal_stack()?;
    handle(SIGTRAP, note, SA_ONSTACK)?;
    let before = count();
    for _ in 0..3 {
        let pid: u64;
        // SAFETY: the code above keeps what is not named, but for the two registers that are saved
        // here; its stack is in the map.
        unsafe {
            std::arch::asm!(
                "push rbx", "push rbp",
                "mov [{slots}], rsp", "lea rdx, [rip + 2f]", "mov [{slots} + 8], rdx",
                "mov rsp, {stack}",
                "jmp fword ptr [{slots} + 16]",
                "2:", "pop rbp", "pop rbx",
                slots = in(reg) at + SLOTS,
                stack = in(reg) at + 4 * PAGE - 256,
                out("rdi") pid,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
                clobber_abi("C"),
            );
        }
        equal!(pid as i32, call!(getpid()));
    }
    equal!(count() - before, 3);
    Ok(())
}
