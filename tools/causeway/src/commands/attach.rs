//! `causeway attach`: this terminal on the first program of a detached guest.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anyhow::{Result, bail};
use clap::Args;

use crate::outcome;
use crate::sessions::Event;
use crate::supervisor::client::{self, Client};
use crate::supervisor::place;
use crate::terminal::{Newlines, Raw};

/// Connect this terminal to the first program of a detached guest
///
/// It shows what the program writes from now on, and gives it this terminal's keys if it has a
/// terminal (`causeway run --detach --tty`). Ctrl-A d leaves the guest running, and so does Ctrl-C
/// if its program has no terminal; Ctrl-A x ends it. Keys are those of a terminal on standard
/// input: a file or pipe there is not read. One at a time can be attached; the guest waits for a
/// terminal that does not take its output.
#[derive(Args, Debug)]
pub struct Attach {
    /// The guest
    #[arg(value_name = "NAME")]
    name: String,
}

impl Attach {
    /// Connects this program's streams; returns the program's status, or 0 when the user leaves.
    ///
    /// # Errors
    /// When the guest does not run, or runs in the foreground.
    pub fn run(&self) -> Result<u8> {
        let client = Client::connect(&self.name)?;
        let (found, _) = place::find(&self.name)?;
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let signals = client::signals(false)?;
        client.attach([input.as_fd(), output.as_fd(), errors.as_fd()], signals)?;
        let raw = match client.event()? {
            Event::Started if found.state.has_terminal && output.is_terminal() => {
                Raw::enter(Newlines::Guest)
            }
            Event::Started => Raw::enter(Newlines::Host),
            Event::Refused(why) => bail!("cannot attach to {}: {why}", self.name),
            _ => bail!("the guest {} has ended", self.name),
        };
        let last = client.last();
        drop(raw);
        Ok(match last? {
            Event::Detached => {
                eprintln!("causeway: {} goes on", self.name);
                0
            }
            Event::Ended(status) => outcome::of_program(status),
            _ => {
                eprintln!("causeway: the guest {} ended before its program", self.name);
                outcome::LEFT
            }
        })
    }
}
