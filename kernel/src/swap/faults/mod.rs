//! Every single allocation and every single command of the disk fails once, in turn, while a file
//! system, its files' pages, mappings, anonymous memory and a swap file on that disk are all in
//! use: on the simulated machine, with the kernel's own tasks. Or the disk is away from each
//! command on, for a while or for good.
//!
//! The reader of an error tries again, and it works; every read is right; the synced bytes are
//! there at the next mount; in the end no frame, no page table, no swap slot and no dirty page is
//! missing, and `e2fsck` has nothing to say.

#[path = "../../../../fs/tests/support/image.rs"]
mod image;
mod injection;
mod life;
mod machine;

use injection::Kind;
use life::Life;

/// Runs a life on a machine for each place where a fault of this kind can strike, and returns how
/// many there were. One of `step` places is tried, or one of as many as `STEP` says: with `STEP=1`
/// all of them are. With `SEED`, only that place is.
fn sweep(kind: Kind, step: u64) -> u64 {
    let base = life::prepared();
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let only = number("SEED");
    let step = number("STEP").unwrap_or(step);
    let mut place = only.unwrap_or(0);
    loop {
        let (content, outcome) = machine::run(base.clone(), kind, place, |machine| {
            Life::new(machine).live();
        });
        let what = format!("{kind:?} at {place}");
        // A failed disk has the contents of a killed machine's.
        let content = match kind.is_the_disks() && outcome.struck {
            true => image::repair(&content),
            false => {
                image::check(&content, &what);
                content
            }
        };
        life::look(content, &what, outcome.synced);
        if !outcome.struck || only.is_some() {
            println!("{kind:?}: {place} places");
            return place;
        }
        place += step;
    }
}

#[test]
fn every_allocation_fails_once() {
    let places = sweep(Kind::Allocation, 5);
    assert!(places > 150, "only {places} allocations");
}

#[test]
fn allocations_fail_until_a_program_is_told() {
    sweep(Kind::Shortage, 13);
}

#[test]
fn every_question_for_scarcity_is_answered_wrongly_once() {
    let places = sweep(Kind::Scarce, 5);
    assert!(places > 40, "only {places} questions");
}

#[test]
fn every_command_of_the_disk_fails_once() {
    let places = sweep(Kind::Command, 4);
    assert!(places > 40, "only {places} commands");
}

#[test]
fn the_disk_is_away_from_each_command_on_for_a_while() {
    sweep(Kind::Away, 6);
}

/// The contents in memory still work, and nothing waits for ever: it is unmounted like any other,
/// and nothing is left of it.
#[test]
fn the_disk_is_gone_from_each_command_on() {
    sweep(Kind::Gone, 6);
}
