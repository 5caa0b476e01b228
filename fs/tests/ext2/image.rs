//! Images, made and checked by the host's tools.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

/// The parameters of an image.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// The block size, in bytes.
    pub block_size: usize,
    /// The size of the image, in KiB.
    pub size: usize,
    pub inodes: usize,
    /// Further arguments for `mke2fs`.
    pub more: &'static [&'static str],
}

/// A file of the host that is removed with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(bytes: &[u8]) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("causeway-ext2-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).expect("there is room for an image");
        Scratch(path)
    }

    fn run(&self, tool: &str, before: &[&str], after: &[&str]) -> Output {
        // An ordinary user's PATH may lack them.
        let path = format!(
            "{}:/usr/sbin:/sbin",
            std::env::var("PATH").unwrap_or_default()
        );
        let mut command = Command::new(tool);
        command
            .env("PATH", path)
            .args(before)
            .arg(&self.0)
            .args(after);
        let ran = command.output();
        ran.unwrap_or_else(|error| panic!("{tool} (Debian's package e2fsprogs): {error}"))
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.0).expect("the image is there")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Returns an empty file system.
pub fn make(how: Make) -> Vec<u8> {
    let scratch = Scratch::new(b"");
    let (block_size, inodes) = (how.block_size.to_string(), how.inodes.to_string());
    let mut before = vec!["-q", "-F", "-t", "ext2", "-b", &block_size, "-N", &inodes];
    before.extend(how.more);
    let output = scratch.run("mke2fs", &before, &[&format!("{}k", how.size)]);
    assert!(output.status.success(), "mke2fs: {}", said(&output));
    scratch.bytes()
}

/// Returns the complaints of `e2fsck -fn`, if any.
pub fn complaint(image: &[u8]) -> Option<String> {
    let output = Scratch::new(image).run("e2fsck", &["-fn"], &[]);
    (!output.status.success()).then(|| said(&output))
}

/// Panics if `e2fsck -fn` complains, and keeps the image for inspection.
#[track_caller]
pub fn assert_sound(image: &[u8], what: &str) {
    if let Some(complaint) = complaint(image) {
        let kept = std::env::temp_dir().join("causeway-ext2-bad.img");
        let _ = fs::write(&kept, image);
        panic!(
            "{what}: e2fsck -fn says of {}:\n{complaint}",
            kept.display()
        );
    }
}

/// Returns the image as repaired by `e2fsck -fy`, which must be clean afterwards.
#[track_caller]
pub fn repaired(image: &[u8]) -> Vec<u8> {
    let scratch = Scratch::new(image);
    let output = scratch.run("e2fsck", &["-fy"], &[]);
    // 1: errors were corrected; 2: and the machine should be restarted.
    let done = output.status.code().is_some_and(|code| code < 4);
    assert!(done, "e2fsck -fy: {}", said(&output));
    let repaired = scratch.bytes();
    assert_sound(&repaired, "after e2fsck -fy");
    repaired
}
