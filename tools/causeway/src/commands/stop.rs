//! `causeway stop` and `causeway kill`: the end of a guest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::options::seconds;
use crate::supervisor::client::Client;

/// How long a machine that was ended may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Linux's number of `SIGTERM`.
const TERM: u8 = 15;

/// Sends the guest's first program SIGTERM, and ends the machine if it has not ended in time
#[derive(Args, Debug)]
pub struct Stop {
    /// How many seconds the program may take
    #[arg(long, value_name = "S", default_value = "10", value_parser = wait)]
    time: Duration,
    /// The guest
    #[arg(value_name = "NAME")]
    name: String,
}

impl Stop {
    /// Ends the guest.
    ///
    /// # Errors
    /// When it does not run.
    pub fn run(&self) -> Result<u8> {
        let client = Client::connect(&self.name)?;
        if !self.time.is_zero() {
            client.signal(TERM)?;
        }
        if !client.wait_for_end(self.time)? {
            client.end()?;
            ensure!(client.wait_for_end(PATIENCE)?, "{} does not end", self.name);
        }
        Ok(0)
    }
}

/// A number of seconds, also none.
fn wait(text: &str) -> Result<Duration, String> {
    if text == "0" {
        Ok(Duration::ZERO)
    } else {
        seconds(text)
    }
}

/// Sends the guest's first program a signal; SIGKILL ends the guest with it
#[derive(Args, Debug)]
pub struct Kill {
    /// The signal, by name or number
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL", value_parser = signal)]
    signal: u8,
    /// The guest
    #[arg(value_name = "NAME")]
    name: String,
}

impl Kill {
    /// Sends the signal.
    ///
    /// # Errors
    /// When the guest does not run.
    pub fn run(&self) -> Result<u8> {
        Client::connect(&self.name)?.signal(self.signal)?;
        Ok(0)
    }
}

/// The signals by their numbers, from 1.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// The number of a signal.
fn signal(text: &str) -> Result<u8> {
    if let Ok(number) = text.parse() {
        ensure!((1..=64).contains(&number), "signals are 1 to 64");
        return Ok(number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let at = SIGNALS.iter().position(|&signal| signal == name);
    let at = at.with_context(|| format!("there is no signal {text}"))?;
    Ok(at as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [("KILL", 9), ("sigterm", 15), ("SIGSYS", 31), ("34", 34)] {
            assert_eq!(signal(text).unwrap(), number, "{text}");
        }
        for text in ["0", "65", "300", "NONE", ""] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_stop_may_wait_for_nothing() {
        assert_eq!(wait("0"), Ok(Duration::ZERO));
        assert_eq!(wait("1.5"), Ok(Duration::from_millis(1500)));
        assert!(wait("-1").is_err());
    }
}
