//! The root archive: what is in it arrives, and whatever is damaged is said without a panic.

mod support;

use fbuf::BytesSink;
use fs::{
    Credentials, Kind, Location, Namespace, Walk,
    cpio::{self, What},
    ramfs::{self, Options},
};
use nucleus::{Frame, PAGE_SIZE, ephemeral, frame::Contents};
use support::Random;

/// Builds archives as `cpio -H newc` does.
#[derive(Default)]
struct Builder {
    bytes: Vec<u8>,
    start: usize,
    next_inode: u32,
    /// Whether data of files starts at a page.
    pages: bool,
}

impl Builder {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.next_inode += 1;
        self.add_as(self.next_inode, 1, (0, 0), name, mode, data);
    }

    /// Adds an entry with this inode, number of links, and number of a device.
    fn add_as(
        &mut self,
        inode: u32,
        links: u32,
        device: (u32, u32),
        name: &str,
        mode: u32,
        data: &[u8],
    ) {
        let (size, name_size) = (data.len() as u32, name.len() as u32 + 1);
        let [major, minor] = [device.0, device.1];
        let padding = if self.pages && !data.is_empty() && mode >> 12 == 8 {
            let end = self.bytes.len() + 110 + name.len() + 1;
            end.next_multiple_of(PAGE_SIZE) - end
        } else {
            0
        };
        let name_size = name_size + padding as u32;
        let fields = [
            inode, mode, 7, 8, links, 1_000_000, size, 0, 0, major, minor, name_size, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(self.bytes.len() + 1 + padding, 0);
        self.pad(4);
        self.bytes.extend_from_slice(data);
        self.pad(4);
    }

    fn pad(&mut self, to: usize) {
        while !(self.bytes.len() - self.start).is_multiple_of(to) {
            self.bytes.push(0);
        }
    }

    fn end(&mut self) {
        self.add("TRAILER!!!", 0, b"");
        self.pad(512);
        self.start = self.bytes.len();
    }
}

fn sample() -> Vec<u8> {
    sample_of(Builder::default())
}

fn sample_of(mut b: Builder) -> Vec<u8> {
    b.add(".", 0o040755, b"");
    b.add("bin", 0o040755, b"");
    for name in ["bin/busybox", "bin/sh", "/bin/ls"] {
        let data: &[u8] = if name == "/bin/ls" { &[42; 9001] } else { b"" };
        b.add_as(1000, 3, (0, 0), name, 0o100755, data);
    }
    b.add("./etc", 0o040700, b"");
    b.add("etc/motd", 0o100644, b"hello\n");
    b.add("lib", 0o120777, b"usr/lib");
    b.add("usr/lib/deep/libc.so", 0o100644, b"library");
    b.add("lib/other.so", 0o100644, b"through the link");
    b.add("fifo", 0o010600, b"");
    b.add("socket", 0o140600, b"");
    b.add_as(50, 1, (5, 1), "console", 0o020600, b"");
    b.end();
    b.bytes.extend_from_slice(&[0; 777]);
    b.pad(4);
    b.start = b.bytes.len();
    b.add("etc/motd", 0o100600, b"second archive");
    b.end();
    b.bytes
}

fn fresh() -> Location {
    Namespace::new(ramfs::root(Options::default()), "rootfs").root()
}

fn resolve(root: &Location, path: &str) -> abi::Result<Location> {
    let who = Credentials::default();
    let walk = Walk {
        root,
        start: root,
        who: &who,
    };
    walk.resolve(path.as_bytes(), false)
}

fn content(root: &Location, path: &str) -> Vec<u8> {
    let place = resolve(root, path).unwrap();
    let mut bytes = vec![0; 20000];
    let n = place
        .vnode()
        .read(0, &mut BytesSink::new(&mut bytes))
        .unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn everything_arrives() {
    support::on_machines(1, 1, |_| {
        let root = fresh();
        let unpacked = cpio::unpack(&sample(), &root).unwrap();
        check_sample(&root, unpacked);
    });
}

/// The same, with the archive's pages as the files' own.
#[test]
fn pages_are_adopted() {
    support::on_machines(1, 1, |_| {
        let root = fresh();
        let archive = sample_of(Builder {
            pages: true,
            ..Builder::default()
        });
        let (unpacked, later) = cpio::unpack_pages(&archive, &root).unwrap();
        let mut taken = Vec::new();
        let mut last = None;
        later
            .adopt(|page| {
                assert!(last < Some(page), "page {page} after {last:?}");
                last = Some(page);
                let frame = Frame::alloc(Contents::Zeroed).unwrap();
                let bytes = &archive[page * PAGE_SIZE..];
                ephemeral::map(&frame).write(0, &bytes[..bytes.len().min(PAGE_SIZE)]);
                taken.push(frame.number());
                Some(frame)
            })
            .unwrap();
        // Three pages of bin/ls, one each of the four other files with data.
        assert_eq!(taken.len(), 7);
        check_sample(&root, unpacked);
        // What stands behind a file's end is zero, should it grow.
        let motd = resolve(&root, "etc/motd").unwrap();
        let end = motd.attributes().unwrap().size;
        motd.vnode().truncate(4096).unwrap();
        assert!(
            content(&root, "etc/motd")[end as usize..]
                .iter()
                .all(|&b| b == 0)
        );
        // The frames themselves are the files' pages.
        let pager = motd.vnode().clone().pager().unwrap();
        assert!(taken.contains(&pager.lookup(0).unwrap().resident().unwrap().number()));
    });
}

#[test]
fn pages_that_are_missing_are_an_error() {
    support::on_machines(1, 1, |_| {
        let archive = sample_of(Builder {
            pages: true,
            ..Builder::default()
        });
        let (_, later) = cpio::unpack_pages(&archive, &fresh()).unwrap();
        let error = later.adopt(|_| None).unwrap_err();
        assert_eq!(error.what, What::Refused(abi::Errno::EIO));
    });
}

fn check_sample(root: &Location, unpacked: cpio::Unpacked) {
    assert_eq!(unpacked.entries, 14);
    for name in ["bin/busybox", "bin/sh", "bin/ls"] {
        assert_eq!(content(root, name), [42; 9001]);
    }
    let busybox = resolve(root, "/bin/busybox").unwrap();
    assert!(busybox.same(&resolve(root, "/bin/ls").unwrap()));
    let attributes = busybox.attributes().unwrap();
    assert_eq!((attributes.links, attributes.mode), (3, 0o755));
    assert_eq!((attributes.uid, attributes.gid), (7, 8));
    assert_eq!(attributes.modified.as_secs(), 1_000_000);
    assert_eq!(content(root, "etc/motd"), b"second archive");
    assert_eq!(content(root, "usr/lib/other.so"), b"through the link");
    let etc = resolve(root, "etc").unwrap().attributes().unwrap();
    assert_eq!((etc.mode, etc.modified.as_secs()), (0o700, 1_000_000));
    let kinds = [
        ("lib", Kind::Link),
        ("fifo", Kind::Fifo),
        ("socket", Kind::Socket),
        ("console", Kind::CharDevice),
    ];
    for (name, kind) in kinds {
        let place = resolve(root, name).unwrap();
        assert_eq!(place.attributes().unwrap().kind, kind);
    }
    let console = resolve(root, "console").unwrap().attributes().unwrap();
    assert_eq!(console.rdev, fs::device::number(5, 1));
}

#[test]
fn damage_is_named() {
    support::on_machines(1, 1, |_| {
        let says = |archive: &[u8]| cpio::unpack(archive, &fresh()).unwrap_err();
        let whole = sample();
        assert_eq!(says(b"").what, What::Empty);
        assert_eq!(says(&[0; 512]).what, What::Empty);
        assert_eq!(says(b"\x1f\x8b\x08rest").what, What::Compressed("gzip"));
        assert_eq!(says(b"070701").what, What::Truncated);
        let cut = says(&whole[..200]);
        assert_eq!((cut.what, cut.offset), (What::Truncated, 112));
        let mut bad = whole.clone();
        bad[112] = b'x';
        let error = says(&bad);
        assert_eq!((error.what, error.offset), (What::BadMagic, 112));
        assert_eq!(
            error.to_string(),
            "no cpio entry (magic 070701) at byte 112"
        );
        bad = whole.clone();
        bad[112 + 14] = b'g';
        let error = says(&bad);
        assert_eq!((error.what, error.offset), (What::BadNumber, 112 + 14));

        let mut b = Builder::default();
        b.add("a/../../b", 0o100644, b"");
        b.end();
        let error = says(&b.bytes);
        assert_eq!((error.what, error.offset), (What::BadName, 110));
        let mut b = Builder::default();
        b.add("a", 0o170000, b"");
        assert_eq!(says(&b.bytes).what, What::BadMode);
        let mut b = Builder::default();
        b.add("a", 0o100644, b"");
        b.add("a/b", 0o100644, b"");
        assert!(matches!(says(&b.bytes).what, What::Refused(_)));
    });
}

#[test]
fn no_damage_panics() {
    support::on_machines(40, 1, |seed| {
        let mut random = Random::new(seed);
        let whole = sample();
        for _ in 0..150 {
            let mut archive = whole.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(archive.len());
                match random.below(6) {
                    0 => archive.truncate(at.max(1)),
                    1 => {
                        archive.insert(at, random.next() as u8);
                    }
                    2 => {
                        archive.remove(at);
                    }
                    // Most bytes are data; headers are more fun.
                    3 => archive[at % 400] = b"0123456789abcdefF"[random.below(17)],
                    4 => archive[at % 1800] = random.next() as u8,
                    _ => archive[at] ^= 1 << random.below(8),
                }
            }
            if let Err(error) = cpio::unpack(&archive, &fresh()) {
                assert!(error.offset <= archive.len());
                assert!(!error.to_string().is_empty());
            }
        }
    });
}
