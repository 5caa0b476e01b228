//! Queues of messages.

use super::{RW, Text, put};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("sysv: messages by type", messages_by_type),
    ("sysv: messages between processes", messages_between),
    ("sysv: long messages", long_messages),
];

fn take(queue: c_int, kind: c_long, flags: c_int) -> Result<(c_long, String)> {
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
    let queue = call!(msgget(IPC_PRIVATE, IPC_CREAT | RW));
    for (kind, text) in [(3, "a"), (1, "b"), (2, "c"), (1, "d"), (5, "e"), (2, "f")] {
        put(queue, kind, text)?;
    }
    let mut message = [0u64; 8];
    let to = message.as_mut_ptr();
    refused!(ENOMSG, msgrcv(queue, to.cast(), 8, 4, IPC_NOWAIT));
    refused!(E2BIG, msgrcv(queue, to.cast(), 0, 3, IPC_NOWAIT));
    refused!(EINVAL, msgrcv(queue, to.cast(), 8, 1, MSG_COPY));
    let copied = take(queue, 4, MSG_COPY | IPC_NOWAIT)?;
    ensure!(copied == (5, "e".into()), "copied {copied:?}");
    for (choice, flags, expected) in [
        (-2, 0, (1, "b")),
        (2, 0, (2, "c")),
        (1, MSG_EXCEPT, (3, "a")),
        (0, 0, (1, "d")),
        (c_long::MIN, 0, (2, "f")),
    ] {
        let got = take(queue, choice, flags)?;
        ensure!(got == (expected.0, expected.1.into()), "{choice}: {got:?}");
    }
    let cut = call!(msgrcv(queue, to.cast(), 0, 0, MSG_NOERROR));
    ensure!(cut == 0 && message[0] == 5, cut, message[0]);
    // SAFETY: all zeros is a valid structure of numbers.
    let mut status: msqid_ds = unsafe { zeroed() };
    call!(msgctl(queue, IPC_STAT, &mut status));
    ensure!(
        status.msg_qnum == 0 && status.msg_qbytes == 16_384,
        "{} messages",
        status.msg_qnum
    );
    equal!(status.msg_lspid, std::process::id() as i32);
    message = [0; 8];
    let to = message.as_mut_ptr();
    refused!(EINVAL, msgsnd(queue, to.cast(), 8, 0));
    message = [1; 8];
    let to = message.as_mut_ptr();
    refused!(EINVAL, msgsnd(queue, to.cast(), 8193, 0));
    refused!(EFAULT, msgsnd(queue, ptr::without_provenance(8), 8, 0));
    call!(msgctl(queue, IPC_RMID, null_mut()));
    refused!(EINVAL, msgsnd(queue, to.cast(), 8, 0));
    Ok(())
}

fn messages_between() -> Outcome {
    const EACH: u64 = 300;
    let queue = call!(msgget(IPC_PRIVATE, IPC_CREAT | RW));
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
    wait_all(children)?;
    call!(msgctl(queue, IPC_RMID, null_mut()));
    Ok(())
}

fn long_messages() -> Outcome {
    let queue = call!(msgget(IPC_PRIVATE, IPC_CREAT | RW));
    let mut numbers = Numbers::new(3);
    for len in [1, 1000, 1024, 1025, 4096, 4097, 8000, 8192] {
        let sent: Vec<u8> = (0..len).map(|_| numbers.next() as u8).collect();
        let mut message = vec![0u8; 8 + len];
        message[0] = 1;
        message[8..].copy_from_slice(&sent);
        call!(msgsnd(queue, message.as_ptr().cast(), len, 0));
        message.fill(0);
        let copy = MSG_COPY | IPC_NOWAIT;
        for flags in [copy, 0] {
            let kind = 0;
            let got = call!(msgrcv(queue, message.as_mut_ptr().cast(), len, kind, flags));
            ensure!(got as usize == len, "{got} in place of {len} bytes");
            ensure!(message[8..] == sent, "{len} bytes changed on their way");
        }
    }
    refused! { msgsnd(queue, [1u64; 2].as_ptr().cast(), usize::MAX, 0) => EINVAL; }
    call!(msgctl(queue, IPC_RMID, null_mut()));
    Ok(())
}
