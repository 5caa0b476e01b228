//! Mount options.

use alloc::string::String;

use abi::{Errno, Result};
use nucleus::log;

/// Mount options.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Options {
    /// New files inherit the directory's group (`grpid`).
    pub inherit_group: bool,
    /// Files are mapped, read and written where they lie on the device, whose medium is memory
    /// (`dax`).
    pub in_place: bool,
    /// Damage does not make it read-only (`errors=continue`).
    pub continue_on_damage: bool,
    /// The user and group for the reserved blocks in place of the superblock's (`resuid=UID`,
    /// `resgid=GID`).
    pub reserved_uid: Option<u32>,
    pub reserved_gid: Option<u32>,
}

impl Options {
    /// Parses the options of `mount -t ext2`: `errors=continue|remount-ro`, `dax`, `grpid` and
    /// `nogrpid` under both their names, `resuid=UID`, `resgid=GID`, and options that name the
    /// defaults.
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
                b"errors=continue" => options.continue_on_damage = true,
                b"errors=remount-ro" => options.continue_on_damage = false,
                b"dax" | b"dax=always" => options.in_place = true,
                b"dax=never" => options.in_place = false,
                b"grpid" | b"bsdgroups" => options.inherit_group = true,
                b"nogrpid" | b"sysvgroups" => options.inherit_group = false,
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
