//! What CPUs keep of spaces that they have not loaded.

use super::*;
use crate::hw::machine;

/// A space that is loaded again has its translations, until one of them changes.
#[test]
fn a_space_is_kept_until_it_changes() {
    on_machines("spaces are kept", [1, 2], 1024, 24, || {
        let kept = || Counter::space_switches_kept.total();
        let frame = tagged_frames(1).remove(0);
        let spaces: Vec<_> = (0..2).map(|_| Pmap::new().unwrap()).collect();
        let mut pending = Pending::new();
        let at = va_of(0);
        for pmap in &spaces {
            pmap.enter(at, &frame, READ_WRITE, &mut pending).unwrap();
        }
        let in_turns = |turns: usize| {
            for turn in 0..turns {
                task::set_pmap(Some(spaces[turn % 2].clone()));
                user::write(at + 16, &1u32).unwrap();
            }
        };
        // It has translated by each tag.
        in_turns(4);
        let before = kept();
        in_turns(20);
        let enough = machine::tags() >= 2;
        let stays = kept() - before;
        match enough {
            // This task may have moved to another CPU, once or twice.
            true => assert!(stays >= 10, "{stays} of 20"),
            false => assert_eq!(stays, 0, "{} tags", machine::tags()),
        }
        // The first is not loaded: no CPU is interrupted, and it is loaded afresh.
        let told = Counter::tlb_remote.total();
        spaces[0].protect(page_at(at), Prot::READ, &mut pending);
        pending.flush();
        if machine::cpu_count() == 1 {
            assert_eq!(Counter::tlb_remote.total(), told);
        }
        task::set_pmap(Some(spaces[0].clone()));
        assert!(
            user::write(at + 16, &1u32).is_err(),
            "written after a change"
        );
        task::set_pmap(None);
        spaces.iter().for_each(|pmap| pmap.tear_down());
    });
}

/// A table that a family shares changes while none of the family is loaded.
#[test]
fn a_family_is_kept_until_it_changes() {
    on_machines("a family is kept", [1, 2], 1024, 24, change_unloaded_family);
}

fn change_unloaded_family() {
    let frame = tagged_frames(1).remove(0);
    let parent = Pmap::new().unwrap();
    let stranger = Pmap::new().unwrap();
    let mut pending = Pending::new();
    let at = va_of(0);
    parent.enter(at, &frame, READ_WRITE, &mut pending).unwrap();
    task::set_pmap(Some(parent.clone()));
    let child = parent.fork(&mut all_tables(), 0, &mut pending).unwrap().0;
    pending.flush();
    for pmap in [&parent, &child] {
        task::set_pmap(Some(pmap.clone()));
        assert_eq!(user::read::<u64>(at + 8), Ok(0));
    }
    task::set_pmap(Some(stranger.clone()));
    page_protect(&frame, Prot::empty(), &mut pending);
    pending.flush();
    for pmap in [&parent, &child] {
        task::set_pmap(Some(pmap.clone()));
        assert!(user::read::<u64>(at + 8).is_err(), "read after a change");
    }
    task::set_pmap(None);
    for pmap in [parent, child, stranger] {
        pmap.tear_down();
    }
}

/// The simulated machine finds each mistake in few runs: a tag that is used though what it stands
/// for has changed.
#[test]
fn mistakes_are_found() {
    let cases: [(Mistake, fn()); 3] = [
        (Mistake::TagKeptStale, sharing::change_a_family),
        (Mistake::KeptForgotten, sharing::change_a_family),
        (Mistake::FamilyTagsKept, change_unloaded_family),
    ];
    for (mistake, change) in cases {
        let like = Config {
            cpus: 2,
            pages: 1024,
            ..Config::default()
        };
        let body = move || {
            user::set_fault_hook(|_, _| false);
            change();
        };
        mistake.assert_found(like, body, "is used as it is");
    }
}
