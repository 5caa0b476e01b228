//! The second guest of a boot, for experiments between two: the same kernel on one CPU, and a card
//! of each that leads to the other.

use std::path::{Path, PathBuf};

/// The longest packet: 16 KiB and its header, as in `fbufs.txt` section 4.
const MTU: usize = (16 << 10) + 20;

/// The experiment that the second guest serves.
pub const EXPERIMENT: &str = "fbuf-network";

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The one that measures. It may have another card, its first.
    First { has_other: bool },
    /// The one that serves.
    Second,
}

/// The wire between the cards. Its ends are sockets in a folder, so that neither guest waits for
/// the other's start.
#[derive(Debug)]
pub struct Wire {
    folder: PathBuf,
}

impl Wire {
    /// A wire whose sockets will be in this folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Returns QEMU's words for the card of a guest.
    pub fn qemu(&self, part: Part) -> [String; 4] {
        let (own, other) = match part {
            Part::First { .. } => ("first", "second"),
            Part::Second => ("second", "first"),
        };
        let place = |name: &str| self.folder.join(name).display().to_string();
        let wire = format!(
            "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            place(own),
            place(other)
        );
        let mac = part.number();
        let card = format!(
            "virtio-net-pci,disable-legacy=on,netdev=wire,romfile=,host_mtu={MTU},\
             mac=52:54:00:55:00:0{mac}"
        );
        ["-netdev".into(), wire, "-device".into(), card]
    }
}

impl Part {
    fn number(self) -> u32 {
        match self {
            Part::First { .. } => 2,
            Part::Second => 1,
        }
    }

    /// The address of the card, if it is the guest's only one.
    pub fn own(self) -> Option<String> {
        match self {
            Part::First { has_other: true } => None,
            _ => Some(format!("10.55.0.{}/24", self.number())),
        }
    }

    /// Returns the words for the guest's program.
    pub fn bench(self) -> Vec<String> {
        let words: &[&str] = match self {
            Part::First { has_other: false } => &["--card", "eth0"],
            Part::First { has_other: true } => &["--card", "eth1"],
            Part::Second => &["--card", "eth0", "--second"],
        };
        words.iter().map(ToString::to_string).collect()
    }
}
