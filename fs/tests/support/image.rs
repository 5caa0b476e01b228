//! Images of file systems, made and checked by the host's e2fsprogs.

#![allow(dead_code, reason = "several test programs use it")]

use std::{
    fmt::Display,
    fs,
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

/// The parameters of an image.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The size of the image, in KiB.
    pub kib: u64,
    /// Sizes of a block and of an inode, in bytes.
    pub block: usize,
    pub inode: usize,
    /// The number of inodes; 0 for as many as `mke2fs` thinks right.
    pub inodes: usize,
    /// Empty files in the root, with the numbers from [`FIRST`] on.
    pub files: usize,
    /// Further arguments for `mke2fs`.
    pub more: &'static [&'static str],
}

/// The inode of the first file.
pub const FIRST: u32 = 12;

/// A small file system of small blocks: many of them are indirect blocks.
pub const SMALL: Shape = Shape {
    kib: 4096,
    block: 1024,
    inode: 256,
    inodes: 0,
    files: 0,
    more: &[],
};

/// The smallest, for a few files.
pub const TINY: Shape = Shape {
    kib: 2048,
    inodes: 64,
    ..SMALL
};

/// For trees.
pub const ROOMY: Shape = Shape {
    inodes: 512,
    ..SMALL
};

/// One of the sizes of a block, in turn.
pub fn block_size(seed: u64) -> usize {
    [1024, 2048, 4096][seed as usize % 3]
}

/// A folder of the host that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("causeway-ext2-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("there is room for an image");
        Folder(path)
    }

    /// A folder with this image.
    fn with(image: &[u8]) -> Folder {
        let folder = Folder::new();
        fs::write(folder.image(), image).expect("there is room for an image");
        folder
    }

    fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    /// Runs a tool on the image.
    fn run(&self, tool: &str, arguments: &[&str]) -> Output {
        // An ordinary user's PATH may lack it.
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(tool);
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let ran = command.args(arguments).arg(self.image()).output();
        ran.unwrap_or_else(|error| panic!("{tool} (Debian's package e2fsprogs): {error}"))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.image()).expect("the image is there")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

impl Shape {
    /// The same with blocks of `block` bytes.
    pub fn with_blocks(self, block: usize) -> Shape {
        Shape { block, ..self }
    }

    /// Returns such an image.
    pub fn make(&self) -> Vec<u8> {
        let folder = Folder::new();
        let content = folder.0.join("content");
        fs::create_dir(&content).unwrap();
        for number in 0..self.files {
            fs::write(content.join(format!("f{number}")), b"").unwrap();
        }
        let image = fs::File::create(folder.image()).unwrap();
        image.set_len(self.kib << 10).unwrap();
        let [block, inode, inodes] = [self.block, self.inode, self.inodes].map(|n| n.to_string());
        let mut arguments = vec!["-q", "-F", "-t", "ext2", "-b", &block, "-I", &inode];
        arguments.extend(["-m", "0", "-d", content.to_str().unwrap()]);
        if self.inodes > 0 {
            arguments.extend(["-N", &inodes]);
        }
        arguments.extend(self.more);
        let output = folder.run("mke2fs", &arguments);
        assert!(output.status.success(), "mke2fs: {}", said(&output));
        folder.bytes()
    }
}

/// Panics if `e2fsck -fn` complains, naming `which` image it was, and keeps it for inspection.
#[track_caller]
pub fn check(image: &[u8], which: impl Display) {
    let output = Folder::with(image).run("e2fsck", &["-fn"]);
    if !output.status.success() {
        let kept = std::env::temp_dir().join("causeway-ext2-bad.img");
        let _ = fs::write(&kept, image);
        panic!("{which}: e2fsck -fn {}:\n{}", kept.display(), said(&output));
    }
}

/// Returns the image as repaired by `e2fsck -fy`, which must be clean afterwards.
#[track_caller]
pub fn repair(image: &[u8]) -> Vec<u8> {
    let folder = Folder::with(image);
    let output = folder.run("e2fsck", &["-fy"]);
    // 1: errors were corrected; 2: and the machine should be restarted.
    let done = output.status.code().is_some_and(|code| code < 4);
    assert!(done, "e2fsck -fy: {}", said(&output));
    let repaired = folder.bytes();
    check(&repaired, "repaired");
    repaired
}

/// Returns the content of an inode as `debugfs` reads it.
pub fn content(image: &[u8], inode: u32) -> Vec<u8> {
    let folder = Folder::with(image);
    let out = folder.0.join("out");
    let request = format!("dump <{inode}> {}", out.display());
    let output = folder.run("debugfs", &["-R", &request]);
    fs::read(&out).unwrap_or_else(|_| panic!("debugfs: {}", said(&output)))
}
