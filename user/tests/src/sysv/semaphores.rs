//! Sets of semaphores.

use super::{RW, attach, segment};
use support::prelude::*;

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

fn op(number: usize, change: i32, flags: c_int) -> sembuf {
    sembuf {
        sem_num: number as u16,
        sem_op: change as i16,
        sem_flg: flags as i16,
    }
}

/// Makes operations; returns the error number, or 0.
fn operate(id: c_int, operations: &[sembuf]) -> i32 {
    let mut operations = operations.to_vec();
    // SAFETY: the operations live across the call.
    match unsafe { libc::semop(id, operations.as_mut_ptr(), operations.len()) } {
        -1 => errno(),
        _ => 0,
    }
}

fn values(id: c_int, count: usize) -> Result<Vec<u16>> {
    let mut values = vec![0u16; count];
    call!(semctl(id, 0, GETALL, values.as_mut_ptr()));
    Ok(values)
}

fn semaphores_like_model() -> Outcome {
    const COUNT: usize = 5;
    let id = call!(semget(IPC_PRIVATE, COUNT as c_int, IPC_CREAT | RW));
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
                op(numbers.below(COUNT as u64) as usize, change, IPC_NOWAIT)
            })
            .collect();
        let mut next = model;
        let mut expected = 0;
        for operation in &operations {
            let value = &mut next[operation.sem_num as usize];
            let sum = *value + i32::from(operation.sem_op);
            if sum < 0 || operation.sem_op == 0 && *value != 0 {
                expected = EAGAIN;
            } else if sum > 32_767 {
                expected = ERANGE;
            }
            if expected != 0 {
                break;
            }
            *value = sum;
        }
        let got = operate(id, &operations);
        equal!(got, expected, step);
        if expected == 0 {
            model = next;
        }
        if numbers.below(20) == 0 {
            let (number, value) = (
                numbers.below(COUNT as u64) as usize,
                numbers.below(6) as i32,
            );
            call!(semctl(id, number as c_int, SETVAL, value));
            model[number] = value;
        }
        let found = values(id, COUNT)?;
        let same = found.iter().zip(model).all(|(f, m)| i32::from(*f) == m);
        ensure!(same, "step {step}: {found:?} in place of {model:?}");
    }
    let pid = call!(semctl(id, 0, GETPID));
    ensure!(pid == std::process::id() as i32, "changed last by {pid}");
    refused!(ERANGE, semctl(id, 0, SETVAL, 32_768));
    refused!(ERANGE, semctl(id, 0, SETVAL, -1));
    refused!(EINVAL, semctl(id, COUNT as c_int, GETVAL));
    equal!(operate(id, &[op(COUNT, 1, 0)]), EFBIG);
    ensure!(operate(id, &[]) == EINVAL, "no operations");
    equal!(operate(id, &[op(0, 1, 0); 501]), E2BIG);
    call!(semctl(id, 0, IPC_RMID));
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
    Err(format!("{count} sleepers did not come").into())
}

fn all_or_none() -> Outcome {
    let id = call!(semget(IPC_PRIVATE, 3, IPC_CREAT | RW));
    let sleeper = spawn(|| {
        let end = operate(id, &[op(0, -1, 0), op(1, -2, 0), op(2, 0, 0)]);
        ensure!(end == 0, "error {end}");
        Ok(())
    })?;
    await_sleepers(id, 0, GETNCNT, 1)?;
    ensure!(operate(id, &[op(0, 1, 0)]) == 0, "raise 0");
    await_sleepers(id, 1, GETNCNT, 1)?;
    ensure!(operate(id, &[op(2, 1, 0)]) == 0, "raise 2");
    ensure!(operate(id, &[op(1, 2, 0)]) == 0, "raise 1");
    await_sleepers(id, 2, GETZCNT, 1)?;
    equal!(values(id, 3)?, [1, 2, 1]);
    ensure!(operate(id, &[op(2, -1, 0)]) == 0, "lower 2");
    wait_ok(sleeper)?;
    equal!(values(id, 3)?, [0, 0, 0]);
    call!(semctl(id, 0, IPC_RMID));
    Ok(())
}

fn sleepers_in_order() -> Outcome {
    let id = call!(semget(IPC_PRIVATE, 2, IPC_CREAT | RW));
    let log = shared_map(PAGE)?;
    let mut children = Vec::new();
    for n in 0..4u8 {
        children.push(spawn(|| {
            // The third asks for too much and does not block the others.
            let want = if n == 2 { -50 } else { -1 };
            ensure!(operate(id, &[op(0, want, 0)]) == 0, "sleeper {n}");
            // SAFETY: the page is shared and zero-filled; slot 0 counts.
            unsafe {
                let counter = &*log.cast::<AtomicU8>();
                let place = 1 + counter.fetch_add(1, SeqCst);
                poke(log.add(place as usize), n + 1);
            }
            ensure!(operate(id, &[op(1, 1, 0)]) == 0, "tell");
            Ok(())
        })?);
        await_sleepers(id, 0, GETNCNT, i32::from(n) + 1)?;
    }
    for expected in [1, 2, 4] {
        ensure!(operate(id, &[op(0, 1, 0)]) == 0, "raise");
        ensure!(operate(id, &[op(1, -1, 0)]) == 0, "hear");
        let count = peek(log);
        // SAFETY: inside the page.
        let last = peek(unsafe { log.add(count as usize) });
        ensure!(last == expected, "{last} came, {expected} expected");
    }
    ensure!(operate(id, &[op(0, 50, 0)]) == 0, "raise");
    wait_all(children)?;
    call!(semctl(id, 0, IPC_RMID));
    Ok(())
}

fn undone() -> Outcome {
    let id = call!(semget(IPC_PRIVATE, 2, IPC_CREAT | RW));
    call!(semctl(id, 0, SETVAL, 5));
    child(|| {
        equal!(operate(id, &[op(0, -3, SEM_UNDO), op(1, 4, SEM_UNDO)]), 0);
        ensure!(operate(id, &[op(0, 1, SEM_UNDO)]) == 0, "give one");
        ensure!(values(id, 2)? == [3, 4], "{:?} meanwhile", values(id, 2)?);
        Ok(())
    })?;
    equal!(values(id, 2)?, [5, 0]);
    // Killed while it sleeps with an undo of its own.
    let killed = spawn(|| {
        ensure!(operate(id, &[op(0, -5, SEM_UNDO)]) == 0, "take all");
        let end = operate(id, &[op(0, -1, SEM_UNDO)]);
        Err(format!("not killed but {end}").into())
    })?;
    await_sleepers(id, 0, GETNCNT, 1)?;
    call!(kill(killed, SIGKILL));
    ensure!(wait(killed)? == End::Signal(SIGKILL), "not killed");
    equal!(values(id, 2)?, [5, 0]);
    // Setting a value clears its undo entries.
    child(|| {
        ensure!(operate(id, &[op(0, -2, SEM_UNDO)]) == 0, "take");
        call!(semctl(id, 0, SETVAL, 9));
        Ok(())
    })?;
    equal!(values(id, 2)?, [9, 0]);
    // Undo happens when the last thread of the process ends.
    child(|| {
        let thread = thread::spawn(move || operate(id, &[op(0, -9, SEM_UNDO)]));
        ensure!(thread.join().ok() == Some(0), "the thread failed");
        equal!(values(id, 2)?, [0, 0]);
        Ok(())
    })?;
    equal!(values(id, 2)?, [9, 0]);
    call!(semctl(id, 0, IPC_RMID));
    Ok(())
}

fn semaphore_lock() -> Outcome {
    let id = call!(semget(IPC_PRIVATE, 1, IPC_CREAT | RW));
    call!(semctl(id, 0, SETVAL, 1));
    let memory = attach(segment(PAGE)?, 0, 0)?.cast::<u64>();
    let mut children = Vec::new();
    for _ in 0..4 {
        children.push(spawn(|| {
            for _ in 0..200 {
                ensure!(operate(id, &[op(0, -1, SEM_UNDO)]) == 0, "lock");
                // SAFETY: the attached page; the semaphore excludes the others.
                unsafe { memory.write_volatile(memory.read_volatile() + 1) };
                ensure!(operate(id, &[op(0, 1, SEM_UNDO)]) == 0, "unlock");
            }
            Ok(())
        })?);
    }
    wait_all(children)?;
    // SAFETY: as above.
    let sum = unsafe { memory.read_volatile() };
    ensure!(sum == 800, "{sum} in place of 800");
    call!(semctl(id, 0, IPC_RMID));
    Ok(())
}

fn other_ends() -> Outcome {
    let id = call!(semget(IPC_PRIVATE, 1, IPC_CREAT | RW));
    let short = timespec_of(5);
    let mut take = op(0, -1, 0);
    // SAFETY: everything lives across the call.
    let timed = unsafe { libc::syscall(libc::SYS_semtimedop, id, &mut take, 1, &short) };
    ensure!(timed == -1 && errno() == EAGAIN, timed, errno());
    let bad = time_spec(0, 1_000_000_000);
    // SAFETY: as above.
    let timed = unsafe { libc::syscall(libc::SYS_semtimedop, id, &mut take, 1, &bad) };
    ensure!(timed == -1 && errno() == EINVAL, "a bad time passed");
    // A handler ends the sleep even with SA_RESTART.
    let caught = spawn(|| {
        handle(SIGUSR1, ignore_signal, SA_RESTART)?;
        equal!(operate(id, &[op(0, -1, 0)]), EINTR);
        Ok(())
    })?;
    await_sleepers(id, 0, GETNCNT, 1)?;
    call!(kill(caught, SIGUSR1));
    wait_ok(caught)?;
    await_sleepers(id, 0, GETNCNT, 0)?;
    let queue = call!(msgget(IPC_PRIVATE, IPC_CREAT | RW));
    let sleepers = [
        spawn(|| {
            equal!(operate(id, &[op(0, -1, 0)]), EIDRM);
            Ok(())
        })?,
        spawn(|| {
            let mut message = [0u64; 2];
            refused!(EIDRM, msgrcv(queue, message.as_mut_ptr().cast(), 8, 0, 0));
            Ok(())
        })?,
    ];
    await_sleepers(id, 0, GETNCNT, 1)?;
    pause_ms(10);
    call!(semctl(id, 0, IPC_RMID));
    call!(msgctl(queue, IPC_RMID, null_mut()));
    wait_all(sleepers)?;
    Ok(())
}
