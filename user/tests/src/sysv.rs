//! System V shared memory, semaphores and message queues.

use std::mem::{size_of, zeroed};
use std::ptr;

use libc::{c_int, c_long, c_void};

use crate::support::{
    End, Numbers, Outcome, PAGE, child, errno, fault_of, handle, map, pause_ms, peek, poke,
    shared_map, spawn, wait,
};
use crate::{Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("sysv: a segment is shared, and counted", segment_is_shared),
    ("sysv: where segments are attached", attach_places),
    (
        "sysv: a removed segment lives while attached",
        removed_segment,
    ),
    ("sysv: rights of a segment", segment_rights),
    ("sysv: keys", keys),
    (
        "sysv: semaphores as a plain model says",
        semaphores_like_model,
    ),
    ("sysv: operations are all or none", all_or_none),
    ("sysv: sleepers in order", sleepers_in_order),
    ("sysv: undone at the end", undone),
    ("sysv: a semaphore as a lock", semaphore_lock),
    ("sysv: sleeps that end otherwise", other_ends),
    ("sysv: messages by type", messages_by_type),
    ("sysv: messages between processes", messages_between),
    ("sysv: long messages", long_messages),
    ("sysv: what is listed", listed),
];

const RW: c_int = 0o600;

/// A private segment of so many bytes.
fn segment(size: usize) -> Result<c_int, String> {
    Ok(call!(shmget(libc::IPC_PRIVATE, size, libc::IPC_CREAT | RW)))
}

fn attach(id: c_int, at: usize, flags: c_int) -> Result<*mut u8, String> {
    Ok(call!(shmat(id, at as *const c_void, flags)).cast())
}

fn status(id: c_int) -> Result<libc::shmid_ds, String> {
    // SAFETY: all zeros is a valid structure of numbers.
    let mut status = unsafe { zeroed() };
    call!(shmctl(id, libc::IPC_STAT, &mut status));
    Ok(status)
}

fn attachments(id: c_int) -> Result<u64, String> {
    Ok(status(id)?.shm_nattch)
}

fn remove_segment(id: c_int) -> Outcome {
    call!(shmctl(id, libc::IPC_RMID, ptr::null_mut()));
    Ok(())
}

fn segment_is_shared() -> Outcome {
    let id = segment(3 * PAGE - 5)?;
    let at = attach(id, 0, 0)?;
    let again = attach(id, 0, libc::SHM_RDONLY)?;
    ensure!(at != again, "one address for two attachments");
    // SAFETY: inside the attached pages.
    unsafe {
        poke(at.add(2 * PAGE + 9), 7);
        ensure!(peek(again.add(2 * PAGE + 9)) == 7, "not the same memory");
    }
    ensure!(attachments(id)? == 2, "{} attachments", attachments(id)?);
    child(|| {
        ensure!(attachments(id)? == 4, "{} after fork", attachments(id)?);
        poke(at, 9);
        call!(shmdt(again.cast()));
        ensure!(attachments(id)? == 3, "{} after shmdt", attachments(id)?);
        Ok(())
    })?;
    ensure!(attachments(id)? == 2, "{} after exit", attachments(id)?);
    ensure!(peek(again) == 9, "the child's write is not seen");
    let seen = status(id)?;
    ensure!(seen.shm_segsz == 3 * PAGE - 5, "size {}", seen.shm_segsz);
    ensure!(
        seen.shm_cpid == std::process::id() as i32,
        "made by {}",
        seen.shm_cpid
    );
    ensure!(
        seen.shm_atime > 0 && seen.shm_dtime > 0 && seen.shm_ctime > 0,
        "no times"
    );
    ensure!(
        fault_of(|| poke(again, 1))?.is_some(),
        "a read-only attachment was written"
    );
    refused!(
        EACCES,
        mprotect(again.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE)
    );
    // Beyond the last page there is nothing of the segment.
    call!(shmdt(at.cast()));
    refused!(EINVAL, shmdt(at.cast()));
    call!(shmdt(again.cast()));
    ensure!(attachments(id)? == 0, "still attached");
    remove_segment(id)?;
    refused!(EINVAL, shmctl(id, libc::IPC_RMID, ptr::null_mut()));
    refused!(EINVAL, shmat(id, ptr::null(), 0));
    Ok(())
}

fn attach_places() -> Outcome {
    let id = segment(4 * PAGE)?;
    let room = map(16 * PAGE)? as usize;
    refused!(EINVAL, shmat(id, room as *const c_void, 0));
    call!(munmap(room as *mut c_void, 16 * PAGE));
    ensure!(
        attach(id, room, 0)? as usize == room,
        "not where it was asked for"
    );
    refused!(EINVAL, shmat(id, (room + 3 * PAGE) as *const c_void, 0));
    refused!(
        EINVAL,
        shmat(id, (room + 1) as *const c_void, libc::SHM_REMAP)
    );
    refused!(EINVAL, shmat(id, ptr::null(), libc::SHM_REMAP));
    let rounded = attach(id, room + 8 * PAGE + 77, libc::SHM_RND)? as usize;
    ensure!(rounded == room + 8 * PAGE, "rounded to {rounded:#x}");
    // In the place of the second half of the first one.
    let over = attach(id, room + 2 * PAGE, libc::SHM_REMAP)? as usize;
    ensure!(over == room + 2 * PAGE, "remapped to {over:#x}");
    poke(room as *mut u8, 5);
    ensure!(peek(over as *const u8) == 5, "not the segment's start");
    ensure!(attachments(id)? == 3, "{} attachments", attachments(id)?);
    call!(shmdt(room as *const c_void));
    ensure!(peek(over as *const u8) == 5, "the wrong one was detached");
    // Parted by a change of rights, it still goes as one.
    call!(mprotect(
        (over + PAGE) as *mut c_void,
        PAGE,
        libc::PROT_READ
    ));
    ensure!(attachments(id)? == 4, "{} after parting", attachments(id)?);
    call!(shmdt(over as *const c_void));
    ensure!(
        attachments(id)? == 1,
        "{} after the parted one",
        attachments(id)?
    );
    refused!(EINVAL, shmdt((rounded + PAGE) as *const c_void));
    call!(shmdt(rounded as *const c_void));
    ensure!(attachments(id)? == 0, "still attached");
    remove_segment(id)
}

fn removed_segment() -> Outcome {
    let key = 0x6361_7501;
    let id = call!(shmget(key, PAGE, libc::IPC_CREAT | RW));
    let at = attach(id, 0, 0)?;
    remove_segment(id)?;
    ensure!(status(id)?.shm_perm.mode & 0o1000 != 0, "not marked");
    refused!(ENOENT, shmget(key, PAGE, RW));
    // It can still be attached by its id, as on Linux.
    let again = attach(id, 0, 0)?;
    poke(at, 3);
    ensure!(peek(again) == 3, "not the same memory");
    child(|| {
        call!(shmdt(at.cast()));
        call!(shmdt(again.cast()));
        Ok(())
    })?;
    call!(shmdt(at.cast()));
    ensure!(attachments(id)? == 1, "{} attachments", attachments(id)?);
    call!(shmdt(again.cast()));
    // SAFETY: all zeros is a valid structure of numbers.
    let mut status: libc::shmid_ds = unsafe { zeroed() };
    refused!(EINVAL, shmctl(id, libc::IPC_STAT, &mut status));
    Ok(())
}

fn segment_rights() -> Outcome {
    let id = segment(PAGE)?;
    let limit = call!(shmget(0x6361_7502, PAGE, libc::IPC_CREAT | 0o640));
    if call!(geteuid()) != 0 {
        return remove_segment(id);
    }
    child(|| {
        call!(setgroups(0, ptr::null()));
        call!(setresgid(1000, 1000, 1000));
        call!(setresuid(1000, 1000, 1000));
        refused!(EACCES, shmat(id, ptr::null(), 0));
        refused!(EACCES, shmat(id, ptr::null(), libc::SHM_RDONLY));
        refused!(EPERM, shmctl(id, libc::IPC_RMID, ptr::null_mut()));
        refused!(EACCES, shmget(0x6361_7502, PAGE, 0o400));
        // SAFETY: all zeros is a valid structure of numbers.
        let mut status: libc::shmid_ds = unsafe { zeroed() };
        refused!(EACCES, shmctl(id, libc::IPC_STAT, &mut status));
        Ok(())
    })?;
    let mut status = status(limit)?;
    status.shm_perm.uid = 1000;
    status.shm_perm.mode = 0o604;
    call!(shmctl(limit, libc::IPC_SET, &mut status));
    child(|| {
        call!(setgroups(0, ptr::null()));
        call!(setresgid(1001, 1001, 1001));
        call!(setresuid(1001, 1001, 1001));
        let at = attach(limit, 0, libc::SHM_RDONLY)?;
        peek(at);
        refused!(EACCES, shmat(limit, ptr::null(), 0));
        Ok(())
    })?;
    child(|| {
        call!(setresuid(1000, 1000, 1000));
        attach(limit, 0, 0)?;
        remove_segment(limit)
    })?;
    remove_segment(id)
}

fn keys() -> Outcome {
    let key = 0x6361_7503;
    refused!(ENOENT, semget(key, 2, RW));
    let id = call!(semget(key, 2, libc::IPC_CREAT | RW));
    ensure!(
        call!(semget(key, 2, libc::IPC_CREAT | RW)) == id,
        "another set"
    );
    ensure!(call!(semget(key, 0, 0)) == id, "another set");
    refused!(
        EEXIST,
        semget(key, 2, libc::IPC_CREAT | libc::IPC_EXCL | RW)
    );
    refused!(EINVAL, semget(key, 3, RW));
    refused!(EINVAL, semget(libc::IPC_PRIVATE, 0, RW));
    refused!(EINVAL, semget(libc::IPC_PRIVATE, -1, RW));
    refused!(EINVAL, semget(libc::IPC_PRIVATE, 1 << 20, RW));
    refused!(EINVAL, shmget(libc::IPC_PRIVATE, 0, RW));
    call!(semctl(id, 0, libc::IPC_RMID));
    refused!(EINVAL, semctl(id, 0, libc::IPC_RMID));
    // The place may be used again, the id is not.
    let mut seen = vec![id];
    for _ in 0..200 {
        let id = call!(semget(key, 1, libc::IPC_CREAT | RW));
        ensure!(!seen.contains(&id), "id {id} twice");
        seen.push(id);
        call!(semctl(id, 0, libc::IPC_RMID));
    }
    Ok(())
}

fn op(number: usize, change: i32, flags: c_int) -> libc::sembuf {
    libc::sembuf {
        sem_num: number as u16,
        sem_op: change as i16,
        sem_flg: flags as i16,
    }
}

/// Makes operations; gives the error, or 0.
fn operate(id: c_int, operations: &[libc::sembuf]) -> i32 {
    let mut operations = operations.to_vec();
    // SAFETY: the operations live across the call.
    match unsafe { libc::semop(id, operations.as_mut_ptr(), operations.len()) } {
        -1 => errno(),
        _ => 0,
    }
}

fn values(id: c_int, count: usize) -> Result<Vec<u16>, String> {
    let mut values = vec![0u16; count];
    call!(semctl(id, 0, libc::GETALL, values.as_mut_ptr()));
    Ok(values)
}

fn semaphores_like_model() -> Outcome {
    const COUNT: usize = 5;
    let id = call!(semget(
        libc::IPC_PRIVATE,
        COUNT as c_int,
        libc::IPC_CREAT | RW
    ));
    let mut model = [0i32; COUNT];
    let mut numbers = Numbers::new(5);
    for step in 0..3000 {
        let operations: Vec<_> = (0..1 + numbers.below(4))
            .map(|_| {
                let change = match numbers.below(8) {
                    0 => 0,
                    1 => 32_767 - numbers.below(3) as i32,
                    _ => numbers.below(9) as i32 - 4,
                };
                op(
                    numbers.below(COUNT as u64) as usize,
                    change,
                    libc::IPC_NOWAIT,
                )
            })
            .collect();
        let mut next = model;
        let mut expected = 0;
        for operation in &operations {
            let value = &mut next[operation.sem_num as usize];
            let sum = *value + i32::from(operation.sem_op);
            if sum < 0 || operation.sem_op == 0 && *value != 0 {
                expected = libc::EAGAIN;
            } else if sum > 32_767 {
                expected = libc::ERANGE;
            }
            if expected != 0 {
                break;
            }
            *value = sum;
        }
        let got = operate(id, &operations);
        ensure!(
            got == expected,
            "step {step}: error {got}, {expected} expected"
        );
        if expected == 0 {
            model = next;
        }
        if numbers.below(20) == 0 {
            let (number, value) = (
                numbers.below(COUNT as u64) as usize,
                numbers.below(6) as i32,
            );
            call!(semctl(id, number as c_int, libc::SETVAL, value));
            model[number] = value;
        }
        let found = values(id, COUNT)?;
        let same = found.iter().zip(model).all(|(f, m)| i32::from(*f) == m);
        ensure!(same, "step {step}: {found:?} in place of {model:?}");
    }
    let pid = call!(semctl(id, 0, libc::GETPID));
    ensure!(pid == std::process::id() as i32, "changed last by {pid}");
    refused!(ERANGE, semctl(id, 0, libc::SETVAL, 32_768));
    refused!(ERANGE, semctl(id, 0, libc::SETVAL, -1));
    refused!(EINVAL, semctl(id, COUNT as c_int, libc::GETVAL));
    ensure!(
        operate(id, &[op(COUNT, 1, 0)]) == libc::EFBIG,
        "no such semaphore"
    );
    ensure!(operate(id, &[]) == libc::EINVAL, "no operations");
    ensure!(
        operate(id, &[op(0, 1, 0); 501]) == libc::E2BIG,
        "too many operations"
    );
    call!(semctl(id, 0, libc::IPC_RMID));
    Ok(())
}

/// Waits until `count` calls sleep on the semaphore.
fn await_sleepers(id: c_int, number: c_int, command: c_int, count: c_int) -> Outcome {
    for _ in 0..2000 {
        if call!(semctl(id, number, command)) == count {
            return Ok(());
        }
        pause_ms(1);
    }
    Err(format!("{count} sleepers did not come"))
}

fn all_or_none() -> Outcome {
    let id = call!(semget(libc::IPC_PRIVATE, 3, libc::IPC_CREAT | RW));
    let sleeper = spawn(|| {
        let end = operate(id, &[op(0, -1, 0), op(1, -2, 0), op(2, 0, 0)]);
        ensure!(end == 0, "error {end}");
        Ok(())
    })?;
    await_sleepers(id, 0, libc::GETNCNT, 1)?;
    ensure!(operate(id, &[op(0, 1, 0)]) == 0, "raise 0");
    await_sleepers(id, 1, libc::GETNCNT, 1)?;
    ensure!(operate(id, &[op(2, 1, 0)]) == 0, "raise 2");
    ensure!(operate(id, &[op(1, 2, 0)]) == 0, "raise 1");
    await_sleepers(id, 2, libc::GETZCNT, 1)?;
    ensure!(
        values(id, 3)? == [1, 2, 1],
        "{:?}: a part was made",
        values(id, 3)?
    );
    ensure!(operate(id, &[op(2, -1, 0)]) == 0, "lower 2");
    ensure!(wait(sleeper)? == End::Exit(0), "the sleeper failed");
    ensure!(
        values(id, 3)? == [0, 0, 0],
        "{:?} at the end",
        values(id, 3)?
    );
    call!(semctl(id, 0, libc::IPC_RMID));
    Ok(())
}

fn sleepers_in_order() -> Outcome {
    let id = call!(semget(libc::IPC_PRIVATE, 2, libc::IPC_CREAT | RW));
    let log = shared_map(PAGE)?;
    let mut children = Vec::new();
    for n in 0..4u8 {
        children.push(spawn(|| {
            // The third wants too much, and does not hold up the others.
            let want = if n == 2 { -50 } else { -1 };
            ensure!(operate(id, &[op(0, want, 0)]) == 0, "sleeper {n}");
            // SAFETY: the page is shared and zero-filled; slot 0 counts.
            unsafe {
                let counter = &*log.cast::<std::sync::atomic::AtomicU8>();
                let place = 1 + counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                poke(log.add(place as usize), n + 1);
            }
            ensure!(operate(id, &[op(1, 1, 0)]) == 0, "tell");
            Ok(())
        })?);
        await_sleepers(id, 0, libc::GETNCNT, i32::from(n) + 1)?;
    }
    for expected in [1, 2, 4] {
        ensure!(operate(id, &[op(0, 1, 0)]) == 0, "raise");
        ensure!(operate(id, &[op(1, -1, 0)]) == 0, "hear");
        // SAFETY: inside the page.
        let count = peek(log);
        let last = peek(unsafe { log.add(count as usize) });
        ensure!(last == expected, "{last} came, {expected} expected");
    }
    ensure!(operate(id, &[op(0, 50, 0)]) == 0, "raise");
    for child in children {
        ensure!(wait(child)? == End::Exit(0), "a sleeper failed");
    }
    call!(semctl(id, 0, libc::IPC_RMID));
    Ok(())
}

fn undone() -> Outcome {
    let id = call!(semget(libc::IPC_PRIVATE, 2, libc::IPC_CREAT | RW));
    call!(semctl(id, 0, libc::SETVAL, 5));
    child(|| {
        ensure!(
            operate(id, &[op(0, -3, libc::SEM_UNDO), op(1, 4, libc::SEM_UNDO)]) == 0,
            "take"
        );
        ensure!(operate(id, &[op(0, 1, libc::SEM_UNDO)]) == 0, "give one");
        ensure!(values(id, 2)? == [3, 4], "{:?} meanwhile", values(id, 2)?);
        Ok(())
    })?;
    ensure!(
        values(id, 2)? == [5, 0],
        "{:?} after the end",
        values(id, 2)?
    );
    // Killed, and asleep with an undo of its own.
    let killed = spawn(|| {
        ensure!(operate(id, &[op(0, -5, libc::SEM_UNDO)]) == 0, "take all");
        let end = operate(id, &[op(0, -1, libc::SEM_UNDO)]);
        Err(format!("not killed but {end}"))
    })?;
    await_sleepers(id, 0, libc::GETNCNT, 1)?;
    call!(kill(killed, libc::SIGKILL));
    ensure!(wait(killed)? == End::Signal(libc::SIGKILL), "not killed");
    ensure!(
        values(id, 2)? == [5, 0],
        "{:?} after the kill",
        values(id, 2)?
    );
    // Setting a value forgets what was to be undone of it.
    child(|| {
        ensure!(operate(id, &[op(0, -2, libc::SEM_UNDO)]) == 0, "take");
        call!(semctl(id, 0, libc::SETVAL, 9));
        Ok(())
    })?;
    ensure!(
        values(id, 2)? == [9, 0],
        "{:?} after SETVAL",
        values(id, 2)?
    );
    // A thread's undo waits for the last thread of the process.
    child(|| {
        let thread = std::thread::spawn(move || operate(id, &[op(0, -9, libc::SEM_UNDO)]));
        ensure!(thread.join().ok() == Some(0), "the thread failed");
        ensure!(
            values(id, 2)? == [0, 0],
            "{:?}: undone too early",
            values(id, 2)?
        );
        Ok(())
    })?;
    ensure!(
        values(id, 2)? == [9, 0],
        "{:?} after the threads",
        values(id, 2)?
    );
    call!(semctl(id, 0, libc::IPC_RMID));
    Ok(())
}

fn semaphore_lock() -> Outcome {
    let id = call!(semget(libc::IPC_PRIVATE, 1, libc::IPC_CREAT | RW));
    call!(semctl(id, 0, libc::SETVAL, 1));
    let memory = attach(segment(PAGE)?, 0, 0)?.cast::<u64>();
    let mut children = Vec::new();
    for _ in 0..4 {
        children.push(spawn(|| {
            for _ in 0..200 {
                ensure!(operate(id, &[op(0, -1, libc::SEM_UNDO)]) == 0, "lock");
                // SAFETY: the attached page; the semaphore excludes the others.
                unsafe { memory.write_volatile(memory.read_volatile() + 1) };
                ensure!(operate(id, &[op(0, 1, libc::SEM_UNDO)]) == 0, "unlock");
            }
            Ok(())
        })?);
    }
    for child in children {
        ensure!(wait(child)? == End::Exit(0), "a child failed");
    }
    // SAFETY: as above.
    let sum = unsafe { memory.read_volatile() };
    ensure!(sum == 800, "{sum} in place of 800");
    call!(semctl(id, 0, libc::IPC_RMID));
    Ok(())
}

extern "C" fn nothing(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

fn other_ends() -> Outcome {
    let id = call!(semget(libc::IPC_PRIVATE, 1, libc::IPC_CREAT | RW));
    let short = libc::timespec {
        tv_sec: 0,
        tv_nsec: 5_000_000,
    };
    let mut take = op(0, -1, 0);
    // SAFETY: everything lives across the call.
    let timed = unsafe { libc::syscall(libc::SYS_semtimedop, id, &mut take, 1, &short) };
    ensure!(
        timed == -1 && errno() == libc::EAGAIN,
        "no time-out: {timed}, {}",
        errno()
    );
    let bad = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000_000,
    };
    // SAFETY: as above.
    let timed = unsafe { libc::syscall(libc::SYS_semtimedop, id, &mut take, 1, &bad) };
    ensure!(timed == -1 && errno() == libc::EINVAL, "a bad time passed");
    // A handler ends the sleep even with SA_RESTART.
    let caught = spawn(|| {
        handle(libc::SIGUSR1, nothing, libc::SA_RESTART)?;
        ensure!(
            operate(id, &[op(0, -1, 0)]) == libc::EINTR,
            "not interrupted"
        );
        Ok(())
    })?;
    await_sleepers(id, 0, libc::GETNCNT, 1)?;
    call!(kill(caught, libc::SIGUSR1));
    ensure!(wait(caught)? == End::Exit(0), "the interrupted one failed");
    await_sleepers(id, 0, libc::GETNCNT, 0)?;
    let queue = call!(msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | RW));
    let sleepers = [
        spawn(|| {
            ensure!(
                operate(id, &[op(0, -1, 0)]) == libc::EIDRM,
                "not told of the removal"
            );
            Ok(())
        })?,
        spawn(|| {
            let mut message = [0u64; 2];
            refused!(EIDRM, msgrcv(queue, message.as_mut_ptr().cast(), 8, 0, 0));
            Ok(())
        })?,
    ];
    await_sleepers(id, 0, libc::GETNCNT, 1)?;
    pause_ms(10);
    call!(semctl(id, 0, libc::IPC_RMID));
    call!(msgctl(queue, libc::IPC_RMID, ptr::null_mut()));
    for sleeper in sleepers {
        ensure!(wait(sleeper)? == End::Exit(0), "a sleeper failed");
    }
    Ok(())
}

/// A message with a text that says its number.
#[repr(C)]
struct Text {
    kind: c_long,
    text: [u8; 32],
}

fn put(queue: c_int, kind: c_long, text: &str) -> Outcome {
    let mut message = Text {
        kind,
        text: [0; 32],
    };
    message.text[..text.len()].copy_from_slice(text.as_bytes());
    call!(msgsnd(queue, ptr::from_ref(&message).cast(), text.len(), 0));
    Ok(())
}

fn take(queue: c_int, kind: c_long, flags: c_int) -> Result<(c_long, String), String> {
    let mut message = Text {
        kind: 0,
        text: [0; 32],
    };
    let size = size_of::<[u8; 32]>();
    let len = call!(msgrcv(
        queue,
        ptr::from_mut(&mut message).cast(),
        size,
        kind,
        flags
    ));
    let text = String::from_utf8_lossy(&message.text[..len as usize]).into_owned();
    Ok((message.kind, text))
}

fn messages_by_type() -> Outcome {
    let queue = call!(msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | RW));
    for (kind, text) in [(3, "a"), (1, "b"), (2, "c"), (1, "d"), (5, "e"), (2, "f")] {
        put(queue, kind, text)?;
    }
    let mut message = [0u64; 8];
    let to = message.as_mut_ptr();
    refused!(ENOMSG, msgrcv(queue, to.cast(), 8, 4, libc::IPC_NOWAIT));
    refused!(E2BIG, msgrcv(queue, to.cast(), 0, 3, libc::IPC_NOWAIT));
    refused!(EINVAL, msgrcv(queue, to.cast(), 8, 1, libc::MSG_COPY));
    let copied = take(queue, 4, libc::MSG_COPY | libc::IPC_NOWAIT)?;
    ensure!(copied == (5, "e".into()), "copied {copied:?}");
    for (choice, flags, expected) in [
        (-2, 0, (1, "b")),
        (2, 0, (2, "c")),
        (1, libc::MSG_EXCEPT, (3, "a")),
        (0, 0, (1, "d")),
        (c_long::MIN, 0, (2, "f")),
    ] {
        let got = take(queue, choice, flags)?;
        ensure!(got == (expected.0, expected.1.into()), "{choice}: {got:?}");
    }
    let cut = call!(msgrcv(queue, to.cast(), 0, 0, libc::MSG_NOERROR));
    ensure!(
        cut == 0 && message[0] == 5,
        "cut to {cut}, type {}",
        message[0]
    );
    // SAFETY: all zeros is a valid structure of numbers.
    let mut status: libc::msqid_ds = unsafe { zeroed() };
    call!(msgctl(queue, libc::IPC_STAT, &mut status));
    ensure!(
        status.msg_qnum == 0 && status.msg_qbytes == 16_384,
        "{} messages",
        status.msg_qnum
    );
    ensure!(
        status.msg_lspid == std::process::id() as i32,
        "sent by {}",
        status.msg_lspid
    );
    message = [0; 8];
    let to = message.as_mut_ptr();
    refused!(EINVAL, msgsnd(queue, to.cast(), 8, 0));
    message = [1; 8];
    let to = message.as_mut_ptr();
    refused!(EINVAL, msgsnd(queue, to.cast(), 8193, 0));
    refused!(EFAULT, msgsnd(queue, ptr::without_provenance(8), 8, 0));
    call!(msgctl(queue, libc::IPC_RMID, ptr::null_mut()));
    refused!(EINVAL, msgsnd(queue, to.cast(), 8, 0));
    Ok(())
}

fn messages_between() -> Outcome {
    const EACH: u64 = 300;
    let queue = call!(msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | RW));
    let mut children = Vec::new();
    for kind in 1..=3 {
        children.push(spawn(|| {
            // Longer than fits at once, so that both sides sleep.
            let mut message = vec![0u64; 1 + 64];
            for n in 0..EACH {
                message[0] = kind as u64;
                message[1] = n;
                message[64] = !n;
                call!(msgsnd(queue, message.as_ptr().cast(), 64 * 8, 0));
            }
            Ok(())
        })?);
        children.push(spawn(|| {
            let mut message = vec![0u64; 1 + 64];
            for n in 0..EACH {
                let len = call!(msgrcv(queue, message.as_mut_ptr().cast(), 64 * 8, kind, 0));
                ensure!(len == 64 * 8, "length {len}");
                ensure!(
                    message[0] == kind as u64 && message[1] == n && message[64] == !n,
                    "message {} of {} in place of {n} of {kind}",
                    message[1],
                    message[0]
                );
            }
            Ok(())
        })?);
    }
    for child in children {
        ensure!(wait(child)? == End::Exit(0), "a child failed");
    }
    call!(msgctl(queue, libc::IPC_RMID, ptr::null_mut()));
    Ok(())
}

fn long_messages() -> Outcome {
    let queue = call!(msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | RW));
    let mut numbers = Numbers::new(3);
    for len in [1, 1000, 1024, 1025, 4096, 4097, 8000, 8192] {
        let sent: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
        let mut message = vec![0u8; 8 + len];
        message[0] = 1;
        message[8..].copy_from_slice(&sent);
        call!(msgsnd(queue, message.as_ptr().cast(), len, 0));
        message.fill(0);
        let copy = libc::MSG_COPY | libc::IPC_NOWAIT;
        for flags in [copy, 0] {
            let kind = 0;
            let got = call!(msgrcv(queue, message.as_mut_ptr().cast(), len, kind, flags));
            ensure!(got as usize == len, "{got} in place of {len} bytes");
            ensure!(message[8..] == sent, "{len} bytes changed on their way");
        }
    }
    refused!(
        EINVAL,
        msgsnd(queue, [1u64; 2].as_ptr().cast(), usize::MAX, 0)
    );
    call!(msgctl(queue, libc::IPC_RMID, ptr::null_mut()));
    Ok(())
}

fn listed() -> Outcome {
    let shm = segment(5000)?;
    let sem = call!(semget(0x6361_7504, 3, libc::IPC_CREAT | RW));
    let msg = call!(msgget(libc::IPC_PRIVATE, libc::IPC_CREAT | RW));
    put(msg, 1, "four")?;
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let row = |path: &str, id: c_int| -> Result<Vec<String>, String> {
        let text = read(path)?;
        text.lines()
            .map(|line| {
                line.split_whitespace()
                    .map(String::from)
                    .collect::<Vec<_>>()
            })
            .find(|words| words.get(1) == Some(&id.to_string()))
            .ok_or(format!("{path} has no {id}:\n{text}"))
    };
    let words = row("/proc/sysvipc/shm", shm)?;
    ensure!(words[2] == "600" && words[3] == "5000", "{words:?}");
    let words = row("/proc/sysvipc/sem", sem)?;
    ensure!(
        words[0] == (0x6361_7504).to_string() && words[3] == "3",
        "{words:?}"
    );
    let words = row("/proc/sysvipc/msg", msg)?;
    ensure!(words[3] == "4" && words[4] == "1", "{words:?}");
    let at = attach(shm, 0, 0)? as usize;
    let maps = read("/proc/self/maps")?;
    let line = maps
        .lines()
        .find(|line| line.starts_with(&format!("{at:08x}-")))
        .ok_or("not in maps")?;
    ensure!(
        line.contains("rw-s") && line.ends_with("/SYSV00000000 (deleted)"),
        "{line}"
    );
    ensure!(line.contains(&format!(" {shm} ")), "no id in {line}");
    remove_segment(shm)?;
    call!(semctl(sem, 0, libc::IPC_RMID));
    call!(msgctl(msg, libc::IPC_RMID, ptr::null_mut()));
    Ok(())
}
