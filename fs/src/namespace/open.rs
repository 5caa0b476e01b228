//! Opening.

use alloc::sync::Arc;

use abi::raw::general::{
    O_APPEND, O_CREAT, O_DIRECT, O_DIRECTORY, O_EXCL, O_NOATIME, O_NOFOLLOW, O_PATH, O_TMPFILE,
    O_TRUNC, S_IFMT,
};
use abi::{Errno, Result};

use super::{
    Walk, protect,
    walk::{Last, Walker},
};
use crate::{
    Credentials, File, Kind, Location, MountFlags, OpenFlags, Writing,
    credentials::{EXECUTE, READ, WRITE},
    file::{PlaceFile, VnodeFile},
    vnode::{Make, SizeLimit},
};

impl Walk<'_> {
    /// `open`: resolves the path, or creates a file with `mode` (umask already applied), checks
    /// permission, truncates, opens.
    pub fn open(&self, path: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<dyn File>> {
        self.open_by_rules(path, flags, mode, 0)
    }

    /// `openat2`: as [`open`](Walk::open), by `rules` (`RESOLVE_*`).
    ///
    /// # Errors
    /// `EXDEV` and `ELOOP` where a rule is broken.
    pub fn open_by_rules(
        &self,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        rules: u32,
    ) -> Result<Arc<dyn File>> {
        let mut walker = Walker::with_rules(self, path, rules)?;
        let follow = !flags.has(O_NOFOLLOW);
        if flags.has(O_PATH) {
            let place = walker.finish(follow)?;
            return open_path(place, flags);
        }
        if flags.has(O_TMPFILE) {
            return self.open_unnamed(walker.finish(follow)?, flags, mode & !S_IFMT);
        }
        if !flags.has(O_CREAT) {
            return self.open_at(&walker.finish(follow)?, flags);
        }
        let (place, made) = find_or_create(&mut walker, self.who, flags, mode & 0o7777)?;
        match made {
            // The creator may use the new file whatever its mode is.
            true => self.finish_open(&place, flags),
            false => self.open_at(&place, flags),
        }
    }

    /// Opens a location that was resolved already (`/proc/PID/fd/N`, `execve`).
    pub fn open_at(&self, place: &Location, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.has(O_PATH) {
            return open_path(place.clone(), flags);
        }
        let kind = place.vnode.kind();
        let writes = flags.writes() || flags.has(O_TRUNC);
        match kind {
            Kind::Link if flags.has(O_DIRECTORY) => return Err(Errno::ENOTDIR),
            Kind::Link => return Err(Errno::ELOOP),
            Kind::Directory if writes || flags.has(O_CREAT) => return Err(Errno::EISDIR),
            Kind::Directory => {}
            _ if flags.has(O_DIRECTORY) => return Err(Errno::ENOTDIR),
            Kind::Socket => return Err(Errno::ENXIO),
            _ => {}
        }
        let want = match flags.bits() & 3 {
            0 => READ,
            1 => WRITE,
            _ => READ | WRITE,
        };
        let want = want | if flags.has(O_TRUNC) { WRITE } else { 0 };
        place.vnode.access(self.who, want)?;
        let changes = flags.writes() && !flags.has(O_APPEND) || flags.has(O_TRUNC);
        if changes && place.vnode.only_grows() {
            return Err(Errno::EPERM);
        }
        if writes && kind == Kind::Regular {
            place.writable()?;
        }
        let writing = match writes && kind == Kind::Regular {
            true => Some(Writing::begin(&place.vnode)?),
            false => None,
        };
        if flags.has(O_TRUNC) && kind == Kind::Regular {
            place.truncate(self.who, &SizeLimit::none(), 0)?;
        }
        let file = self.finish_open(place, flags);
        drop(writing);
        file
    }

    fn finish_open(&self, place: &Location, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let is_device = matches!(place.vnode.kind(), Kind::CharDevice | Kind::BlockDevice);
        if is_device && place.mount.has(MountFlags::NO_DEVICES) {
            return Err(Errno::EACCES);
        }
        if flags.has(O_NOATIME) && !self.who.owns(&place.attributes()?) {
            return Err(Errno::EPERM);
        }
        // For a pipe the same flag asks for packets.
        let is_pipe = place.vnode.kind() == Kind::Fifo;
        if flags.has(O_DIRECT) && !is_pipe && place.vnode.direct_block().is_none() {
            return Err(Errno::EINVAL);
        }
        if let Some(file) = place.vnode.clone().open(place, flags)? {
            return Ok(file);
        }
        Ok(VnodeFile::new(place.clone(), flags)?)
    }

    /// `O_TMPFILE`.
    fn open_unnamed(
        &self,
        mut place: Location,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Arc<dyn File>> {
        if !flags.writes() {
            return Err(Errno::EINVAL);
        }
        if place.vnode.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        place.writable()?;
        place.vnode.access(self.who, WRITE | EXECUTE)?;
        place.vnode = place
            .vnode
            .create_unnamed(mode & 0o7777, !flags.has(O_EXCL), self.who)?;
        self.finish_open(&place, flags)
    }
}

/// Opens a mere handle to the location (`O_PATH`).
fn open_path(place: Location, flags: OpenFlags) -> Result<Arc<dyn File>> {
    if flags.has(O_DIRECTORY) && place.vnode.kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    Ok(Arc::new(PlaceFile::new(place)))
}

/// Finds the file or creates it (`O_CREAT`); returns whether it was created.
fn find_or_create(
    walker: &mut Walker<'_>,
    who: &Credentials,
    flags: OpenFlags,
    mode: u32,
) -> Result<(Location, bool)> {
    let exclusive = flags.has(O_EXCL);
    loop {
        let Last::Name(c) = walker.run()? else {
            if exclusive {
                return Err(Errno::EEXIST);
            }
            return Ok((walker.place(), false));
        };
        if c.slash {
            return Err(Errno::EISDIR);
        }
        let (child, made) = match walker.look_up(&c) {
            Ok(_) if exclusive => return Err(Errno::EEXIST),
            Ok(child) => (child, false),
            Err(Errno::ENOENT) => match walker.create(&c, Make::Regular, mode) {
                Ok(child) => (child, true),
                // Another thread has created it meanwhile.
                Err(Errno::EEXIST) if !exclusive => (walker.look_up(&c)?, false),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        };
        if let Some(place) = walker.arrive(&c, child, !flags.has(O_NOFOLLOW))? {
            if !made {
                protect::may_open_as_new(who, walker.vnode(), &place.vnode)?;
            }
            return Ok((place, made));
        }
    }
}
