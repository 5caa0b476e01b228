//! The cost of moving a page from one program to another (`fbufs.txt` section 4, Table 1).

use std::time::{Duration, Instant};

use crate::movement::flow::{Shape, Stream};
use crate::movement::{Line, PAGE};
use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fbuf",
    title: "What each page of a message costs, as in fbufs.txt Table 1",
    help: "\
One program writes a word into each page of a message and passes it on; the other reads a word of
each page and answers. What each page of a message adds to its time, without what a message costs by
itself: that of 16 pages less that of one, by 15; ns.

fbuf/page-copy     through a pipe, which has the meaning of a copy
fbuf/page-socket   through a local stream socket",
    run,
};

/// Pages of the longer message: as many as a pipe holds.
const PAGES: usize = 16;

/// Messages of each size in a batch.
const MESSAGES: u64 = 64;

/// Repetitions of both sizes in a batch, of which the shortest count: noise would hide the small
/// difference.
const TURNS: usize = 3;

/// Repetitions after which a batch gives up if the longer message seems not to take longer: only
/// other load can cause that.
const MOST_TURNS: usize = 40;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    for (name, line) in [
        ("fbuf/page-copy", Line::Pipe),
        ("fbuf/page-socket", Line::Unix(libc::SOCK_STREAM)),
    ] {
        bench.row(name).batch(MESSAGES).run(|meter| {
            // Each message is answered, so that both sizes have the same switches.
            let answered = |size| Shape {
                window: 1,
                ..Shape::of(size)
            };
            let mut long = Stream::start(line, answered(PAGES * PAGE))?;
            let mut short = Stream::start(line, answered(PAGE))?;
            meter.timed(|watch, count| {
                let (mut most, mut least) = (Duration::MAX, Duration::MAX);
                for turn in 0..MOST_TURNS {
                    if turn >= TURNS && most > least {
                        break;
                    }
                    most = most.min(time(&mut long, count)?);
                    least = least.min(time(&mut short, count)?);
                }
                if most <= least {
                    return Err("16 pages took no longer than one: the machine is too busy".into());
                }
                watch.add((most - least) / (PAGES as u32 - 1));
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// Measures the time of so many messages.
fn time(stream: &mut Stream, count: u64) -> Result<Duration, Failure> {
    let start = Instant::now();
    stream.send(count)?;
    Ok(start.elapsed())
}
