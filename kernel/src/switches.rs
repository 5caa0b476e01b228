//! The switches of all floors, joined: see [`nucleus::switches`].

use alloc::vec::Vec;

use nucleus::switches::{Setting, Switch};

/// Lists all switches.
pub fn all() -> impl Iterator<Item = &'static Switch> {
    nucleus::switches::SWITCHES.iter().chain(vm::SWITCHES)
}

/// Finds a switch by its name.
pub fn find(name: &str) -> Option<&'static Switch> {
    all().find(|switch| switch.name == name)
}

/// Returns all switches with their defaults.
pub fn defaults() -> Vec<(&'static str, Setting)> {
    let default = |switch: &'static Switch| Some((switch.name, switch.parse(switch.default)?));
    all().filter_map(default).collect()
}
