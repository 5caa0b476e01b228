//! Shared memory.

use super::{RW, attach, remove_segment, segment};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("sysv: a segment is shared, and counted", segment_is_shared),
    ("sysv: where segments are attached", attach_places),
    (
        "sysv: a removed segment lives while attached",
        removed_segment,
    ),
    ("sysv: rights of a segment", segment_rights),
];

fn status(id: c_int) -> Result<shmid_ds> {
    // SAFETY: all zeros is a valid structure of numbers.
    let mut status = unsafe { zeroed() };
    call!(shmctl(id, IPC_STAT, &mut status));
    Ok(status)
}

fn attachments(id: c_int) -> Result<u64> {
    Ok(status(id)?.shm_nattch)
}

fn segment_is_shared() -> Outcome {
    let id = segment(3 * PAGE - 5)?;
    let at = attach(id, 0, 0)?;
    let again = attach(id, 0, SHM_RDONLY)?;
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
    equal!(seen.shm_cpid, std::process::id() as i32);
    ensure!(
        seen.shm_atime > 0 && seen.shm_dtime > 0 && seen.shm_ctime > 0,
        "no times"
    );
    ensure!(fault_of(|| poke(again, 1))?.is_some());
    refused!(EACCES, mprotect(again.cast(), PAGE, PROT_READ | PROT_WRITE));
    // Beyond the last page there is nothing of the segment.
    call!(shmdt(at.cast()));
    refused!(EINVAL, shmdt(at.cast()));
    call!(shmdt(again.cast()));
    ensure!(attachments(id)? == 0, "still attached");
    remove_segment(id)?;
    refused!(EINVAL, shmctl(id, IPC_RMID, null_mut()));
    refused!(EINVAL, shmat(id, null(), 0));
    Ok(())
}

fn attach_places() -> Outcome {
    let id = segment(4 * PAGE)?;
    let room = map(16 * PAGE)? as usize;
    refused!(EINVAL, shmat(id, room as *const c_void, 0));
    call!(munmap(room as *mut c_void, 16 * PAGE));
    equal!(attach(id, room, 0)? as usize, room);
    refused!(EINVAL, shmat(id, (room + 3 * PAGE) as *const c_void, 0));
    refused!(EINVAL, shmat(id, (room + 1) as *const c_void, SHM_REMAP));
    refused!(EINVAL, shmat(id, null(), SHM_REMAP));
    let rounded = attach(id, room + 8 * PAGE + 77, SHM_RND)? as usize;
    ensure!(rounded == room + 8 * PAGE, "rounded to {rounded:#x}");
    // Replaces the second half of the first one.
    let over = attach(id, room + 2 * PAGE, SHM_REMAP)? as usize;
    ensure!(over == room + 2 * PAGE, "remapped to {over:#x}");
    poke(room as *mut u8, 5);
    ensure!(peek(over as *const u8) == 5, "not the segment's start");
    ensure!(attachments(id)? == 3, "{} attachments", attachments(id)?);
    call!(shmdt(room as *const c_void));
    ensure!(peek(over as *const u8) == 5, "the wrong one was detached");
    // Split by a change of protection, it is still detached as one.
    call!(mprotect((over + PAGE) as *mut c_void, PAGE, PROT_READ));
    ensure!(attachments(id)? == 4, "{} after parting", attachments(id)?);
    call!(shmdt(over as *const c_void));
    equal!(attachments(id)?, 1);
    refused!(EINVAL, shmdt((rounded + PAGE) as *const c_void));
    call!(shmdt(rounded as *const c_void));
    ensure!(attachments(id)? == 0, "still attached");
    remove_segment(id)
}

fn removed_segment() -> Outcome {
    let key = 0x6361_7501;
    let id = call!(shmget(key, PAGE, IPC_CREAT | RW));
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
    let mut status: shmid_ds = unsafe { zeroed() };
    refused!(EINVAL, shmctl(id, IPC_STAT, &mut status));
    Ok(())
}

fn segment_rights() -> Outcome {
    let id = segment(PAGE)?;
    let limit = call!(shmget(0x6361_7502, PAGE, IPC_CREAT | 0o640));
    if call!(geteuid()) != 0 {
        return remove_segment(id);
    }
    child(|| {
        call!(setgroups(0, null()));
        call!(setresgid(1000, 1000, 1000));
        call!(setresuid(1000, 1000, 1000));
        refused!(EACCES, shmat(id, null(), 0));
        refused!(EACCES, shmat(id, null(), SHM_RDONLY));
        refused!(EPERM, shmctl(id, IPC_RMID, null_mut()));
        refused!(EACCES, shmget(0x6361_7502, PAGE, 0o400));
        // SAFETY: all zeros is a valid structure of numbers.
        let mut status: shmid_ds = unsafe { zeroed() };
        refused!(EACCES, shmctl(id, IPC_STAT, &mut status));
        Ok(())
    })?;
    let mut status = status(limit)?;
    status.shm_perm.uid = 1000;
    status.shm_perm.mode = 0o604;
    call!(shmctl(limit, IPC_SET, &mut status));
    child(|| {
        call!(setgroups(0, null()));
        call!(setresgid(1001, 1001, 1001));
        call!(setresuid(1001, 1001, 1001));
        let at = attach(limit, 0, SHM_RDONLY)?;
        peek(at);
        refused!(EACCES, shmat(limit, null(), 0));
        Ok(())
    })?;
    child(|| {
        call!(setresuid(1000, 1000, 1000));
        attach(limit, 0, 0)?;
        remove_segment(limit)
    })?;
    remove_segment(id)
}
