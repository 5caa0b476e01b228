//! Fault injection: `fault_injection=NAME` on the kernel's command line breaks the kernel on
//! purpose, so that a test sees that the end is the promised one, or exercises the machine below
//! the floors above.
//!
//! | name | what | the end |
//! |---|---|---|
//! | `panic` | a panic, two calls deep, while programs run on the other CPUs | panic |
//! | `overflow` | endless recursion | panic: kernel stack overflow |
//! | `fault` | a write to the kernel's text | panic: page fault |
//! | `table`, `kept-table` | a write to a page table in the direct map, in use and kept ready | panic: page fault, the guard refused it |
//! | `interrupts`, `segments` | a write to a descriptor table | panic: page fault |
//! | `hang` | all CPUs spin with interrupts off | none |
//! | `slow-calls` | each system call of the first CPU takes some instructions more | the usual |
//! | `slow-faults` | each page fault of the first CPU takes some instructions more | the usual |
//! | `edu` | a device that reads and writes where it must not (`edu.rs`) | done |
//! | `tables` | the cost of page tables by level, which the log has (`tables.rs`) | the usual |
//! | `edu-silence` | that device, and a unit that answers nothing | done |
//! | `iommu-error` | an invalidation that no unit knows | the usual |
//! | `iommu-silence` | units that answer nothing, two seconds later | the usual, without devices |
//! | `machine` | programs of a few instructions each: every way into the kernel and back | done, or
//! panic |

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use super::{edu, slowdown, tables};
use crate::addr::USER_END;
use crate::frame::Contents;
use crate::hw::machine as hardware;
use crate::hw::options;
use crate::hw::x86_64::{cpu, entry, gdt, idt, percpu, space, vtd};
use crate::mem::mistake::Mistake;
use crate::pmap::{Pending, PmapRef};
use crate::power::{Stop, stop};
use crate::task::{self, Sleep, Spawn};
use crate::trap::{Event, USER_CODE_32, UserContext};
use crate::user::{self, BadAddress};
use crate::{Access, Frame, PAGE_SIZE, Pmap, Prot, VirtAddr, ephemeral, frame};

/// Injects the fault that the command line asks for, if any. In the first task. With
/// `fault_injection=FAULT:MISTAKE`, a kernel with assertions makes that [`Mistake`] from now on.
pub fn run_if_asked(command_line: &str) {
    let asked = options::last_value(command_line, "fault_injection", Some);
    let (asked, mistake) = match asked.and_then(|it| it.split_once(':')) {
        Some((fault, mistake)) => (Some(fault), Some(mistake)),
        None => (asked, None),
    };
    if let Some(mistake) = mistake {
        // Tables made from now on are made without the rule.
        frame::drain_tables();
        Mistake::named(mistake).expect("a mistake").make();
    }
    match asked {
        Some("panic") => {
            occupy();
            outer();
        }
        Some("overflow") => {
            overflow(1);
        }
        // SAFETY: it is not: the page is write-protected, and the fault is what is wanted.
        Some("fault") => unsafe { (run_if_asked as *const () as *mut u8).write_volatile(0xcc) },
        Some("table") => overwrite(table_of_this_task()),
        Some("interrupts") => overwrite(idt::place().start),
        Some("segments") => overwrite(gdt::place().start),
        Some("kept-table") => overwrite(kept_table()),
        Some("hang") => hang(),
        Some("slow-calls") => slowdown::slow_calls(),
        Some("slow-faults") => slowdown::slow_faults(),
        Some("machine") => machine(),
        Some("iommu-error") => vtd::injection::stop_queues(),
        Some("iommu-silence") => silence_later(),
        Some("edu") => edu::attack(),
        Some("edu-silence") => edu::outlive_unit(),
        Some("tables") => tables::measure(),
        _ => {}
    }
}

fn silence_later() {
    let body = || {
        task::sleep(Sleep::within(Duration::from_secs(2)));
        vtd::injection::silence();
    };
    task::spawn(Spawn::kernel("silence"), Box::new(body)).expect("memory for the test");
}

/// Writes eight bytes that are there already, as a wrong pointer of the kernel might.
fn overwrite(at: usize) {
    let at = at as *mut u64;
    // SAFETY: it is not: what is there is write-protected, and the fault is what is wanted. Without
    // the protection nothing changes.
    unsafe { at.write_volatile(at.read_volatile()) };
    panic!("the write of {at:p} went through");
}

/// Where a page table of a program is in the direct map.
fn table_of_this_task() -> usize {
    let pmap = Pmap::new().expect("memory for a page table");
    let root = pmap.root();
    core::mem::forget(pmap);
    hardware::ptr(root) as usize
}

/// The same for one that its program has left, and that is kept ready.
fn kept_table() -> usize {
    let pmap = Pmap::new().expect("memory for a page table");
    let root = pmap.root();
    pmap.tear_down();
    drop(pmap);
    hardware::ptr(root) as usize
}

#[inline(never)]
fn outer() {
    inner();
    core::hint::black_box(());
}

#[inline(never)]
fn inner() {
    panic!("a panic was injected");
}

#[inline(never)]
#[allow(unconditional_recursion)]
fn overflow(depth: usize) -> usize {
    let room = core::hint::black_box([depth; 64]);
    overflow(depth + 1) + room[depth % 64]
}

fn hang() -> ! {
    for _ in 0..task::cpu_count() {
        let _ = task::spawn(Spawn::kernel("hang"), Box::new(spin));
    }
    spin();
    unreachable!("it spins")
}

fn spin() {
    cpu::irqs_disable();
    loop {
        cpu::spin_hint();
    }
}

global_asm!(
    r#"
    .section .rodata.injected, "a"
injected_call:
    mov eax, 0x1234
    syscall
    /* The answer to the first call is the number of the second. */
    syscall
    ud2
injected_call32:
    mov eax, 20
    int 0x80
    ud2
injected_load:
    mov rax, [rdi]
    ud2
injected_store:
    mov [rdi], rax
    ud2
injected_divide:
    xor ecx, ecx
    div ecx
injected_spin:
    jmp injected_spin
injected_step:
    nop
    nop
    ud2
injected_privileged:
    cli
    ud2
    /* Holds rdi in vector registers for rsi rounds. */
injected_vectors:
    movq xmm0, rdi
    movq xmm15, rdi
    fninit
    push rdi
    fild qword ptr [rsp]
1:
    movq rax, xmm0
    cmp rax, rdi
    jne 2f
    movq rax, xmm15
    cmp rax, rdi
    jne 2f
    dec rsi
    jnz 1b
    fistp qword ptr [rsp]
    pop rax
    cmp rax, rdi
    jne 2f
    syscall
2:
    ud2
injected_end:
    .text
    "#
);

unsafe extern "C" {
    static injected_call: u8;
    static injected_call32: u8;
    static injected_load: u8;
    static injected_store: u8;
    static injected_divide: u8;
    static injected_spin: u8;
    static injected_step: u8;
    static injected_privileged: u8;
    static injected_vectors: u8;
    static injected_end: u8;
}

const CODE: VirtAddr = VirtAddr(0x40_0000);
const STACK: VirtAddr = VirtAddr(0x7fff_0000_0000);
/// Nothing is mapped here until the hook maps it.
const HOLE: VirtAddr = VirtAddr(0x1234_5000);

/// A program of the test: its address space, and its registers at one of the labels.
fn program(at: *const u8) -> (PmapRef, UserContext) {
    let pmap = Pmap::new().expect("memory for the test");
    let start = &raw const injected_call;
    // SAFETY: the labels stand in this order in one section.
    let code = unsafe {
        core::slice::from_raw_parts(start, (&raw const injected_end).offset_from_unsigned(start))
    };
    let mut pending = Pending::new();
    let mut map = |va: VirtAddr, bytes: &[u8], prot| {
        let frame = Frame::alloc(Contents::Zeroed).expect("memory for the test");
        ephemeral::map(&frame).write(0, bytes);
        pmap.enter(va, &frame, prot, &mut pending)
            .expect("memory for the test");
    };
    map(CODE, code, Prot::READ | Prot::EXEC);
    map(STACK, &[], Prot::READ | Prot::WRITE);
    let mut context = UserContext::new().expect("memory for the test");
    context.regs.rip = CODE.0 as u64 + (at as u64 - start as u64);
    context.regs.rsp = STACK.0 as u64 + 0x800;
    (pmap, context)
}

/// Lets a program spin on every CPU.
fn occupy() {
    for _ in 0..task::cpu_count() {
        let (pmap, context) = program(&raw const injected_spin);
        let context = context.park();
        let body = move || {
            let mut context = context.unpark();
            while context.run() == Event::Interrupt {}
        };
        let spawn = Spawn {
            pmap: Some(pmap),
            ..Spawn::kernel("spin")
        };
        task::spawn(spawn, Box::new(body)).expect("memory for the test");
    }
    task::sleep(Sleep::within(Duration::from_millis(50)));
}

/// Runs until something other than an interrupt happens.
fn run(context: &mut UserContext) -> Event {
    loop {
        let event = context.run();
        if event != Event::Interrupt {
            return event;
        }
    }
}

fn machine() -> ! {
    calls();
    exceptions();
    faults();
    copies();
    isolation();
    crate::log!("fault_injection: one program at a time is right");
    vectors();
    crate::log!("fault_injection: many programs at a time are right");
    stacks();
    crate::log!("fault_injection: stacks come and go");
    crate::log!("exit: status 0");
    stop(Stop::Done)
}

const INVALID_OPCODE: Event = Event::Exception { vector: 6, code: 0 };

fn calls() {
    let (pmap, mut context) = program(&raw const injected_call);
    task::set_pmap(Some(pmap));
    context.regs.r15 = 15;
    context.regs.rbx = 3;
    assert_eq!(run(&mut context), Event::SystemCall);
    assert_eq!(context.regs.orig_rax, 0x1234);
    let next = CODE.0 as u64 + 7;
    assert_eq!((context.regs.rip, context.regs.rcx), (next, next));
    assert_eq!((context.regs.r15, context.regs.rbx), (15, 3));
    context.regs.rax = 77;
    assert_eq!(run(&mut context), Event::SystemCall);
    assert_eq!(context.regs.orig_rax, 77);
    // A changed register makes the return take the other way.
    context.regs.rcx = 1;
    assert_eq!(run(&mut context), INVALID_OPCODE);
    assert_eq!((context.regs.rcx, context.regs.orig_rax), (1, u64::MAX));

    let (pmap, mut context) = program(&raw const injected_call32);
    task::set_pmap(Some(pmap));
    for selector in [context.regs.cs, USER_CODE_32] {
        context.regs.cs = selector;
        context.regs.rip =
            CODE.0 as u64 + (&raw const injected_call32 as u64 - &raw const injected_call as u64);
        assert_eq!(run(&mut context), Event::SystemCall32);
        assert_eq!(context.regs.orig_rax, 20);
        assert_eq!(context.regs.cs, selector);
    }
}

fn exceptions() {
    let cases = [
        (&raw const injected_divide, 0),
        (&raw const injected_privileged, 13),
    ];
    for (at, vector) in cases {
        let (pmap, mut context) = program(at);
        task::set_pmap(Some(pmap));
        assert_eq!(run(&mut context), Event::Exception { vector, code: 0 });
    }
    let (pmap, mut context) = program(&raw const injected_step);
    task::set_pmap(Some(pmap));
    context.regs.rflags = cpu::rflags::TRAP | cpu::rflags::IO_PRIVILEGE;
    assert_eq!(run(&mut context), Event::Exception { vector: 1, code: 0 });
    assert_eq!(context.regs.rflags & cpu::rflags::IO_PRIVILEGE, 0);
    let (pmap, mut context) = program(&raw const injected_spin);
    task::set_pmap(Some(pmap));
    assert_eq!(context.run(), Event::Interrupt);
}

fn faults() {
    let (pmap, mut context) = program(&raw const injected_load);
    task::set_pmap(Some(pmap));
    let mut expect = |at: *const u8, rdi: usize, event: Event| {
        context.regs.rip = CODE.0 as u64 + (at as u64 - &raw const injected_call as u64);
        context.regs.rdi = rdi as u64;
        assert_eq!(run(&mut context), event, "access to {rdi:#x}");
    };
    let fault = |addr: usize, access, present| Event::PageFault {
        addr: VirtAddr(addr),
        access,
        present,
    };
    let load = &raw const injected_load;
    let store = &raw const injected_store;
    expect(load, STACK.0, INVALID_OPCODE);
    expect(load, HOLE.0 + 1, fault(HOLE.0 + 1, Access::Read, false));
    expect(store, CODE.0, fault(CODE.0, Access::Write, true));
    // Under a root of its own a program finds nothing of the kernel but the ways in.
    let isolated = hardware::entry_root().is_some();
    let kernel = machine as *const () as usize;
    expect(load, kernel, fault(kernel, Access::Read, !isolated));
    let way_in = entry::ways_in().start;
    expect(load, way_in, fault(way_in, Access::Read, true));
    let outside = Event::Exception {
        vector: 13,
        code: 0,
    };
    expect(load, 0x8000_0000_0000, outside);
    // Jumps to where nothing is, where the kernel is, and where no address is.
    for (rip, event) in [
        (HOLE.0, fault(HOLE.0, Access::Execute, false)),
        (STACK.0, fault(STACK.0, Access::Execute, true)),
        (kernel, fault(kernel, Access::Execute, !isolated)),
        (0x8000_0000_0000, outside),
    ] {
        context.regs.rip = rip as u64;
        assert_eq!(run(&mut context), event, "jump to {rip:#x}");
    }
}

/// Under the root of a program stand the pages of the ways in, the descriptor tables, the first
/// page of each CPU's data, and the user half; nothing else, and what is the kernel's not for
/// programs.
fn isolation() {
    let (pmap, _context) = program(&raw const injected_load);
    let Some(root) = pmap.user_root() else {
        assert!(hardware::entry_root().is_none());
        return;
    };
    let ways_in = [entry::ways_in(), idt::place(), gdt::place()]
        .into_iter()
        .flatten();
    let mut allowed: Vec<usize> = ways_in.step_by(PAGE_SIZE).collect();
    let data = (0..percpu::MAX_CPUS).map(|cpu| core::ptr::from_ref(percpu::of(cpu)) as usize);
    allowed.extend(data);
    let mut found = Vec::new();
    let mut programs = 0;
    space::walk_root(root, &mut |leaf| {
        let va = leaf.va;
        assert_eq!(leaf.is_programs, va < USER_END.0, "{va:#x}");
        assert_eq!(leaf.frames, 1, "{va:#x}");
        match leaf.is_programs {
            true => programs += 1,
            false => found.push(va),
        }
    });
    assert_eq!(programs, 2, "the program's code and stack");
    found.sort_unstable();
    allowed.sort_unstable();
    assert_eq!(found, allowed);
}

fn copies() {
    let (pmap, _context) = program(&raw const injected_load);
    task::set_pmap(Some(pmap.clone()));
    assert_eq!(user::write(STACK, &5u64), Ok(()));
    assert_eq!(user::read::<u64>(STACK), Ok(5));
    assert_eq!(user::write(CODE, &5u64), Err(BadAddress));
    for bad in [
        HOLE.0,
        0,
        0x8000_0000_0000,
        usize::MAX - 7,
        machine as *const () as usize,
    ] {
        assert_eq!(user::read::<u64>(VirtAddr(bad)), Err(BadAddress));
        assert_eq!(user::write(VirtAddr(bad), &5u64), Err(BadAddress));
        assert_eq!(user::load_u32(VirtAddr(bad & !3)), Err(BadAddress));
        assert_eq!(
            user::compare_exchange_u32(VirtAddr(bad & !3), 0, 1),
            Err(BadAddress)
        );
    }
    assert_eq!(user::compare_exchange_u32(STACK, 5, 6), Ok(5));
    assert_eq!(user::load_u32(STACK), Ok(6));
    // Across the border of a page that is not there: all bytes before it arrive.
    let edge = VirtAddr(STACK.0 + crate::PAGE_SIZE - 13);
    assert_eq!(user::copy_out(edge, &[9; 32]), Err(BadAddress));
    let mut bytes = [0; 13];
    assert_eq!(user::copy_in(&mut bytes, edge), Ok(()));
    assert_eq!(bytes, [9; 13]);
    user::set_fault_hook(|at, access| {
        let (true, Access::Write) = (at.page_floor() == HOLE, access) else {
            return false;
        };
        let frame = Frame::alloc(Contents::Zeroed).expect("memory for the test");
        let pmap = task::current()
            .attachment()
            .and_then(|a| a.clone().downcast::<PmapRef>().ok());
        let pmap = pmap.expect("the task has its pmap attached");
        let mut pending = Pending::new();
        pmap.enter(HOLE, &frame, Prot::READ | Prot::WRITE, &mut pending)
            .is_ok()
    });
    let done = Arc::new(AtomicUsize::new(0));
    let mine = done.clone();
    let body = move || {
        assert_eq!(user::read::<u64>(HOLE), Err(BadAddress));
        assert_eq!(user::write(HOLE + 8, &7u64), Ok(()));
        assert_eq!(user::read::<u64>(HOLE + 8), Ok(7));
        mine.fetch_add(1, Ordering::SeqCst);
    };
    let spawn = Spawn {
        pmap: Some(pmap.clone()),
        attachment: Some(Arc::new(pmap)),
        ..Spawn::kernel("copies")
    };
    task::spawn(spawn, Box::new(body)).expect("memory for the test");
    wait_for(&done, 1);
}

fn wait_for(done: &AtomicUsize, count: usize) {
    while done.load(Ordering::SeqCst) < count {
        task::sleep(Sleep::within(Duration::from_millis(1)));
    }
}

/// More programs than CPUs, each with its own values in the vector registers and in FS.
fn vectors() {
    let count = task::cpu_count() * 3 + 1;
    let done = Arc::new(AtomicUsize::new(0));
    for i in 0..count {
        let (pmap, context) = program(&raw const injected_vectors);
        let (done, context) = (done.clone(), context.park());
        let body = move || {
            let mut context = context.unpark();
            let value = 0x1111_0000 + i as u64;
            context.regs.rdi = value;
            context.regs.rsi = 3_000_000;
            context.regs.fs_base = value;
            assert_eq!(
                run(&mut context),
                Event::SystemCall,
                "the registers of another program"
            );
            context.sync_bases();
            assert_eq!(context.regs.fs_base, value);
            let mut copy = context.duplicate().expect("memory for the test");
            let mut frame = copy.fpu_frame().to_vec();
            assert_eq!(frame[160..168], value.to_le_bytes());
            let load = |context: &mut UserContext, frame: &[u8]| {
                context.load_fpu(|to| {
                    to.copy_from_slice(frame);
                    Ok::<(), ()>(())
                })
            };
            assert_eq!(load(&mut context, &frame), Ok(true));
            assert_eq!(context.fpu_frame(), frame);
            frame[27] = 0xff;
            assert_eq!(
                load(&mut context, &frame),
                Ok(false),
                "a control word that the CPU refuses"
            );
            assert_eq!(context.fpu_frame()[160..168], [0; 8]);
            done.fetch_add(1, Ordering::SeqCst);
        };
        let spawn = Spawn {
            pmap: Some(pmap),
            ..Spawn::kernel("vectors")
        };
        task::spawn(spawn, Box::new(body)).expect("memory for the test");
    }
    wait_for(&done, count);
}

/// Many threads at once, several times: their stacks' memory comes back.
fn stacks() {
    let mut before = 0;
    for round in 0..4 {
        let done = Arc::new(AtomicUsize::new(0));
        let (count, gate) = (300, Arc::new(AtomicUsize::new(0)));
        for _ in 0..count {
            let (done, gate) = (done.clone(), gate.clone());
            let body = move || {
                wait_for(&gate, 1);
                done.fetch_add(1, Ordering::SeqCst);
            };
            task::spawn(Spawn::kernel("stack"), Box::new(body)).expect("memory for the test");
        }
        gate.store(1, Ordering::SeqCst);
        wait_for(&done, count);
        // The last ones are still on their way out.
        task::sleep(Sleep::within(Duration::from_millis(30)));
        task::reap();
        let used = crate::frame::usage().kernel;
        match round {
            0 => before = used,
            _ => assert!(used <= before + 2 * 32 * 8, "{before} frames, then {used}"),
        }
    }
}
