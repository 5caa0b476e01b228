//! The progress of a long step on standard error: a bar or a spinner on a terminal, a line before
//! the step elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// A step that is under way. Dropping it takes its bar away.
pub struct Step {
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
}

impl Step {
    /// Starts a step over so many bytes.
    pub fn bytes(what: &str, total: u64) -> Self {
        let said = format!("{what} ({})", HumanBytes(total));
        let bar = "{msg}  {bar:30} {bytes}/{total_bytes}  {elapsed}";
        Self::start(&said, what, bar, Some(total))
    }

    /// Starts a step over so many items of a kind, as in "packages".
    pub fn items(what: &str, total: u64, kind: &str) -> Self {
        let said = format!("{what} ({total} {kind})");
        let bar = format!("{{bar:30}} {{pos}}/{{len}} {kind}  {{elapsed}}  {{wide_msg}}");
        Self::start(&said, what, &bar, Some(total))
    }

    /// Starts a step of unknown length.
    pub fn unmeasured(what: &str) -> Self {
        Self::start(what, what, "{spinner} {wide_msg} {elapsed}", None)
    }

    fn start(said: &str, message: &str, template: &str, total: Option<u64>) -> Self {
        if !io::stderr().is_terminal() {
            eprintln!("causeway: {said}");
            return Self { bar: None };
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(message.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar: Some(bar) }
    }

    /// So much of it is done.
    pub fn reach(&self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    /// Shows the part that is under way, on a terminal.
    pub fn show(&self, part: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(part.to_owned());
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
