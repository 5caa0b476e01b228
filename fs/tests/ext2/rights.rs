//! Permissions within a file system: flags of files, and reserved blocks.

use std::{sync::Arc, time::Duration};

use abi::{
    Errno,
    raw::general::{
        CAP_SYS_RESOURCE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, O_APPEND, O_CREAT, O_RDONLY,
        O_RDWR, O_TRUNC, O_WRONLY,
    },
};
use fbuf::BytesSource;
use fs::{
    Credentials, OpenFlags, Vnode,
    credentials::{self, CapabilitySet},
    vnode::Make,
};
use nucleus::task;

use super::{
    machine,
    support::{
        attached,
        image::{self, Shape, TINY},
        with_walk,
    },
};

const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;

/// Sets flags of an inode of the first group, in an image with blocks of 1 KiB, as `chattr` does.
fn set_flags(image: &mut [u8], inode: u64, flags: u32) {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    // The superblock's inode size; the inode table from the first descriptor.
    let size = word(1024 + 88) & 0xffff;
    let at = word(2048 + 8) * 1024 + (inode as usize - 1) * size + 32;
    image[at..at + 4].copy_from_slice(&flags.to_le_bytes());
}

#[test]
fn what_only_grows_or_stays_is_opened_accordingly() {
    let empty = TINY.make();
    let flags = OpenFlags::from_bits_retain;
    let (mut content, inodes) = machine::run(1, 1, empty, move |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| {
            walk.make(b"/folder", Make::Directory, 0o755).unwrap();
            for name in [&b"/log"[..], b"/fixed", b"/folder/old"] {
                let file = walk.open(name, flags(O_CREAT | O_RDWR), 0o600).unwrap();
                let mut bytes = BytesSource::new(b"line");
                assert_eq!(file.write(None, flags(O_RDWR), &mut bytes), Ok(4));
            }
            [&b"/log"[..], b"/fixed", b"/folder"].map(|name| {
                let place = walk.resolve(name, false).unwrap();
                place.attributes().unwrap().inode
            })
        })
    });
    for (inode, flags) in inodes
        .into_iter()
        .zip([APPEND_ONLY, IMMUTABLE, APPEND_ONLY])
    {
        set_flags(&mut content, inode, flags);
    }
    let (content, ()) = machine::run(2, 1, content, move |machine| {
        let namespace = machine.mount();
        with_walk(&namespace, |walk| {
            let open = |name: &[u8], how: u32| walk.open(name, flags(how), 0o600);
            for how in [
                O_RDWR,
                O_WRONLY,
                O_RDWR | O_TRUNC,
                O_RDWR | O_APPEND | O_TRUNC,
                O_TRUNC,
            ] {
                assert_eq!(open(b"/log", how).err(), Some(Errno::EPERM), "log {how:#o}");
            }
            for how in [O_RDWR, O_WRONLY | O_APPEND, O_RDONLY | O_TRUNC] {
                assert_eq!(
                    open(b"/fixed", how).err(),
                    Some(Errno::EPERM),
                    "fixed {how:#o}"
                );
            }
            for name in [&b"/log"[..], b"/fixed"] {
                assert!(open(name, O_RDONLY).is_ok());
                assert_eq!(walk.remove(name, false), Err(Errno::EPERM));
                assert_eq!(walk.rename(name, walk, b"/new", 0), Err(Errno::EPERM));
                let vnode = walk.resolve(name, false).unwrap().vnode().clone();
                assert_eq!(vnode.truncate(1), Err(Errno::EPERM));
                let place = walk.resolve(name, false).unwrap();
                let time = Some(Duration::from_secs(1));
                let set = |to_now| place.change_times(walk.who, time, time, to_now);
                assert_eq!(set(false), Err(Errno::EPERM));
                // What a write to it would check as well.
                match vnode.only_grows() {
                    true => assert_eq!(set(true), Ok(())),
                    false => assert_eq!(set(true), Err(Errno::EPERM)),
                }
                assert_eq!(place.change_mode(walk.who, 0o644), Err(Errno::EPERM));
            }
            let how = O_WRONLY | O_APPEND;
            let log = open(b"/log", how).unwrap();
            let mut more = BytesSource::new(b" more");
            assert_eq!(log.write(Some(0), flags(how), &mut more), Ok(5));
            assert_eq!(log.attributes().unwrap().size, 9);
            let vnode = log.location().unwrap().vnode().clone();
            assert!(vnode.only_grows());
            let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
            assert_eq!(vnode.allocate(punch, 0, 1024), Err(Errno::EPERM));
            assert_eq!(vnode.allocate(FALLOC_FL_KEEP_SIZE, 0, 4096), Ok(()));
            // Names can be added but not removed.
            assert!(open(b"/folder/new", O_CREAT | O_RDWR).is_ok());
            for name in [&b"/folder/old"[..], b"/folder/new"] {
                assert_eq!(walk.remove(name, false), Err(Errno::EPERM));
                assert_eq!(walk.rename(name, walk, b"/away", 0), Err(Errno::EPERM));
            }
            assert!(open(b"/other", O_CREAT | O_RDWR).is_ok());
            assert_eq!(
                walk.rename(b"/other", walk, b"/folder/old", 0),
                Err(Errno::EPERM)
            );
            assert_eq!(walk.rename(b"/other", walk, b"/folder/added", 0), Ok(()));
        });
    });
    image::check(&content, "flags");
}

/// The credentials of a task in these tests.
struct Acting(Credentials);

/// Runs `body` in a task with the credentials `who`.
fn acting<R: Send + 'static>(who: Credentials, body: impl FnOnce() -> R + Send + 'static) -> R {
    credentials::set_actor(|see| {
        task::with_attachment(|attachment| {
            if let Some(Acting(who)) = attachment.and_then(|it| it.downcast_ref()) {
                see(who);
            }
        });
    });
    attached(Arc::new(Acting(who)), body)
}

/// Fills a new file until there is no room; returns its size, in blocks.
fn fill(root: &Arc<dyn Vnode>, name: &'static [u8], who: Credentials) -> u64 {
    let root = root.clone();
    acting(who.clone(), move || {
        let file = root.create(name, Make::Regular, 0o600, &who).unwrap();
        let bytes = vec![0x77; 16 * 1024];
        let mut at = 0;
        loop {
            match file.write(at, false, &mut BytesSource::new(&bytes)) {
                Ok((n, _)) => at += n as u64,
                Err(error) => {
                    assert_eq!(error, Errno::ENOSPC);
                    return at / 1024;
                }
            }
        }
    })
}

#[test]
fn the_reserve_is_for_those_who_may_have_it() {
    const RESERVE: u64 = 200;
    let empty = Shape {
        more: &["-m", "10"],
        ..TINY
    }
    .make();
    let words = |at: usize| u32::from_le_bytes(empty[at..at + 4].try_into().unwrap());
    let reserve = u64::from(words(1024 + 8));
    assert!((RESERVE..=RESERVE + 5).contains(&reserve), "{reserve}");
    let (content, ()) = machine::run(1, 1, empty, move |machine| {
        let namespace = machine.mount_with(b"resgid=70");
        let root = namespace.root().vnode().clone();
        let space = root.space();
        assert_eq!(space.free - space.available, reserve);
        // Indirect blocks take some, and a page that does not fit completely gets none.
        let near = |left: u64, want: u64| (want..want + 8).contains(&left);
        let user = Credentials::user(1000, 1000);
        let got = fill(&root, b"user", user.clone());
        assert!(got > 1000, "{got}");
        let space = root.space();
        assert!(near(space.free, reserve), "{space:?}");
        assert!(space.available < 8, "{space:?}");
        assert_eq!(fill(&root, b"again", user.clone()), 0);
        let capable = Credentials {
            capabilities: CapabilitySet::of(&[CAP_SYS_RESOURCE]),
            ..user.clone()
        };
        let member = Credentials {
            groups: vec![70],
            ..user
        };
        for (name, who) in [
            (&b"root's"[..], Credentials::user(0, 0)),
            (b"capable's", capable),
            (b"member's", member),
        ] {
            let got = fill(&root, name, who);
            assert!(near(reserve, got), "{got} of {reserve}");
            assert!(root.space().free < 8 && root.space().available == 0);
            let child = root.lookup(name).unwrap();
            root.remove(name, &*child, false).unwrap();
        }
        assert!(near(root.space().free, reserve));
    });
    image::check(&content, "reserve");
}
