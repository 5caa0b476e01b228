//! Inodes without a name: the orphan list on the disk, and their records.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use fbuf::BytesSource;
use nucleus::{
    ephemeral::{self, Backend},
    task,
};

use super::{
    super::{
        Ext2,
        inode::{Inode, NewInode, ROOT},
    },
    Mounted,
    files::{pages, shape},
    on_machines,
};
use crate::{
    page_cache::InUse,
    support::{Random, Tasks, pause},
};

fn new(fs: &Arc<Ext2>, uid: u32) -> Arc<InUse<Inode>> {
    let new = NewInode {
        mode: 0o100_600,
        uid,
        gid: 0,
        device: 0,
    };
    fs.new_inode(&fs.inode(ROOT).unwrap(), new).unwrap()
}

/// Writeback that walks the inode cache may still refer to an inode that was freed and whose number
/// was reused.
#[test]
fn a_late_user_does_not_change_the_next_inode() {
    on_machines(3, |seed| {
        let mounted = Mounted::of(shape(&mut Random::new(seed), 1), seed);
        let fs = &mounted.fs;
        let first = new(fs, 1);
        let late = first.inode().clone();
        let data = [seed as u8; 9000];
        pages(&first)
            .write(0, false, &mut BytesSource::new(&data))
            .unwrap();
        drop(first);
        fs.table().unwrap().wait_for_ends();
        fs.commit().unwrap();
        // The number is free again.
        let mut others = Vec::new();
        let next = loop {
            let next = new(fs, 7);
            match next.ino == late.ino {
                true => break next,
                false => others.push(next),
            }
            assert!(others.len() < 50, "the number is not used again");
        };
        // Long enough for time stamps to differ.
        pause(Duration::from_millis(20));
        late.touch_modified();
        late.write_pages().unwrap();
        late.set(|record| record.gid = 9);
        let changed = late.change(|changing| {
            changing.record.size = 5;
            Ok(())
        });
        let (stored, _) = next.home.stored();
        assert_eq!((stored.uid, stored.gid, stored.size), (7, 0, 0));
        assert!(changed.is_err());
        drop((others, next, late));
        mounted.fs.unmount().unwrap();
    });
}

/// While one task changes an inode repeatedly, another removes older inodes from the list, which
/// changes the list's field in the same record.
#[test]
fn the_list_and_the_record_do_not_overwrite_each_other() {
    on_machines(3, |seed| {
        let mounted = Mounted::of(shape(&mut Random::new(seed), 1), seed);
        let fs = &mounted.fs;
        let kept = new(fs, 1);
        let (stop, tasks) = (Arc::new(AtomicBool::new(false)), Arc::new(Tasks::default()));
        let (inner, told) = (kept.clone(), stop.clone());
        tasks.begin(move || {
            let mut gid = 0;
            while !told.load(SeqCst) {
                gid += 1;
                inner.set(|record| record.gid = gid);
            }
            drop(inner);
        });
        let orphans = &fs.orphans;
        // Mapping a page briefly is a point where another CPU may run.
        ephemeral::set_backend(Backend::Uncached).unwrap();
        for _ in 0..20 {
            let older = new(fs, 2);
            orphans.add(fs, older.ino);
            orphans.add(fs, kept.ino);
            assert_eq!(kept.home.stored().1, older.ino, "it follows");
            orphans.remove(fs, older.ino, 0);
            for _ in 0..4 {
                assert_eq!(kept.home.stored().1, 0, "nothing follows");
                task::yield_now();
            }
            orphans.remove(fs, kept.ino, 0);
        }
        stop.store(true, SeqCst);
        tasks.wait();
        ephemeral::set_backend(Backend::Direct).unwrap();
        drop(kept);
        fs.table().unwrap().wait_for_ends();
        mounted.fs.unmount().unwrap();
    });
}
