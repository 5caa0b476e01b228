//! Programs of root's that are held up: by threads that wait for them, by locks of the kernel that
//! unimportant programs hold, by memory that comes back too slowly.

use crate::{USER, become_user, bombs::kill_users, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    (
        "attacks: words that name a stranger as their owner",
        named_owner,
    ),
    (
        "attacks: processes that share memory and fill it",
        shared_memory,
    ),
    ("attacks: locks held by idle programs", idle_holders),
    ("attacks: locks held by nice programs", nice_holders),
    (
        "attacks: weights looked at by idle programs",
        idle_observers,
    ),
];

/// How long root's most urgent program may stand still.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs `attack` as an ordinary user and, beside it, `round` as root again and again, which must
/// take no longer than [`PATIENCE`] once. All that the attack starts is killed.
fn urgent(attack: impl FnOnce() -> Outcome, round: impl Fn() -> Outcome) -> Outcome {
    // The processor time of others is theirs.
    call!(setpriority(PRIO_PROCESS, 0, -20));
    let attacker = spawn(|| {
        call!(setpriority(PRIO_PROCESS, 0, 0));
        become_user(USER)?;
        attack()?;
        sleep_forever()
    })?;
    pause_ms(500);
    let mut worst = Duration::ZERO;
    let outcome = while_attacking(|| {
        let start = Instant::now();
        round()?;
        worst = worst.max(start.elapsed());
        pause_ms(5);
        Ok(())
    });
    kill_users()?;
    let _ = wait(attacker)?;
    println!("  root's program stood still for {worst:?} at most");
    outcome?;
    ensure!(worst < PATIENCE, worst);
    Ok(())
}

/// Hundreds of threads wait for words of their own, each with the id of a thread of root's, while
/// that runs another program and ends: it gives all words up.
fn named_owner() -> Outcome {
    let owner = shared_value(AtomicU32::new(0))?;
    let attack = || {
        for _ in 0..400 {
            let waiter = thread::Builder::new().stack_size(16 << 10);
            let started = waiter.spawn(|| {
                loop {
                    let word = AtomicU32::new(owner.load(SeqCst));
                    let answer = futex(&word, FUTEX_LOCK_PI, 0, None);
                    if word.load(SeqCst) == 0 || answer != 0 {
                        // Its processor time is not what the attack is about.
                        pause_ms(20);
                    }
                }
            });
            if started.is_err() {
                break;
            }
        }
        Ok(())
    };
    urgent(attack, || {
        wait_ok(spawn(|| {
            // SAFETY: asks for a number.
            owner.store(unsafe { getpid() } as u32, SeqCst);
            pause_ms(100);
            let program = c("/bin/true");
            call!(execv(program.as_ptr(), [program.as_ptr(), null()].as_ptr()));
            Ok(())
        })?)
    })
}

/// The memory that processes share, and how much of it they have filled.
static SHARED: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static FILLED: AtomicUsize = AtomicUsize::new(0);
const SHARED_SIZE: usize = 1 << 30;

/// Touches what no other process has touched yet, then sleeps.
extern "C" fn fill_shared(_: *mut c_void) -> c_int {
    loop {
        let at = FILLED.fetch_add(PAGE, SeqCst);
        if at >= SHARED_SIZE {
            // SAFETY: sleeps.
            unsafe { pause() };
            continue;
        }
        poke(SHARED.load(SeqCst).wrapping_add(at), 1);
    }
}

/// Processes with one address space fill it: its memory is back only when the last has ended.
fn shared_memory() -> Outcome {
    const SHARERS: usize = 32;
    const STACK: usize = 4 * PAGE;
    let attack = || {
        let lazy = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        SHARED.store(map_with(SHARED_SIZE, READ_WRITE, lazy, -1)?, SeqCst);
        let flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD;
        for _ in 0..SHARERS {
            let top = map(STACK)?.wrapping_add(STACK);
            call!(clone(fill_shared, top.cast(), flags, null_mut()));
        }
        fill_shared(null_mut());
        Ok(())
    };
    urgent(attack, || {
        let own = map(64 * PAGE)?;
        for page in 0..64 {
            poke(own.wrapping_add(page * PAGE), 1);
        }
        unmap(own, 64 * PAGE)?;
        child(|| Ok(()))
    })
}

/// Programs that take a lock again and again, of which `yields` says how they give way to all
/// others, beside programs that only compute.
fn beside_computation(yields: impl Fn() -> Outcome, hold: impl Fn(usize) -> Outcome) -> Outcome {
    const HOLDERS: usize = 8;
    const COMPUTING: usize = 30;
    for number in 0..HOLDERS {
        spawn(|| {
            yields()?;
            loop {
                hold(number)?;
            }
        })?;
    }
    pause_ms(300);
    for _ in 0..COMPUTING {
        spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        })?;
    }
    Ok(())
}

fn become_idle() -> Outcome {
    call!(sched_setscheduler(
        0,
        SCHED_IDLE,
        &sched_param { sched_priority: 0 }
    ));
    Ok(())
}

fn become_nice() -> Outcome {
    call!(setpriority(PRIO_PROCESS, 0, 19));
    Ok(())
}

/// Renames a file from a folder to another one, and back: this takes the lock of all folders. Some
/// of the names are long, so that more is done with it held.
fn rename_both_ways(folder: &str, number: usize) -> Outcome {
    let (one, two) = (
        format!("{folder}/one/{number}"),
        format!("{folder}/two/{number}{}", "x".repeat(200)),
    );
    if !Path::new(&one).exists() {
        fs::write(&one, "")?;
    }
    let (one, two) = (c(&one), c(&two));
    for _ in 0..100 {
        call!(rename(one.as_ptr(), two.as_ptr()));
        call!(rename(two.as_ptr(), one.as_ptr()));
    }
    Ok(())
}

fn held_by(yields: impl Fn() -> Outcome) -> Outcome {
    let both = [folder("held")?, folder("needed")?];
    for name in both
        .iter()
        .flat_map(|folder| ["one", "two"].map(|name| format!("{folder}/{name}")))
    {
        fs::create_dir(&name)?;
        fs::set_permissions(&name, Permissions::from_mode(0o777))?;
    }
    let attack = || beside_computation(yields, |number| rename_both_ways(&both[0], number));
    urgent(attack, || rename_both_ways(&both[1], 0))
}

fn idle_holders() -> Outcome {
    held_by(become_idle)
}

fn nice_holders() -> Outcome {
    held_by(become_nice)
}

/// A look at the weight of a process is not to keep that from using its memory.
fn idle_observers() -> Outcome {
    // SAFETY: asks for a number.
    let victim = unsafe { getpid() };
    let look = |_| {
        let weight = File::open(format!("/proc/{victim}/oom_score"))?;
        let mut text = [0; 16];
        for _ in 0..100 {
            weight.read_at(&mut text, 0)?;
        }
        Ok(())
    };
    urgent(
        || beside_computation(become_idle, look),
        || {
            for _ in 0..100 {
                let own = map(32 * PAGE)?;
                for page in 0..32 {
                    poke(own.wrapping_add(page * PAGE), 1);
                }
                unmap(own, 32 * PAGE)?;
            }
            Ok(())
        },
    )
}
