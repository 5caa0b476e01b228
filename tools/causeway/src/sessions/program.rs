//! A program to start in a guest: its words, variables, folder, user and terminal.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use session::{Part, Start, Terminal, Window};

use crate::outcome;

/// A program to start.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments, each ended by a zero byte; empty for a login shell.
    arguments: Vec<u8>,
    /// `NAME=VALUE`, each ended by a zero byte.
    environment: Vec<u8>,
    /// The working directory; empty for the user's home.
    directory: Vec<u8>,
    /// The user and group; empty for root.
    user: Vec<u8>,
    /// Whether it becomes process 1.
    is_init: bool,
    terminal: Option<Terminal>,
}

impl Program {
    /// Takes a command, or none for a login shell.
    pub fn new(command: &[OsString]) -> Self {
        Self {
            arguments: list(command.iter().map(|word| word.as_bytes())),
            ..Self::default()
        }
    }

    /// Sets variables: the host's `TERM` where there is a terminal, then those of docker's
    /// `--env-file` files, then those of `--env`; later ones replace earlier ones.
    ///
    /// # Errors
    /// When a file can't be read, or a variable has no name.
    pub fn set_environment(&mut self, files: &[impl AsRef<Path>], own: &[OsString]) -> Result<()> {
        let mut variables = Vec::new();
        if self.terminal.is_some() {
            set(&mut variables, OsStr::new("TERM"))?;
        }
        for file in files {
            let file = file.as_ref();
            let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            for line in text.split(|&byte| byte == b'\n') {
                let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
                if !line.is_empty() && line[0] != b'#' {
                    set(&mut variables, OsStr::from_bytes(line))
                        .with_context(|| file.display().to_string())?;
                }
            }
        }
        for word in own {
            set(&mut variables, word)?;
        }
        self.environment = list(variables.iter().map(|(_, word)| &word[..]));
        Ok(())
    }

    /// Sets the working directory.
    pub fn set_directory(&mut self, directory: Option<&OsStr>) {
        self.directory = directory.unwrap_or_default().as_bytes().into();
    }

    /// Sets the user: `NAME`, `UID`, `NAME:GROUP` or `UID:GID`.
    pub fn set_user(&mut self, user: Option<&OsStr>) {
        self.user = user.unwrap_or_default().as_bytes().into();
    }

    /// Makes it process 1.
    pub fn set_init(&mut self, is_init: bool) {
        self.is_init = is_init;
    }

    /// Sets the terminal; before the environment.
    pub fn set_terminal(&mut self, terminal: Option<Terminal>) {
        self.terminal = terminal;
    }

    /// The terminal.
    pub fn terminal(&self) -> Option<Terminal> {
        self.terminal
    }

    /// Changes the size of the terminal that it starts with.
    pub fn set_window(&mut self, window: Window) {
        if let Some(terminal) = &mut self.terminal {
            terminal.window = window;
        }
    }

    /// Whether this is a command, and no shell for a person.
    pub fn is_command(&self) -> bool {
        !self.arguments.is_empty()
    }

    /// The command's words, for a person.
    pub fn command(&self) -> String {
        let words = session::words(&self.arguments).ok();
        let words: Vec<_> = words.into_iter().flatten().map(text).collect();
        words.join(" ")
    }

    /// Returns the message that starts it.
    pub fn start(&self, session: u8, is_first: bool) -> Start<'_> {
        Start {
            session,
            terminal: self.terminal,
            arguments: &self.arguments,
            environment: &self.environment,
            directory: &self.directory,
            user: &self.user,
            is_first,
            is_init: self.is_init && is_first,
        }
    }

    /// Returns why it can't be started, as a shell says it, and the shell's status for that.
    pub fn failure(&self, part: Part, error: i32) -> (String, u8) {
        const NOT_FOUND: i32 = 2;
        let why = errno(error);
        match part {
            Part::Program => {
                let mut words = session::words(&self.arguments).ok().into_iter().flatten();
                let name = words.next().map_or_else(|| "the shell".into(), text);
                if error == NOT_FOUND {
                    (format!("{name}: not found"), outcome::NOT_FOUND)
                } else {
                    (format!("{name}: {why}"), outcome::NOT_EXECUTED)
                }
            }
            Part::Directory => (
                format!("{}: {why}", text(&self.directory)),
                outcome::NOT_EXECUTED,
            ),
            Part::User => (
                format!("the guest has no user {}", text(&self.user)),
                outcome::NOT_EXECUTED,
            ),
            Part::Session => (
                format!("the guest can't start the program: {why}"),
                outcome::NOT_EXECUTED,
            ),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The system's words for an error.
fn errno(error: i32) -> String {
    let text = std::io::Error::from_raw_os_error(error).to_string();
    text.split(" (os error").next().unwrap_or(&text).into()
}

fn list<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut list = Vec::new();
    for word in words {
        list.extend_from_slice(word);
        list.push(0);
    }
    list
}

/// Adds `NAME=VALUE`, or `NAME` with the host's value if it has one, in place of an earlier one.
fn set(variables: &mut Vec<(Vec<u8>, Vec<u8>)>, word: &OsStr) -> Result<()> {
    let bytes = word.as_bytes();
    let shown = word.display();
    let (name, word) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(equals) => (&bytes[..equals], Some(bytes.to_vec())),
        None => {
            let value = std::env::var_os(word);
            let word = value.map(|value| [bytes, b"=", &value.into_vec()].concat());
            (bytes, word)
        }
    };
    ensure!(!name.is_empty(), "the variable {shown} has no name");
    if name.iter().any(u8::is_ascii_whitespace) {
        bail!("the variable {shown} has a space in its name");
    }
    ensure!(!bytes.contains(&0), "the variable {shown} has a zero byte");
    variables.retain(|(other, _)| other != name);
    variables.extend(word.map(|word| (name.to_vec(), word)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn variables_come_from_files_then_from_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("variables");
        let text = "# a comment\n\nA=1\n  B= two words \r\nC=#3\nPATH\nnone_such_variable\nD=x=y";
        fs::write(&file, text).unwrap();
        let mut program = Program::new(&[]);
        let own = words(&["A=2", "E=", "none_such"]);
        program.set_environment(&[file], &own).unwrap();
        let path = std::env::var("PATH").unwrap();
        let wanted = format!("B= two words \0C=#3\0PATH={path}\0D=x=y\0A=2\0E=\0");
        assert_eq!(String::from_utf8(program.environment).unwrap(), wanted);
    }

    #[test]
    fn variables_without_a_name_are_refused() {
        let none: [&str; 0] = [];
        for wrong in ["=x", "", "a b=c"] {
            let own = words(&[wrong]);
            let refused = Program::new(&[]).set_environment(&none, &own);
            assert!(refused.is_err(), "{wrong}");
        }
    }

    #[test]
    fn failures_are_told_as_by_a_shell() {
        let mut program = Program::new(&words(&["none", "-x"]));
        program.set_directory(Some(OsStr::new("/d")));
        let told = |part, error| program.failure(part, error);
        assert_eq!(told(Part::Program, 2), ("none: not found".into(), 127));
        assert_eq!(
            told(Part::Program, 13),
            ("none: Permission denied".into(), 126)
        );
        assert_eq!(
            told(Part::Directory, 20),
            ("/d: Not a directory".into(), 126)
        );
    }
}
