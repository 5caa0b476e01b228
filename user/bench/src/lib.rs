//! Measures the kernel below from programs.
//!
//! One static file, the same for Causeway and for Linux; each measured row is one line of JSON on
//! standard output, and nothing else is printed there.
//!
//! # An experiment
//!
//! An experiment is one file in `experiments/` with a constant that `experiments/mod.rs` lists:
//!
//! ```
//! use bench::{Bench, Experiment, Failure, Gate, Partner, Unit, call, cpus};
//!
//! pub const EXPERIMENT: Experiment = Experiment {
//!     name: "sample",
//!     title: "What an experiment looks like",
//!     help: "Rows: sample/getppid, one system call; sample/copy, a copy of 1 MiB.",
//!     run,
//! };
//!
//! fn run(bench: &mut Bench) -> Result<(), Failure> {
//!     // A row without preparation: its closure does `n` operations.
//!     bench.row("sample/getppid").batch(1000).measure(|n| {
//!         for _ in 0..n {
//!             call!(getppid())?;
//!         }
//!         Ok(())
//!     })?;
//!     // A row with preparation, which no clock sees.
//!     bench.row("sample/copy").bytes(1 << 20).batch(4).run(|meter| {
//!         let from = vec![1u8; 1 << 20];
//!         let mut to = vec![0u8; 1 << 20];
//!         meter.measure(|n| {
//!             for _ in 0..n {
//!                 to.copy_from_slice(std::hint::black_box(&from));
//!             }
//!             Ok(())
//!         })
//!     })?;
//!     // A row with a partner on another CPU; it gives nothing where there is but one.
//!     bench.row("sample/gate").cpus(2).unit(Unit::Nanoseconds).batch(100).run(|meter| {
//!         let gate = Gate::new(2)?;
//!         let partner = Partner::start(1, || {
//!             loop {
//!                 gate.wait()?;
//!             }
//!         })?;
//!         meter.measure(|n| (0..n).try_for_each(|_| gate.wait()))?;
//!         partner.kill();
//!         Ok(())
//!     })
//! }
//! # fn main() { let _ = EXPERIMENT.run; }
//! ```
//!
//! # The harness
//!
//! - It runs the row in a fresh child process, pinned to CPU 0 ([`Row::pinned`]), with its own time
//!   limit: a row that crashes or hangs becomes an `error` row, and leaves no process, mapping or
//!   file behind for the next.
//! - It does one batch to warm up, then batches of the row's fixed size until the time for a row is
//!   over (at least [`meter::LEAST_BATCHES`], if that is not far too long), or exactly `--batches`
//!   of them; each batch gives one sample, a value per operation.
//! - With `--turns` it repeats all experiments. Before each of these passes, each experiment and
//!   each row it says so and waits for a line of standard input; `skip` skips the next step.
//! - It does one more batch between two readings of the kernel's [`counters`] and prints the
//!   counts per operation.
//! - [`Failure::Missing`], to which `ENOSYS` converts, prints a `missing` row; other failures an
//!   `error` row. In both cases the next row follows: only a closed standard output or, with
//!   `--turns`, standard input ends the program.
//!
//! # In this folder
//!
//! | module | contents |
//! |---|---|
//! | [`harness`] | experiments and rows |
//! | [`meter`] | batches and clocks |
//! | `marks` | the marks that `causeway profile` recognises |
//! | [`sample`] | units and lines |
//! | [`counters`] | the kernel's counters under common names |
//! | [`cpus`] | binding threads to CPUs |
//! | [`partner`] | children, programs, threads, and the gates that synchronise them |
//! | `addresses` | turns address randomisation off |
//! | [`mapping`] | memory and files to map |
//! | [`limits`] | limits of the process |
//! | [`memory`] | amounts of the machine's memory |
//! | [`failure`] | errors, and the macro [`call!`] |
//! | [`options`] | the command line |

mod addresses;
pub mod counters;
pub mod cpus;
pub mod draws;
pub mod experiments;
pub mod failure;
pub mod harness;
pub mod limits;
pub mod mapping;
mod marks;
pub mod memory;
pub mod meter;
pub mod movement;
pub mod options;
pub mod partner;
pub mod sample;
pub mod scratch;

pub use failure::Failure;
pub use harness::{Bench, Experiment, Row};
pub use meter::{Meter, Watch};
pub use partner::{Gate, Partner, Shared, Threads};
pub use sample::Unit;

/// Runs the whole program; returns its exit status: 0, 1 when standard output is closed, 2 for bad
/// options.
pub fn main() -> i32 {
    // Rows that measure the start of a program start this one.
    let mut words = std::env::args_os().skip(1);
    if words
        .next()
        .is_some_and(|word| word.as_encoded_bytes() == options::NOTHING.to_bytes())
    {
        return experiments::again(words.next());
    }
    let options = match options::parse(std::env::args_os()) {
        Ok(options) => options,
        Err(status) => return status,
    };
    if options.batches.is_some() {
        addresses::fix();
    }
    harness::run(&options)
}
