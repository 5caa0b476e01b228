//! System V shared memory, semaphores and message queues.
//!
//! - `segments`: shared memory.
//! - `semaphores`: sets of semaphores.
//! - `messages`: message queues.
//! - `objects`: keys, `/proc/sysvipc`.

use support::prelude::*;

pub mod messages;
pub mod objects;
pub mod segments;
pub mod semaphores;

pub const RW: c_int = 0o600;

/// Makes a private segment of so many bytes.
pub fn segment(size: usize) -> Result<c_int> {
    Ok(call!(shmget(IPC_PRIVATE, size, IPC_CREAT | RW)))
}

pub fn attach(id: c_int, at: usize, flags: c_int) -> Result<*mut u8> {
    Ok(call!(shmat(id, at as *const c_void, flags)).cast())
}

pub fn remove_segment(id: c_int) -> Outcome {
    call!(shmctl(id, IPC_RMID, null_mut()));
    Ok(())
}

/// A message with a short text.
#[repr(C)]
pub struct Text {
    pub kind: c_long,
    pub text: [u8; 32],
}

pub fn put(queue: c_int, kind: c_long, text: &str) -> Outcome {
    let mut message = Text {
        kind,
        text: [0; 32],
    };
    message.text[..text.len()].copy_from_slice(text.as_bytes());
    call!(msgsnd(queue, ptr::from_ref(&message).cast(), text.len(), 0));
    Ok(())
}
