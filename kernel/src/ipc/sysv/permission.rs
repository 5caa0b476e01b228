//! Access rights of objects.

use abi::{Errno, Result, raw::general as raw};

use super::Caller;
use crate::process::Credentials;

/// The bits of [`Permission::mode`] that a program sets.
const MODE: u32 = 0o777;

/// Rights to ask for: read, by owner, group and others alike.
pub const READ: u32 = 0o444;
/// Alter.
pub const WRITE: u32 = 0o222;
/// Execute (`SHM_EXEC`).
pub const EXECUTE: u32 = 0o111;

/// Owner, maker and mode of an object (`struct ipc_perm`).
#[derive(Clone, Copy, Default, Debug)]
pub struct Permission {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    /// The maker.
    pub creator_uid: u32,
    pub creator_gid: u32,
    /// Nine permission bits, and the bits of a kind of object.
    pub mode: u32,
}

impl Permission {
    pub fn new(key: i32, mode: u32, who: &Credentials) -> Permission {
        Permission {
            key,
            uid: who.effective_uid,
            gid: who.effective_gid,
            creator_uid: who.effective_uid,
            creator_gid: who.effective_gid,
            mode: mode & MODE,
        }
    }

    /// Checks that `who` has the rights of `wanted`, of which the owner's, the group's and the
    /// others' bits count alike.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(&self, who: &Credentials, wanted: u32) -> Result<()> {
        let wanted = (wanted >> 6 | wanted >> 3 | wanted) & 7;
        let in_group = |gid| who.effective_gid == gid || who.fs.groups.contains(&gid);
        let granted = if [self.uid, self.creator_uid].contains(&who.effective_uid) {
            self.mode >> 6
        } else if in_group(self.gid) || in_group(self.creator_gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        if wanted & !granted == 0 || who.may(raw::CAP_IPC_OWNER) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Checks that the caller may remove the object or change its owner.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_owner(&self, caller: Caller<'_>) -> Result<()> {
        let who = caller.credentials;
        if [self.uid, self.creator_uid].contains(&who.effective_uid) || who.may(raw::CAP_SYS_ADMIN)
        {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// `IPC_SET` by `caller`.
    ///
    /// # Errors
    /// `EPERM`; `EINVAL` for invalid ids.
    pub fn set(&mut self, caller: Caller<'_>, to: Change) -> Result<()> {
        self.check_owner(caller)?;
        if to.uid == u32::MAX || to.gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        self.uid = to.uid;
        self.gid = to.gid;
        self.mode = self.mode & !MODE | to.mode & MODE;
        Ok(())
    }
}

/// The fields that `IPC_SET` changes of every kind of object.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}
