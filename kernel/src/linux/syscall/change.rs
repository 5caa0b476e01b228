//! Changing files: mode, owner, times, size.

use abi::{
    Errno, Result,
    raw::general::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, UTIME_NOW, UTIME_OMIT, W_OK},
};
use core::time::Duration;
use fs::{Kind, Location};
use nucleus::time;

use super::{Call, FlagSet, SystemCall, call, file_size, flag_set, path};

const AT_FLAGS: FlagSet = flag_set!("flags", [AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH], EINVAL);

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_chmod, |call| {
        change_mode(call, &path::named(call, 0)?, call.unsigned(1))
    }),
    call!(__NR_fchmod, fchmod),
    call!(__NR_fchmodat, |call| fchmodat(call, 0)),
    call!(__NR_fchmodat2, |call| {
        fchmodat(call, call.flags(3, &AT_FLAGS)?)
    })
    .flags(&[&AT_FLAGS]),
    call!(__NR_chown, |call| chown(call, 0)),
    call!(__NR_lchown, |call| chown(call, AT_SYMLINK_NOFOLLOW)),
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

/// The place of the open file in argument 0, which is to be changed.
fn open_place(call: &Call<'_>) -> Result<Option<Location>> {
    Ok(call.opened(0)?.location().cloned())
}

fn change_mode(call: &Call<'_>, place: &Location, mode: u32) -> Result<usize> {
    if place.vnode().kind() == Kind::Link {
        return Err(Errno::EOPNOTSUPP);
    }
    place.change_mode(&call.credentials().fs, mode & 0o7777)?;
    Ok(0)
}

fn fchmod(call: &mut Call<'_>) -> Result<usize> {
    match open_place(call)? {
        Some(place) => change_mode(call, &place, call.unsigned(1)),
        // A nameless pipe cannot be opened by its mode.
        None => Ok(0),
    }
}

fn fchmodat(call: &Call<'_>, flags: u32) -> Result<usize> {
    let place = path::place(call, call.int(0), call.address(1), flags)?;
    change_mode(call, &place, call.unsigned(2))
}

fn change_owner(call: &Call<'_>, place: &Location, uid: u32, gid: u32) -> Result<usize> {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    place.change_owner(&call.credentials().fs, given(uid), given(gid))?;
    Ok(0)
}

fn chown(call: &Call<'_>, flags: u32) -> Result<usize> {
    let place = path::place(call, AT_FDCWD, call.address(0), flags)?;
    change_owner(call, &place, call.unsigned(1), call.unsigned(2))
}

fn fchown(call: &mut Call<'_>) -> Result<usize> {
    match open_place(call)? {
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

/// Two times as a program gives them: seconds, and nanoseconds or `UTIME_NOW` or `UTIME_OMIT`. None
/// stands for both now.
type Given = Option<[[i64; 2]; 2]>;

/// The two `struct timeval`s that argument `n` points to.
fn timevals(call: &Call<'_>, n: usize) -> Result<Given> {
    let given: Given = call.read_if(n)?;
    let valid = |[_, microseconds]: &[i64; 2]| (0..1_000_000).contains(microseconds);
    match given.iter().flatten().all(valid) {
        true => Ok(given.map(|times| times.map(|[seconds, part]| [seconds, part * 1000]))),
        false => Err(Errno::EINVAL),
    }
}

impl Times {
    fn new(given: Given) -> Result<Times> {
        let now = given
            .iter()
            .flatten()
            .all(|time| time[1] as u32 == UTIME_NOW);
        let [accessed, modified] = given.unwrap_or([[0, UTIME_NOW.into()]; 2]);
        let accessed = moment(accessed)?;
        Ok(Times {
            accessed,
            modified: if now { accessed } else { moment(modified)? },
            now,
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
fn moment([seconds, nanoseconds]: [i64; 2]) -> Result<Option<Duration>> {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    match nanoseconds {
        _ if nanoseconds as u32 == UTIME_OMIT => Ok(None),
        _ if nanoseconds as u32 == UTIME_NOW => Ok(Some(time::since_epoch())),
        0..1_000_000_000 => Ok(Some(Duration::new(seconds, nanoseconds as u32))),
        _ => Err(Errno::EINVAL),
    }
}

fn utime(call: &mut Call<'_>) -> Result<usize> {
    let given: Option<[i64; 2]> = call.read_if(1)?;
    let times = Times::new(given.map(|times| times.map(|seconds| [seconds, 0])))?;
    times.set(call, &path::named(call, 0)?)
}

fn utimes(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::new(timevals(call, 1)?)?;
    times.set(call, &path::named(call, 0)?)
}

fn futimesat(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::new(timevals(call, 2)?)?;
    set_times_at(call, times, 0)
}

fn utimensat(call: &mut Call<'_>) -> Result<usize> {
    let times = Times::new(call.read_if(2)?)?;
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
        return match open_place(call)? {
            Some(place) => times.set(call, &place),
            None => Ok(0),
        };
    }
    let place = path::place(call, call.int(0), call.address(1), flags)?;
    times.set(call, &place)
}

fn truncate(call: &mut Call<'_>) -> Result<usize> {
    let size = u64::try_from(call.args[1] as i64).map_err(|_| Errno::EINVAL)?;
    let place = path::named(call, 0)?;
    match place.vnode().kind() {
        Kind::Regular => {}
        Kind::Directory => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    place.writable()?;
    place.vnode().access(&call.credentials().fs, W_OK)?;
    let _writing = fs::Writing::begin(place.vnode())?;
    file_size::within(call, |limit| {
        place.truncate(&call.credentials().fs, limit, size)
    })?;
    Ok(0)
}

fn ftruncate(call: &mut Call<'_>) -> Result<usize> {
    let size = u64::try_from(call.args[1] as i64).map_err(|_| Errno::EINVAL)?;
    let open = call.opened(0)?;
    let place = open.location().ok_or(Errno::EINVAL)?;
    if place.vnode().kind() != Kind::Regular || !open.flags().writes() {
        return Err(Errno::EINVAL);
    }
    file_size::within(call, |limit| {
        place.truncate(&call.credentials().fs, limit, size)
    })?;
    Ok(0)
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
    let (mode, who) = (call.unsigned(1), &call.credentials().fs);
    file_size::within(call, |limit| {
        place.allocate(who, limit, mode, at as u64, len as u64)
    })?;
    Ok(0)
}
