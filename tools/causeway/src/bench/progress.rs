//! The progress of a bench: a bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shown on standard error.
pub struct Progress {
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// The name of the boot whose turn it is.
    boot: String,
}

impl Progress {
    /// Starts with a number of experiments, over all boots.
    pub fn new(steps: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            let style = ProgressStyle::with_template(
                "{bar:30} {pos}/{len}  {elapsed} gone, {eta} left  {wide_msg}",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self {
            bar,
            boot: String::new(),
        }
    }

    /// A boot has its turn.
    pub fn boot(&mut self, name: String) {
        self.boot = name;
        self.now("starts");
    }

    /// An experiment has ended.
    pub fn done(&mut self, name: &str) {
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!("{}: {name}", self.boot),
        }
    }

    /// This runs, or was just measured.
    pub fn now(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {what}", self.boot));
        }
    }

    /// So many experiments failed.
    pub fn skip(&self, count: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(count as u64);
        }
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
