//! `causeway ps`, `causeway logs` and `causeway rm`: guests with names, and what is kept of them.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::log::plain;
use crate::supervisor::client::Client;
use crate::supervisor::place::{self, Found};
use crate::supervisor::record::Reader;

/// How often a log is looked at for more.
const PAUSE: Duration = Duration::from_millis(50);

/// Lists the guests that have a name and run
#[derive(Args, Debug)]
pub struct Ps {
    /// List also those that have ended, and of which something is kept
    #[arg(short, long)]
    all: bool,
    /// Print the names only
    #[arg(short, long)]
    quiet: bool,
}

impl Ps {
    /// Prints the list.
    ///
    /// # Errors
    /// When the guests' folder can't be read.
    pub fn run(&self) -> Result<u8> {
        let guests = place::all()?;
        let guests = guests.iter().filter(|guest| self.all || guest.is_running);
        let rows: Vec<_> = guests.map(row).collect();
        let mut out = io::stdout().lock();
        if self.quiet {
            for [name, ..] in rows {
                writeln!(out, "{name}")?;
            }
        } else {
            out.write_all(table(&rows).as_bytes())?;
        }
        Ok(0)
    }
}

/// Name, state, CPUs, memory and command.
type Row = [String; 5];

fn row(guest: &Found) -> Row {
    let state = &guest.state;
    let since = |at| age(place::now().saturating_sub(at));
    let status = match state.ended {
        _ if guest.is_running => format!("running {}", since(state.started)),
        Some((status, at)) => format!("ended ({status}) {} ago", since(at)),
        None => "lost".into(),
    };
    let command = match &state.command[..] {
        "" => "(shell)",
        command => command,
    };
    // One line for each guest, whatever the words are.
    let command = plain(command).replace('\t', "?");
    [
        guest.name.clone(),
        status,
        state.cpus.to_string(),
        state.memory.clone(),
        command,
    ]
}

/// A time as the largest unit that it has one of.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn table(rows: &[Row]) -> String {
    let head = ["NAME", "STATUS", "CPUS", "MEMORY", "COMMAND"].map(String::from);
    let rows: Vec<_> = [&head].into_iter().chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, word) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max();
            let last = column + 1 == row.len();
            let width = if last { 0 } else { width.unwrap_or(0) + 2 };
            text += &format!("{word:width$}");
        }
        text.push('\n');
    }
    text
}

/// Print what the first program of a detached guest has written
///
/// Standard output and standard error come as the program wrote them; the last 8 to 16 MiB are
/// kept.
#[derive(Args, Debug)]
pub struct Logs {
    /// Go on until the guest ends
    #[arg(short, long)]
    follow: bool,
    /// The guest, which may have ended
    #[arg(value_name = "NAME")]
    name: String,
}

impl Logs {
    /// Prints the output, and on standard error what the supervisor had to say.
    ///
    /// # Errors
    /// When there is no such guest, or nothing of its output is kept.
    pub fn run(&self) -> Result<u8> {
        // Before the guest is looked up: a later one with its name would have ended it.
        let client = match Client::connect(&self.name) {
            Ok(client) if self.follow => client.watch().is_ok().then_some(client),
            _ => None,
        };
        let (found, folder) = place::find(&self.name)?;
        if !found.state.is_detached {
            bail!(
                "{} runs in the foreground: its output is where it was started",
                self.name
            );
        }
        let is_same = || place::find(&self.name).is_ok_and(|(now, _)| now.is_same(&found));
        match print(&folder, client, is_same) {
            Err(error) if is_broken(&error) => {}
            printed => printed?,
        }
        if !self.follow || is_same() {
            let messages = fs::read(folder.join("messages")).unwrap_or_default();
            io::stderr().write_all(&messages)?;
        }
        Ok(0)
    }
}

/// Prints the output in a folder; until the end of the guest, if there is a connection to it. After
/// the end `is_same` says whether the folder is still that guest's.
fn print(folder: &Path, client: Option<Client>, is_same: impl Fn() -> bool) -> Result<()> {
    let mut reader = Reader::new(folder);
    let mut buffer = vec![0; 1 << 16];
    let mut out = io::stdout().lock();
    let mut is_last = client.is_none();
    loop {
        let count = reader.read(&mut buffer)?;
        out.write_all(&buffer[..count])?;
        if count > 0 {
            continue;
        }
        out.flush()?;
        let Some(client) = client.as_ref().filter(|_| !is_last) else {
            return Ok(());
        };
        // What was written before the end is there to be read after it.
        is_last = client.wait_for_end(PAUSE)?;
        if is_last && !is_same() {
            reader.stay();
        }
    }
}

/// Whether the reader of the output has gone.
fn is_broken(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Removes what is kept of guests that have ended
#[derive(Args, Debug)]
pub struct Rm {
    /// The guests
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

impl Rm {
    /// Removes them.
    ///
    /// # Errors
    /// When one runs, or there is none.
    pub fn run(&self) -> Result<u8> {
        for name in &self.names {
            place::remove(name)?;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::place::State;

    #[test]
    fn a_guest_is_a_line() {
        let mut guest = Found {
            name: "web".into(),
            state: State {
                command: "sh -c a\nb".into(),
                cpus: 2,
                memory: "512M".into(),
                started: place::now() - 130,
                is_detached: true,
                has_terminal: false,
                ended: None,
            },
            is_running: true,
        };
        let text = table(&[row(&guest)]);
        assert_eq!(
            text,
            "NAME  STATUS         CPUS  MEMORY  COMMAND\n\
             web   running 2 min  2     512M    sh -c a?b\n"
        );
        guest.is_running = false;
        assert_eq!(row(&guest)[1], "lost");
        guest.state.ended = Some((137, place::now() - 7200));
        assert_eq!(row(&guest)[1], "ended (137) 2 h ago");
    }
}
