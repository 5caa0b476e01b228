//! Switches between processes and between threads: a token passed round a ring, and `sched_yield`.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use support::narrow;

use crate::partner::Program;
use crate::{Bench, Experiment, Failure, Gate, Partner, Shared, call, cpus};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "switches",
    title: "Switches between processes and between threads, on one CPU and between CPUs",
    help: "A token of one byte goes round a ring of pipes; each row tells what one step takes: a
write, a switch, a read.

switches/processes-2-same      two processes on one CPU
switches/processes-8-same      eight on one CPU
switches/processes-2-other     two, on two CPUs
switches/processes-8-other     eight, by turns on two CPUs
switches/threads-...           the same with threads of one process
switches/narrow-2-same         two 32-bit processes on one CPU: in small spaces with `spaces=small`

sched_yield on one CPU: one call where there is nobody else; a turn of another process or thread,
there and back, with as many calls as the kernel wants for it:

switches/yield-alone
switches/yield-process
switches/yield-thread",
    run,
};

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for kind in [Kind::Processes, Kind::Threads] {
        for (members, cpus, where_) in [
            (2, 1, "same"),
            (8, 1, "same"),
            (2, 2, "other"),
            (8, 2, "other"),
        ] {
            let row = format!("switches/{}-{members}-{where_}", kind.name());
            let steps = 100 * members as u64;
            bench.row(row).cpus(cpus).batch(steps).run(|meter| {
                let ring = Ring::new(members)?;
                let _others = ring.start(kind, cpus)?;
                meter.measure(|n| (0..n / members as u64).try_for_each(|_| ring.round()))
            })?;
        }
    }
    bench
        .row("switches/narrow-2-same")
        .batch(2000)
        .run(|meter| {
            let mut program = Narrow::start()?;
            meter.measure(|n| program.rounds((n / 2) as u32))
        })?;
    bench.row("switches/yield-alone").batch(1000).measure(|n| {
        for _ in 0..n {
            call!(sched_yield())?;
        }
        Ok(())
    })?;
    bench
        .row("switches/yield-process")
        .batch(500)
        .run(|meter| {
            let turns = Arc::new(Turns::new(AtomicU64::new(0))?);
            let theirs = turns.clone();
            let _partner = Partner::start(0, move || take_turns(&theirs))?;
            meter.measure(|n| give_turns(&turns, n))
        })?;
    bench.row("switches/yield-thread").batch(500).run(|meter| {
        let turns = Arc::new(Turns::new(AtomicU64::new(0))?);
        let theirs = turns.clone();
        thread::Builder::new().spawn(move || take_turns(&theirs))?;
        meter.measure(|n| give_turns(&turns, n))
    })
}

/// Two 32-bit programs that pass a byte to and fro.
struct Narrow(Program);

impl Narrow {
    fn start() -> Result<Self, Failure> {
        let child = Command::new(narrow::program()?)
            .args(["serve", "0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(Program(child)))
    }

    /// So many round trips, of two steps each.
    fn rounds(&mut self, count: u32) -> Result<(), Failure> {
        let child = &mut self.0.0;
        let (Some(to), Some(from)) = (&mut child.stdin, &mut child.stdout) else {
            return Err(Failure::from("no pipes to the program"));
        };
        to.write_all(&count.to_le_bytes())?;
        from.read_exact(&mut [0])?;
        Ok(())
    }
}

/// Turns of the partner of a row with `sched_yield`.
type Turns = Shared<AtomicU64>;

/// Counts this thread's turns and yields each of them.
fn take_turns(turns: &Turns) -> Result<(), Failure> {
    loop {
        turns.fetch_add(1, Relaxed);
        call!(sched_yield())?;
    }
}

/// Yields until the partner had `n` turns: a kernel may let the caller continue instead any number
/// of times.
fn give_turns(turns: &Turns, n: u64) -> Result<(), Failure> {
    let until = turns.load(Relaxed) + n;
    while turns.load(Relaxed) < until {
        call!(sched_yield())?;
    }
    Ok(())
}

/// Kind of the members of a ring.
#[derive(Clone, Copy)]
enum Kind {
    Processes,
    Threads,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Threads => "threads",
        }
    }
}

/// A ring of pipes; the member with number `i` reads from pipe `i` and writes to the next.
#[derive(Clone)]
struct Ring {
    pipes: Arc<Vec<[i32; 2]>>,
}

/// Children that end when this is dropped; threads end with the row's process.
struct Others {
    _children: Vec<Partner>,
}

impl Ring {
    fn new(members: usize) -> Result<Self, Failure> {
        let mut pipes = vec![[0; 2]; members];
        for ends in &mut pipes {
            call!(pipe(ends.as_mut_ptr()))?;
        }
        Ok(Self {
            pipes: Arc::new(pipes),
        })
    }

    /// Starts all members but the first, which is the caller, round-robin on so many CPUs.
    fn start(&self, kind: Kind, cpus: usize) -> Result<Others, Failure> {
        let mut children = Vec::new();
        let members = self.pipes.len();
        let gate = Arc::new(Gate::new(members as u32)?);
        for member in 1..members {
            let cpu = member % cpus;
            let ring = self.clone();
            let forward = move || -> Result<(), Failure> {
                loop {
                    ring.take(member)?;
                    ring.give(member)?;
                }
            };
            match kind {
                Kind::Processes => children.push(Partner::start(cpu, forward)?),
                Kind::Threads => {
                    let gate = gate.clone();
                    thread::Builder::new().spawn(move || {
                        cpus::pin(cpu)?;
                        gate.wait()?;
                        forward()
                    })?;
                }
            }
        }
        if let Kind::Threads = kind {
            gate.wait()?;
        }
        Ok(Others {
            _children: children,
        })
    }

    /// Sends the token round once.
    fn round(&self) -> Result<(), Failure> {
        self.give(0)?;
        self.take(0)
    }

    fn take(&self, member: usize) -> Result<(), Failure> {
        let mut token = 0u8;
        match call!(read(self.pipes[member][0], (&raw mut token).cast(), 1))? {
            1 => Ok(()),
            _ => Err("the ring is broken".into()),
        }
    }

    fn give(&self, member: usize) -> Result<(), Failure> {
        let next = (member + 1) % self.pipes.len();
        let token = 1u8;
        call!(write(self.pipes[next][1], (&raw const token).cast(), 1)).map(drop)
    }
}
