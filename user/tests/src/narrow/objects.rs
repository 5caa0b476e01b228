//! System V objects and message queues.

use super::{Low, words};
use crate::{call80, refused80};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("narrow: shared memory by ipc", shared_memory),
    ("narrow: semaphores and messages by ipc", semaphores),
    ("narrow: message queues", queues),
];

fn shared_memory() -> Outcome {
    let mut low = Low::new()?;
    let id = call80!(117, 23, 0, 8192, 0o1600, 0, 0); // shmget(IPC_PRIVATE)
    let at = low.room(4);
    call80!(117, 21, id, 0, at, 0); // shmat: the address goes to a place
    let [address] = words(at);
    // SAFETY: attached just now.
    unsafe { (address as usize as *mut u32).write_volatile(0x1234) };
    let to = low.room(128);
    call80!(117, 24, id, IPC_STAT | 0x100, 0, to); // shmctl with IPC_64
    let w: [u32; 21] = words(to);
    // Owner's mode; size; processes.
    ensure!(
        w[5] as u16 & 0o777 == 0o600 && w[9] == 8192 && w[18] == 1,
        "{w:?}"
    );
    call80!(396, id, IPC_STAT, to);
    let [.., size]: [u32; 10] = words(to);
    ensure!(size == 8192, "shmctl: {size}");
    call80!(117, 24, id, IPC_STAT, 0, to); // as it was once
    let [.., size]: [u32; 5] = words(to);
    ensure!(size == 8192, "old shmctl: {size}");
    call80!(117, 22, 0, 0, 0, address); // shmdt
    call80!(117, 24, id, IPC_RMID, 0, 0);
    refused80!(EINVAL, 117, 21, id, 0, at, 0);
    Ok(())
}

fn semaphores() -> Outcome {
    let mut low = Low::new()?;
    let set = call80!(117, 2, 0, 3, 0o1600); // semget
    let value = low.words(&[5]);
    call80!(117, 3, set, 1, 16, value); // SETVAL: the argument is in memory
    ensure!(call80!(117, 3, set, 1, 12, value) == 5, "GETVAL");
    ensure!(call80!(394, set, 1, 12, 0) == 5, "semctl");
    let take = low.words(&[1 | 0xfffe_0000, 0]); // Semaphore 1, less 2.
    call80!(117, 1, set, 1, 0, take);
    ensure!(call80!(117, 3, set, 1, 12, value) == 3, "semop");
    let take = low.words(&[1 | 0xfff0_0000, 0]);
    refused80!(
        EAGAIN,
        117,
        4,
        set,
        1,
        low.words(&[0, 1_000_000]),
        take,
        low.words(&[0, 1_000_000])
    );
    refused80!(EAGAIN, 420, set, take, 1, low.words(&[0, 0, 1_000_000, 0]));
    let to = low.room(128);
    let argument = low.words(&[to]);
    call80!(117, 3, set, 0, IPC_STAT | 0x100, argument);
    let w: [u32; 14] = words(to);
    ensure!(w[13] == 3, "semaphores: {w:?}");
    call80!(117, 3, set, 0, IPC_RMID, value);
    // Messages.
    let queue = call80!(117, 13, 0, 0o1600); // msgget
    let message = low.words(&[7, u32::from_le_bytes(*b"text")]);
    call80!(117, 11, queue, 4, 0, message); // msgsnd
    let (to, room) = (low.room(32), low.room(16));
    let kludge = low.words(&[room, 7]);
    ensure!(call80!(117, 12, queue, 8, 0, kludge) == 4, "msgrcv of old");
    let [kind, text] = words(room);
    equal!((kind, text), (7, u32::from_le_bytes(*b"text")), kind, text);
    call80!(400, queue, message, 4, 0);
    equal!(call80!(117, 0x1_000c, queue, 8, 0, to, 0), 4); // The type is the fifth.
    call80!(400, queue, message, 4, 0);
    ensure!(call80!(401, queue, to, 8, 7, 0) == 4, "msgrcv");
    call80!(402, queue, IPC_RMID, 0);
    Ok(())
}

fn queues() -> Outcome {
    let mut low = Low::new()?;
    let name = low.text(&format!("narrow-{}", call!(getpid())));
    let size = low.words(&[0, 3, 16, 0, 0, 0, 0, 0]);
    let fd = call80!(277, name, O_RDWR | O_CREAT | O_NONBLOCK, 0o600, size);
    call80!(278, name);
    let (text, to, priority) = (low.bytes(b"message"), low.room(32), low.room(4));
    call80!(279, fd, text, 7, 9, 0);
    call80!(418, fd, text, 6, 10, 0);
    let old = low.words(&[77; 8]);
    call80!(282, fd, 0, old);
    let w: [u32; 8] = words(old);
    equal!(w, [O_NONBLOCK as u32, 3, 16, 2, 0, 0, 0, 0]);
    ensure!(
        call80!(280, fd, to, 16, priority, low.words(&[1, 0])) == 6 && words(priority) == [10],
        "first"
    );
    ensure!(
        call80!(419, fd, to, 16, priority, low.words(&[1, 0, 0, 0])) == 7 && words(priority) == [9],
        "second"
    );
    refused80!(EAGAIN, 280, fd, to, 16, 0, 0);
    call80!(282, fd, low.words(&[0; 8]), 0);
    refused80!(ETIMEDOUT, 280, fd, to, 16, 0, low.words(&[1, 0]));
    refused80!(ETIMEDOUT, 419, fd, to, 16, 0, low.words(&[1, 0, 0, 0]));
    call80!(
        281,
        fd,
        low.words(&[5, SIGCHLD as u32, SIGEV_SIGNAL as u32])
    );
    refused80!(
        EBUSY,
        281,
        fd,
        low.words(&[5, SIGCHLD as u32, SIGEV_SIGNAL as u32])
    );
    Ok(())
}
