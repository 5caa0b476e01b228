//! Objects that a round leaves behind, and the memory that is free without them.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::time::{Duration, Instant};

/// Folders in which the children work and mount file systems.
pub const FOLDER: &CStr = c"/tmp/random";
pub const MOUNT_POINTS: [&CStr; 3] = [
    c"/tmp/random-mounts",
    c"/tmp/random-mounts/a",
    c"/tmp/random-mounts/b",
];

/// Devices that the children use: number, minor number, name.
const DEVICES: [(u32, u32, &CStr); 5] = [
    (1, 3, c"/dev/null"),
    (1, 5, c"/dev/zero"),
    (1, 7, c"/dev/full"),
    (1, 9, c"/dev/urandom"),
    (5, 2, c"/dev/ptmx"),
];

/// Removes traces. It keeps the files of `/proc` that it reads open, since mounts could hide them.
pub struct Traces {
    memory: Option<File>,
    /// Only Causeway has it.
    uses: Option<File>,
    mounts: Option<File>,
    /// Processes whose parent is this one.
    children: Option<File>,
}

impl Traces {
    pub fn new() -> Self {
        Self {
            memory: File::open("/proc/meminfo").ok(),
            uses: File::open("/proc/causeway/memory").ok(),
            mounts: File::open("/proc/self/mounts").ok(),
            children: File::open("/proc/thread-self/children").ok(),
        }
    }

    /// Ends the orphans, of which this process must be the subreaper (`PR_SET_CHILD_SUBREAPER`).
    ///
    /// # Errors
    /// Names the process that did not end.
    pub fn end_orphans(&mut self) -> Result<(), String> {
        let Some(file) = self.children.as_mut() else {
            return Ok(());
        };
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let left = text(file);
            if left.trim().is_empty() {
                return Ok(());
            }
            if Instant::now() > limit {
                let states: String = left.split_whitespace().map(state).collect();
                return Err(format!("orphans cannot be ended: {states}"));
            }
            for pid in left.split_whitespace().flat_map(str::parse::<i32>) {
                // SAFETY: a child that this process has not waited for yet; no status is asked for.
                unsafe {
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes mounts, files, System V objects and message queues, and restores removed devices.
    pub fn remove(&mut self) {
        let mounts = self.mounts.as_mut().map(text).unwrap_or_default();
        let mine = |line: &&str| {
            let at = line.split(' ').nth(1).unwrap_or("");
            at.starts_with("/tmp/random")
        };
        for _ in 0..mounts.lines().filter(mine).count() {
            for point in MOUNT_POINTS.iter().rev() {
                // SAFETY: a string that lives.
                unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
            }
        }
        for folder in ["/tmp/random", "/tmp/random-mounts"] {
            let _ = fs::remove_dir_all(folder);
        }
        for folder in ["/dev/shm", "/dev/mqueue"] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
            }
        }
        for (major, minor, name) in DEVICES {
            // SAFETY: a string that lives. A mount still in use stays.
            unsafe {
                libc::mknod(
                    name.as_ptr(),
                    libc::S_IFCHR | 0o666,
                    libc::makedev(major, minor),
                );
            }
        }
        for queue in [c"q0", c"q1", c"none"] {
            // SAFETY: a string that lives.
            unsafe { libc::syscall(libc::SYS_mq_unlink, queue.as_ptr()) };
        }
        for (table, column, remove) in [
            ("shm", 1, remove_shm as fn(i32)),
            ("sem", 1, remove_sem),
            ("msg", 1, remove_msg),
        ] {
            let text = fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
            for line in text.lines().skip(1) {
                let id = line.split_whitespace().nth(column).map(str::parse);
                if let Some(Ok(id)) = id {
                    remove(id);
                }
            }
        }
    }

    /// Returns the KiB that are free once everything has settled.
    pub fn free(&mut self) -> Option<i64> {
        std::thread::sleep(Duration::from_millis(300));
        let text = text(self.memory.as_mut()?);
        let line = text.lines().find(|line| line.starts_with("MemFree:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Traces {
    /// Describes the use of frames in one line.
    pub fn uses(&mut self) -> String {
        let text = self.uses.as_mut().map(text).unwrap_or_default();
        text.lines().collect::<Vec<_>>().join(", ")
    }
}

/// Reads a file from its beginning.
fn text(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.read_to_string(&mut text);
    text
}

fn remove_shm(id: i32) {
    // SAFETY: IPC_RMID takes no pointer.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

fn remove_sem(id: i32) {
    // SAFETY: IPC_RMID takes no pointer.
    unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
}

fn remove_msg(id: i32) {
    // SAFETY: IPC_RMID takes no pointer.
    unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
}

/// Describes in short what each thread of a process does.
fn state(pid: &str) -> String {
    let mut text = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for file in ["stat", "syscall"] {
            text += fs::read_to_string(task.path().join(file))
                .unwrap_or_default()
                .trim();
            text += "; ";
        }
    }
    text
}
