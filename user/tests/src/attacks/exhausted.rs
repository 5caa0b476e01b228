//! Programs that prepare themselves, fill memory with what they can, and then make the kernel take
//! more where a call is not expected to: each such call must be refused, and the machine go on.

use std::sync::OnceLock;

use crate::{USER, become_user, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: exhausted: names that become longer", renames),
    ("attacks: exhausted: poll of many files", polls),
    ("attacks: exhausted: select of many files", selects),
    ("attacks: exhausted: many words of futexes", words),
];

/// Where the user's names are.
const FOLDER: &str = "/tmp/exhausted";
/// The file that has all names.
const FILE: &str = "/tmp/exhausted/file";
/// The memory in KiB that a process leaves for names, which fill the rest.
const LEFT: u64 = 24 << 10;
/// Names that a shortage refuses before it counts as lasting.
const REFUSALS: usize = 20;

/// Runs `attack` as an ordinary user; the out-of-memory rule may end it.
fn exhaust(attack: impl Fn() -> Outcome) -> Outcome {
    while_attacking(|| {
        fs::create_dir_all(FOLDER)?;
        fs::set_permissions(FOLDER, Permissions::from_mode(0o777))?;
        let attacker = spawn(|| {
            become_user(USER)?;
            File::create(FILE)?;
            // SAFETY: takes a number; memory that is not locked is only a weaker attack.
            unsafe { mlockall(MCL_CURRENT) };
            attack()
        })?;
        let end = wait(attacker)?;
        fs::remove_dir_all(FOLDER)?;
        ensure!([End::Exit(0), End::Signal(SIGKILL)].contains(&end), end);
        Ok(())
    })
}

/// A name of the file with 255 bytes that begins with `head`.
fn long_name(head: &str, number: usize) -> CString {
    let name = format!("{head}{number}-");
    c(&format!("{FOLDER}/{name}{}", "n".repeat(255 - name.len())))
}

fn link_to(name: &CStr) -> bool {
    // SAFETY: both are strings that live.
    unsafe { link(c(FILE).as_ptr(), name.as_ptr()) == 0 }
}

/// Fills memory by pages of another process, and by names, until even those are refused.
fn fill_memory() -> Outcome {
    let is_full = shared_value(AtomicBool::new(false))?;
    spawn(|| {
        let left = field("/proc/meminfo", "MemFree")?.saturating_sub(LEFT) as usize;
        let area = map((left << 10).max(PAGE))?;
        for at in (0..left << 10).step_by(PAGE) {
            poke(area.wrapping_add(at), 1);
        }
        is_full.store(true, SeqCst);
        sleep_forever()
    })?;
    for _ in 0..1000 {
        if is_full.load(SeqCst) {
            break;
        }
        pause_ms(10);
    }
    let mut refused = 0;
    for number in 0.. {
        refused += usize::from(!link_to(&long_name("fill", number)));
        if refused > REFUSALS {
            break;
        }
    }
    Ok(())
}

fn renames() -> Outcome {
    const COUNT: usize = 20_000;
    exhaust(|| {
        let short = |number: usize| c(&format!("{FOLDER}/{number}"));
        let made = (0..COUNT).take_while(|&number| link_to(&short(number)));
        let made = made.count();
        fill_memory()?;
        for number in 0..made {
            let (old, new) = (short(number), long_name("new", number));
            // SAFETY: both are strings that live.
            if unsafe { rename(old.as_ptr(), new.as_ptr()) } != 0 {
                ensure!([ENOMEM, ENOSPC, EDQUOT].contains(&errno()), errno());
                break;
            }
        }
        Ok(())
    })
}

/// Threads that go on when memory is full, and for how long.
const THREADS: usize = 200;
const SLEEP: Duration = Duration::from_secs(2);

/// Runs `sleep` in many threads once memory is full.
fn sleepers(sleep: fn()) -> Outcome {
    exhaust(|| {
        static GO: AtomicU32 = AtomicU32::new(0);
        let end_of_stack = 64 << 10;
        for _ in 0..THREADS {
            let stack = thread::Builder::new().stack_size(end_of_stack);
            let thread = stack.spawn(move || {
                while GO.load(SeqCst) == 0 {
                    futex_wait(&GO, 0);
                }
                loop {
                    sleep();
                }
            });
            if thread.is_err() {
                break;
            }
        }
        fill_memory()?;
        GO.store(1, SeqCst);
        futex(&GO, FUTEX_WAKE, i32::MAX as u32, None);
        thread::sleep(SLEEP);
        exit(0)
    })
}

/// An event that does not come.
fn no_event() -> c_int {
    static EVENT: OnceLock<c_int> = OnceLock::new();
    // SAFETY: takes and returns numbers.
    *EVENT.get_or_init(|| unsafe { eventfd(0, 0) })
}

fn polls() -> Outcome {
    static POLLED: OnceLock<Vec<i32>> = OnceLock::new();
    const COUNT: usize = 1000;
    no_event();
    // The kernel writes the same answer into the entries of all threads.
    POLLED.get_or_init(|| [no_event(), i32::from(POLLIN)].repeat(COUNT));
    sleepers(|| {
        let all = POLLED
            .get()
            .map_or(null_mut(), |all| all.as_ptr().cast_mut());
        // SAFETY: the entries live; only zeros are written into them.
        unsafe { poll(all.cast(), COUNT as u64, -1) };
    })
}

fn selects() -> Outcome {
    no_event();
    for fd in 3..1000 {
        // SAFETY: takes numbers; a descriptor of this child of the runner's is taken over.
        unsafe { dup2(no_event(), fd) };
    }
    sleepers(|| {
        // SAFETY: all zeros is a valid set, and the sets are locals.
        unsafe {
            let mut set: fd_set = zeroed();
            (3..1000).for_each(|fd| FD_SET(fd, &mut set));
            let mut other = set;
            select(1000, &mut set, &mut other, null_mut(), null_mut());
        }
    })
}

fn words() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    sleepers(|| {
        let address = WORD.as_ptr() as u64;
        let waits = [[0, address, 2]; 128];
        // SAFETY: the words and their list live.
        unsafe { syscall(SYS_futex_waitv, waits.as_ptr(), 128, 0, null::<u8>(), 0) };
    })
}
