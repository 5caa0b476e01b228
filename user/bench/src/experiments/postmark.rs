//! PostMark's workload: a mail server's many small files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::draws::Draws;
use crate::movement::wrong;
use crate::{Bench, Experiment, Failure, Meter, Unit, scratch};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "postmark",
    title: "PostMark's workload in the configurations of ephemeral-mappings.txt 6.4.2",
    help: "\
A pool of files of 500 to 10,000 bytes, read and written 512 bytes at a time. A
transaction reads a file whole or appends to one, and makes a file or deletes one; which, and to
what, is drawn with a fixed seed before. Written from the benchmark's description.

postmark/small   in the file system in memory: 1,000 files, 50,000 transactions
postmark/medium  20,000 files, 50,000 transactions
postmark/large   20,000 files, 100,000 transactions
                 Transactions a second.
postmark/disk-…  likewise on a memory disk, in ext2
...-read         bytes read, by the time from the first file's making to the last one's end: MiB/s
...-write        bytes written, by the same time: MiB/s

The short set does a fiftieth of each, and the last two rows only for large.
A file's bytes depend on its number, and what is read is compared.",
    run,
};

/// The prescribed configurations: name, files, transactions.
const CONFIGURATIONS: [(&str, usize, usize); 3] = [
    ("small", 1_000, 50_000),
    ("medium", 20_000, 50_000),
    ("large", 20_000, 100_000),
];

/// Divisor of the paper's numbers in the short set.
const SHORT_SCALE: usize = 50;

/// PostMark's defaults: file sizes, bytes per call.
const LEAST_SIZE: u64 = 500;
const MOST_SIZE: u64 = 10_000;
const BLOCK: usize = 512;

/// The seed of all draws.
const SEED: u64 = 42;

/// Where the files are: the start of the row's name, and the folder that the row's one is made in.
type Place = (&'static str, fn() -> Result<PathBuf, Failure>);

const PLACES: [Place; 2] = [
    ("", || Ok(PathBuf::from("/tmp"))),
    ("disk-", scratch::memory_folder),
];

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let scale = if bench.is_full() { 1 } else { SHORT_SCALE };
    for (name, files, transactions) in CONFIGURATIONS {
        let (files, transactions) = (files / scale, transactions / scale);
        let plan = Plan::new(files, transactions);
        let note = match scale {
            1 => format!("{files} files, {transactions} transactions"),
            _ => format!("{files} files, {transactions} transactions: 1/{scale} of the paper's"),
        };
        for (start, folder) in PLACES {
            let row = bench.row(format!("postmark/{start}{name}"));
            row.unit(Unit::OperationsPerSecond)
                .batch(transactions as u64)
                .note(&note)
                .run(|meter| plan.measure(meter, &folder()?, false))?;
            if !bench.is_full() && name != "large" {
                continue;
            }
            for (what, bytes) in [("read", plan.read), ("write", plan.written)] {
                let row = bench.row(format!("postmark/{start}{name}-{what}"));
                row.bytes(bytes)
                    .note(&note)
                    .run(|meter| plan.measure(meter, &folder()?, true))?;
            }
        }
    }
    Ok(())
}

/// One step of the workload; files are known by their numbers.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Makes a file of so many bytes.
    Create(u64, u64),
    /// Reads a whole file of so many bytes.
    Read(u64, u64),
    /// Adds so many bytes.
    Append(u64, u64),
    Delete(u64),
}

/// The steps of a run, drawn in advance.
#[derive(Debug)]
struct Plan {
    /// Creation of the files.
    begin: Vec<Step>,
    transactions: Vec<Step>,
    /// Deletion of the remaining files.
    end: Vec<Step>,
    /// Bytes that all of it reads.
    read: u64,
    /// Bytes that all of it writes.
    written: u64,
}

impl Plan {
    fn new(files: usize, transactions: usize) -> Plan {
        let mut draws = Draws(SEED);
        let mut pool = Pool::default();
        let begin = (0..files).map(|_| pool.create(&mut draws)).collect();
        let mut steps = Vec::new();
        for _ in 0..transactions {
            let place = draws.below(pool.files.len() as u64) as usize;
            let (number, size) = pool.files[place];
            let room = MOST_SIZE - size;
            if draws.below(2) == 0 || room == 0 {
                pool.read += size;
                steps.push(Step::Read(number, size));
            } else {
                let more = 1 + draws.below(room);
                pool.files[place].1 += more;
                pool.written += more;
                steps.push(Step::Append(number, more));
            }
            // One file always stays, for the next transaction to read.
            if draws.below(2) == 0 || pool.files.len() == 1 {
                steps.push(pool.create(&mut draws));
            } else {
                let place = draws.below(pool.files.len() as u64) as usize;
                steps.push(Step::Delete(pool.files.swap_remove(place).0));
            }
        }
        Plan {
            begin,
            transactions: steps,
            end: pool.files.iter().map(|file| Step::Delete(file.0)).collect(),
            read: pool.read,
            written: pool.written,
        }
    }

    /// Measures the transactions, or the whole run.
    fn measure(&self, meter: &mut Meter, parent: &Path, whole: bool) -> Result<(), Failure> {
        let folder = parent.join(format!("bench-postmark-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let outcome = meter.timed(|watch, _| {
            let part = |steps: &[Step]| -> Result<(), Failure> {
                for step in steps {
                    step.take(&folder)?;
                }
                Ok(())
            };
            if whole {
                return watch.time(|| {
                    part(&self.begin)?;
                    part(&self.transactions)?;
                    part(&self.end)
                });
            }
            part(&self.begin)?;
            watch.time(|| part(&self.transactions))?;
            part(&self.end)
        });
        // Files that cannot be removed vanish with the guest.
        let _ = fs::remove_dir_all(&folder);
        outcome
    }
}

/// Files that exist at this step of the plan: number and size in bytes.
#[derive(Debug, Default)]
struct Pool {
    files: Vec<(u64, u64)>,
    /// The next file's number.
    next: u64,
    read: u64,
    written: u64,
}

impl Pool {
    fn create(&mut self, draws: &mut Draws) -> Step {
        let size = LEAST_SIZE + draws.below(MOST_SIZE - LEAST_SIZE + 1);
        let number = self.next;
        self.next += 1;
        self.files.push((number, size));
        self.written += size;
        Step::Create(number, size)
    }
}

impl Step {
    /// Runs the steps.
    fn take(self, folder: &Path) -> io::Result<()> {
        let path = |number: u64| folder.join(number.to_string());
        match self {
            Step::Create(number, size) => write(&File::create_new(path(number))?, number, size),
            Step::Read(number, size) => read(&File::open(path(number))?, number, size),
            Step::Append(number, more) => {
                let file = OpenOptions::new().append(true).open(path(number))?;
                write(&file, number, more)
            }
            Step::Delete(number) => fs::remove_file(path(number)),
        }
    }
}

fn write(mut file: &File, number: u64, bytes: u64) -> io::Result<()> {
    let block = [number as u8; BLOCK];
    let mut left = bytes as usize;
    while left > 0 {
        let piece = left.min(BLOCK);
        file.write_all(&block[..piece])?;
        left -= piece;
    }
    Ok(())
}

fn read(mut file: &File, number: u64, size: u64) -> io::Result<()> {
    let mut block = [0; BLOCK];
    let mut total = 0;
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            break;
        }
        let mark = number as u8;
        if block[0] != mark || block[count - 1] != mark {
            return Err(wrong(format!("file {number} has another's bytes")));
        }
        total += count as u64;
    }
    match total == size {
        true => Ok(()),
        false => Err(wrong(format!(
            "file {number} has {total} bytes, not {size}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Follows the steps and checks that each is possible; returns the bytes read and written.
    fn follow(plan: &Plan) -> (u64, u64) {
        let mut files = BTreeMap::new();
        let (mut read, mut written) = (0, 0);
        for &step in plan.begin.iter().chain(&plan.transactions).chain(&plan.end) {
            match step {
                Step::Create(number, size) => {
                    assert_eq!(files.insert(number, size), None);
                    assert!((LEAST_SIZE..=MOST_SIZE).contains(&size));
                    written += size;
                }
                Step::Read(number, size) => {
                    assert_eq!(files.get(&number), Some(&size));
                    read += size;
                }
                Step::Append(number, more) => {
                    *files.get_mut(&number).expect("the file is there") += more;
                    written += more;
                }
                Step::Delete(number) => assert!(files.remove(&number).is_some()),
            }
        }
        assert!(files.is_empty(), "{files:?}");
        (read, written)
    }

    #[test]
    fn plans_are_possible_and_the_same_each_time() {
        for (files, transactions) in [(1, 50), (20, 1000), (400, 1000)] {
            let plan = Plan::new(files, transactions);
            assert_eq!(follow(&plan), (plan.read, plan.written));
            assert_eq!(plan.transactions.len(), 2 * transactions);
            let again = Plan::new(files, transactions);
            assert_eq!(format!("{plan:?}"), format!("{again:?}"));
        }
    }
}
