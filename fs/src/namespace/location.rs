//! Operations on locations: changes of attributes and size, which observers hear of, and siblings.

use core::time::Duration;

use abi::{
    Errno, Result,
    raw::general::{CAP_CHOWN, CAP_FSETID, IN_ACCESS, IN_ATTRIB, IN_MODIFY, S_IXGRP},
};

use super::walk::cross;
use crate::{
    Attributes, Credentials, Kind, Location,
    credentials::WRITE,
    notify,
    vnode::{Change, Name, SizeLimit, drop_capabilities, hold_ownership},
};

impl Location {
    /// Returns its sibling `name`: the entry of that name in the directory by which it was reached,
    /// or the mount over it. `None` without such a name, and for directories.
    pub fn sibling(&self, name: &[u8]) -> Option<Location> {
        let own;
        let parent = match &self.reached {
            Some((parent, _)) => parent,
            None if self.vnode.kind() == Kind::Directory => return None,
            None => {
                own = self.vnode.parent()?;
                &own
            }
        };
        let child = cross(&self.mount, parent.lookup(name).ok()?);
        Some(Location {
            mount: child.mount.unwrap_or_else(|| self.mount.clone()),
            reached: Name::of(&child.vnode, parent, name),
            vnode: child.vnode,
        })
    }

    /// Changes attributes, with permission checked, and notifies observers.
    pub(crate) fn set_attributes(&self, change: Change) -> Result<()> {
        self.vnode.set_attributes(change)?;
        let mask = match (change.accessed, change.modified) {
            (Some(_), None) => IN_ACCESS,
            (None, Some(_)) => IN_MODIFY,
            _ => IN_ATTRIB,
        };
        notify::happened(&self.vnode, mask);
        Ok(())
    }

    /// The contents are about to change: a file that others write must not keep its set-id bits.
    /// Not for who may set them anyway (`CAP_FSETID`).
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn clear_privilege(&self) -> Result<()> {
        /// A process that executes it may gain rights.
        const GIVING: u32 = 0o6111;
        let Attributes { mode, .. } = self.attributes()?;
        match mode & GIVING {
            0 => Ok(()),
            _ => self.clear_now(),
        }
    }

    #[cold]
    fn clear_now(&self) -> Result<()> {
        let _turn = hold_ownership(&self.vnode);
        drop_capabilities(&*self.vnode)?;
        let Attributes { mode, .. } = self.attributes()?;
        let mut cleared = mode & !0o4000;
        if mode & S_IXGRP != 0 {
            cleared &= !0o2000;
        }
        if cleared != mode {
            self.vnode.set_attributes(Change {
                mode: Some(cleared),
                by_use: true,
                ..Change::default()
            })?;
        }
        Ok(())
    }

    /// Sets the size of a regular file for `who`, with permission checked.
    ///
    /// # Errors
    /// `EFBIG` beyond the limit; those of the file system.
    pub fn truncate(&self, who: &Credentials, limit: &SizeLimit, size: u64) -> Result<()> {
        self.change_content(who, || self.vnode.truncate_within(limit, size))
    }

    /// Changes the content of a regular file for `who`. Its set-id bits do not survive, not even
    /// those that were set meanwhile, for other contents.
    fn change_content(&self, who: &Credentials, change: impl Fn() -> Result<()>) -> Result<()> {
        let clears = !who.may_use(CAP_FSETID);
        if clears {
            self.clear_privilege()?;
        }
        change()?;
        if clears {
            self.clear_privilege()?;
        }
        notify::happened(&self.vnode, IN_MODIFY);
        Ok(())
    }

    /// Reserves space or punches holes (`fallocate`, its mode bits), with permission checked.
    ///
    /// # Errors
    /// `EFBIG` beyond the limit; those of the file system.
    pub fn allocate(
        &self,
        who: &Credentials,
        limit: &SizeLimit,
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change_content(who, || self.vnode.allocate_within(limit, mode, offset, len))
    }

    /// `chmod`.
    ///
    /// # Errors
    /// `EPERM` unless `who` is the owner, `EROFS`.
    pub fn change_mode(&self, who: &Credentials, mode: u32) -> Result<()> {
        self.writable()?;
        let _turn = hold_ownership(&self.vnode);
        let now = self.attributes()?;
        if !who.owns(&now) {
            return Err(Errno::EPERM);
        }
        let mode = who.allowed_mode(mode & 0o7777, now.gid);
        self.set_attributes(Change {
            mode: Some(mode),
            ..Change::default()
        })
    }

    /// `chown`; `None` keeps.
    ///
    /// # Errors
    /// `EPERM` unless `who` is root, or the owner and gives it to a group of its own; `EROFS`.
    pub fn change_owner(
        &self,
        who: &Credentials,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.writable()?;
        let _turn = hold_ownership(&self.vnode);
        let now = self.attributes()?;
        let allowed = uid.is_none_or(|uid| uid == now.uid)
            && gid.is_none_or(|gid| gid == now.gid || who.in_group(gid));
        if !who.may_use(CAP_CHOWN)
            && !(allowed && (who.uid == now.uid || uid.is_none() && gid.is_none()))
        {
            return Err(Errno::EPERM);
        }
        // The set-id bits must not carry over to the new owner, even if root changes it.
        let mut mode = now.mode;
        if now.kind != Kind::Directory && (uid.is_some() || gid.is_some()) {
            mode &= !0o4000;
            if mode & 0o010 != 0 {
                mode &= !0o2000;
            }
            drop_capabilities(&*self.vnode)?;
        }
        self.set_attributes(Change {
            mode: (mode != now.mode).then_some(mode),
            uid,
            gid,
            ..Change::default()
        })
    }

    /// `utimensat`: sets times; `None` keeps. `to_now`: both are set to the present, which needs
    /// write permission only.
    ///
    /// # Errors
    /// `EPERM`, `EACCES` (`to_now`), `EROFS`.
    pub fn change_times(
        &self,
        who: &Credentials,
        accessed: Option<Duration>,
        modified: Option<Duration>,
        to_now: bool,
    ) -> Result<()> {
        self.writable()?;
        if !who.owns(&self.attributes()?) {
            match to_now {
                true => self.vnode.access(who, WRITE)?,
                false => return Err(Errno::EPERM),
            }
        }
        self.set_attributes(Change {
            accessed,
            modified,
            by_use: to_now,
            ..Change::default()
        })
    }
}
