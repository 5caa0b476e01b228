//! Extended attributes of locations: the permissions to see and set each.

use alloc::vec::Vec;

use abi::{
    Errno, Result,
    raw::general::{CAP_FOWNER, CAP_SETFCAP, CAP_SYS_ADMIN, IN_ATTRIB, S_ISVTX},
};

use crate::{
    Credentials, Kind, Location,
    credentials::{READ, WRITE},
    notify,
    vnode::{Change, hold_ownership},
};

/// The access list of a file, in place of its permission bits.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The access list that new entries of a directory get.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// A class of names with the same rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    User,
    Trusted,
    Security,
    /// A list of access rights.
    Access,
    Default,
}

fn class(name: &[u8]) -> Result<Class> {
    let prefixes = [
        (&b"user."[..], Class::User),
        (b"trusted.", Class::Trusted),
        (b"security.", Class::Security),
    ];
    for (prefix, class) in prefixes {
        if name.starts_with(prefix) {
            // The bare prefix names nothing.
            return if name.len() == prefix.len() {
                Err(Errno::EINVAL)
            } else {
                Ok(class)
            };
        }
    }
    match name {
        ACCESS_LIST => Ok(Class::Access),
        DEFAULT_LIST => Ok(Class::Default),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl Location {
    /// Returns the extended attribute `name`.
    ///
    /// # Errors
    /// `ENODATA` where there is none, or none that `who` may see; `EOPNOTSUPP` for a name of an
    /// unknown class; `EACCES`.
    pub fn extended(&self, who: &Credentials, name: &[u8]) -> Result<Vec<u8>> {
        let class = class(name)?;
        match class {
            Class::Trusted if !who.may_use(CAP_SYS_ADMIN) => return Err(Errno::ENODATA),
            Class::User if !self.has_user_attributes() => return Err(Errno::ENODATA),
            Class::User => self.vnode.access(who, READ)?,
            _ => {}
        }
        let value = self
            .vnode
            .extended_attributes()
            .and_then(|all| all.get(name));
        if value == Err(Errno::ENODATA) && class == Class::Access && self.vnode.kind() == Kind::Link
        {
            return Err(Errno::EOPNOTSUPP);
        }
        value
    }

    /// Returns the names of all extended attributes that `who` may see, a NUL after each.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn extended_names(&self, who: &Credentials) -> Result<Vec<u8>> {
        let mut names = self.vnode.extended_attributes()?.names()?;
        if !who.may_use(CAP_SYS_ADMIN) {
            let seen: Vec<u8> = names
                .split_inclusive(|&byte| byte == 0)
                .filter(|name| !name.starts_with(b"trusted."))
                .flatten()
                .copied()
                .collect();
            names = seen;
        }
        Ok(names)
    }

    /// Sets the extended attribute `name`, or removes it without a value; `flags` as `setxattr`.
    ///
    /// # Errors
    /// `EPERM` for those that `who` may not set, `EACCES`, `EROFS`, `EOPNOTSUPP` for a name of an
    /// unknown class and for an access list that permission bits can't express, `EEXIST`,
    /// `ENODATA`, `ENOSPC`.
    pub fn set_extended(
        &self,
        who: &Credentials,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
    ) -> Result<()> {
        let class = class(name)?;
        self.writable()?;
        match class {
            Class::Trusted if !who.may_use(CAP_SYS_ADMIN) => return Err(Errno::EPERM),
            Class::Security => {
                let needed = match name {
                    b"security.capability" => CAP_SETFCAP,
                    _ => CAP_SYS_ADMIN,
                };
                if !who.may_use(needed) {
                    return Err(Errno::EPERM);
                }
            }
            Class::User => {
                if !self.has_user_attributes() {
                    return Err(Errno::EPERM);
                }
                let now = self.attributes()?;
                let sticky = now.kind == Kind::Directory && now.mode & S_ISVTX != 0;
                if sticky && !who.owns(&now) && !who.may_use(CAP_FOWNER) {
                    return Err(Errno::EPERM);
                }
                self.vnode.access(who, WRITE)?;
            }
            Class::Access | Class::Default => return self.set_access_list(who, class, value),
            Class::Trusted => {}
        }
        self.vnode.extended_attributes()?.set(name, value, flags)?;
        notify::happened(&self.vnode, IN_ATTRIB);
        Ok(())
    }

    fn has_user_attributes(&self) -> bool {
        matches!(self.vnode.kind(), Kind::Regular | Kind::Directory)
    }

    /// Stores an access list as permission bits; lists that those can't express are refused.
    fn set_access_list(&self, who: &Credentials, class: Class, value: Option<&[u8]>) -> Result<()> {
        // The file system must have attributes at all.
        if self.vnode.extended_attributes().is_err() || self.vnode.kind() == Kind::Link {
            return Err(Errno::EOPNOTSUPP);
        }
        let _turn = hold_ownership(&self.vnode);
        let now = self.attributes()?;
        if !who.owns(&now) {
            return Err(Errno::EPERM);
        }
        if class == Class::Default && now.kind != Kind::Directory {
            return match value {
                None => Ok(()),
                Some(_) => Err(Errno::EACCES),
            };
        }
        let bits = match value {
            None | Some([]) => return Ok(()),
            Some(value) => permission_bits(value)?,
        };
        match (class, bits) {
            (_, None) => Ok(()),
            (Class::Access, Some(bits)) => {
                let mode = who.allowed_mode(now.mode & !0o777 | bits, now.gid);
                self.set_attributes(Change {
                    mode: Some(mode),
                    ..Change::default()
                })
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Returns the permission bits that an access list of Linux's version 2 stands for; `None` for an
/// empty one.
///
/// # Errors
/// `EINVAL` for a malformed list, `EOPNOTSUPP` for one with users, groups or a mask of its own.
fn permission_bits(list: &[u8]) -> Result<Option<u32>> {
    const VERSION: u32 = 2;
    const OWNER: u16 = 0x01;
    const GROUP: u16 = 0x04;
    const OTHER: u16 = 0x20;
    let (version, entries) = list.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::EOPNOTSUPP);
    }
    let (entries, rest) = entries.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Errno::EINVAL);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let mut bits = [None; 3];
    for entry in entries {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let rights = u16::from_le_bytes([entry[2], entry[3]]);
        let place = match tag {
            OWNER => 0,
            GROUP => 1,
            OTHER => 2,
            0x02 | 0x08 | 0x10 => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        if rights > 7 || bits[place].replace(u32::from(rights)).is_some() {
            return Err(Errno::EINVAL);
        }
    }
    match bits {
        [Some(owner), Some(group), Some(other)] => Ok(Some(owner << 6 | group << 3 | other)),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(u32::MAX.to_le_bytes());
        }
        list
    }

    #[test]
    fn lists_that_bits_can_say_become_bits() {
        let plain = list(&[(1, 6), (4, 4), (0x20, 0)]);
        assert_eq!(permission_bits(&plain), Ok(Some(0o640)));
        assert_eq!(permission_bits(&list(&[])), Ok(None));
        let named = list(&[(1, 6), (2, 7), (4, 4), (0x10, 7), (0x20, 0)]);
        assert_eq!(permission_bits(&named), Err(Errno::EOPNOTSUPP));
        for bad in [
            list(&[(1, 6), (4, 4)]),
            list(&[(1, 6), (1, 6), (4, 4), (0x20, 0)]),
            list(&[(1, 8), (4, 4), (0x20, 0)]),
            plain[..9].to_vec(),
            Vec::new(),
        ] {
            assert_eq!(permission_bits(&bad), Err(Errno::EINVAL));
        }
    }
}
