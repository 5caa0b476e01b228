//! Sets of semaphores.

use super::{RW, attach, segment};
use crate::support::{
    End, Numbers, Outcome, PAGE, child, errno, handle, pause_ms, peek, poke, shared_map, spawn,
    wait,
};
use crate::{Test, call, ensure, refused};
use libc::{c_int, c_void};
use std::ptr;

pub const TESTS: &[Test] = &[
    (
        "sysv: semaphores as a plain model says",
        semaphores_like_model,
    ),
    ("sysv: operations are all or none", all_or_none),
    ("sysv: sleepers in order", sleepers_in_order),
    ("sysv: undone at the end", undone),
    ("sysv: a semaphore as a lock", semaphore_lock),
    ("sysv: sleeps that end otherwise", other_ends),
];

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
