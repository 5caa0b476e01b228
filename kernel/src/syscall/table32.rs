//! `int 0x80`: the calls of 32-bit programs whose arguments are numbers or plain bytes, so that one body
//! serves both.
//!
//! The bindings for this target know the numbers of 64-bit programs only; these are those of
//! `asm/unistd_32.h`.

use super::{Handler, credentials, identity, process, schedule, signal, time};

/// `restart_syscall`.
pub(super) const RESTART: u64 = 0;

pub(super) const CALLS: &[(u32, Handler)] = &[
    (0, signal::restart_syscall),
    (1, process::exit),
    (2, process::fork),
    (13, time::time_),
    (20, identity::getpid),
    (27, time::alarm),
    (29, signal::pause),
    (37, signal::kill),
    (57, identity::setpgid),
    (64, identity::getppid),
    (65, identity::getpgrp),
    (66, identity::setsid),
    (132, identity::getpgid),
    (147, identity::getsid),
    (158, schedule::sched_yield),
    (190, process::vfork),
    (199, credentials::getuid),
    (200, credentials::getgid),
    (201, credentials::geteuid),
    (202, credentials::getegid),
    (224, identity::gettid),
    (252, process::exit_group),
];
