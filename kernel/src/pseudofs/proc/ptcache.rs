//! `/proc/causeway/ptcache`: the cache of page tables.
//!
//! A line per level (`level 1 in_use 12 in_pool 8 …`) and the settings. Root writes one of the
//! words `on`, `off`, `drain`, `adaptive`, or both of or one of `ratio=N` (tables in the pool for
//! 100 in use) and `total=N` (tables of a level), which make the thresholds hold.

use abi::{Errno, Result};
use fs::pseudofs::{Entry, Text};
use nucleus::{
    frame::{self, TablePolicy, TableThresholds},
    task,
};

use super::super::shown;
use crate::process::thread;

/// The file, and the switch of the command line.
pub const NAME: &str = "ptcache";

/// The largest threshold.
const MOST: u32 = 1_000_000;

pub fn file() -> Entry {
    shown(show).writable(write)
}

fn show(out: &mut Text) {
    let mode = if frame::keeps_tables() { "on" } else { "off" };
    writeln!(out, "mode {mode}");
    let policy = match frame::table_policy() {
        TablePolicy::Adaptive => "adaptive",
        TablePolicy::Fixed(_) => "fixed",
    };
    let TableThresholds { ratio, total } = TableThresholds::now();
    writeln!(out, "policy {policy}");
    writeln!(out, "ratio {ratio}");
    writeln!(out, "total {total}");
    writeln!(out, "aside {}", frame::frames_aside());
    for (level, it) in (1..).zip(frame::table_usage()) {
        writeln!(
            out,
            "level {level} in_use {} in_pool {} reused {} given_back {} avoided {}",
            it.in_use, it.in_pool, it.reused, it.given_back, it.avoided
        );
    }
}

fn write(bytes: &[u8]) -> Result<()> {
    let text = core::str::from_utf8(bytes.trim_ascii()).map_err(|_| Errno::EINVAL)?;
    match text {
        "on" => frame::keep_tables(true),
        "off" => frame::keep_tables(false),
        "drain" => drain(),
        "adaptive" => frame::set_table_policy(TablePolicy::Adaptive),
        _ => {
            let mut thresholds = TableThresholds::now();
            for word in text.split(' ') {
                let (name, value) = word.split_once('=').ok_or(Errno::EINVAL)?;
                let place = match name {
                    "ratio" => &mut thresholds.ratio,
                    "total" => &mut thresholds.total,
                    _ => return Err(Errno::EINVAL),
                };
                *place = number(value).ok_or(Errno::EINVAL)?;
            }
            frame::set_table_policy(TablePolicy::Fixed(thresholds));
        }
    }
    Ok(())
}

/// Drains the pools, and what each CPU has for itself: the caller goes to all that it may use.
fn drain() {
    let Some(cpus) = thread::with_current(|thread| thread.cpus()) else {
        return;
    };
    let task = task::current();
    for cpu in (0..task::cpu_count()).filter(|cpu| cpus & 1 << cpu != 0) {
        task.set_cpus(1 << cpu);
        frame::drain_tables();
    }
    // What it may use now.
    thread::with_current(|thread| task.set_cpus(thread.cpus()));
}

fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits)?;
    (number <= MOST).then_some(number)
}
