//! Mount options.

use alloc::string::String;

use abi::{Errno, Result};
use nucleus::log;

/// What `mount -o` says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Options {
    /// The group of a directory goes down to all that is made in it (`grpid`).
    pub groups_go_down: bool,
    /// Damage that is found does not make it read-only (`errors=continue`).
    pub goes_on: bool,
    /// Who may have the reserved blocks, if not those whom the superblock names (`resuid=UID`, `resgid=GID`).
    pub reserved_uid: Option<u32>,
    pub reserved_gid: Option<u32>,
}

impl Options {
    /// Reads the options of `mount -t ext2`: `errors=continue|remount-ro`, `grpid` and `nogrpid` by both their names, `resuid=UID`,
    /// `resgid=GID`, and what says how things are anyway.
    ///
    /// # Errors
    /// `EINVAL` for others.
    pub fn parse(text: &[u8]) -> Result<Options> {
        let mut options = Options::default();
        let number = |text: &[u8]| core::str::from_utf8(text).ok()?.parse().ok();
        for word in text.split(|&b| b == b',') {
            if let Some(uid) = word.strip_prefix(b"resuid=") {
                options.reserved_uid = Some(number(uid).ok_or(Errno::EINVAL)?);
                continue;
            }
            if let Some(gid) = word.strip_prefix(b"resgid=") {
                options.reserved_gid = Some(number(gid).ok_or(Errno::EINVAL)?);
                continue;
            }
            match word {
                b"errors=continue" => options.goes_on = true,
                b"errors=remount-ro" => options.goes_on = false,
                b"grpid" | b"bsdgroups" => options.groups_go_down = true,
                b"nogrpid" | b"sysvgroups" => options.groups_go_down = false,
                b"" | b"defaults" | b"bsddf" | b"nouser_xattr" | b"noacl" | b"check=none"
                | b"nocheck" => {}
                _ => {
                    log!("ext2: unknown option {}", String::from_utf8_lossy(word));
                    return Err(Errno::EINVAL);
                }
            }
        }
        Ok(options)
    }
}
