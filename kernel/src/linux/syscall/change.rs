//! Changing files: mode, owner, times, size.

use abi::{
    Errno, Result,
    raw::general::{
        AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, UTIME_NOW, UTIME_OMIT, timespec, timeval,
    },
};
use core::time::Duration;
use fs::{Kind, Location};
use nucleus::{VirtAddr, time, user};

use super::{Call, FlagSet, SystemCall, call, file_size, flag_set, path};

const AT_FLAGS: FlagSet = flag_set!("flags", [AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH], EINVAL);

/// The calls of this module.
pub const CALLS: &[SystemCall] = &[
    call!(__NR_chmod, chmod),
    call!(__NR_fchmod, fchmod),
    call!(__NR_fchmodat, fchmodat),
    call!(__NR_fchmodat2, fchmodat2).flags(&[&AT_FLAGS]),
    call!(__NR_chown, chown),
    call!(__NR_lchown, lchown),
    call!(__NR_fchown, fchown),
    call!(__NR_fchownat, fchownat).flags(&[&AT_FLAGS]),
    call!(__NR_utime, utime),
    call!(__NR_utimes, utimes),
    call!(__NR_futimesat, futimesat),
    call!(__NR_utimensat, utimensat).flags(&[&AT_FLAGS]),
    call!(__NR_truncate, truncate),
    call!(__NR_ftruncate, ftruncate),
    call!(__NR_fallocate, fallocate),
];

/// The place of an open file that is to be changed.
fn open_place(call: &Call<'_>, fd: i32) -> Result<Option<Location>> {
    let open = call.files().get(fd)?;
    if open.is_path() {
        return Err(Errno::EBADF);
    }
    Ok(open.location().cloned())
}

fn change_mode(call: &Call<'_>, place: &Location, mode: u32) -> Result<usize> {
    if place.vnode().kind() == Kind::Link {
        return Err(Errno::EOPNOTSUPP);
    }
    place.change_mode(&call.credentials().fs, mode & 0o7777)?;
    Ok(0)
}

pub(super) fn chmod(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    change_mode(call, &place, call.unsigned(1))
}

pub(super) fn fchmod(call: &mut Call<'_>) -> Result<usize> {
    match open_place(call, call.int(0))? {
        Some(place) => change_mode(call, &place, call.unsigned(1)),
        // A nameless pipe cannot be opened by its mode.
        None => Ok(0),
    }
}

fn fchmodat(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, call.int(0), call.address(1), 0)?;
    change_mode(call, &place, call.unsigned(2))
}

fn fchmodat2(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(3, &AT_FLAGS)?;
    let place = path::place(call, call.int(0), call.address(1), flags)?;
    change_mode(call, &place, call.unsigned(2))
}

fn change_owner(call: &Call<'_>, place: &Location, uid: u32, gid: u32) -> Result<usize> {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    place.change_owner(&call.credentials().fs, given(uid), given(gid))?;
    Ok(0)
}

pub(super) fn chown(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    change_owner(call, &place, call.unsigned(1), call.unsigned(2))
}

pub(super) fn lchown(call: &mut Call<'_>) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), AT_SYMLINK_NOFOLLOW)?;
    change_owner(call, &place, call.unsigned(1), call.unsigned(2))
}

pub(super) fn fchown(call: &mut Call<'_>) -> Result<usize> {
    match open_place(call, call.int(0))? {
        Some(place) => change_owner(call, &place, call.unsigned(1), call.unsigned(2)),
        None => Ok(0),
    }
}

fn fchownat(call: &mut Call<'_>) -> Result<usize> {
    let flags = call.flags(4, &AT_FLAGS)?;
    let place = path::place(call, call.int(0), call.address(1), flags)?;
    change_owner(call, &place, call.unsigned(2), call.unsigned(3))
}

/// Times to set, from `None` for both now.
struct Times {
    accessed: Option<Duration>,
    modified: Option<Duration>,
    /// Both are the present.
    now: bool,
}

impl Times {
    fn now() -> Times {
        let now = time::since_epoch();
        Times {
            accessed: Some(now),
            modified: Some(now),
            now: true,
        }
    }

    fn seconds(accessed: i64, modified: i64) -> Result<Times> {
        let at = |seconds: i64| Some(Duration::from_secs(not_before_epoch(seconds)));
        Ok(Times {
            accessed: at(accessed),
            modified: at(modified),
            now: false,
        })
    }

    /// Reads two `struct timespec`s.
    fn timespecs(at: VirtAddr) -> Result<Times> {
        if at.0 == 0 {
            return Ok(Times::now());
        }
        let [accessed, modified]: [timespec; 2] = user::read(at)?;
        let all_now = [&accessed, &modified]
            .iter()
            .all(|t| t.tv_nsec as u32 == UTIME_NOW);
        if all_now {
            return Ok(Times::now());
        }
        Ok(Times {
            accessed: moment(&accessed)?,
            modified: moment(&modified)?,
            now: false,
        })
    }

    /// Reads two `struct timeval`s.
    fn timevals(at: VirtAddr) -> Result<Times> {
        if at.0 == 0 {
            return Ok(Times::now());
        }
        let [accessed, modified]: [timeval; 2] = user::read(at)?;
        let moment = |t: &timeval| -> Result<Option<Duration>> {
            let microseconds = u32::try_from(t.tv_usec)
                .ok()
                .filter(|&us| us < 1_000_000)
                .ok_or(Errno::EINVAL)?;
            let seconds = not_before_epoch(t.tv_sec);
            Ok(Some(Duration::new(seconds, microseconds * 1000)))
        };
        Ok(Times {
            accessed: moment(&accessed)?,
            modified: moment(&modified)?,
            now: false,
        })
    }

    fn set(&self, call: &Call<'_>, place: &Location) -> Result<usize> {
        if self.accessed.is_none() && self.modified.is_none() {
            return Ok(0);
        }
        let who = &call.credentials().fs;
        place.change_times(who, self.accessed, self.modified, self.now)?;
        Ok(0)
    }
}

/// File times are counted from the epoch on; what lies before it becomes the epoch.
fn not_before_epoch(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0)
}

fn moment(t: &timespec) -> Result<Option<Duration>> {
    match t.tv_nsec as u32 {
        UTIME_OMIT => Ok(None),
        UTIME_NOW => Ok(Some(time::since_epoch())),
        _ => {
            let nanoseconds = u32::try_from(t.tv_nsec)
                .ok()
                .filter(|&ns| ns < 1_000_000_000)
                .ok_or(Errno::EINVAL)?;
            Ok(Some(Duration::new(not_before_epoch(t.tv_sec), nanoseconds)))
        }
    }
}

fn utime(call: &mut Call<'_>) -> Result<usize> {
    let times = if call.args[1] == 0 {
        Times::now()
    } else {
        let [accessed, modified]: [i64; 2] = user::read(call.address(1))?;
        Times::seconds(accessed, modified)?
    };
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    times.set(call, &place)
}

fn utimes(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::timevals(call.address(1))?;
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    times.set(call, &place)
}

fn futimesat(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::timevals(call.address(2))?;
    set_times_at(call, times, 0)
}

fn utimensat(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::timespecs(call.address(2))?;
    if times.accessed.is_none() && times.modified.is_none() {
        // Not even the path is looked at.
        return Ok(0);
    }
    let flags = call.flags(3, &AT_FLAGS)?;
    set_times_at(call, times, flags)
}

/// Without a path it is the descriptor's own file.
fn set_times_at(call: &Call<'_>, times: Times, flags: u32) -> Result<usize> {
    if call.args[1] == 0 {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        return match open_place(call, call.int(0))? {
            Some(place) => times.set(call, &place),
            None => Ok(0),
        };
    }
    let place = path::place(call, call.int(0), call.address(1), flags)?;
    times.set(call, &place)
}

pub(super) fn truncate(call: &mut Call<'_>) -> Result<usize> {
    let size = u64::try_from(call.args[1] as i64).map_err(|_| Errno::EINVAL)?;
    let place = path::place(call, AT_FDCWD, call.address(0), 0)?;
    match place.vnode().kind() {
        Kind::Regular => {}
        Kind::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    place.writable()?;
    place
        .vnode()
        .access(&call.credentials().fs, abi::raw::general::W_OK)?;
    check_size(&place, size)?;
    let _writing = fs::Writing::begin(place.vnode())?;
    place.truncate(size)?;
    Ok(0)
}

pub(super) fn ftruncate(call: &mut Call<'_>) -> Result<usize> {
    let size = u64::try_from(call.args[1] as i64).map_err(|_| Errno::EINVAL)?;
    let open = call.opened(0)?;
    let place = open.location().ok_or(Errno::EINVAL)?;
    if place.vnode().kind() != Kind::Regular || !open.flags().writes() {
        return Err(Errno::EINVAL);
    }
    check_size(place, size)?;
    place.truncate(size)?;
    Ok(0)
}

/// Checks that the current process may set a file's size: a file beyond the limit may shrink.
///
/// # Errors
/// Those of [`file_size::check`].
fn check_size(place: &Location, size: u64) -> Result<()> {
    match size > place.attributes()?.size {
        true => file_size::check(size),
        false => Ok(()),
    }
}

fn fallocate(call: &mut Call<'_>) -> Result<usize> {
    let (at, len) = (call.args[2] as i64, call.args[3] as i64);
    let open = call.files().get(call.int(0))?;
    if at < 0 || len <= 0 {
        return Err(Errno::EINVAL);
    }
    if at.checked_add(len).is_none() {
        return Err(Errno::EFBIG);
    }
    open.writable()?;
    let place = open.location().ok_or(Errno::ESPIPE)?;
    match place.vnode().kind() {
        Kind::Regular => {}
        Kind::Directory => return Err(Errno::EISDIR),
        Kind::Fifo => return Err(Errno::ESPIPE),
        _ => return Err(Errno::ENODEV),
    }
    if call.unsigned(1) & abi::raw::general::FALLOC_FL_KEEP_SIZE == 0 {
        file_size::check(at as u64 + len as u64)?;
    }
    place.allocate(call.unsigned(1), at as u64, len as u64)?;
    Ok(0)
}
