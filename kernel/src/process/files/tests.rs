//! Descriptor tables and locks, against plain models.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec,
    vec::Vec,
};
use core::time::Duration;

use abi::Errno;
use fs::{Attributes, File, Kind, OpenFlags};
use nucleus::{
    frame,
    sim::{self, Config, Random},
};
use vm::account::{self, Account};

use super::{
    FileTable, OpenFile,
    locks::{self, For, Mode, Record},
};

/// A file that is nothing but its inode.
struct Numbered(u64);

impl File for Numbered {
    fn attributes(&self) -> abi::Result<Attributes> {
        Ok(Attributes {
            device: 99,
            inode: self.0,
            ..Attributes::of(Kind::Regular, 0, Duration::ZERO)
        })
    }
}

fn open(inode: u64) -> Arc<OpenFile> {
    OpenFile::new(Arc::new(Numbered(inode)), OpenFlags::from_bits_retain(2))
}

fn on_machine(body: impl FnOnce() + Send + 'static) {
    let config = Config {
        cpus: 1,
        ..Config::default()
    };
    if let Err(failure) = sim::run(config, body) {
        panic!("{failure}");
    }
}

#[test]
fn a_table_agrees_with_a_map() {
    on_machine(|| {
        for seed in 1..40u64 {
            let mut random = Random::new(seed);
            let mut tables = vec![(FileTable::new(), BTreeMap::new())];
            if seed % 2 == 0 {
                // Its first descriptors are charged, as those of a process are.
                let (table, _) = &tables[0];
                table.replace(63, open(0), false, 64).unwrap();
                table.charge_to(&Account::of_user(70_101));
                table.close(63).unwrap();
            }
            let limit = 200;
            for step in 0..400u64 {
                let count = tables.len();
                let which = random.below(count);
                let mut copy = None;
                let (table, model): &mut (Arc<FileTable>, BTreeMap<usize, (Arc<OpenFile>, bool)>) =
                    &mut tables[which];
                let fd = random.below(220);
                let lowest =
                    |model: &BTreeMap<usize, _>, min| (min..).find(|fd| !model.contains_key(fd));
                match random.below(12) {
                    10.. => {
                        let expected = match (model.get(&fd), lowest(model, 0).unwrap()) {
                            (None, _) => Err(Errno::EBADF),
                            (Some(_), to) if to as u64 >= limit => Err(Errno::EMFILE),
                            (Some((file, _)), to) => Ok((to, file.clone())),
                        };
                        let done = table.dup(fd as i32, limit);
                        assert_eq!(done, expected.as_ref().map(|it| it.0).map_err(|it| *it));
                        if let Ok((to, file)) = expected {
                            model.insert(to, (file, false));
                        }
                    }
                    0..4 => {
                        let min = if random.below(3) == 0 { fd } else { 0 };
                        let file = open(step);
                        let expected = lowest(model, min).unwrap();
                        match table.reserve(min, limit) {
                            Ok(slot) => {
                                assert_eq!(slot.fd, expected);
                                if random.below(4) > 0 {
                                    let marked = random.below(2) == 0;
                                    slot.install(file.clone(), marked);
                                    model.insert(expected, (file, marked));
                                }
                            }
                            Err(error) => {
                                assert_eq!(error, Errno::EMFILE);
                                assert!(expected as u64 >= limit);
                            }
                        }
                    }
                    4..6 => {
                        let expected = model.remove(&fd).map(drop).ok_or(Errno::EBADF);
                        assert_eq!(table.close(fd as i32), expected);
                    }
                    6 => {
                        let file = open(step);
                        let done = table.replace(fd as i32, file.clone(), false, limit);
                        if (fd as u64) < limit {
                            assert_eq!(done, Ok(()));
                            model.insert(fd, (file, false));
                        } else {
                            assert_eq!(done, Err(Errno::EBADF));
                        }
                    }
                    7 => {
                        let last = fd + random.below(20);
                        let only_mark = random.below(2) == 0;
                        table.close_range(fd as u32, last as u32, only_mark);
                        if only_mark {
                            model.range_mut(fd..=last).for_each(|(_, m)| m.1 = true);
                        } else {
                            model.retain(|at, _| *at < fd || *at > last);
                        }
                    }
                    8 if count < 4 => {
                        copy = Some((table.duplicate().unwrap(), model.clone()));
                    }
                    _ if random.below(8) == 0 => {
                        table.close_on_exec();
                        model.retain(|_, (_, marked)| !*marked);
                    }
                    _ => {}
                }
                tables.extend(copy);
                for (table, model) in &tables {
                    let mut from = 0;
                    for (&fd, (file, marked)) in model {
                        assert_eq!(table.next(from), Some(fd));
                        assert!(Arc::ptr_eq(&table.get(fd as i32).unwrap(), file));
                        assert_eq!(table.is_close_on_exec(fd as i32), Ok(*marked));
                        from = fd + 1;
                    }
                    assert_eq!(table.next(from), None);
                }
            }
        }
    });
}

#[test]
fn numbers_that_are_none() {
    on_machine(|| {
        let table = FileTable::new();
        for fd in [-1, i32::MIN, 0, 5, i32::MAX] {
            assert_eq!(table.get(fd).map(drop), Err(Errno::EBADF));
            assert_eq!(table.close(fd), Err(Errno::EBADF));
            assert_eq!(table.set_close_on_exec(fd, true), Err(Errno::EBADF));
        }
        assert_eq!(table.replace(-1, open(1), false, 10), Err(Errno::EBADF));
        table.close_range(0, u32::MAX, false);
    });
}

/// The last close of a descriptor and the last table drop the file.
#[test]
fn files_go_with_their_last_descriptor() {
    on_machine(|| {
        let file = open(1);
        let gone: Weak<OpenFile> = Arc::downgrade(&file);
        let table = FileTable::new();
        let fd = table.install(file, false, 10).unwrap();
        let copy = table.duplicate().unwrap();
        table.close(fd as i32).unwrap();
        assert!(gone.upgrade().is_some());
        drop(copy);
        assert!(gone.upgrade().is_none());
    });
}

const BYTES: u64 = 24;

fn record(mode: Mode, start: u64, last: u64) -> Record {
    Record {
        mode,
        start,
        last,
        pid: 1,
    }
}

/// Record locks of three processes against an array with the holder and mode of each byte.
#[test]
fn record_locks_agree_with_an_array_of_bytes() {
    on_machine(|| {
        for seed in 1..60u64 {
            let mut random = Random::new(seed);
            let file = open(1000 + seed);
            let tables: Vec<_> = (0..3).map(|_| FileTable::new()).collect();
            let user = Account::of_user(70_100);
            let mut model = [[None; BYTES as usize]; 3];
            for _ in 0..200 {
                let who = random.below(3);
                let start = random.below(BYTES as usize);
                let last = start + random.below(BYTES as usize - start);
                let by = For::Process(&tables[who]);
                let mode = match random.below(3) {
                    0 => None,
                    1 => Some(Mode::Shared),
                    _ => Some(Mode::Exclusive),
                };
                let wanted = record(mode.unwrap_or(Mode::Shared), start as u64, last as u64);
                let Some(mode) = mode else {
                    locks::unlock_record(&file, by, &wanted).unwrap();
                    model[who][start..=last].fill(None);
                    continue;
                };
                let conflict = (0..3).filter(|&other| other != who).any(|other| {
                    model[other][start..=last]
                        .iter()
                        .flatten()
                        .any(|&held| mode == Mode::Exclusive || held == Mode::Exclusive)
                });
                let asked = locks::conflicting_record(&file, by, &wanted).unwrap();
                // The lowest lock that conflicts begins where the lowest conflicting byte's does.
                let clashes = |other: usize, byte: usize| {
                    let held: Option<Mode> = model[other][byte];
                    held.is_some_and(|held| mode == Mode::Exclusive || held == Mode::Exclusive)
                };
                let begin = |other: usize, byte: usize| {
                    let same = |&at: &usize| model[other][at] == model[other][byte];
                    (0..=byte).rev().take_while(same).last().unwrap() as u64
                };
                let lowest = (0..3)
                    .filter(|&other| other != who)
                    .filter_map(|other| {
                        let byte = (start..=last).find(|&byte| clashes(other, byte))?;
                        Some(begin(other, byte))
                    })
                    .min();
                assert_eq!(asked.map(|held| held.start), lowest);
                let done = locks::lock_record(&file, by, wanted, false, &user);
                if conflict {
                    assert_eq!(done, Err(Errno::EAGAIN));
                } else {
                    assert_eq!(done, Ok(()));
                    model[who][start..=last].fill(Some(mode));
                }
            }
            let runs = |owner: &[Option<Mode>; BYTES as usize]| {
                let ends = |pair: &&[Option<Mode>]| pair[0].is_some() && pair[0] != pair[1];
                let last = usize::from(owner[BYTES as usize - 1].is_some());
                owner.windows(2).filter(ends).count() + last
            };
            assert_eq!(
                user.things(account::Kind::Locks),
                model.iter().map(runs).sum::<usize>()
            );
            // A close of the file drops all locks of the process on it.
            for (who, table) in tables.into_iter().enumerate() {
                let other = FileTable::new();
                let fd = table.install(file.clone(), false, 10).unwrap();
                table.close(fd as i32).unwrap();
                model[who].fill(None);
                let all = record(Mode::Exclusive, 0, BYTES);
                let left = model.iter().flatten().flatten().count();
                let conflict = locks::conflicting_record(&file, For::Process(&other), &all);
                assert_eq!(conflict.unwrap().is_some(), left > 0);
            }
        }
    });
}

#[test]
fn whole_file_locks_belong_to_the_open_file() {
    on_machine(|| {
        let user = Account::of_user(1);
        let charged = || user.things(account::Kind::Locks);
        let lock = |open: &OpenFile, mode| locks::lock_whole(open, mode, false, 1, &user);
        let (a, b) = (open(7), open(7));
        lock(&a, Mode::Shared).unwrap();
        lock(&b, Mode::Shared).unwrap();
        assert_eq!(charged(), 2);
        assert_eq!(lock(&a, Mode::Exclusive), Err(Errno::EAGAIN));
        drop(b);
        assert_eq!(charged(), 0, "the old one of `a` went first");
        lock(&a, Mode::Exclusive).unwrap();
        lock(&a, Mode::Exclusive).unwrap();
        assert_eq!(charged(), 1);
        let c = open(7);
        assert_eq!(lock(&c, Mode::Shared), Err(Errno::EAGAIN));
        locks::unlock_whole(&a).unwrap();
        assert_eq!(charged(), 0);
        locks::lock_whole(&c, Mode::Exclusive, true, 1, &user).unwrap();
        // At the limit the mode can change, and no further lock is taken.
        let full = user.charge(account::Kind::Locks, frame::total() * 2 - 1, 0);
        lock(&c, Mode::Shared).unwrap();
        lock(&c, Mode::Exclusive).unwrap();
        assert_eq!(lock(&open(8), Mode::Shared), Err(Errno::ENOLCK));
        drop((full, c));
        assert_eq!(charged(), 0);
    });
}
