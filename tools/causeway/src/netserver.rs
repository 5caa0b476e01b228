//! `causeway run --netserver`: UDP/IP in the guest by a process that has the card, and serves
//! others through fbufs.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::net;
use crate::project;
use crate::share::Share;

/// Where its program is in the guest.
const FOLDER: &str = "/run/netserver.d";

/// Builds the program, and returns the share by which the guest has it, from this folder.
///
/// # Errors
/// When it does not compile.
pub fn share(folder: &Path) -> Result<Share> {
    let program = project::guest_program("netserver")?;
    let folder = folder.join("netserver.d");
    fs::create_dir_all(&folder)?;
    fs::copy(&program, folder.join("netserver")).context("netserver")?;
    let name = folder.to_str().context("a name that is not UTF-8")?;
    format!("{name}:{FOLDER}:ro").parse()
}

/// Returns the command that starts the server, again whenever it ends, waits until it listens, and
/// becomes `command`, or a login shell if that is empty.
pub fn command(own: &net::Own, words: &str, command: &[OsString]) -> Vec<OsString> {
    let line = format!(
        "rm -f /run/netserver; \
         (while :; do {FOLDER}/netserver --interface eth0 --ip {own} {words}; sleep 1; done) \
         </dev/null >/dev/null & \
         while ! [ -S /run/netserver ] && kill -0 $!; do sleep 0.1; done; \
         [ $# -gt 0 ] && exec \"$@\"; exec \"${{SHELL:-/bin/sh}}\" -l"
    );
    let words = ["/bin/sh", "-c", &line, "sh"];
    let words = words.into_iter().map(OsString::from);
    words.chain(command.iter().cloned()).collect()
}
