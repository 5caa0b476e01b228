//! The options of `causeway run` that make its guest one that others can reach.

use anyhow::{Result, ensure};
use clap::Args;

use crate::sessions::Program;

/// The most characters of a host name, as on Linux.
const LONGEST: usize = 64;

#[derive(Args, Debug)]
pub struct Name {
    /// Give the guest a name by which `causeway exec`, `stop` and the like find it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print the guest's name, a new one if there is no --name, and leave it running once CMD has
    /// been started; what CMD writes is kept for `causeway logs`
    #[arg(short, long)]
    detach: bool,
    /// Give the command of a detached guest a terminal, which `causeway attach` connects to
    #[arg(short, long, requires = "detach")]
    tty: bool,
    /// What `hostname` gives in the guest [default: causeway]
    #[arg(long, value_name = "NAME", value_parser = hostname)]
    hostname: Option<String>,
    /// Make CMD process 1, which gets the orphans and whose end is the guest's
    #[arg(long, requires = "command")]
    init: bool,
    /// The name of a guest whose supervisor this is
    #[arg(long, value_name = "NAME", hide = true)]
    supervisor: Option<String>,
}

impl Name {
    /// Whether a supervisor is to be started.
    pub fn is_daemon_wanted(&self) -> bool {
        self.detach && self.supervisor.is_none()
    }

    /// The name of the detached guest whose supervisor this is.
    pub fn supervisor(&self) -> Option<&str> {
        self.supervisor.as_deref()
    }

    /// The guest's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.supervisor.as_deref().or(self.name.as_deref())
    }

    /// The guest's host name.
    pub fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref()
    }

    /// Whether the program of a detached guest gets a terminal.
    pub fn has_terminal(&self) -> bool {
        self.tty
    }

    /// Makes a program the guest's first one.
    pub fn first(&self, mut program: Program) -> Program {
        program.set_init(self.init);
        program
    }
}

/// A host name that needs no quoting.
fn hostname(text: &str) -> Result<String> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    ensure!(
        (1..=LONGEST).contains(&text.len()) && text.chars().all(is_letter),
        "a host name has at most {LONGEST} letters, digits, `-`, `.` and `_`"
    );
    Ok(text.into())
}
