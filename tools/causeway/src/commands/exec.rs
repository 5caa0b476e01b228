//! `causeway exec`: a further command in a running guest.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use anyhow::Result;
use clap::Args;

use super::ProgramOptions;
use crate::sessions::{self, Event};
use crate::supervisor::client::{self, Client};
use crate::terminal::{self, Raw};

/// For `--help`.
const HELP: &str = "\
Exit status:
  that of CMD        the command ended (128 + N: by signal N)
  120                the guest ended before CMD had ended
  121                CMD was left with Ctrl-A x, or its terminal went away
  125                causeway itself failed, or the guest takes no further
                     command; the message says which
  126                CMD can't be executed, or its user or folder is wrong
  127                CMD is not found

A guest takes 14 further commands at a time.

The second SIGINT, SIGQUIT or SIGTERM ends exec itself.

Keys: Ctrl-A x leaves CMD, which gets SIGHUP, and the guest goes on; Ctrl-A a sends a Ctrl-A; all others, Ctrl-C too, go to the guest.";

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct Exec {
    #[command(flatten)]
    program: ProgramOptions,
    /// The guest
    #[arg(value_name = "NAME")]
    name: String,
    /// Run this program with these arguments in place of a shell, and end with its status
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Exec {
    /// Runs the command on this program's streams and returns its status.
    ///
    /// # Errors
    /// When the guest does not run, or takes no further command.
    pub fn run(&self) -> Result<u8> {
        let client = Client::connect(&self.name)?;
        let terminal = terminal::of_streams();
        let program = self.program.program(&self.command, terminal)?;
        let raw = Raw::enter_for(terminal);
        // The keys of a raw terminal are the guest's.
        let signals = client::signals(raw.is_none())?;
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
        let last = if client::fits(&program) {
            client.exec(&program, streams, Some(signals))?;
            // The supervisor has the streams, and the ends of a pipe are the program's.
            sessions::give_up(streams.map(|stream| stream.is_terminal()))?;
            client.last()
        } else {
            Ok(Event::TOO_LONG)
        };
        drop(raw);
        let (status, why) = client.status(last?, &program)?;
        if let Some(why) = why {
            eprintln!("causeway: {why}");
        }
        Ok(status)
    }
}
