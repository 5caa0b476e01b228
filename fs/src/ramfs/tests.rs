//! What files in memory are charged with.

use std::cell::RefCell;

use fbuf::{Aggregate, AggregateSource, Slice};
use nucleus::{
    Frame, PAGE_SIZE,
    frame::Contents,
    sim::{self, Config},
};

use super::*;
use crate::vnode::Make;
use vm::account::Kind::Files;

std::thread_local! {
    /// The account of this test's process.
    static ACCOUNT: RefCell<Option<Arc<Account>>> = const { RefCell::new(None) };
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

/// Makes the account of an ordinary user's process that of this thread; returns the user's.
fn become_user() -> Arc<Account> {
    account::set_current(|| ACCOUNT.with_borrow(Clone::clone));
    let user = Account::of_user(1);
    let process = Account::of_process(10, &user);
    ACCOUNT.set(Some(process));
    user
}

fn new_root(pages: u64, nodes: u64) -> Arc<dyn Vnode> {
    root(Options {
        pages: Some(pages),
        nodes: Some(nodes),
        ..Options::default()
    })
}

fn make(at: &Arc<dyn Vnode>, name: &str, what: Make) -> Result<Arc<dyn Vnode>> {
    let who = Credentials::default();
    at.create(name.as_bytes(), what, 0o755, &who)
}

fn free_nodes(root: &Arc<dyn Vnode>) -> u64 {
    root.file_system().unwrap().space().free_files
}

fn free_pages(root: &Arc<dyn Vnode>) -> u64 {
    root.file_system().unwrap().space().free
}

/// Repeats `step` until it fails; returns how often it did not.
fn until_refused(mut step: impl FnMut(usize) -> Result<()>) -> (usize, Errno) {
    for count in 0..1 << 24 {
        if let Err(error) = step(count) {
            return (count, error);
        }
    }
    panic!("nothing limits it");
}

/// Names, directories, links and attributes are limited to a user's share, and no more.
#[test]
fn what_has_a_name_is_charged_to_its_user() {
    on_machine(|| {
        let user = become_user();
        let none = 1 << 40;
        let long = |count: usize| format!("{count:0>255}");
        type Step = fn(&Arc<dyn Vnode>, &Arc<dyn Vnode>, &str) -> Result<()>;
        let steps: [(&str, usize, Step); 4] = [
            ("hard links", 271 + 64, |root, file, name| {
                root.link(name.as_bytes(), file)
            }),
            ("directories", 600, |root, _, name| {
                make(root, name, Make::Directory).map(drop)
            }),
            ("symbolic links", 600 + 4095, |root, _, name| {
                make(root, name, Make::Link(vec![b'x'; 4095])).map(drop)
            }),
            ("attributes", 600 + 3000, |root, _, name| {
                let file = make(root, name, Make::Regular)?;
                file.extended_attributes()?
                    .set(b"user.a", Some(&[1; 3000]), 0)
            }),
        ];
        for (what, bytes, step) in steps {
            let root = new_root(none, none);
            let file = make(&root, "file", Make::Regular).unwrap();
            let (count, error) = until_refused(|count| step(&root, &file, &long(count)));
            let share = account::user_share();
            assert_eq!(error, Errno::ENOSPC, "{what}");
            assert!(
                count > 0 && count <= share * PAGE_SIZE / bytes,
                "{what}: {count}"
            );
            assert!(
                user.kept_pages() <= share && user.kept_pages() + 4 > share,
                "{what}"
            );
            drop((root, file));
            assert_eq!((user.kept_pages(), user.things(Files)), (0, 0), "{what}");
        }
        ACCOUNT.set(None);
    });
}

/// A charge goes with what it is for, and a user at the limit may still rename.
#[test]
fn a_charge_ends_with_its_name() {
    on_machine(|| {
        let user = become_user();
        let root = new_root(1 << 20, 1 << 20);
        let charged = || (user.things(Files), user.bytes(Files));
        let before = charged();
        let file = make(&root, "a", Make::Regular).unwrap();
        let one = charged();
        assert_eq!(one.0, 2, "a node and a name");
        root.link(b"b", &file).unwrap();
        assert_eq!(root.link(b"b", &file), Err(Errno::EEXIST));
        assert_eq!(charged().0, 3);
        let all = (account::user_share() + 1) * PAGE_SIZE - 1;
        let rest = user.charge(Files, 0, all - charged().1);
        let rename = |from: &str, to: &str| {
            let judged = crate::vnode::Judged {
                source: &*file,
                target: None,
            };
            root.rename(from.as_bytes(), &root, to.as_bytes(), 0, judged)
        };
        rename("b", "c").unwrap();
        let long = "c".repeat(255);
        assert_eq!(rename("c", &long), Err(Errno::ENOSPC));
        drop(rest);
        rename("c", &long).unwrap();
        assert!(charged().1 > one.1 + 255);
        root.remove(long.as_bytes(), &*file, false).unwrap();
        assert_eq!(charged(), one);
        root.remove(b"a", &*file, false).unwrap();
        assert_eq!(charged().0, 1, "the node is still open");
        drop(file);
        assert_eq!(charged(), before);
        ACCOUNT.set(None);
    });
}

/// Each name but the first takes a place of a node, and a long text a page, as on Linux.
#[test]
fn names_and_texts_count_in_the_file_system() {
    on_machine(|| {
        let root = new_root(4, 8);
        assert_eq!(free_nodes(&root), 7);
        let file = make(&root, "file", Make::Regular).unwrap();
        let (count, error) = until_refused(|count| root.link(format!("{count}").as_bytes(), &file));
        assert_eq!((count, error, free_nodes(&root)), (6, Errno::ENOSPC, 0));
        assert_eq!(root.link(b"0", &file), Err(Errno::EEXIST));
        for name in ["file", "0", "1", "2", "3", "4"] {
            root.remove(name.as_bytes(), &*file, false).unwrap();
        }
        assert_eq!(free_nodes(&root), 6);
        root.remove(b"5", &*file, false).unwrap();
        assert_eq!(root.link(b"6", &file), Err(Errno::ENOENT));
        drop(file);
        assert_eq!(free_nodes(&root), 7);
        // The first name of a file that was made without one is its own.
        let who = Credentials::default();
        let file = root.create_unnamed(0o600, true, &who).unwrap();
        assert_eq!(free_nodes(&root), 6);
        root.link(b"first", &file).unwrap();
        assert_eq!(free_nodes(&root), 6);
        root.link(b"second", &file).unwrap();
        assert_eq!(free_nodes(&root), 5);
        for name in ["first", "second"] {
            root.remove(name.as_bytes(), &*file, false).unwrap();
        }
        drop(file);
        assert_eq!((free_nodes(&root), free_pages(&root)), (7, 4));

        make(&root, "short", Make::Link(vec![b'x'; 127])).unwrap();
        assert_eq!(free_pages(&root), 4);
        let link = |count: usize| make(&root, &format!("{count}"), Make::Link(vec![b'x'; 128]));
        let (count, error) = until_refused(|count| link(count).map(drop));
        assert_eq!((count, error, free_pages(&root)), (4, Errno::ENOSPC, 0));
        assert_eq!(free_nodes(&root), 2);
        let first = root.lookup(b"0").unwrap();
        assert_eq!(first.attributes().unwrap().blocks, 8);
        root.remove(b"0", &*first, false).unwrap();
        drop(first);
        assert_eq!((free_pages(&root), free_nodes(&root)), (1, 3));
    });
}

/// In a full file system pages may yet take the place of others, and only of others.
#[test]
fn pages_that_replace_others_need_no_room() {
    on_machine(|| {
        let root = new_root(4, 8);
        let file = make(&root, "file", Make::Regular).unwrap();
        let write = |page: u64| {
            let slice = Slice::whole(Frame::alloc(Contents::Zeroed).unwrap());
            let mut moving = Aggregate::new();
            moving.append(slice).unwrap();
            let mut source = AggregateSource::new(&mut moving, PAGE_SIZE);
            file.write(page * PAGE_SIZE as u64, false, &mut source)
        };
        let (count, error) = until_refused(|count| write(count as u64).map(drop));
        assert_eq!((count, error, free_pages(&root)), (4, Errno::ENOSPC, 0));
        for page in 0..4 {
            let end = (page + 1) * PAGE_SIZE as u64;
            assert_eq!(write(page), Ok((PAGE_SIZE, end)), "page {page}");
        }
        assert_eq!(write(4), Err(Errno::ENOSPC));
        file.truncate(PAGE_SIZE as u64).unwrap();
        assert_eq!(free_pages(&root), 3);
        write(3).unwrap();
        assert_eq!(free_pages(&root), 2);
    });
}
