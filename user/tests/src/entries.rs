//! How many map entries a program needs (`uvm.txt` 3.2, Table 1).

use fs::Permissions;
use std::arch::global_asm;
use support::prelude::*;

pub const TESTS: &[Test] = &[("entries: cat in two segments", cat)];

const PAGE: usize = 4096;
/// Address of its text; a page of data and pages of zeros follow.
const TEXT: usize = 0x40_0000;
const DATA: usize = TEXT + PAGE;
const ZEROS: usize = DATA + PAGE;
const ZEROS_LEN: usize = 2 * PAGE;

// It takes a page of heap, then copies its input to its output through the zeros.
global_asm!(
    r#"
    .pushsection .rodata
entries_cat:
    mov eax, {brk}
    xor edi, edi
    syscall
    lea rdi, [rax + {page}]
    mov eax, {brk}
    syscall
1:  xor eax, eax
    xor edi, edi
    mov esi, {zeros}
    mov edx, {page}
    syscall
    test eax, eax
    jle 2f
    mov edx, eax
    mov eax, {write}
    mov edi, 1
    mov esi, {zeros}
    syscall
    jmp 1b
2:  mov eax, {exit}
    xor edi, edi
    syscall
entries_cat_end:
    .popsection
    "#,
    brk = const libc::SYS_brk,
    write = const libc::SYS_write,
    exit = const libc::SYS_exit,
    page = const PAGE,
    zeros = const ZEROS,
);

unsafe extern "C" {
    static entries_cat: u8;
    static entries_cat_end: u8;
}

/// Builds the program as linkers of the paper's time did: text, and data followed by zeros.
fn program() -> Vec<u8> {
    let (start, end) = (&raw const entries_cat, &raw const entries_cat_end);
    // SAFETY: the assembler put the code between the two, in memory that never changes.
    let code = unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) };
    let headers = 64 + 2 * 56;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // An executable for x86-64.
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for value in [TEXT + headers, 64, 0] {
        bytes.extend(value.to_le_bytes());
    }
    for value in [0, 0, 64u16, 56, 2, 0, 0, 0] {
        bytes.extend(value.to_le_bytes());
    }
    let mut segment = |rights: u32, offset: usize, address: usize, len: usize, memory: usize| {
        bytes.extend([1u32, rights].map(u32::to_le_bytes).concat());
        for value in [offset, address, address, len, memory, PAGE] {
            bytes.extend(value.to_le_bytes());
        }
    };
    let text = headers + code.len();
    segment(5, 0, TEXT, text, text);
    segment(6, PAGE, DATA, PAGE, PAGE + ZEROS_LEN);
    bytes.extend(code);
    bytes.resize(2 * PAGE, 0);
    bytes
}

/// The paper's `cat` has six entries: text, data, zeros, heap, stack, and the kernel's own.
fn cat() -> Outcome {
    let path = format!("{}/cat", folder("entries")?);
    fs::write(&path, program())?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    let mut child = Command::new(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut to, mut from) = match (child.stdin.take(), child.stdout.take()) {
        (Some(to), Some(from)) => (to, from),
        _ => return Err("no pipes".into()),
    };
    // After its first answer it has all the entries that it needs.
    to.write_all(b"hello")?;
    let mut answer = [0; 5];
    from.read_exact(&mut answer)?;
    ensure!(&answer == b"hello", "it answers {answer:?}");
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.id()))?;
    drop(to);
    let end = child.wait()?;
    ensure!(end.success(), "it ends with {end}");
    let count = maps.lines().count();
    ensure!(count <= 6, "{count} entries:\n{maps}");
    for name in ["/cat", "[heap]", "[stack]", "[vdso]"] {
        ensure!(maps.contains(name), "no {name}:\n{maps}");
    }
    Ok(())
}
