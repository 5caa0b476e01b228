//! `/sys`: the parts of the machine, in Linux's formats.
//!
//! `block`: disks. `cpus`: processors, their caches and their memory node. `class`: terminals and
//! the clock. `interfaces`: network interfaces. `pci`: the functions on the bus. `numbered`:
//! names with a number in them. What this machine does not have, has no file here.

mod block;
mod class;
mod cpus;
mod interfaces;
mod numbered;
mod pci;

use alloc::{string::String, sync::Arc};
use core::fmt::Write;

use abi::Errno;
use fs::{
    Vnode,
    pseudofs::{self, Directory, Entry, Table},
};
use nucleus::{PAGE_SIZE, frame::RUN_FRAMES};
use vm::LargePages;

use super::{line, link, shown, value};

/// The root of a new `/sys`. All of them show the same.
pub fn root() -> Arc<dyn Vnode> {
    let devices = Table::new()
        .with("pci0000:00", directory(pci::devices()))
        .with("platform", directory(class::platform()))
        .with("system", directory(cpus::system()))
        .with("virtual", directory(class::devices()));
    let memory = Table::new()
        .with("hugepages", directory(Table::new()))
        .with("transparent_hugepage", directory(huge_pages()));
    let kernel = Table::new().with("mm", directory(memory));
    let root = Table::new()
        .with("block", block::links())
        .with(
            "bus",
            directory(Table::new().with("pci", directory(pci::bus()))),
        )
        .with("class", directory(class::classes()))
        .with("dev", directory(class::numbers()))
        .with("devices", directory(devices))
        .with("firmware", directory(Table::new()))
        .with("fs", directory(Table::new()))
        .with("kernel", directory(kernel))
        .with("module", directory(Table::new()))
        .with("power", directory(Table::new()));
    pseudofs::root("sysfs", root)
}

/// The use of large pages, in Linux's words: the same switch as `/proc/causeway/large`, for memory
/// that processes share, too. No pages are moved to make room for one.
fn huge_pages() -> Table {
    let enabled = line(|| match vm::large_pages() {
        LargePages::On => "[always] madvise never",
        LargePages::Advised => "always [madvise] never",
        LargePages::Off => "always madvise [never]",
    });
    let enabled = enabled.writable(|bytes| {
        vm::set_large_pages(match bytes.trim_ascii() {
            b"always" => LargePages::On,
            b"madvise" => LargePages::Advised,
            b"never" => LargePages::Off,
            _ => return Err(Errno::EINVAL),
        });
        Ok(())
    });
    let shared = line(|| match vm::large_pages() {
        LargePages::On => "always [within_size] advise never deny force",
        LargePages::Advised => "always within_size [advise] never deny force",
        LargePages::Off => "always within_size advise [never] deny force",
    });
    Table::new()
        .with(
            "defrag",
            value("always defer defer+madvise madvise [never]"),
        )
        .with("enabled", enabled)
        .with("hpage_pmd_size", value(RUN_FRAMES * PAGE_SIZE))
        .with("shmem_enabled", shared)
}

/// A further directory.
fn directory(of: impl Directory) -> Entry {
    Entry::directory(of).mode(0o755)
}

/// The numbers from `first` on, `count` of them, as a list of ranges: `0-3`, `2`, or nothing.
fn list(first: usize, count: usize) -> String {
    match count {
        0 => String::new(),
        1 => alloc::format!("{first}"),
        _ => alloc::format!("{first}-{}", first + count - 1),
    }
}

/// The same as a mask with a bit for each of `of` numbers, in words of 32 bits, the highest first.
fn mask(first: usize, count: usize, of: usize) -> String {
    let mut text = String::new();
    for word in (0..of.div_ceil(32)).rev() {
        let bits = (of - word * 32).min(32);
        let set = (0..bits)
            .filter(|bit| (first..first + count).contains(&(word * 32 + bit)))
            .fold(0u32, |set, bit| set | 1 << bit);
        if !text.is_empty() {
            text.push(',');
        }
        // A string takes whatever is written.
        let _ = write!(text, "{set:0width$x}", width = bits.div_ceil(4));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_as_linux_does() {
        assert_eq!(
            (list(0, 0), list(2, 1), list(0, 4)),
            (String::new(), "2".into(), "0-3".into())
        );
        assert_eq!(mask(0, 1, 1), "1");
        assert_eq!(mask(1, 1, 4), "2");
        assert_eq!(mask(0, 16, 16), "ffff");
        assert_eq!(mask(33, 2, 40), "06,00000000");
        assert_eq!(mask(3, 1, 6), "08");
    }
}
