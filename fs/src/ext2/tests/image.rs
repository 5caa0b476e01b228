//! Disk images, made and checked by the host's tools.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    vec::Vec,
};

/// A folder of one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "causeway-ext2-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool of e2fsprogs, which may not be on the `PATH` of an ordinary user.
fn run(tool: &str, arguments: &[&str], file: &Path) -> Output {
    let place = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(tool))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(tool));
    Command::new(place)
        .args(arguments)
        .arg(file)
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}; scripts/setup.sh installs e2fsprogs"))
}

/// The parameters of an image.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub kib: u64,
    /// Sizes of a block and of an inode, in bytes.
    pub block: usize,
    pub inode: usize,
    /// Empty files in the root, with the numbers from [`FIRST`] on.
    pub files: usize,
    /// Further arguments for `mke2fs`.
    pub more: &'static [&'static str],
}

/// The inode of the first file.
pub const FIRST: u32 = 12;

impl Shape {
    /// Returns such an image.
    pub fn make(&self) -> Vec<u8> {
        let folder = Folder::new();
        let (content, image) = (folder.file("content"), folder.file("image"));
        fs::create_dir(&content).unwrap();
        for number in 0..self.files {
            fs::write(content.join(format!("f{number}")), b"").unwrap();
        }
        fs::File::create(&image)
            .unwrap()
            .set_len(self.kib << 10)
            .unwrap();
        let (block, inode) = (self.block.to_string(), self.inode.to_string());
        let mut arguments = vec!["-q", "-F", "-t", "ext2", "-b", &block, "-I", &inode];
        arguments.extend(["-m", "0", "-d", content.to_str().unwrap()]);
        arguments.extend(self.more);
        let made = run("mke2fs", &arguments, &image);
        assert!(made.status.success(), "{made:?}");
        fs::read(&image).unwrap()
    }
}

/// Checks an image with `e2fsck -fn`; returns its complaints, if any.
pub fn complaints(image: &[u8]) -> Option<String> {
    let folder = Folder::new();
    let file = folder.file("image");
    fs::write(&file, image).unwrap();
    let said = run("e2fsck", &["-fn"], &file);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    (said.status.code() != Some(0)).then_some(text)
}

/// Fails if `e2fsck -fn` complains about an image.
pub fn check(image: &[u8]) {
    if let Some(complaints) = complaints(image) {
        panic!("{complaints}");
    }
}

/// Returns the image as repaired by `e2fsck -fy`.
pub fn repair(image: &[u8]) -> Vec<u8> {
    let folder = Folder::new();
    let file = folder.file("image");
    fs::write(&file, image).unwrap();
    let said = run("e2fsck", &["-fy"], &file);
    assert!(said.status.code().is_some_and(|code| code < 4), "{said:?}");
    fs::read(&file).unwrap()
}

/// Returns the content of an inode as `debugfs` reads it.
pub fn content(image: &[u8], inode: u32) -> Vec<u8> {
    let folder = Folder::new();
    let (file, out) = (folder.file("image"), folder.file("out"));
    fs::write(&file, image).unwrap();
    let request = format!("dump <{inode}> {}", out.display());
    let said = run("debugfs", &["-R", &request], &file);
    fs::read(&out).unwrap_or_else(|_| panic!("{said:?}"))
}
