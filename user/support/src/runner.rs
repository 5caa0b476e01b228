//! Runs tests, each in a process group of its own with a time limit, and prints a line each.
//!
//! A word that is in no test's name is a test that fails: a misspelt or stale word would pass.

use std::time::{Duration, Instant};

use crate::prelude::*;

/// Which tests to run, and how.
pub struct Runner {
    /// Only those with one of these words in their names; empty: all. None of those that have a
    /// word in theirs that stands here behind a `!`.
    pub words: Vec<String>,
    /// Only those of one part of the list.
    pub part: Part,
    /// Print the names only.
    pub list: bool,
    /// The time limit of one test.
    pub limit: Duration,
    /// What must hold after each test.
    pub afterwards: fn() -> Outcome,
    /// What must hold after the last test of a group: those whose names begin with the same word.
    pub after_group: fn() -> Outcome,
    /// Each allocation of the kernel of this number fails while a test runs, if it is not 0. Then a
    /// test may fail, and passes if it ends: what is judged is the machine.
    pub failing: u64,
}

/// One of some parts of a list; with three, each has every third element.
#[derive(Clone, Copy)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// The whole list.
    pub const WHOLE: Part = Part { number: 1, of: 1 };

    /// Returns the part that the word behind `--part` names: `1/2` is the first one of two.
    ///
    /// # Panics
    /// When there is no word, or no such part.
    pub fn of_word(word: Option<impl AsRef<str>>) -> Part {
        let word = word.as_ref().map(AsRef::as_ref);
        let part = word.and_then(|word: &str| {
            let (number, of) = word.split_once('/')?;
            let part = Part {
                number: number.parse().ok()?,
                of: of.parse().ok()?,
            };
            (1..=part.of).contains(&part.number).then_some(part)
        });
        part.unwrap_or_else(|| panic!("no part as 1/2: {word:?}"))
    }

    fn has(self, place: usize) -> bool {
        place % self.of == self.number - 1
    }
}

impl Runner {
    /// Returns the tests of the part with one of the words in their names.
    pub fn chosen(&self, tests: &[Test]) -> Vec<Test> {
        let (without, with): (Vec<_>, Vec<_>) =
            self.words.iter().partition(|word| word.starts_with('!'));
        let is_chosen = |(name, _): &&Test| {
            (with.is_empty() || with.iter().any(|word| name.contains(word.as_str())))
                && !without.iter().any(|word| name.contains(&word[1..]))
        };
        let part = tests.iter().enumerate();
        let part = part.filter(|&(place, _)| self.part.has(place));
        part.map(|(_, test)| test)
            .filter(is_chosen)
            .copied()
            .collect()
    }

    /// Prints which words are in no test's name; returns how many.
    pub fn unknown(&self, tests: &[Test]) -> i32 {
        let is_unknown = |word: &&String| {
            !tests
                .iter()
                .any(|(name, _)| name.contains(word.trim_start_matches('!')))
        };
        let unknown = self.words.iter().filter(is_unknown);
        unknown.fold(0, |count, word| {
            println!("FAIL {word}: no test has a name with this word");
            count + 1
        })
    }

    /// Runs the tests in their order; `name` begins the last line. Returns the exit status.
    pub fn run(&self, name: &str, tests: &[Test]) -> i32 {
        let (mut passed, mut failed) = (0, self.unknown(tests));
        let chosen = self.chosen(tests);
        for (i, (name, test)) in chosen.iter().enumerate() {
            if self.list {
                println!("{name}");
                continue;
            }
            let start = Instant::now();
            let outcome = in_its_group(*test, start + self.limit, self.failing);
            let outcome = match outcome {
                Err(why) if self.failing != 0 => {
                    println!("{why}");
                    Ok(())
                }
                outcome => outcome,
            };
            let time = start.elapsed().as_millis();
            let group = |test: &Test| test.0.split([' ', ':']).next();
            let next = chosen.get(i + 1).and_then(group);
            let afterwards = (self.afterwards)().and_then(|()| {
                let is_last = next != group(&chosen[i]);
                if is_last {
                    (self.after_group)()
                } else {
                    Ok(())
                }
            });
            match outcome.and(afterwards) {
                Ok(()) => {
                    passed += 1;
                    println!("ok {name} ({time} ms)");
                }
                Err(why) => match why.skipped() {
                    Some(why) => println!("skip: {name}: {why}"),
                    None => {
                        failed += 1;
                        println!("FAIL {name}: {why}");
                    }
                },
            }
        }
        if !self.list {
            println!("{name}: {passed} passed, {failed} failed");
        }
        i32::from(failed != 0)
    }
}

/// Makes each `n`th allocation of the kernel fail, none if `n` is 0. To open the file may fail,
/// too.
pub fn fail_each(n: u64) {
    while let Err(why) = fs::write("/proc/causeway/failalloc", n.to_string()) {
        assert!(why.raw_os_error() == Some(ENOMEM), "failalloc: {why}");
    }
}

/// Runs one test in a process group of its own, which is killed afterwards. While it runs, each
/// allocation of the number `failing` fails.
fn in_its_group(test: fn() -> Outcome, deadline: Instant, failing: u64) -> Outcome {
    let (reader, writer) = pipe(O_CLOEXEC)?;
    let child = call!(fork());
    if child == 0 {
        let outcome = (|| {
            call!(setpgid(0, 0));
            call!(close(reader));
            test()
        })();
        if let Err(why) = &outcome {
            let why = why.to_string();
            let _ = write_bytes(&writer, &why.as_bytes()[..why.len().min(4000)]);
        }
        exit(i32::from(outcome.is_err()));
    }
    // SAFETY: both sides set the group, so that it exists before either goes on.
    unsafe { libc::setpgid(child, child) };
    call!(close(writer));
    if failing != 0 {
        fail_each(failing);
    }
    let end = loop {
        let mut status = 0;
        if call!(waitpid(child, &mut status, WNOHANG)) == child {
            break Some(End::of(status));
        }
        if Instant::now() > deadline {
            break None;
        }
        pause_ms(1);
    };
    // SAFETY: the group is this test's own.
    unsafe { libc::kill(-child, SIGKILL) };
    if failing != 0 {
        fail_each(0);
    }
    let outcome = match end {
        Some(End::Exit(0)) => Ok(()),
        Some(End::Exit(1)) => Err(String::from_utf8_lossy(&read_bytes(&reader, 4096)?)
            .into_owned()
            .into()),
        Some(end) => Err(format!("ended with {end:?}").into()),
        None => {
            wait(child)?;
            Err("did not end in time".into())
        }
    };
    call!(close(reader));
    outcome
}
