//! The cache of page tables, as root sees and sets it.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("ptcache: warm, processes change no types", warm),
    ("ptcache: off, each table is a change", off),
    ("ptcache: thresholds, drain and refusals", settings),
];

const FILE: &str = "/proc/causeway/ptcache";

fn set(word: &str) -> Outcome {
    Ok(fs::write(FILE, word)?)
}

/// The number behind a name, in the lines that begin so, all added up.
fn sum(start: &str, name: &str) -> Result<u64> {
    let text = read_text(FILE)?;
    let lines = text.lines().filter(|line| line.starts_with(start));
    let numbers = lines.map(|line| {
        let mut words = line.split(' ').skip_while(|word| *word != name);
        words.nth(1).and_then(|word| word.parse::<u64>().ok())
    });
    let numbers: Option<Vec<u64>> = numbers.collect();
    Ok(numbers.ok_or("a line without the number")?.iter().sum())
}

fn forks(count: usize) -> Outcome {
    for _ in 0..count {
        child(|| {
            // Tables of its own.
            touch(map(64 * PAGE)?, 64 * PAGE, 1);
            Ok(())
        })?;
    }
    Ok(())
}

fn batches() -> Result<u64> {
    counter("device_batches_page_tables")
}

/// Sets the cache back, whatever the test found.
fn with_defaults(test: impl FnOnce() -> Outcome) -> Outcome {
    only_causeway()?;
    set("on")?;
    let outcome = test();
    set("adaptive")?;
    set("on")?;
    outcome
}

fn warm() -> Outcome {
    with_defaults(|| {
        forks(50)?;
        let (before, reused) = (batches()?, sum("level", "reused")?);
        forks(50)?;
        equal!(batches()?, before);
        ensure!(sum("level", "reused")? >= reused + 50 * 4);
        Ok(())
    })
}

fn off() -> Outcome {
    with_defaults(|| {
        set("off")?;
        ensure!(read_text(FILE)?.starts_with("mode off\n"));
        let before = batches()?;
        forks(10)?;
        ensure!(batches()? >= before + 10 * 8, "tables come and go");
        Ok(())
    })
}

fn settings() -> Outcome {
    with_defaults(|| {
        for wrong in [
            "yes",
            "ratio",
            "ratio=",
            "ratio=-1",
            "total=1000001",
            "ratio=1 on",
        ] {
            let refused = fs::write(FILE, wrong).map_err(|it| it.raw_os_error());
            ensure!(
                refused == Err(Some(libc::EINVAL)),
                "`{wrong}` is {refused:?}"
            );
        }
        ensure!(read_text(FILE)?.contains("policy adaptive\n"));
        set("ratio=100 total=4")?;
        let text = read_text(FILE)?;
        ensure!(
            text.contains("policy fixed\nratio 100\ntotal 4\n"),
            "{text}"
        );
        forks(20)?;
        set("drain")?;
        equal!(sum("aside", "aside")?, 0);
        // Not for others.
        child(|| {
            call!(setresuid(1000, 1000, 1000));
            equal!(
                fs::write(FILE, "drain").map_err(|it| it.raw_os_error()),
                Err(Some(libc::EACCES))
            );
            Ok(())
        })
    })
}
