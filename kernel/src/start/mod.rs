//! From the first task to the first program.
//!
//! [`command_line`] parses the settings, [`root`] unpacks the archive, or mounts a disk or a share,
//! and mounts the file systems in it, [`shares`] mounts folders of the host's, [`swaps`] gives
//! devices to the swap space, [`network`] starts the cards, [`init`] is the first process, in the
//! kernel or a program, [`sessions`] starts programs that the host asks for, [`program`] is how any
//! of them begins, [`users`] as whom.

mod command_line;
mod file_systems;
mod init;
mod network;
mod program;
mod root;
mod sessions;
mod shares;
mod swaps;
mod users;

use alloc::format;

use fs::{Credentials, Walk};
use nucleus::{
    boot, console, log,
    power::{self, Stop},
    user,
};

use crate::{
    device::{disk, entropy},
    process::{self, loadavg, sigio, signal},
    shutdown::finish,
    socket::unix,
    switches, tty, uts,
};

pub use command_line::{Options, RootSource, StoredRoot};

/// The first task: everything in the nucleus is ready.
pub fn start() -> ! {
    user::set_fault_hook(process::resolve_for_kernel);
    let options =
        command_line::parse(boot::command_line()).unwrap_or_else(|message| give_up(&message));
    for (name, setting) in &options.switches {
        if switches::find(name).is_some_and(|switch| (switch.set)(*setting).is_err()) {
            give_up(&format!("no memory for {name}"));
        }
    }
    if let Some(release) = &options.release {
        uts::set_release(release);
    }
    if let Some(name) = &options.hostname {
        // It was parsed by the same rule.
        let _ = uts::change_hostname(name);
    }
    vm::set_current_map(process::thread::with_current_map);
    vm::set_dying(process::thread::is_current_dying);
    vm::account::set_current(|| process::thread::with_current(|thread| thread.process().account()));
    fs::credentials::set_actor(|see| {
        let who = process::thread::with_current(super::process::thread::Thread::credentials);
        if let Some(who) = who.flatten() {
            see(&who.fs);
        }
    });
    let tasks = tty::console::start(options.onlcr, options.echo)
        .and_then(|()| signal::timer::start())
        .and_then(|()| sigio::start())
        .and_then(|()| unix::start())
        .and_then(|()| loadavg::start())
        .and_then(|()| fs::page_cache::start())
        .and_then(|()| vm::start_pagedaemon());
    if tasks.is_err() {
        give_up("no memory to start with");
    }
    // Before any driver takes one.
    nucleus::pci::find();
    entropy::start();
    disk::start(&options.memory_disks).unwrap_or_else(|message| give_up(&message));
    let has_cards = network::start(options.addressing);
    let namespace = root::mount(options.root.as_ref()).unwrap_or_else(|message| give_up(&message));
    let (root, who) = (namespace.root(), Credentials::default());
    let walk = Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    shares::mount(&options.shares, &namespace, &walk).unwrap_or_else(|message| give_up(&message));
    if has_cards {
        network::finish(options.addressing, options.root.as_ref(), &walk);
    }
    swaps::start(&options.swaps, &walk).unwrap_or_else(|message| give_up(&message));
    finish(init::run(&options, &namespace, &walk).unwrap_or_else(|message| give_up(&message)))
}

/// A start that can't be: one line on the console says why.
fn give_up(message: &str) -> ! {
    console::write(format!("causeway: {message}\r\n").as_bytes());
    log!("{message}");
    power::stop(Stop::BadStart)
}
