//! The host command: builds the kernel and a root for it, and runs them in QEMU.
//!
//! A run goes through the modules in this order: [`options`] has the command line, [`install`]
//! finds the kernel or lets [`project`] build it, unless [`fresh`] knows that nothing has changed,
//! [`relocations`] lets it move, [`root`] and [`cpio`] pack the guest's files, [`share`] shows it
//! the host's, [`qemu`] writes the machine's command line, [`launch`] ties it to this program,
//! [`guest`] starts it, reads its [`log`] and waits for its end, [`sessions`] moves the bytes
//! between its programs and the host, [`supervisor`] decides over it and lets [`commands`] reach
//! it, [`symbols`] makes a panic readable, and [`outcome`] is the exit status. Machines without
//! sessions have a [`console`]. [`terminal`] and [`input`] are the user's, and [`signals`] undoes
//! what must not stay behind, as the folders of [`scratch`]. [`test`] does all this many times.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod compare;
mod console;
mod cpio;
mod debug;
mod disk;
mod fresh;
mod guest;
mod image;
mod input;
mod install;
mod launch;
mod link;
mod linux;
mod log;
mod net;
mod netserver;
mod options;
mod outcome;
mod peer;
mod profile;
mod project;
mod qemu;
mod random;
mod relocations;
mod root;
mod run;
mod scratch;
mod screen;
mod sessions;
mod share;
mod signals;
mod supervisor;
mod swap;
mod symbols;
mod tap;
mod terminal;
mod test;

use std::process::ExitCode;

use clap::Parser;
use options::{Command, Options};

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Help is no error; a wrong command line must not look like a guest's status.
            let status = if error.use_stderr() {
                outcome::FAILURE
            } else {
                0
            };
            let _ = error.print();
            return status.into();
        }
    };
    let ended = match &options.command {
        Command::Run(options) => run::run(options),
        Command::Ps(options) => options.run(),
        Command::Logs(options) => options.run(),
        Command::Exec(options) => options.run(),
        Command::Attach(options) => options.run(),
        Command::Stop(options) => options.run(),
        Command::Kill(options) => options.run(),
        Command::Rm(options) => options.run(),
        Command::Cp(options) => options.run(),
        Command::Root(options) => options.make().map(|()| 0),
        Command::Cache(options) => options.run().map(|()| 0),
        Command::Debug(options) => debug::debug(options),
        Command::Profile(options) => profile::profile(options),
        Command::Image(options) => image::image(options).map(|()| 0),
        Command::Check(options) => test::host::check(options.all),
        Command::Test(options) => test::test(options),
        Command::Bench(options) => bench::bench(options),
        Command::Peer(options) => peer::peer(options).map(|()| 0),
        Command::CompareLinux(options) => compare::compare(options).map(|()| 0),
        Command::Install(options) => install::install(options).map(|()| 0),
        Command::Build(options) => project::kernel(options.profile).map(|kernel| {
            println!("{}", kernel.display());
            0
        }),
        Command::Link(options) => options.run(),
        Command::Launch(options) => launch::launch(options),
    };
    let status = ended.unwrap_or_else(|error| {
        eprintln!("causeway: {error:#}");
        outcome::FAILURE
    });
    signals::finish();
    status.into()
}
