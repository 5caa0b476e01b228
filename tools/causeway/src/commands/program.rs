//! The options of `causeway run` and `causeway exec` for the program that they start.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use session::Terminal;

use crate::sessions::Program;

#[derive(Args, Debug)]
pub struct ProgramOptions {
    /// Set an environment variable; NAME alone gives it the value that it has here; may be repeated
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    environment: Vec<OsString>,
    /// Set the variables of this file: a NAME=VALUE or NAME on each line, but for lines that start
    /// with `#`; may be repeated
    #[arg(long = "env-file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Start in this folder, made if it is missing [default: the user's home]
    #[arg(short = 'w', long = "workdir", value_name = "DIR")]
    directory: Option<OsString>,
    /// Run as this user of the guest's [default: root]
    #[arg(short, long, value_name = "NAME|UID[:GROUP|GID]")]
    user: Option<OsString>,
}

impl ProgramOptions {
    /// Returns the program for this command, or a login shell if it is empty.
    ///
    /// # Errors
    /// When a file of variables can't be read, or a variable has no name.
    pub fn program(&self, command: &[OsString], terminal: Option<Terminal>) -> Result<Program> {
        let mut program = Program::new(command);
        program.set_terminal(terminal);
        program.set_environment(&self.files, &self.environment)?;
        program.set_directory(self.directory.as_deref());
        program.set_user(self.user.as_deref());
        Ok(program)
    }
}
