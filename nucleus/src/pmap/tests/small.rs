//! Small spaces: neighbours in a group, promotion, and what must not be left behind.

use super::*;
use crate::hw::machine;
use crate::sync::{Mutex, Rank};

/// The smallest region: two tables.
const REGION: usize = 4 << 20;
const USER: u32 = 1000;
/// Pages of a program around the border of the two tables.
const SMALL_PAGES: usize = 16;

fn at(page: usize) -> VirtAddr {
    VirtAddr(LEAF_SPAN - SMALL_PAGES / 2 * PAGE_SIZE + page * PAGE_SIZE)
}

fn everything() -> VirtRange {
    VirtRange::new(VirtAddr(0), VirtAddr(REGION))
}

/// Spaces are small from now on.
fn begin() {
    set_small_spaces(SmallSpaces::OfUsers);
    set_region(REGION);
}

/// A small space, beside another one if there is room.
fn small(beside: Option<&Pmap>) -> PmapRef {
    let pmap = Pmap::new().unwrap();
    assert!(pmap.join(USER, beside), "no region");
    pmap
}

#[test]
fn neighbours_run_under_one_root() {
    on_machines("neighbours run under one root", [1, 2], 1024, 12, || {
        begin();
        let frames = tagged_frames(3);
        let mut pending = Pending::new();
        let mut spaces = vec![small(None)];
        for _ in 1..3 {
            spaces.push(small(Some(&spaces[0])));
        }
        for (pmap, frame) in spaces.iter().zip(&frames) {
            pmap.enter(at(0), frame, READ_WRITE, &mut pending).unwrap();
        }
        let run = |turn: usize| {
            task::set_pmap(Some(spaces[turn % 3].clone()));
            assert_eq!(user::read::<u64>(at(0) + 8), Ok((turn % 3) as u64));
        };
        run(0);
        let counters = || {
            [
                Counter::small_switches,
                Counter::space_switches,
                Counter::tlb_local_full,
                Counter::tlb_local_page,
            ]
            .map(Counter::total)
        };
        let before = counters();
        (1..31).for_each(run);
        let now = counters();
        // This task may have moved to another CPU, once or twice.
        assert!(now[0] - before[0] >= 20, "{before:?} {now:?}");
        if machine::cpu_count() == 1 {
            let mut wanted = before;
            wanted[0] += 30;
            assert_eq!(now, wanted);
        }
        // Nothing beyond the region is the program's, and nothing can be mapped there.
        assert!(user::read::<u64>(VirtAddr(REGION - 4)).is_err());
        assert_eq!(spaces[0].end(), VirtAddr(REGION));
        assert!(spaces[0].extract(VirtAddr(REGION) + at(0).0).is_none());
        task::set_pmap(None);
        audit::finds_nothing(&spaces, true);
        spaces.iter().for_each(|pmap| pmap.tear_down());
    });
}

#[test]
#[should_panic(expected = "is not an address of a program")]
fn nothing_is_mapped_in_a_neighbours_region() {
    on_machines("beyond a region", [1], 512, 1, || {
        begin();
        let pmap = small(None);
        let frame = tagged_frames(1).remove(0);
        let mut pending = Pending::new();
        let _ = pmap.enter(VirtAddr(REGION), &frame, Prot::READ, &mut pending);
    });
}

#[test]
fn users_have_groups_of_their_own_unless_they_share() {
    on_machines("groups of users", [1], 1024, 2, || {
        let of = |user: u32, beside: Option<&Pmap>| {
            let pmap = Pmap::new().unwrap();
            assert!(pmap.join(user, beside));
            let known = core::iter::successors(group_from(0), |(i, _)| group_from(i + 1));
            let in_use: Vec<_> = known.map(|(_, group)| group.regions[1]).collect();
            (pmap, in_use)
        };
        begin();
        set_region(512 << 20);
        let (first, _) = of(1, None);
        let (second, in_use) = of(2, Some(&first));
        assert_eq!(in_use, [1, 1]);
        let (third, in_use) = of(1, Some(&second));
        assert_eq!(in_use, [2, 1]);
        // Both regions are in use.
        let (fourth, in_use) = of(1, Some(&first));
        assert_eq!(in_use, [2, 1, 1]);
        set_small_spaces(SmallSpaces::Shared);
        // A group stays what it was made for, whatever the switch says later.
        let (fifth, in_use) = of(3, Some(&second));
        assert_eq!(in_use, [2, 1, 1, 1]);
        assert!(fifth.is_in_shared_group() && !second.is_in_shared_group());
        // A space that ends leaves its region.
        third.tear_down();
        let (sixth, in_use) = of(1, Some(&first));
        assert_eq!(in_use, [1, 1, 1, 2]);
        set_small_spaces(SmallSpaces::OfUsers);
        let (seventh, in_use) = of(3, Some(&fifth));
        assert_eq!(in_use, [1, 1, 1, 2, 1]);
        for pmap in [first, second, fourth, fifth, sixth, seventh] {
            pmap.tear_down();
        }
        assert!(group_from(0).is_none(), "a group is left");
        set_small_spaces(SmallSpaces::None);
        assert!(!Pmap::new().unwrap().join(1, None));
    });
}

#[test]
fn a_promoted_space_has_its_mappings_again() {
    on_machines("promotion", [1, 2, 4], 1024, 12, || {
        begin();
        let frames = tagged_frames(2);
        let mut pending = Pending::new();
        let [one, two] = [small(None), small(None)];
        for (pmap, frame) in [&one, &two].into_iter().zip(&frames) {
            pmap.enter(at(3), frame, READ_WRITE, &mut pending).unwrap();
        }
        task::set_pmap(Some(one.clone()));
        assert_eq!(user::read::<u64>(at(3) + 8), Ok(0));
        assert!(one.promote(Promotion::Mapping));
        assert!(!one.is_small() && !one.promote(Promotion::Mapping));
        assert!(user::read::<u64>(at(3) + 8).is_err());
        let (near, far) = (at(3), AREA.start - PAGE_SIZE);
        for va in [near, far] {
            one.enter(va, &frames[0], READ_WRITE, &mut pending).unwrap();
            assert_eq!(user::read::<u64>(va + 8), Ok(0));
        }
        // Addresses from the area on stay those of old copies.
        assert_eq!(one.end(), AREA.start);
        assert!(user::read::<u64>(AREA.start + 8).is_err());
        // The region is another one's.
        let three = small(Some(&two));
        three
            .enter(at(3), &frames[1], READ_WRITE, &mut pending)
            .unwrap();
        for (pmap, tag) in [(&three, 1), (&one, 0), (&two, 1)] {
            task::set_pmap(Some(pmap.clone()));
            assert_eq!(user::read::<u64>(at(3) + 8), Ok(tag));
        }
        task::set_pmap(None);
        audit::finds_nothing([&one, &two, &three], true);
        [one, two, three].iter().for_each(|pmap| pmap.tear_down());
    });
}

/// Spaces of a group change at once, become large, end and are followed by others.
#[test]
fn a_group_changes_at_once() {
    on_machines(
        "a group changes at once",
        [1, 2, 3, 4],
        1536,
        24,
        change_a_group,
    );
}

fn change_a_group() {
    random_coherence();
    begin();
    let frames = Arc::new(tagged_frames(4));
    let gate = Gate::new();
    const TASKS: usize = 4;
    for me in 0..TASKS {
        let frames = frames.clone();
        let first = small(None);
        let mut pmap = first.clone();
        spawn(&gate, &first, !0, move || {
            let mut pending = Pending::new();
            for _ in 0..80 {
                let page = below(SMALL_PAGES);
                let frame = &frames[below(frames.len())];
                match below(12) {
                    0..4 => pmap
                        .enter(at(page), frame, random_prot(), &mut pending)
                        .unwrap(),
                    4 => {
                        // Free as soon as it is unmapped.
                        let own = tagged_frames(1).remove(0);
                        pmap.enter(at(page), &own, random_prot(), &mut pending)
                            .unwrap();
                    }
                    5 => pmap.remove(page_at(at(page)), &mut pending),
                    6 => pmap.remove(everything(), &mut pending),
                    7 => pmap.protect(everything(), Prot::READ, &mut pending),
                    8 => page_protect(frame, Prot::empty(), &mut pending),
                    9 if below(3) == 0 => drop(pmap.promote(Promotion::Mapping)),
                    10 if below(3) == 0 => {
                        pending.flush();
                        let next = Pmap::new().unwrap();
                        next.join(USER, Some(&pmap));
                        task::set_pmap(Some(next.clone()));
                        pmap.tear_down();
                        pmap = next;
                    }
                    _ => {
                        let _ = user::write(at(page) + 16, &(me as u32));
                        if let Ok(tag) = user::read::<u64>(at(page) + 8) {
                            assert!(tag < 4, "no frame has the tag {tag:#x}");
                        }
                    }
                }
                if below(3) == 0 {
                    pending.flush();
                }
            }
            pending.flush();
            audit::finds_nothing([&pmap], false);
            task::set_pmap(None);
            pmap.tear_down();
        });
    }
    gate.wait_for(TASKS);
}

/// Threads of one space copy while it becomes large; pages come by faults.
#[test]
fn copies_go_on_in_a_space_that_is_promoted() {
    on_machines(
        "copies and promotion",
        [2, 3, 4],
        1024,
        24,
        copy_and_promote,
    );
}

/// What the fault hook maps: the space and its pages. A fault locks it as it would a map.
static FAULTS: Mutex<Option<(PmapRef, Vec<Frame>)>> = Mutex::new(Rank::HwCost, None);

fn copy_and_promote() {
    begin();
    user::set_fault_hook(|va, _| {
        let faults = FAULTS.lock();
        let Some((pmap, frames)) = faults.as_ref() else {
            return false;
        };
        let page = (va.page_floor().0.wrapping_sub(at(0).0)) / PAGE_SIZE;
        let Some(frame) = frames.get(page) else {
            return false;
        };
        let mut pending = Pending::new();
        pmap.enter(va.page_floor(), frame, READ_WRITE, &mut pending)
            .is_ok()
    });
    let pmap = small(None);
    // A neighbour, whose page no copy may touch.
    let other = small(Some(&pmap));
    let others = tagged_frames(1).remove(0);
    let mut pending = Pending::new();
    other
        .enter(at(0), &others, READ_WRITE, &mut pending)
        .unwrap();
    *FAULTS.lock() = Some((pmap.clone(), tagged_frames(SMALL_PAGES)));
    let gate = Gate::new();
    for me in 0..2u8 {
        spawn(&gate, &pmap, !0, move || {
            for round in 0..12u8 {
                let value = [me + 2 * round; 6000];
                // Each has pages of its own.
                let place = at(usize::from(me) * 4) + 512;
                assert_eq!(user::copy_out(place, &value), Ok(()));
                let mut back = [0; 6000];
                assert_eq!(user::copy_in(&mut back, place), Ok(()));
                assert_eq!(back, value);
                let word = VirtAddr(place.0 & !3);
                assert!(user::load_u32(word).is_ok());
                assert!(user::compare_exchange_u32(word, 0, 1).is_ok());
            }
        });
    }
    let of = pmap.clone();
    spawn(&gate, &other, !0, move || {
        for _ in 0..below(40) {
            assert_eq!(user::read::<u64>(at(0) + 8), Ok(0));
        }
        let faults = FAULTS.lock();
        of.promote(Promotion::Mapping);
        drop(faults);
        // Its region, now this one's.
        let next = small(None);
        task::set_pmap(Some(next.clone()));
        assert!(user::read::<u64>(VirtAddr(8)).is_err());
        task::set_pmap(None);
        next.tear_down();
    });
    gate.wait_for(3);
    drop(FAULTS.lock().take());
    pmap.tear_down();
    other.tear_down();
}

/// A page leaves a space whose end comes before the CPUs are told: the next owner of the region
/// does not meet what they still hold.
#[test]
fn a_region_is_clean_before_it_has_a_new_owner() {
    on_machines("a region with a new owner", [1, 2], 1024, 12, || {
        begin();
        let frames = tagged_frames(2);
        let [mut pending, mut late] = [Pending::new(), Pending::new()];
        // Its root stays loaded.
        let other = small(None);
        let first = small(Some(&other));
        first
            .enter(at(0), &frames[0], READ_WRITE, &mut pending)
            .unwrap();
        task::set_pmap(Some(first.clone()));
        assert_eq!(user::read::<u64>(at(0) + 8), Ok(0));
        task::set_pmap(Some(other.clone()));
        page_protect(&frames[0], Prot::empty(), &mut late);
        first.tear_down();
        let next = small(Some(&other));
        next.enter(at(0), &frames[1], READ_WRITE, &mut pending)
            .unwrap();
        task::set_pmap(Some(next.clone()));
        assert_eq!(user::read::<u64>(at(0) + 8), Ok(1));
        late.flush();
        task::set_pmap(None);
        next.tear_down();
        other.tear_down();
    });
}

/// A program that is forked in a small space shares no table with its child.
#[test]
fn a_small_spaces_child_gets_nothing_shared() {
    on_machines("a small space's child", [1, 2], 1024, 6, || {
        begin();
        let frame = tagged_frames(1).remove(0);
        let parent = small(None);
        let mut pending = Pending::new();
        parent
            .enter(at(0), &frame, READ_WRITE, &mut pending)
            .unwrap();
        let (child, complete) = parent.fork(&mut all_tables(), 0, &mut pending).unwrap();
        assert!(!complete && child.extract(at(0)).is_none());
        assert!(child.join(USER, Some(&parent)));
        parent.tear_down();
        child.tear_down();
    });
}

/// For want of memory a space stays large, and nothing is lost.
#[test]
fn no_memory_for_a_group() {
    on_machines("no memory for a group", [1], 512, 4, || {
        begin();
        for left in 0..6 {
            let pmap = Pmap::new().unwrap();
            fail_after(Some(left));
            let joined = pmap.join(USER, None);
            fail_after(None);
            assert_eq!(joined, left >= 3, "{left}");
            pmap.tear_down();
        }
    });
}

/// The simulated machine finds each mistake in few runs.
#[test]
fn mistakes_are_found() {
    let like = Config {
        cpus: 3,
        pages: 1536,
        ..Config::default()
    };
    let body = || {
        user::set_fault_hook(|_, _| false);
        change_a_group();
    };
    Mistake::GroupMaskForgotten.assert_found(like, body, "holds a translation of");
    Mistake::RegionFreedEarly.assert_found(like, body, "");
}
