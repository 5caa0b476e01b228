//! Keys, `/proc/sysvipc`.

use super::{RW, attach, put, remove_segment, segment};
use support::prelude::*;

pub const TESTS: &[Test] = &[("sysv: keys", keys), ("sysv: what is listed", listed)];

fn keys() -> Outcome {
    let key = 0x6361_7503;
    refused!(ENOENT, semget(key, 2, RW));
    let id = call!(semget(key, 2, IPC_CREAT | RW));
    equal!(call!(semget(key, 2, IPC_CREAT | RW)), id);
    ensure!(call!(semget(key, 0, 0)) == id, "another set");
    refused!(EEXIST, semget(key, 2, IPC_CREAT | IPC_EXCL | RW));
    refused!(EINVAL, semget(key, 3, RW));
    refused!(EINVAL, semget(IPC_PRIVATE, 0, RW));
    refused!(EINVAL, semget(IPC_PRIVATE, -1, RW));
    refused!(EINVAL, semget(IPC_PRIVATE, 1 << 20, RW));
    refused!(EINVAL, shmget(IPC_PRIVATE, 0, RW));
    call!(semctl(id, 0, IPC_RMID));
    refused!(EINVAL, semctl(id, 0, IPC_RMID));
    // The slot may be reused, the id is not.
    let mut seen = vec![id];
    for _ in 0..200 {
        let id = call!(semget(key, 1, IPC_CREAT | RW));
        ensure!(!seen.contains(&id), "id {id} twice");
        seen.push(id);
        call!(semctl(id, 0, IPC_RMID));
    }
    Ok(())
}

fn listed() -> Outcome {
    let shm = segment(5000)?;
    let sem = call!(semget(0x6361_7504, 3, IPC_CREAT | RW));
    let msg = call!(msgget(IPC_PRIVATE, IPC_CREAT | RW));
    put(msg, 1, "four")?;
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let row = |path: &str, id: c_int| -> Result<Vec<String>> {
        let text = read(path)?;
        text.lines()
            .map(|line| {
                line.split_whitespace()
                    .map(String::from)
                    .collect::<Vec<_>>()
            })
            .find(|words| words.get(1) == Some(&id.to_string()))
            .ok_or(format!("{path} has no {id}:\n{text}").into())
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
    call!(semctl(sem, 0, IPC_RMID));
    call!(msgctl(msg, IPC_RMID, null_mut()));
    Ok(())
}
