//! A bit of everything that needs memory and the disk.

use std::sync::Arc;

use crate::swap;
use abi::{
    Errno,
    raw::general::{O_CREAT, O_DIRECTORY, O_RDWR},
};
use fbuf::{BytesSink, BytesSource};
use fs::{Credentials, File, Location, Namespace, OpenFlags, Walk, vnode::Make};
use nucleus::{PAGE_SIZE, Prot, VirtAddr, VirtRange};
use vm::{Backing, Limits, Map, MapRequest, Place};

use super::{
    image,
    injection::Kind,
    machine::{self, Machine, pause, until},
};

const HERE: VirtAddr = VirtAddr(0x10_0000_0000);
const SHARED: VirtAddr = VirtAddr(0x30_0000_0000);
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Pages of the mapped file, of the kept one, and of the swap file, its header included.
const PAGES: usize = 10;
const KEPT: usize = 20;
const SWAP: usize = 65;

fn flags() -> OpenFlags {
    OpenFlags::from_bits_retain(O_CREAT | O_RDWR)
}

/// Bytes that tell which page and which content they are of.
fn pattern(number: u8, pages: usize) -> Vec<u8> {
    let byte = |i: usize| number ^ (i / PAGE_SIZE) as u8 ^ (i / 64 % 64) as u8;
    (0..pages * PAGE_SIZE).map(byte).collect()
}

fn range(at: VirtAddr) -> VirtRange {
    VirtRange::new(at, at + PAGES * PAGE_SIZE)
}

/// As a program does it: the rest follows until there is an error.
fn write_all(file: &dyn File, at: u64, bytes: &[u8]) -> abi::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let mut source = BytesSource::new(&bytes[done..]);
        done += file.write(Some(at + done as u64), flags(), &mut source)?;
    }
    Ok(())
}

fn read_all(file: &dyn File) -> abi::Result<Vec<u8>> {
    let mut bytes = vec![0; file.attributes()?.size as usize];
    let mut done = 0;
    while done < bytes.len() {
        let mut sink = BytesSink::new(&mut bytes[done..]);
        match file.read(Some(done as u64), flags(), &mut sink)? {
            0 => return Err(Errno::EIO),
            n => done += n,
        }
    }
    Ok(bytes)
}

/// Without the unused pages in memory.
fn forget(file: &dyn File) {
    if let Some(pages) = file.cached() {
        pages.give_up(0..u64::MAX, usize::MAX);
    }
}

fn put(map: &Map, at: VirtAddr, bytes: &[u8]) -> Result<(), usize> {
    match map.write(at, bytes) {
        n if n == bytes.len() => Ok(()),
        n => Err(n),
    }
}

fn get(map: &Map, at: VirtAddr, pages: usize) -> Result<Vec<u8>, usize> {
    let mut bytes = vec![0; pages * PAGE_SIZE];
    match map.read(at, &mut bytes) {
        n if n == bytes.len() => Ok(bytes),
        n => Err(n),
    }
}

/// An address space that ends with this.
struct Space(Arc<Map>);

impl Drop for Space {
    fn drop(&mut self) {
        self.0.tear_down();
    }
}

/// The image of a disk with an empty swap file.
pub fn prepared() -> Vec<u8> {
    let empty = image::Shape {
        kib: 2048,
        inodes: 64,
        ..image::SMALL
    }
    .make();
    // Nothing strikes so late.
    let (content, _) = machine::run(empty, Kind::Command, u64::MAX, |machine| {
        let namespace = machine.mount().expect("a sound image");
        with_walk(&namespace, |walk| {
            let file = walk.open(b"/swap", flags(), 0o600).expect("room");
            let mut bytes = vec![0x55; SWAP * PAGE_SIZE];
            for (at, word) in [(1024, 1), (1028, SWAP as u32 - 1), (1032, 0)] {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            bytes[PAGE_SIZE - 10..PAGE_SIZE].copy_from_slice(b"SWAPSPACE2");
            write_all(&*file, 0, &bytes).expect("room");
        });
    });
    content
}

/// Checks that the synced bytes are there.
pub fn look(content: Vec<u8>, what: &str, synced: machine::Synced) {
    let what = what.to_owned();
    machine::run(content, Kind::Command, u64::MAX, move |machine| {
        let namespace = machine.mount().expect("a sound image");
        with_walk(&namespace, |walk| {
            for (name, bytes) in synced {
                let shown = name.escape_ascii();
                let file = walk.open(name, OpenFlags::from_bits_retain(0), 0);
                let file = file.unwrap_or_else(|error| panic!("{what}: {shown}: {error:?}"));
                let found = read_all(&*file);
                assert!(
                    found == Ok(bytes),
                    "{what}: {shown} is not as it was synced"
                );
            }
        });
    });
}

fn with_walk<R>(namespace: &Arc<Namespace>, f: impl FnOnce(&Walk<'_>) -> R) -> R {
    let root = namespace.root();
    f(&Walk {
        root: &root,
        start: &root,
        who: &Credentials::default(),
    })
}

/// All of it.
pub struct Life<'m> {
    machine: &'m Machine,
}

impl Life<'_> {
    /// On this machine.
    pub fn new(machine: &Machine) -> Life<'_> {
        Life { machine }
    }

    fn insist<T, E: std::fmt::Debug>(
        &self,
        what: &str,
        step: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        self.machine.faults.insist(what, step)
    }

    /// From the mount to the end of the mount.
    pub fn live(&self) {
        let Some(namespace) = self.insist("mount", || self.machine.mount()) else {
            return;
        };
        with_walk(&namespace, |walk| {
            let swap = self.swap_on(walk);
            // A part that can't go on does not keep the next one from it.
            let parts = [
                self.keeps_a_file(walk),
                self.maps_a_file(walk),
                self.fills_memory(),
                self.changes_names(walk),
            ];
            if !self.machine.faults.struck() {
                assert_eq!(parts, [Some(()); 4]);
            }
            until("swap slots of nobody", || vm::swap::usage().used == 0);
            if let Some(at) = swap {
                // There is nothing to read back, so not even a disk that is gone is in the way.
                self.machine.faults.disarm();
                swap::off(&at).expect("an empty swap file");
            }
            self.insist("sync of all", || self.root(walk)?.sync(false));
        });
    }

    fn root(&self, walk: &Walk<'_>) -> abi::Result<Arc<dyn File>> {
        walk.open(b"/", OpenFlags::from_bits_retain(O_DIRECTORY), 0)
    }

    fn swap_on(&self, walk: &Walk<'_>) -> Option<Location> {
        let at = self.insist("the swap file", || walk.resolve(b"/swap", true))?;
        self.insist("swapon", || swap::on(at.clone(), None, false))?;
        Some(at)
    }

    /// The file has these bytes, and so has the disk, until they are changed.
    fn sync(
        &self,
        walk: &Walk<'_>,
        name: &'static [u8],
        file: &dyn File,
        bytes: &[u8],
    ) -> Option<()> {
        // A writer that learns of a failed writeback writes again.
        self.insist("write and sync", || {
            write_all(file, 0, bytes)?;
            file.sync(false)
        })?;
        self.insist("sync of the directory", || self.root(walk)?.sync(false))?;
        let entry = (name, bytes.to_vec());
        self.machine.synced.lock().unwrap().push(entry);
        Some(())
    }

    /// It differs from the synced contents now.
    fn changes(&self, name: &[u8]) {
        let mut synced = self.machine.synced.lock().unwrap();
        synced.retain(|(other, _)| *other != name);
    }

    #[track_caller]
    fn expect_file(&self, file: &dyn File, bytes: &[u8]) -> Option<()> {
        let found = self.insist("read", || read_all(file))?;
        assert!(found == bytes, "a file has other bytes");
        Some(())
    }

    #[track_caller]
    fn expect(&self, map: &Map, at: VirtAddr, bytes: &[u8]) -> Option<()> {
        let found = self.insist("memory", || get(map, at, bytes.len() / PAGE_SIZE))?;
        assert!(found == bytes, "other bytes at {at:?}");
        Some(())
    }

    fn keeps_a_file(&self, walk: &Walk<'_>) -> Option<()> {
        let name = b"/kept";
        let file = self.insist("open", || walk.open(name, flags(), 0o600))?;
        let bytes = pattern(1, KEPT);
        self.insist("write", || write_all(&*file, 0, &bytes))?;
        self.expect_file(&*file, &bytes)?;
        self.sync(walk, name, &*file, &bytes)?;
        forget(&*file);
        self.expect_file(&*file, &bytes)
    }

    fn space(&self) -> Option<Space> {
        self.insist("a map", || {
            Map::new(Limits::NONE, vm::Randomness::Everything)
        })
        .map(Space)
    }

    fn place(&self, map: &Map, at: VirtAddr, shared: bool, file: Option<&dyn File>) -> Option<()> {
        let pager = match file {
            Some(file) => Some(self.insist("a pager", || file.pager())?),
            None => None,
        };
        self.insist("map", || {
            let mut request = MapRequest {
                place: Place::Fixed(at),
                shared,
                ..MapRequest::zero(PAGES * PAGE_SIZE, RW)
            };
            if let Some(pager) = pager.clone() {
                request.backing = Backing::Object { pager, offset: 0 };
            }
            map.map(request).map(drop)
        })
    }

    fn maps_a_file(&self, walk: &Walk<'_>) -> Option<()> {
        let name = b"/mapped";
        let file = self.insist("open", || walk.open(name, flags(), 0o600))?;
        let mut bytes = pattern(2, PAGES);
        self.insist("write", || write_all(&*file, 0, &bytes))?;
        let (space, private) = (self.space()?, self.space()?);
        self.place(&space.0, SHARED, true, Some(&*file))?;
        self.place(&private.0, SHARED, false, Some(&*file))?;
        self.expect(&private.0, SHARED, &bytes)?;
        // A page of the private mapping is the program's own from here on.
        let own = pattern(9, 1);
        self.insist("a copy", || put(&private.0, SHARED, &own))?;
        for page in [1, 5] {
            let changed = pattern(20 + page as u8, 1);
            let at = page * PAGE_SIZE;
            self.insist("a store", || put(&space.0, SHARED + at, &changed))?;
            bytes[at..at + PAGE_SIZE].copy_from_slice(&changed);
        }
        self.insist("msync", || space.0.sync(range(SHARED), true))?;
        self.expect_file(&*file, &bytes)?;
        self.sync(walk, name, &*file, &bytes)?;
        // A cut under the mappings, and room again behind it.
        self.changes(name);
        let end = 4 * PAGE_SIZE + 100;
        let vnode = file.location()?.vnode().clone();
        self.insist("a cut", || vnode.truncate(end as u64))?;
        assert!(get(&space.0, SHARED + 5 * PAGE_SIZE, 1).is_err());
        bytes[end..].fill(0);
        self.insist("more room", || vnode.truncate((PAGES * PAGE_SIZE) as u64))?;
        self.expect(&space.0, SHARED, &bytes)?;
        self.expect(
            &private.0,
            SHARED,
            &[&own[..], &bytes[PAGE_SIZE..]].concat(),
        )?;
        self.sync(walk, name, &*file, &bytes)?;
        self.insist("unmap", || space.0.unmap(range(SHARED)))?;
        forget(&*file);
        self.expect_file(&*file, &bytes)
    }

    /// Sends all pages to swap, as far as they go.
    fn page_out(&self, map: &Map, at: VirtAddr, pages: usize) {
        let before = map.swapped();
        for _ in 0..10 {
            let _ = map.page_out(range(at));
            for _ in 0..4 {
                pause();
            }
            if map.swapped() >= before + pages {
                return;
            }
        }
        assert!(self.machine.faults.struck(), "pages that do not go to swap");
    }

    fn fills_memory(&self) -> Option<()> {
        let parent = self.space()?;
        self.place(&parent.0, HERE, false, None)?;
        self.place(&parent.0, SHARED, true, None)?;
        let (mut bytes, mut shared) = (pattern(3, PAGES), pattern(4, PAGES));
        self.insist("stores", || put(&parent.0, HERE, &bytes))?;
        self.insist("stores", || put(&parent.0, SHARED, &shared))?;
        self.page_out(&parent.0, HERE, PAGES);
        self.page_out(&parent.0, SHARED, 0);
        let child = Space(self.insist("fork", || parent.0.fork())?);
        let before = bytes.clone();
        for page in [0, 4, 9] {
            let changed = pattern(30 + page as u8, 1);
            let at = page * PAGE_SIZE;
            self.insist("a store", || put(&parent.0, HERE + at, &changed))?;
            bytes[at..at + PAGE_SIZE].copy_from_slice(&changed);
            self.insist("a store", || put(&child.0, SHARED + at, &changed))?;
            shared[at..at + PAGE_SIZE].copy_from_slice(&changed);
        }
        self.page_out(&parent.0, HERE, 0);
        self.page_out(&child.0, SHARED, 0);
        self.expect(&child.0, HERE, &before)?;
        self.expect(&parent.0, SHARED, &shared)?;
        drop(child);
        self.expect(&parent.0, HERE, &bytes)?;
        self.page_out(&parent.0, HERE, 0);
        // Now and then all pages are read back unasked.
        self.expect(&parent.0, HERE, &bytes)
    }

    fn changes_names(&self, walk: &Walk<'_>) -> Option<()> {
        // Steps before the error count as done.
        self.insist("mkdir", || match walk.make(b"/d", Make::Directory, 0o755) {
            Ok(_) | Err(Errno::EEXIST) => Ok(()),
            Err(error) => Err(error),
        })?;
        let file = self.insist("open", || walk.open(b"/d/a", flags(), 0o600))?;
        let bytes = pattern(5, 3);
        self.insist("write", || write_all(&*file, 0, &bytes))?;
        self.insist("rename", || match walk.rename(b"/d/a", walk, b"/b", 0) {
            Err(Errno::ENOENT) if walk.resolve(b"/b", false).is_ok() => Ok(()),
            other => other,
        })?;
        self.sync(walk, b"/b", &*file, &bytes)?;
        // Removed while it is open, and larger afterwards.
        let gone = self.insist("open", || walk.open(b"/gone", flags(), 0o600))?;
        self.insist("write", || write_all(&*gone, 0, &bytes))?;
        self.insist("unlink", || match walk.remove(b"/gone", false) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        })?;
        let more = pattern(6, KEPT);
        self.insist("write", || write_all(&*gone, 0, &more))?;
        self.expect_file(&*gone, &more)?;
        drop(gone);
        self.insist("rmdir", || match walk.remove(b"/d", true) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        })
    }
}
